"""Toolsets of pydantic-ai as tools: what is learned of them, and their calls, with a real MCP server as a process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent as LibraryAgent
from pydantic_ai import ApprovalRequired, CallDeferred, ModelRetry, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import FunctionToolset

from perdure.actors import ChatAgent, DurableAgent
from perdure.actors.chat.tool_schema import ToolContext
from perdure.actors.chat.tools import Tool
from perdure.actors.chat.toolsets import ToldToModel, checked_toolsets, effect_of, find_library_tool, listed
from perdure.ledger import BadRequest, UnknownTool
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import Outside, play
from tests.actors.chat.room import Room, Story, calls, outcomes, visit, visiting

SERVER = str(Path(__file__).parents[2] / "cluster" / "mcp_server.py")
CALL = ToolContext(call_id="call", run_id="run", attempt=1, idempotency_key="key", report_progress=print)


def free_port() -> int:
    """A port of loopback that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


PORT = free_port()


class OverStdio(ChatAgent):
    """Starts the server."""

    toolsets: ClassVar[Any] = [
        MCPToolset(StdioTransport(sys.executable, [SERVER], keep_alive=False), id="notes", init_timeout=60)
    ]


class OverHttp(ChatAgent):
    """Asks a server that runs elsewhere, or does not."""

    toolsets: ClassVar[Any] = [MCPToolset(f"http://127.0.0.1:{PORT}/mcp", id="notes", init_timeout=60)]


def no_trouble(doing: str, problem: Exception) -> None:
    """Nothing may go wrong."""
    raise AssertionError(doing) from problem


async def listed_of(agent: type[ChatAgent]) -> dict[str, Tool]:
    """Every tool of the server, listed with its effect."""
    tools = {each.name: each for each in await listed(agent, None, no_trouble)}
    assert {name: each.effect for name, each in tools.items()} == {
        "read": "pure", "append": "once", "put": "idempotent", "fail": "once",
    }  # fmt: skip
    assert tools["read"].spec.description == "Read a file."
    assert "path" in str(tools["read"].spec.parameters["properties"])
    return tools


async def called(tool: Tool, **given: Any) -> Any:
    """What it gives when it is called as another process would call it."""
    found = find_library_tool(tool.reference(), None)
    return await found.bound(given, CALL)()  # type: ignore[misc]


def test_the_tools_of_a_server_over_stdio(tmp_path: Path) -> None:
    """The server is a child process of whoever calls."""

    async def story() -> None:
        tools = await listed_of(OverStdio)
        assert await called(tools["put"], path=str(tmp_path / "note"), text="hello") == "put"

    asyncio.run(story())
    assert (tmp_path / "note").read_text("utf-8") == "hello"


async def used(path: Path) -> None:
    """The tools of a server over HTTP are listed, and called."""
    tools = await listed_of(OverHttp)
    assert await called(tools["put"], path=str(path), text="hello") == "put"
    assert await called(tools["read"], path=str(path)) == "hello"
    with pytest.raises(ToldToModel, match="Error executing tool fail"):
        await called(tools["fail"], why="no")


def test_the_tools_of_a_server_over_http_and_of_one_that_is_down(tmp_path: Path) -> None:
    """A server that is down has no tools, its calls fail, and it is found again when it is back."""

    async def down() -> None:
        troubles: list[str] = []
        assert await listed(OverHttp, None, lambda doing, problem: troubles.append(doing)) == []
        assert troubles == ["opening the toolset MCPToolset 'notes'"]
        reference = f"library#0#read#{OverHttp.__module__}:OverHttp"
        with pytest.raises(Exception, match=r"connect|Connect|attempts failed"):
            await find_library_tool(reference, None).bound({"path": "x"}, CALL)()  # type: ignore[misc]

    asyncio.run(down())
    server = subprocess.Popen([sys.executable, SERVER, str(PORT)], stderr=subprocess.DEVNULL)
    try:
        asyncio.run(_until_up(tmp_path / "note"))
    finally:
        server.kill()
        server.wait()


async def _until_up(path: Path) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", PORT)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break
    await used(path)


notes = FunctionToolset[None](id="notes")


@notes.tool_plain(metadata={"effect": "idempotent"})
async def look(what: str) -> str:
    """Look something up."""
    Outside.effects["looked", what] += 1
    return f"found {what}"


@notes.tool_plain(timeout=2.5)
async def refuse(what: str) -> str:
    """Refuse."""
    raise ModelRetry(f"not {what}")


