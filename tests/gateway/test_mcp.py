"""The official MCP client on a real gateway: both eras, tasks, cut lines, other principals, and a gateway that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client, types
from mcp.client import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from tests.gateway.real import RealGateway, real_gateway
from tests.kit import played

TASKS = "io.modelcontextprotocol/tasks"
NEW = "2026-07-28"
OPTIONS = {
    "setup": "tests.gateway.clerk:script",
    "hooks": {"mcp_tools": "tests.gateway.mcp_cast:TOOLS", "authenticate": "tests.gateway.mcp_cast:by_name"},
}
AGENTS = ["tests.gateway.clerk:Clerk", "tests.gateway.cast:Counter", "tests.gateway.mcp_cast:Importer"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    with real_gateway(tmp_path_factory.mktemp("mcp"), AGENTS, **OPTIONS) as started:
        yield started


@asynccontextmanager
async def client(at: RealGateway, mode: Any = NEW, name: str = "alice", **options: Any) -> AsyncGenerator[Client, None]:
    async with (
        httpx2.AsyncClient(headers={"x-name": name}, timeout=60, trust_env=False) as line,
        Client(streamable_http_client(f"{at.url}/mcp", http_client=line), mode=mode, **options) as opened,
    ):
        yield opened


def tried(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


Era = Literal["legacy", "2026-07-28"]
ERAS = pytest.mark.parametrize("mode", ["legacy", NEW])


@pytest.mark.shows(clients="P-194 P-198")
@ERAS
@played(tried)
async def test_tools_have_schemas_and_calls_tell_progress_and_structured_results(
    gateway: RealGateway, mode: Era
) -> None:
    async with client(gateway, mode) as opened:
        tools = {each.name: each for each in (await opened.list_tools()).tools}
        assert list(tools) == [
            "importer", "clerk", "counter_add", "start_run", "get_run", "cancel_run", "list_asks", "answer_ask",
        ]  # fmt: skip
        importer = tools["importer"]
        assert importer.description == "Import rows, and tell how far it is."
        assert importer.input_schema["properties"]["rows"] == {"type": "integer"}
        assert importer.output_schema is not None
        assert importer.output_schema["required"] == ["rows", "attempt"]
        assert importer.annotations is not None
        assert importer.annotations.title == "Importer"
        assert tools["get_run"].annotations.read_only_hint is True  # type: ignore[union-attr]
        heard: list[tuple[float, float | None, str | None]] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append((progress, total, message))

        result = await opened.call_tool("importer", {"rows": 3}, progress_callback=hear)
        assert (result.is_error, result.structured_content) == (False, {"rows": 3, "attempt": 1})
        assert heard == [(0.5, 1.0, "half way")]
        chat = await opened.call_tool("clerk", {"message": "words"})
        assert "Only words" in chat.content[0].text  # type: ignore[union-attr]
        first = await opened.call_tool("counter_add", {"agent": f"c-{mode}", "amount": 2})
        again = await opened.call_tool("counter_add", {"agent": f"c-{mode}", "amount": 2})
        assert (first.structured_content, again.structured_content) == ({"result": 2}, {"result": 4})


@ERAS
@played(tried)
async def test_what_is_wrong_is_told_to_the_model_without_a_traceback(gateway: RealGateway, mode: Era) -> None:
    async with client(gateway, mode) as opened:
        wrong = await opened.call_tool("importer", {"rows": "many"})
        assert wrong.is_error
        assert "rows" in wrong.content[0].text  # type: ignore[union-attr]
        failed = await opened.call_tool("importer", {"rows": -1})
        assert failed.is_error
        assert "there are no such rows" in failed.content[0].text  # type: ignore[union-attr]
        assert "Traceback" not in failed.content[0].text  # type: ignore[union-attr]
        nobody = await opened.call_tool("counter_add", {"amount": 2})
        assert nobody.is_error
        with pytest.raises(MCPError, match="there is no tool"):
            await opened.call_tool("nothing", {})


async def until(opened: Client, run: str, status: str) -> dict[str, Any]:
    """What `get_run` says once the run has a status."""
    while True:
        found = await opened.call_tool("get_run", {"run": run})
        assert found.structured_content is not None, found
        if found.structured_content["status"] == status:
            shown: dict[str, Any] = found.structured_content
            return shown
        await asyncio.sleep(0.05)


@played(tried)
async def test_a_client_without_tasks_starts_a_run_and_looks_at_it(gateway: RealGateway) -> None:
    async with client(gateway, "legacy") as opened:
        asked = {"tool": "importer", "arguments": {"rows": 1}, "idempotency_key": "k1"}
        begun = await opened.call_tool("start_run", asked)
        again = await opened.call_tool("start_run", asked)
        assert begun.structured_content is not None
        assert again.structured_content is not None
        run = begun.structured_content["run"]
        assert again.structured_content["run"] == run
        assert (await until(opened, run, "completed"))["output"] == {"rows": 1, "attempt": 1}
        other = {**asked, "arguments": {"rows": 2}}
        assert (await opened.call_tool("start_run", other)).is_error
        hanging = {"tool": "importer", "arguments": {"rows": 1, "gate": "/nowhere"}}
        waiting = await opened.call_tool("start_run", hanging)
        assert waiting.structured_content is not None
        await opened.call_tool("cancel_run", {"run": waiting.structured_content["run"]})
        await until(opened, waiting.structured_content["run"], "aborted")
    async with client(gateway, "legacy", name="bob") as stranger:
        assert (await stranger.call_tool("get_run", {"run": run})).is_error
        assert (await stranger.call_tool("cancel_run", {"run": run})).is_error


@pytest.mark.shows(clients="P-196")
@played(tried)
async def test_a_run_goes_on_without_its_caller_and_an_identical_call_joins_it(
    gateway: RealGateway, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    given = {"rows": 5, "gate": str(gate)}
    heard = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    async with client(gateway) as opened:
        lost = asyncio.ensure_future(opened.call_tool("importer", given, progress_callback=hear))
        await heard.wait()
        lost.cancel()
        await asyncio.wait({lost})
    async with client(gateway) as opened:
        heard.clear()
        joined = asyncio.ensure_future(opened.call_tool("importer", given, progress_callback=hear))
        await heard.wait()  # progress is told from the beginning
        gate.touch()
        assert (await joined).structured_content == {"rows": 5, "attempt": 1}
        run = await opened.call_tool("start_run", {"tool": "importer", "arguments": given})
        assert run.structured_content is not None  # the former has ended, so this is another one
        await until(opened, run.structured_content["run"], "completed")


@played(tried)
async def test_a_client_of_the_older_era_cancels_a_run_by_saying_so(gateway: RealGateway) -> None:
    heard = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    async with client(gateway, "legacy", name="carol") as opened:
        given = {"rows": 6, "gate": "/nowhere"}
        call = asyncio.ensure_future(opened.call_tool("importer", given, progress_callback=hear))
        await heard.wait()
        same = await opened.call_tool("start_run", {"tool": "importer", "arguments": given})
        assert same.structured_content is not None
        call.cancel()  # the client says `notifications/cancelled`
        await asyncio.wait({call})
        await until(opened, same.structured_content["run"], "aborted")


class Asked(types.Request[dict[str, Any], str]):
    """Any request, as it stands on the wire."""

    method: str
    params: dict[str, Any]


ANY: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


async def raw(opened: Client, method: str, **params: Any) -> dict[str, Any]:
    """A request, and its result as it stands on the wire."""
    return await opened.session.send_request(Asked(method=method, params=params), ANY)


async def task(opened: Client, name: str, **arguments: Any) -> str:
    """Call a tool and get a task for it."""
    told = await raw(opened, "tools/call", name=name, arguments=arguments)
    assert (told["resultType"], told["status"]) == ("task", "working"), told
    assert told["pollIntervalMs"] > 0
    return str(told["taskId"])


async def polled(opened: Client, task_id: str, status: str) -> dict[str, Any]:
    """The task once it has a status."""
    while True:
        told = await raw(opened, "tasks/get", taskId=task_id)
        assert told["resultType"] == "complete"
        if told["status"] == status:
            return told
        assert told["status"] == "working", told
        await asyncio.sleep(0.05)


@pytest.mark.shows(clients="P-199")
@played(tried)
async def test_a_client_with_the_extension_gets_a_task_and_polls_it(gateway: RealGateway) -> None:
    async with client(gateway, "auto", extensions=[advertise(TASKS)]) as opened:
        assert (opened.protocol_version, opened.server_capabilities.extensions) == (NEW, {TASKS: {}})
        whole = await polled(opened, await task(opened, "importer", rows=11), "completed")
        assert whole["result"]["structuredContent"] == {"rows": 11, "attempt": 1}
        failed = await polled(opened, await task(opened, "importer", rows=-11), "completed")
        assert failed["result"]["isError"] is True
        hanging = await task(opened, "importer", rows=11, gate="/nowhere")
        assert (await raw(opened, "tasks/cancel", taskId=hanging))["resultType"] == "complete"
        await polled(opened, hanging, "cancelled")
        with pytest.raises(MCPError) as unknown:
            await raw(opened, "tasks/get", taskId="nothing")
        # what is wrong is no task, but an error
        assert (await raw(opened, "tools/call", name="importer", arguments={"rows": "x"}))["isError"] is True
    async with client(gateway, name="bob", extensions=[advertise(TASKS)]) as stranger:
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError) as foreign:
                await raw(stranger, method, taskId=hanging)
            assert str(foreign.value) == str(unknown.value)


@pytest.mark.shows(clients="P-197")
@played(tried)
async def test_a_task_asks_what_its_chat_asks(gateway: RealGateway) -> None:
    async with client(gateway, extensions=[advertise(TASKS)]) as opened:
        asking = await task(opened, "clerk", message="please both")
        told = await polled(opened, asking, "input_required")
        approval, question = sorted(
            told["inputRequests"], key=lambda each: "May" not in str(told["inputRequests"][each])
        )
        assert told["inputRequests"][approval]["method"] == "elicitation/create"
        with pytest.raises(MCPError):
            await raw(opened, "tasks/update", taskId=asking, inputResponses={approval: {"content": {}}})
        said = {
            approval: {"action": "accept", "content": {"approved": True}},
            question: {"action": "accept", "content": {"result": "blue"}},
            "unknown": {"action": "accept"},
        }
        assert (await raw(opened, "tasks/update", taskId=asking, inputResponses=said))["resultType"] == "complete"
        whole = await polled(opened, asking, "completed")
        assert "risky" in whole["result"]["content"][0]["text"]


@pytest.mark.shows(clients="P-200")
def test_a_gateway_that_is_killed_loses_no_run(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def story(at: RealGateway) -> None:
        asked = {"tool": "importer", "arguments": {"rows": 7, "gate": str(gate)}, "idempotency_key": "k"}
        async with client(at, extensions=[advertise(TASKS)]) as opened, client(at, "legacy") as session:
            waiting = await task(opened, "importer", **asked["arguments"])  # type: ignore[arg-type]
            begun = await session.call_tool("start_run", asked)
            assert begun.structured_content is not None
            await asyncio.to_thread(at.kill)
            await asyncio.to_thread(at.start)
            gate.touch()
            whole = await polled(opened, waiting, "completed")
            assert whole["result"]["structuredContent"]["rows"] == 7
            # the process does not know the session, and serves it nevertheless
            again = await session.call_tool("start_run", asked)
            assert again.structured_content is not None
            assert again.structured_content["run"] == begun.structured_content["run"]
            found = await until(session, begun.structured_content["run"], "completed")
            assert found["output"]["rows"] == 7

    with real_gateway(tmp_path / "data", AGENTS, **OPTIONS) as gateway:
        tried(lambda: story(gateway))


@pytest.mark.thorough
@played(tried)
async def test_a_line_that_was_cut_is_replayed_in_its_session_and_to_nobody_else(
    gateway: RealGateway, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    version = "2025-11-25"
    ask = {"accept": "application/json, text/event-stream", "x-name": "dora", "mcp-protocol-version": version}
    async with httpx2.AsyncClient(base_url=gateway.url, headers=ask, timeout=60, trust_env=False) as line:
        about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        begun = await line.post("/mcp", json=rpc("initialize", 1, about))
        session = {"mcp-session-id": begun.headers["mcp-session-id"]}
        await line.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        call = {"name": "importer", "arguments": {"rows": 8, "gate": str(gate)}, "_meta": {"progressToken": 5}}
        last = ""
        async with line.stream("POST", "/mcp", json=rpc("tools/call", 2, call), headers=session) as answer:
            async for each in answer.aiter_lines():
                last = each.removeprefix("id: ") if each.startswith("id: ") else last
                if "notifications/progress" in each:
                    break
        gate.touch()
        rest = {**session, "last-event-id": last}
        async with line.stream("GET", "/mcp", headers={**rest, "x-name": "eve"}) as foreign:
            assert foreign.status_code == 404
        async with line.stream("GET", "/mcp", headers=rest) as answer:
            assert answer.status_code == 200
            async for each in answer.aiter_lines():
                if each.startswith("data: ") and '"id":2' in each:
                    assert '"rows":8' in each
                    break


@pytest.mark.thorough
@played(tried)
async def test_the_events_of_a_session_reach_no_other_one_although_both_have_a_request_of_that_number(
    gateway: RealGateway, tmp_path: Path
) -> None:
    gate, version = tmp_path / "gate", "2025-11-25"
    ask = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
    about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    async with httpx2.AsyncClient(base_url=gateway.url, headers=ask, timeout=60, trust_env=False) as line:
        sessions = {}
        for name in ("dora", "eve"):
            begun = await line.post("/mcp", json=rpc("initialize", 1, about), headers={"x-name": name})
            sessions[name] = {"x-name": name, "mcp-session-id": begun.headers["mcp-session-id"]}
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await line.post("/mcp", json=ready, headers=sessions[name])
        last = dict[str, str]()
        for name, rows in (("eve", 3), ("dora", 8)):  # eve's line is cut, then dora is answered
            call = {
                "name": "importer",
                "arguments": {"rows": rows, **({"gate": str(gate)} if name == "eve" else {})},
                "_meta": {"progressToken": 5},
            }
            posted = line.stream("POST", "/mcp", json=rpc("tools/call", 2, call), headers=sessions[name])
            async with posted as answer:
                async for each in answer.aiter_lines():
                    last[name] = each.removeprefix("id: ") if each.startswith("id: ") else last.get(name, "")
                    if name == "eve" and "notifications/progress" in each:
                        break
        seen: list[str] = []
        rest = {**sessions["eve"], "last-event-id": last["eve"]}
        async with line.stream("GET", "/mcp", headers=rest) as answer:
            gate.touch()
            async for each in answer.aiter_lines():
                seen.append(each)
        (end,) = [each for each in seen if '"id":2' in each]
        assert '"rows":3' in end
        assert '"rows":8' not in "".join(seen)


def rpc(method: str, number: int, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
