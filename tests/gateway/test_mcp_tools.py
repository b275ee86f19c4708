"""What an MCP server tells of its tools, runs and tasks, asked by the official client within the simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, types
from mcp.client import advertise
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from perdure.actors import Agent, exposed
from perdure.actors import Client as PerdureClient
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.mcp_server import server as mcp_runs
from perdure.actors.mcp_server.offers import offers_of
from perdure.actors.mcp_server.server import TASKS, McpRuns, McpServer, instant, run_id_of
from tests.actors.chat.talk import tell
from tests.gateway.clerk import CLERK, Clerk
from tests.gateway.test_mcp import ERAS, NEW, Era, polled, raw, task, until
from tests.gateway.world import gateway
from tests.kit import played

HERE, ELSEWHERE = Principal("here"), Principal("elsewhere")
Report = tuple[str, Any]


class Pace(BaseModel):
    """What is reported, a second after another; then it ends, or waits for ever."""

    reports: list[Report] = []
    ends: bool = True


class Pacer(Agent):
    """Reports."""

    async def run(self, input: Pace) -> dict[str, int]:
        """Report one after the other."""
        for what, value in input.reports:
            await asyncio.sleep(1)
            await self.report_progress(**{what: value})
        while not input.ends:
            await asyncio.sleep(60)
        if ("phase", "fails") in input.reports:
            raise ValueError("as it was told")
        return {"reports": len(input.reports)}


class Shelf(Agent):
    """Keeps things."""

    @exposed(repeatable=True)
    async def kept(self) -> list[str]:
        """What is kept."""
        return list(self.state.get("kept", []))

    @exposed
    async def keep(self, thing: str) -> None:
        """Keep something."""
        self.state["kept"] = [*self.state.get("kept", []), thing]


CHOICES = (Pacer, Clerk, Shelf.kept, Shelf.keep)
Opened = Callable[..., Any]


def play(story: Callable[[Opened], Awaitable[Any]]) -> None:
    """Play a story of clients, each of which has a server of its own in front of the same agents."""

    async def played(client: PerdureClient) -> None:
        backend = gateway(client, [Clerk, Shelf]).backend

        @asynccontextmanager
        async def opened(mode: Any = NEW, who: Principal = HERE, **options: Any) -> AsyncGenerator[Client, None]:
            async with Client(McpServer(backend, CHOICES, who).server, mode=mode, **options) as mcp_client:
                yield mcp_client

        await story(opened)
        await backend.close()

    tell(played, CLERK)


def words(told: types.CallToolResult) -> str:
    return str(told.content[0].text)  # type: ignore[union-attr]


@ERAS
@played(play)
async def test_each_tool_is_told_with_what_may_be_repeated_and_what_only_reads(opened: Opened, /, mode: Era) -> None:
    async with opened(mode) as client:
        tools = {each.name: each for each in (await client.list_tools()).tools}
    assert {
        name: (each.annotations.title, each.annotations.read_only_hint, each.annotations.idempotent_hint)
        for name, each in tools.items()
        if each.annotations is not None
    } == {
        "pacer": ("Pacer", None, None),
        "clerk": ("Clerk", None, None),
        "shelf_kept": ("Shelf kept", None, True),
        "shelf_keep": ("Shelf keep", None, False),
        "start_run": (None, False, None),
        "get_run": (None, True, None),
        "cancel_run": (None, False, None),
        "list_asks": (None, True, None),
        "answer_ask": (None, False, None),
    }
    assert {name: each.input_schema.get("required") for name, each in tools.items()} == {
        "pacer": None,
        "clerk": ["message"],
        "shelf_kept": ["agent"],
        "shelf_keep": ["agent", "thing"],
        "start_run": ["tool", "arguments"],
        "get_run": ["run"],
        "cancel_run": ["run"],
        "list_asks": [],
        "answer_ask": ["ask_id", "value"],
    }
    assert tools["start_run"].input_schema["properties"]["tool"]["enum"] == ["clerk", "pacer"]
    wrapped = {"result": {"items": {"type": "string"}, "type": "array"}}
    assert tools["shelf_kept"].output_schema == {"type": "object", "properties": wrapped, "required": ["result"]}
    assert tools["pacer"].output_schema == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert (tools["clerk"].output_schema, tools["shelf_keep"].output_schema) == (None, None)


@ERAS
@played(play)
async def test_a_method_is_called_at_the_agent_that_is_named(opened: Opened, /, mode: Era) -> None:
    async with opened(mode) as client:
        for thing in ("book", "vase"):
            told = await client.call_tool("shelf_keep", {"agent": "mine", "thing": thing})
            assert (told.is_error, told.structured_content) == (False, {"result": None})
        told = await client.call_tool("shelf_kept", {"agent": "mine"})
        assert (told.structured_content, words(told)) == (
            {"result": ["book", "vase"]},
            '{"result":["book","vase"]}',
        )
        assert (await client.call_tool("shelf_kept", {"agent": "other"})).structured_content == {"result": []}
        for given in ({}, {"agent": 5}):
            told = await client.call_tool("shelf_kept", given)
            assert (told.is_error, words(told)) == (True, "agent: name the agent")
        with pytest.raises(MCPError, match="there is no tool 'shelf_lost'"):
            await client.call_tool("shelf_lost", {})


@ERAS
def test_progress_rises_with_each_report_whatever_it_says(mode: Era) -> None:
    reports: list[Report] = [
        ("message", "begun"), ("fraction", 0.5), ("fraction", 0.25), ("milestone", "half"), ("phase", "last"),
        ("fraction", 1.0), ("message", "more"),
    ]  # fmt: skip
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async def story(opened: Opened) -> None:
        async with opened(mode) as client:
            given = {"reports": [list(each) for each in reports]}
            told = await client.call_tool("pacer", given, progress_callback=hear)
            assert told.structured_content == {"reports": 7}

    play(story)
    assert [each[0] for each in heard] == pytest.approx([1e-6, 0.5, 0.500001, 0.500002, 0.500003, 1.0, 1.000001])
    assert [each[0] for each in heard] == sorted({each[0] for each in heard})
    assert [each[1] for each in heard] == [1.0] * 6 + [None]
    assert [each[2] for each in heard] == ["begun", None, None, "half", "last", None, "more"]


@played(play)
async def test_a_run_is_begun_looked_at_and_cancelled_by_its_handle(opened: Opened, /) -> None:
    async with opened("legacy") as client:
        given: dict[str, Any] = {"reports": [["fraction", 0.5], ["milestone", "half"]], "ends": False}
        asked = {"tool": "pacer", "arguments": given, "idempotency_key": "k"}
        begun = (await client.call_tool("start_run", asked)).structured_content
        assert begun is not None
        assert set(begun) == {"run", "status"}
        assert (await client.call_tool("start_run", asked)).structured_content["run"] == begun["run"]  # type: ignore[index]
        await asyncio.sleep(5)
        told = (await client.call_tool("get_run", {"run": begun["run"]})).structured_content
        assert told is not None
        assert (set(told), told["status"]) == ({"run", "status", "progress", "milestones"}, "running")
        async with opened("legacy", ELSEWHERE) as stranger:
            for name in ("get_run", "cancel_run"):
                refused = await stranger.call_tool(name, {"run": begun["run"]})
                assert words(refused) == f"run: no run is known as {begun['run']!r}"
        await client.call_tool("cancel_run", {"run": begun["run"]})
        ended = await until(client, begun["run"], "aborted")
        assert "cancelled over MCP" in ended["error"]
        assert (await client.call_tool("cancel_run", {"run": begun["run"]})).structured_content == ended
        told = await client.call_tool("start_run", {"tool": "shelf_kept", "arguments": {"agent": "a"}})
        assert words(told) == "tool: shelf_kept is no run; call it"
        failed = await client.call_tool("pacer", {"reports": [["phase", "fails"]]})
        assert (failed.is_error, "as it was told" in words(failed)) == (True, True)


SCOPES = (
    ("pacer", {}, Scope.OPERATE),
    ("clerk", {"message": "words"}, Scope.CHAT),
    ("shelf_kept", {"agent": "a"}, Scope.CHAT),
    ("start_run", {"tool": "pacer", "arguments": {}}, Scope.OPERATE),
    ("start_run", {"tool": "clerk", "arguments": {"message": "words"}}, Scope.CHAT),
    ("get_run", {"run": "r"}, Scope.READ),
    ("cancel_run", {"run": "r"}, Scope.CHAT),
    ("list_asks", {}, Scope.READ),
    ("answer_ask", {"ask_id": "r:1", "value": True}, Scope.CHAT),
)


@pytest.mark.parametrize(("name", "given", "scope"), SCOPES)
def test_each_tool_asks_for_one_scope(name: str, given: dict[str, Any], scope: Scope) -> None:
    async def story(opened: Opened) -> None:
        for may in (True, False):
            who = Principal("rita", frozenset({scope} if may else set(Scope) - {scope}))
            async with opened("legacy", who) as client:
                told = await raw(client, "tools/call", name=name, arguments=given)
                refused = [{"type": "text", "text": f"rita has not the scope {scope.value!r}"}]
                assert (told["content"] == refused) is not may, told

    play(story)


@pytest.mark.parametrize("scope", [Scope.READ, Scope.CHAT])
@played(play)
async def test_only_who_may_read_is_told_which_tools_there_are(opened: Opened, /, scope: Scope) -> None:
    async with opened("legacy", Principal("rita", frozenset({scope}))) as client:
        if scope is Scope.READ:
            assert await client.list_tools()
            return
        with pytest.raises(MCPError, match="rita has not the scope 'read'"):
            await client.list_tools()


@played(play)
async def test_a_task_is_at_work_until_its_run_has_ended(opened: Opened, /) -> None:
    async with opened(extensions=[advertise(TASKS)]) as client:
        given: dict[str, Any] = {"reports": [["message", "begun"]], "ends": False}
        waiting = await task(client, "pacer", **given)
        assert await task(client, "pacer", **given) == waiting, "the same call is under way"
        told = await polled(client, waiting, "working")
        assert (told["ttlMs"], told["pollIntervalMs"], "statusMessage" in told) == (None, 1_000, False)
        assert told["lastUpdatedAt"] == told["createdAt"]
        await asyncio.sleep(5)
        later = await polled(client, waiting, "working")
        assert (later["statusMessage"], later["createdAt"]) == ("begun", told["createdAt"])
        assert later["lastUpdatedAt"] > told["lastUpdatedAt"]
        assert await raw(client, "tasks/cancel", taskId=waiting) == {"resultType": "complete"} | told_by(client)
        assert "result" not in await polled(client, waiting, "cancelled")
        another = await task(client, "pacer", **given)
        assert another != waiting, "that one has ended"
        await raw(client, "tasks/cancel", taskId=another)
        whole = await polled(client, await task(client, "pacer"), "completed")
        assert whole["result"]["structuredContent"] == {"reports": 0}


def told_by(client: Client) -> dict[str, Any]:
    """What every answer of the newer era has."""
    return {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "perdure", "version": ""}}}


@played(play)
async def test_a_task_of_a_chat_asks_its_client_and_goes_on_with_the_answers(opened: Opened, /) -> None:
    async with opened(extensions=[advertise(TASKS)]) as client:
        asking = await task(client, "clerk", message="please both")
        told = await polled(client, asking, "input_required")
        requests = {each["params"]["message"]: call for call, each in told["inputRequests"].items()}
        assert list(requests) == ["May risky be called with {'a': 1}?", "ask_user: {}"]
        risk, user = requests.values()
        schemas = {call: each["params"]["requestedSchema"] for call, each in told["inputRequests"].items()}
        assert schemas[risk]["properties"] == {"approved": {"type": "boolean"}}
        assert schemas[user]["properties"] == {"result": {"type": "string"}}
        with pytest.raises(MCPError, match="has no action"):
            await raw(client, "tasks/update", taskId=asking, inputResponses={risk: {"action": "perhaps"}})
        said = {risk: {"action": "decline"}, user: {"action": "accept", "content": {"result": "blue"}}}
        await raw(client, "tasks/update", taskId=asking, inputResponses=said)
        whole = await polled(client, asking, "completed")
        assert whole["result"]["isError"] is False


def test_the_same_key_is_the_same_run_for_ever_and_the_same_call_while_it_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is derived must not change: handles are kept by clients."""
    monkeypatch.setattr(mcp_runs, "PROBES_MAX", 3)
    assert run_id_of(HERE, "h") == "mcp-47a7853c5a7aed229cfb08a2ffedfb86"

    async def story(client: PerdureClient) -> None:
        backend = gateway(client, [Shelf]).backend
        runs, offer = McpRuns(backend), offers_of([Pacer])["pacer"]
        given = {"reports": [["fraction", 0.5]]}
        handles = [await runs.begin(HERE, offer, given, "k")]
        for _ in range(3):
            handles.append(await runs.begin(HERE, offer, given, ""))
            assert await runs.begin(HERE, offer, given, "") == handles[-1], "it is under way"
            await asyncio.sleep(10)
        handles += [await runs.begin(HERE, offer, given, "") for _ in range(2)]
        assert len(set(handles)) == 6, "where it is looked for no further, each call is a run of its own"
        assert handles[:2] == ["758f53f51f46a8e1a7416a480eff4f9d", "e7ce56a309bd664b69b74b65b4821ccc"]
        await backend.close()

    tell(story)


def test_an_instant_is_written_as_the_protocol_writes_it() -> None:
    assert instant(1_700_000_000_123) == "2023-11-14T22:13:20.123000Z"