@notes.tool
async def pay(context: RunContext[None], amount: int) -> str:
    """Pay. Much money needs an approval."""
    Outside.effects["asked to pay", amount] += 1
    if amount > 10 and not context.tool_call_approved:
        raise ApprovalRequired(metadata={"amount": amount})
    Outside.effects["paid", amount] += 1
    return f"paid {amount}"


@notes.tool(metadata={"effect": "idempotent"})
async def order(context: RunContext[None], what: str) -> str:
    """Order something. Somebody else will say what came."""
    Outside.effects["ordered", what, context.tool_call_id] += 1
    raise CallDeferred(metadata={"what": what})


@notes.tool_plain
async def rest(what: str) -> str:
    """Rest for a minute."""
    Outside.effects["rests", what] += 1
    await asyncio.sleep(60)
    Outside.effects["rested", what] += 1
    return "rested"


files = FunctionToolset[None](id="files")


@files.tool_plain
async def delete(name: str) -> str:
    """Delete a file."""
    Outside.effects["deleted", name] += 1
    return f"deleted {name}"


@files.tool_plain
async def insist(name: str) -> str:
    """Ask for an approval, whatever was said."""
    raise ApprovalRequired


class Looker(ChatAgent):
    """A chat agent with toolsets of the library beside its own tools."""

    toolsets: ClassVar[Any] = [
        notes,
        files.approval_required(lambda _context, _tool, given: given["name"] != "junk"),
    ]

    def get_model(self) -> Any:
        """The scripted provider."""
        return Outside.model


class LibraryLooker(DurableAgent):
    """The same by an agent of the library."""

    agent = LibraryAgent(toolsets=[notes])

    def get_model(self) -> Any:
        """The scripted provider."""
        return Outside.model


IT = {"what": "it"}
LOOKS = Script(
    questions=(
        calls("look", ScriptedCall(name="look", arguments=IT)),
        calls("refuse", ScriptedCall(name="refuse", arguments=IT)),
        calls("both", ScriptedCall(name="order", arguments=IT), ScriptedCall(name="rest", arguments=IT)),
        calls("rest", ScriptedCall(name="rest", arguments=IT)),
        calls("little", ScriptedCall(name="pay", arguments={"amount": 5})),
        calls("much", ScriptedCall(name="pay", arguments={"amount": 50})),
        calls("junk", ScriptedCall(name="delete", arguments={"name": "junk"})),
        calls("work", ScriptedCall(name="delete", arguments={"name": "work"})),
        calls("order", ScriptedCall(name="order", arguments=IT), ScriptedCall(name="look", arguments=IT)),
        calls("insist", ScriptedCall(name="insist", arguments={"name": "it"})),
    )
)


def test_a_tool_of_a_toolset_is_what_the_library_says_of_it() -> None:
    found = asyncio.run(listed(Looker, None, no_trouble))
    assert [(each.name, each.kind, each.effect, each.needs_approval, each.description) for each in found] == [
        ("look", "function", "idempotent", False, "Look something up."),
        ("refuse", "function", "once", False, "Refuse."),
        ("pay", "function", "once", False, "Pay. Much money needs an approval."),
        ("order", "function", "idempotent", False, "Order something. Somebody else will say what came."),
        ("rest", "function", "once", False, "Rest for a minute."),
        ("delete", "function", "once", False, "Delete a file."),
        ("insist", "function", "once", False, "Ask for an approval, whatever was said."),
    ]
    assert [each.timeout_ms for each in found] == [None, 2_500, None, None, None, None, None]


def test_a_chat_agent_calls_the_tools_of_a_toolset() -> None:
    """Each call is a run, as that of a function is."""
    Outside.begin(LOOKS)
    result, _, places = play("look", agent=Looker)
    assert outcomes(result.message) == [("output-available", "found it")]
    for place in range(1, places + 1, 9):
        Outside.begin(LOOKS)
        result, _, _ = play("look", agent=Looker, kill_at=place)
        assert outcomes(result.message) == [("output-available", "found it")], f"kill_at={place}"


def test_what_a_tool_of_the_library_refuses_is_told_in_its_words() -> None:
    """Without the name of the library's exception."""
    Outside.begin(LOOKS)
    result, _, _ = play("refuse", agent=Looker)
    assert outcomes(result.message) == [("output-error", "not it")]


