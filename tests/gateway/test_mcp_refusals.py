"""What an MCP server refuses, told to the official client in words; and sessions that nobody ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http import EventMessage
from mcp.shared.exceptions import MCPError

from perdure.actors import Client as PerdureClient
from perdure.actors.gateway.security import Principal
from perdure.actors.mcp_server import transports as over_http
from perdure.actors.mcp_server.elicitations import QuestionsBelow
from perdure.actors.mcp_server.offers import offers_of
from perdure.actors.mcp_server.server import McpRuns, run_id_of
from perdure.ledger import HARD
from tests.actors.chat.desk import Outside
from tests.actors.chat.talk import tell
from tests.gateway.cast import Counter
from tests.gateway.clerk import CLERK, Clerk
from tests.gateway.door import Answer, Door
from tests.gateway.real import RealGateway, real_gateway
from tests.gateway.test_mcp import AGENTS, ERAS, NEW, OPTIONS, Era, tried
from tests.gateway.world import gateway as simulated
from tests.kit import played

MIB = 1024 * 1024
HANDSHAKE = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    with real_gateway(tmp_path_factory.mktemp("mcp"), AGENTS, **OPTIONS) as started:
        yield started


@asynccontextmanager
async def client(at: RealGateway, mode: Any = NEW, **headers: str) -> AsyncGenerator[Client, None]:
    """A client that sends these headers."""
    named = {f"x-{name}": value for name, value in headers.items()}
    async with (
        httpx2.AsyncClient(headers=named, timeout=60, trust_env=False) as line,
        Client(streamable_http_client(f"{at.url}/mcp", http_client=line), mode=mode) as opened,
    ):
        yield opened


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("start_run", {}, "tool: is missing"),
    ("start_run", {"tool": 5, "arguments": {}}, "tool: is int, not str"),
    ("start_run", {"tool": "importer"}, "arguments: is missing"),
    ("start_run", {"tool": "importer", "arguments": "rows"}, "arguments: is str, not dict"),
    ("start_run", {"tool": "importer", "arguments": [["rows", 1]]}, "arguments: is list, not dict"),
    ("start_run", {"tool": "importer", "arguments": {"rows": 1}, "idempotency_key": 7}, "idempotency_key: is int"),
    ("start_run", {"tool": "importer", "arguments": {"rows": 1}, "key": "k"}, "key: start_run has no such argument"),
    ("get_run", {}, "run: is missing"),
    ("cancel_run", {"run": ["r"]}, "run: is list, not str"),
]


@ERAS
@played(tried)
async def test_a_wrong_argument_of_the_tools_for_long_runs_is_named(gateway: RealGateway, mode: Era) -> None:
    async with client(gateway, mode) as opened:
        for name, given, words in WRONG:
            told = await opened.call_tool(name, given)
            assert told.is_error
            assert words in told.content[0].text  # type: ignore[union-attr]
        keyed = {"perdure/idempotencyKey": 7}
        told = await opened.call_tool("importer", {"rows": 1}, meta=keyed)  # type: ignore[arg-type]
        assert "perdure/idempotencyKey: is int, not str" in told.content[0].text  # type: ignore[union-attr]


@ERAS
@played(tried)
async def test_a_principal_without_a_scope_is_told_which_one_it_needs(gateway: RealGateway, mode: Era) -> None:
    async with client(gateway, mode, name="carl", scopes="chat") as opened:
        with pytest.raises(MCPError, match="carl has not the scope 'read'"):
            await opened.list_tools()
    async with client(gateway, mode, name="rita", scopes="read") as opened:
        assert await opened.list_tools()
        for name, given, scope in (
            ("importer", {"rows": 1}, "operate"),
            ("clerk", {"message": "x"}, "chat"),
            ("counter_add", {"agent": "a", "amount": 1}, "chat"),  # as over REST
        ):
            told = await opened.call_tool(name, given)
            assert f"rita has not the scope '{scope}'" in told.content[0].text  # type: ignore[union-attr]


@ERAS
@played(tried)
async def test_what_the_gateway_refuses_itself_reaches_the_client_in_words(gateway: RealGateway, mode: Era) -> None:
    async with client(gateway, mode) as opened:
        with pytest.raises(MCPError, match=f"{8 * MIB} are the most that is taken"):
            await opened.call_tool("clerk", {"message": "x" * (9 * MIB)})
        told = await opened.call_tool("clerk", {"message": "x" * (5 * MIB)})  # less than that is the agent's matter
        assert "the limit is" in told.content[0].text  # type: ignore[union-attr]
    async with httpx2.AsyncClient(base_url=gateway.url, headers={"x-name": "nobody"}, trust_env=False) as line:
        answer = await line.post("/mcp", json={})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["message"] == "the request names nobody: it has no valid token"


def test_a_gateway_that_offers_no_tool_says_so_in_words(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def story(at: RealGateway) -> None:
        with pytest.raises(BaseExceptionGroup) as refused:
            async with client(at, "legacy"):
                pass
        assert refused.group_contains(MCPError, match="no agent is offered over MCP here")

    with real_gateway(tmp_path_factory.mktemp("none"), ["tests.gateway.cast:Counter"]) as without:
        tried(lambda: story(without))


@pytest.mark.thorough
def test_sessions_that_nobody_ends_make_room_for_others_and_are_served_nevertheless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(over_http, "SESSIONS_MAX", 3)

    def rpc(method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    async def asked(door: Door, said: dict[str, Any], session: str = "") -> Answer:
        headers = HANDSHAKE | ({"mcp-session-id": session} if session else {})
        return await door.post("/mcp", body=json.dumps(said).encode(), headers=headers)

    async def story() -> None:
        app = simulated(None, [Counter], mcp_tools=[Counter.add])  # type: ignore[arg-type]
        door = Door(app)
        who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        try:
            opened = [await asked(door, rpc("initialize", **who)) for _ in range(8)]
            assert {each.status for each in opened} == {200}
            sessions = [each.headers["mcp-session-id"] for each in opened]
            of_each = [HANDSHAKE | {"mcp-session-id": each} for each in sessions]
            rests = [await door.get("/mcp", headers=each | {"last-event-id": "0:x"}) for each in of_each]
            assert [each.status for each in rests] == [503] * 5 + [200] * 3
            listed = await asked(door, rpc("tools/list"), sessions[0])
            assert b"counter_add" in listed.body
            assert {(await door.ask("DELETE", "/mcp", headers=each)).status for each in of_each} == {200}
            assert (await asked(door, rpc("tools/list"), sessions[0])).status == 404
        finally:
            await app.backend.close()

    asyncio.run(story())


def note(number: int) -> types.JSONRPCNotification:
    return types.JSONRPCNotification(jsonrpc="2.0", method=f"n{number}")


class Reader:
    """What a client is sent whose line was cut."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    async def send(self, each: EventMessage) -> None:
        self.sent.append((getattr(each.message, "method", "answer"), str(each.event_id)))

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.sent) < count:
                await asyncio.sleep(0)