@pytest.mark.parametrize(("question", "said"), [("little", "paid 5"), ("junk", "deleted junk")])
def test_a_call_that_needs_no_approval_does_not_ask(question: str, said: str) -> None:
    """The tool, or what wraps it, decides by the arguments."""
    Outside.begin(LOOKS)
    result, _, _ = play(question, agent=Looker)
    assert outcomes(result.message) == [("output-available", said)]


@pytest.mark.parametrize(
    ("question", "effect", "said"),
    [("much", ("paid", 50), "paid 50"), ("work", ("deleted", "work"), "deleted work")],
)
@pytest.mark.parametrize("approved", [True, False])
def test_a_tool_that_asks_for_approval_is_called_again_once_it_has_it(
    question: str, effect: tuple[str, object], said: str, *, approved: bool
) -> None:
    """Before that it does nothing. Whatever dies, it asks once and is called once more."""

    async def story(room: Room) -> tuple[str, object]:
        turn = room.soon("chat", question, request_id="asked")
        await room.until(lambda: room.is_("parked"))
        assert Outside.effects[effect] == 0
        (part,) = called_in(await room.do("get_messages"))
        assert part["state"] == "approval-requested"
        assert part["approval"].get("descriptor") == ({"amount": 50} if question == "much" else None)
        room.kill()
        await room.until(lambda: room.do("respond_to_approval", part["toolCallId"], approved))
        await room.until(lambda: room.is_("completed"))
        turn.cancel()
        return outcomes((await room.do("get_messages"))[-1])[0]

    end = visit(Looker, story, LOOKS)
    assert (end == ("output-available", said)) is approved, end
    assert Outside.effects[effect] == (1 if approved else 0)


def test_a_run_that_asks_for_approval_survives_deaths() -> None:
    """It asks once, and is called once more. A death while it works leaves its outcome unknown; it is not called again then."""

    for place in range(5, 150, 12):
        ((state, told),) = visit(Looker, approved_at_once("much"), LOOKS, kill_at=place)
        is_unknown = state == "output-error" and told.startswith("OUTCOME UNKNOWN")
        assert is_unknown or (state, told) == ("output-available", "paid 50"), f"kill_at={place}"
        assert Outside.effects["paid", 50] == 1


def test_a_tool_that_asks_although_it_is_approved_fails() -> None:
    """Else it would ask for ever."""

    told = visit(Looker, approved_at_once("insist"), LOOKS)
    assert told == [("output-error", "insist asks for an approval that it has been given.")]


def approved_at_once(question: str) -> Story:
    """A story in which a call is approved as soon as it asks; how the calls of the answer ended."""

    async def story(room: Room) -> list[tuple[str, Any]]:
        turn = room.soon("chat", question, request_id="asked")
        await room.until(lambda: room.is_("parked"))
        (part,) = called_in(await room.do("get_messages"))
        await room.do("respond_to_approval", part["toolCallId"], True)
        await room.until(lambda: room.is_("completed"))
        turn.cancel()
        return outcomes((await room.do("get_messages"))[-1])

    return story


@pytest.mark.parametrize("agent", [Looker, LibraryLooker])
@pytest.mark.parametrize("deaths", [False, True])
def test_a_deferred_call_waits_for_its_result_from_elsewhere(agent: type[ChatAgent], *, deaths: bool) -> None:
    """Whatever dies, it is called once, and the answer goes on with what somebody brought."""

    async def story(room: Room) -> None:
        turn = room.soon("chat", "order", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        ordered, looked = called_in(await room.do("get_messages"))
        assert (ordered["state"], looked["state"]) == ("input-available", "output-available")
        (told,) = [
            part["data"] for part in (await room.do("get_messages"))[-1]["parts"] if part["type"] == "data-deferred"
        ]
        assert (told["toolCallId"], told["about"]) == (ordered["toolCallId"], {"what": "it"})
        assert await room.do("has_pending_interaction")
        if deaths:
            room.kill()
            await room.until(lambda: room.do("has_pending_interaction"))
        for allowed in (True, False):
            assert not await room.do("respond_to_approval", ordered["toolCallId"], allowed), "it has begun, unasked"
        assert await room.do("resolve_tool_call", ordered["toolCallId"], {"came": "it"})
        assert not await room.do("resolve_tool_call", ordered["toolCallId"], "late")
        await room.until(lambda: room.is_("completed"))
        turn.cancel()
        assert outcomes((await room.do("get_messages"))[-1])[0] == ("output-available", {"came": "it"})
        assert Outside.effects["ordered", "it", ordered["toolCallId"]] == 1

    visit(agent, story, LOOKS)


@pytest.mark.parametrize("place", [30, 50, 70, 90])
def test_a_call_is_deferred_under_one_id_wherever_a_process_dies(place: int) -> None:
    async def story(room: Room) -> None:
        turn = room.soon("chat", "order", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        (ordered, _) = called_in(await room.do("get_messages"))
        assert await room.do("resolve_tool_call", ordered["toolCallId"], "came")
        await room.until(lambda: room.is_("completed"))
        turn.cancel()
        state, told = outcomes((await room.do("get_messages"))[-1])[0]
        assert (state, told) == ("output-available", "came")

    visit(Looker, story, LOOKS, kill_at=place)
    assert len([effect for effect in Outside.effects if effect[0] == "ordered"]) == 1


@pytest.mark.parametrize("agent", [Looker, LibraryLooker])
def test_a_cancelled_turn_leaves_no_deferred_call_open(agent: type[ChatAgent]) -> None:
    async def story(room: Room) -> None:
        turn = room.soon("chat", "order", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        assert await room.do("cancel_chat", "asked")
        turn.cancel()
        state, words = outcomes((await room.do("get_messages"))[-1])[0]
        assert (state, words[:15]) == ("output-error", "OUTCOME UNKNOWN"), "it has begun, whoever was to end it"
        assert not await room.do("has_pending_interaction")

    visit(agent, story, LOOKS)


@visiting(Looker, LOOKS)
async def test_a_call_that_was_put_off_beside_one_at_work_is_ended_with_its_turn(room: Room, /) -> None:
    await room.do("submit_messages", "both", request_id="asked")
    await room.until(lambda: Outside.effects["rests", "it"])
    await asyncio.sleep(5)
    assert await room.do("cancel_chat", "asked")
    result = await room.do("attach", "asked")
    assert [(state, words[:15]) for state, words in outcomes(result.message)] == [
        ("output-error", "OUTCOME UNKNOWN")
    ] * 2


@visiting(Looker, LOOKS)
async def test_a_turn_that_is_cancelled_before_its_toolset_is_open_again_stops_the_calls_of_an_earlier_life(
    room: Room, /
) -> None:
    await room.do("submit_messages", "rest", request_id="asked")
    await room.until(lambda: Outside.effects["rests", "it"])
    room.kill()
    assert await room.do("cancel_chat", "asked")
    result = await room.do("attach", "asked")
    ((state, words),) = outcomes(result.message)
    assert (result.status, state, words[:15]) == ("aborted", "output-error", "OUTCOME UNKNOWN")
    await asyncio.sleep(120)
    assert (Outside.effects["rests", "it"], Outside.effects["rested", "it"]) == (1, 0)


def called_in(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of the newest message."""
    return [part for part in messages[-1]["parts"] if "toolCallId" in part]


@pytest.mark.parametrize(
    ("metadata", "effect"),
    [
        (None, "once"),
        ({"annotations": {"readOnlyHint": True}}, "pure"),
        ({"annotations": {"idempotentHint": True}}, "idempotent"),
        ({"annotations": None}, "once"),
        ({"effect": "pure"}, "pure"),
        ({"effect": "whatever"}, "once"),
    ],
)
def test_the_effect_is_what_the_server_or_the_author_says(metadata: Any, effect: str) -> None:
    """Nothing said is the careful choice."""
    assert effect_of(metadata) == effect


class Wrong(ChatAgent):
    """Names what is no toolset."""

    toolsets: ClassVar[Any] = ["notes"]


def test_what_is_no_toolset_is_refused() -> None:
    """With its place; and a toolset that is gone is told of by its number."""
    with pytest.raises(BadRequest) as refused:
        asyncio.run(listed(Wrong, None, no_trouble))
    assert refused.value.field == "toolsets[0]"
    for given in ("notes", "", notes, {"notes"}):
        with pytest.raises(BadRequest, match="is not a list of toolsets"):
            checked_toolsets(given)
    assert checked_toolsets((notes, files)) == (notes, files)
    with pytest.raises(UnknownTool, match="no toolset number 3"):
        find_library_tool(f"library#3#look#{Looker.__module__}:Looker", None)


def test_a_tool_that_is_gone_says_what_there_is() -> None:
    """The code has changed since the call was asked for."""

    async def story(tool: Tool) -> None:
        await tool.bound({}, CALL)()  # type: ignore[misc]

    with pytest.raises(UnknownTool, match="no tool 'gone' any more; it has: look, refuse, pay"):
        asyncio.run(story(find_library_tool(f"library#0#gone#{Looker.__module__}:Looker", None)))