@pytest.mark.thorough
async def test_a_cut_stream_goes_on_after_the_last_event_that_the_client_has_until_its_request_is_answered() -> None:
    """Neither that event again nor what other streams were told, nor what was kept only to number it; and nothing is lost in between."""
    kept, reader = over_http.RecentEvents(over_http.RecentStreams()), Reader()
    ids = [await kept.store_event("mine", each) for each in (None, note(0), note(1))]
    await kept.store_event("theirs", note(4))
    await kept.store_event("mine", None)
    reading = asyncio.create_task(kept.replay_events_after(ids[1], reader.send))
    await reader.until(1)
    ids.append(await kept.store_event("mine", note(2)))
    await reader.until(2)
    assert not reading.done()
    ids.append(await kept.store_event("mine", types.JSONRPCResponse(jsonrpc="2.0", id=3, result={})))
    assert await asyncio.wait_for(reading, 20) is None
    assert reader.sent == [("n1", ids[2]), ("n2", ids[3]), ("answer", ids[4])]
    reader.sent.clear()
    for nothing_more in (ids[4], "5:nobody", "x:mine", "-1:mine", ":mine", ""):
        assert await asyncio.wait_for(kept.replay_events_after(nothing_more, reader.send), 20) is None
    assert reader.sent == []


async def test_an_answer_that_comes_while_something_else_is_sent_is_sent_too() -> None:
    kept, sent = over_http.RecentEvents(over_http.RecentStreams()), list[object]()
    first = await kept.store_event("2", None)
    await kept.store_event("2", note(1))

    async def slowly(each: EventMessage) -> None:
        if not sent:
            await kept.store_event("2", types.JSONRPCResponse(jsonrpc="2.0", id=2, result={}))
            await kept.store_event("2", None)
        sent.append(each.message)

    assert await asyncio.wait_for(kept.replay_events_after(first, slowly), 20) is None
    assert [type(each).__name__ for each in sent] == ["JSONRPCNotification", "JSONRPCResponse"]


async def test_a_session_is_told_nothing_of_another_one_whose_request_has_the_same_id() -> None:
    streams, reader = over_http.RecentStreams(), Reader()
    mine, theirs = over_http.RecentEvents(streams), over_http.RecentEvents(streams)
    first = await mine.store_event("2", note(1))
    await theirs.store_event("2", types.JSONRPCResponse(jsonrpc="2.0", id=2, result={"secret": 1}))
    assert await theirs.replay_events_after("0:3", reader.send) is None
    reading = asyncio.create_task(mine.replay_events_after(first, reader.send))
    await mine.store_event("2", types.JSONRPCResponse(jsonrpc="2.0", id=2, result={}))
    await asyncio.wait_for(reading, 20)
    assert [words for words, _ in reader.sent] == ["answer"]


def test_who_follows_a_session_that_ends_or_a_stream_that_is_forgotten_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(over_http, "STREAMS_MAX", 2)

    async def story() -> None:
        streams, reader = over_http.RecentStreams(), Reader()
        kept, other = over_http.RecentEvents(streams), over_http.RecentEvents(streams)
        followed = [
            asyncio.create_task(each.replay_events_after(await each.store_event(name, None), reader.send))
            for each, name in ((kept, "a"), (other, "b"))
        ]
        await asyncio.sleep(0)
        await other.store_event("c", None)  # one stream too many
        assert await asyncio.wait_for(followed[0], 20) is None
        assert not followed[1].done()
        streams.end(other)
        assert await asyncio.wait_for(followed[1], 20) is None
        assert await other.replay_events_after("0:c", reader.send) is None

    asyncio.run(story())


def test_what_belongs_to_no_request_is_replayed_and_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_http, "EVENTS_MAX", 2)

    async def story() -> None:
        kept, reader = over_http.RecentEvents(over_http.RecentStreams()), Reader()
        for number in range(3):
            await kept.store_event(over_http.GET_STREAM_KEY, note(number))
        assert await kept.replay_events_after(f"0:{over_http.GET_STREAM_KEY}", reader.send) == over_http.GET_STREAM_KEY
        assert [words for words, _ in reader.sent] == ["n1", "n2"]

    asyncio.run(story())


RISKY = (
    ({"action": "accept"}, True),
    ({"action": "accept", "content": None}, True),
    ({"action": "accept", "content": {"approved": True}}, True),
    ({"action": "accept", "content": {"approved": False}}, False),
    ({"action": "accept", "content": {"approved": "yes"}}, False),
    ({"action": "decline"}, False),
    ({"action": "decline", "content": {}}, False),
    ({"action": "cancel"}, False),
    ({"action": "cancel", "content": None}, False),
    ({"action": "cancel", "content": {"approved": True}}, False),
)


@pytest.mark.parametrize(("said", "approved"), RISKY)
def test_only_who_accepts_approves(said: dict[str, Any], approved: bool) -> None:
    """A client that declines or cancels says nothing more, so nothing may be read out of its silence."""

    async def story(client: PerdureClient) -> None:
        backend = simulated(client, [Clerk]).backend
        who, runs, offer = Principal("alice"), McpRuns(backend), offers_of([Clerk])["clerk"]
        questions = QuestionsBelow(backend)
        handle = await runs.begin(who, offer, {"message": "please risk"}, "")
        run_id = run_id_of(who, handle)
        while not (asked := await questions.open(who, offer, run_id, await runs.seen(who, handle))):
            await asyncio.sleep(0.05)
        answers = dict.fromkeys(asked, said) | {"unknown": said}
        await questions.answer(who, offer, run_id, await runs.seen(who, handle), answers)
        while (known := await runs.seen(who, handle))["status"] not in HARD:
            await asyncio.sleep(0.05)
        assert known["status"] == "completed"
        assert await questions.open(who, offer, run_id, known) == {}

    tell(story, CLERK)
    assert Outside.effects["risky", 1] == int(approved)
