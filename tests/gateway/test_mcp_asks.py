"""What runs ask people reaches the MCP client that waits for them, and its answer the ledger; and the tools for the inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client, types
from mcp.client import advertise
from mcp.shared.exceptions import MCPError

from perdure.actors import Agent, RunContext
from perdure.actors import Client as PerdureClient
from perdure.actors.gateway.security import STDIO, Principal, Scope
from perdure.actors.mcp_server.elicitations import filled_in, form_elicitation
from perdure.actors.mcp_server.server import TASKS, InputRound, McpServer
from perdure.ledger import BadRequest
from perdure.policies import Answerer
from tests.actors.chat.talk import tell
from tests.gateway.clerk import CLERK, Clerk
from tests.gateway.test_mcp import ERAS, NEW, Era, polled, raw, task
from tests.gateway.world import gateway
from tests.kit import played

OPS = frozenset({"ops"})
ANN, BOB = Principal("ann", groups=OPS), Principal("bob", frozenset({Scope.READ, Scope.CHAT, Scope.OPERATE}), OPS)
LOCAL, READER = Principal(STDIO), Principal("rita", frozenset({Scope.READ, Scope.OPERATE}))


class Gate(Agent):
    """Asks before it opens."""

    async def run(self, input: dict[str, Any], run: RunContext) -> list[Any]:
        asked: dict[str, Any] = {"schema": bool, "to": "ops", "self_answer": True, **input}
        schema = {"bool": bool, "int": int, "list": list[int]}.get(str(asked.pop("kind", "bool")), asked["schema"])
        answer = await run.ask("Open?", **{**asked, "schema": schema})
        return [answer.value, answer.who, answer.channel, answer.args]


class House(Agent):
    """Has a gate."""

    async def run(self, input: dict[str, Any]) -> Any:
        return (await self.run_agent_tool(Gate, input)).output


Opened = Callable[..., Any]
Story = Callable[[Opened, PerdureClient], Awaitable[Any]]


def play(story: Story, **hooks: Any) -> None:
    """Play a story of MCP clients, each of which has a server of its own, and of a client of the directory."""

    async def played(client: PerdureClient) -> None:
        backend = gateway(client, [Clerk, Gate, House], **hooks).backend

        @asynccontextmanager
        async def opened(mode: Any = NEW, who: Principal = LOCAL, **options: Any) -> Any:
            server = McpServer(backend, (Gate, House, Clerk), who).server
            async with Client(server, mode=mode, **options) as mcp_client:
                yield mcp_client

        async with asyncio.timeout(600):
            await story(opened, client)
        await backend.close()

    tell(played, CLERK)


class Person:
    """Whoever sits before an MCP client: fills in forms, and sees which were shown and which were withdrawn."""

    def __init__(self, *answers: Any, thinks_s: float = 0) -> None:
        self._answers, self._thinks_s = list(answers), thinks_s
        self.shown: list[types.ElicitRequestFormParams] = []
        self.withdrawn = 0

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.shown.append(params)
        try:
            await asyncio.sleep(self._thinks_s)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        given = self._answers.pop(0)
        if given in ("decline", "cancel"):
            return types.ElicitResult(action=given)
        return types.ElicitResult(action="accept", content=given if isinstance(given, dict) else {"answer": given})


def structured(told: types.CallToolResult) -> Any:
    assert not told.is_error, told
    found = told.structured_content
    assert found is not None
    return found.get("result", found)


def words(told: types.CallToolResult) -> str:
    return str(told.content[0].text)  # type: ignore[union-attr]


async def until_asked(client: PerdureClient) -> dict[str, Any]:
    while not (asks := await client.ask("asks")):
        await asyncio.sleep(0.2)
    return dict(asks[0])


async def answered_elsewhere(client: PerdureClient, ask_id: str, value: object = True) -> None:
    await client.answer(ask_id, value, Answerer("eve", is_operator=True), "cli")


@ERAS
@pytest.mark.parametrize("tool", ["gate", "house"])
def test_what_a_run_and_those_below_it_ask_reaches_the_client_that_waits(mode: Era, tool: str) -> None:
    person = Person({"answer": True, "args.count": 3})

    async def story(opened: Opened, _: PerdureClient) -> None:
        async with opened(mode, elicitation_callback=person) as client:
            told = await client.call_tool(tool, {"args": {"count": 40, "to": ["a"]}})
            assert structured(told) == [True, STDIO, "mcp", {"count": 3, "to": ["a"]}]

    play(story)
    (form,) = person.shown
    assert form.message.startswith("Open?\nProposed arguments")
    assert form.requested_schema == {
        "type": "object",
        "properties": {
            "answer": {"type": "boolean"},
            "args.count": {"type": "integer", "default": 40},
            "args.to": {"type": "string", "default": '["a"]', "description": "As JSON."},
        },
        "required": ["answer"],
    }


@ERAS
def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(mode: Era) -> None:
    person = Person("no number", "[1, 2]")

    async def story(opened: Opened, _: PerdureClient) -> None:
        async with opened(mode, elicitation_callback=person) as client:
            assert structured(await client.call_tool("gate", {"kind": "list"}))[0] == [1, 2]

    play(story)
    assert "Answer with JSON of this schema" in person.shown[0].message
    assert person.shown[1].message.startswith("That was not taken: answer: 'no number' is no JSON\nOpen?")


def test_what_is_answered_elsewhere_is_withdrawn() -> None:
    person = Person(thinks_s=500)

    async def story(opened: Opened, perdure: PerdureClient) -> None:
        async with opened("legacy", elicitation_callback=person) as client:
            call = asyncio.ensure_future(client.call_tool("house", {}))
            while not person.shown:
                await asyncio.sleep(0.2)
            await answered_elsewhere(perdure, (await until_asked(perdure))["ask_id"])
            assert structured(await call) == [True, "eve", "cli", None]

    play(story)
    assert (len(person.shown), person.withdrawn) == (1, 1)


@ERAS
@pytest.mark.parametrize("left", ["decline", "cancel"])
def test_what_a_person_leaves_stays_open_for_others_and_is_not_shown_again(mode: Era, left: str) -> None:
    person = Person(left, True)

    async def story(opened: Opened, perdure: PerdureClient) -> None:
        async with opened(mode, elicitation_callback=person) as client:
            call = asyncio.ensure_future(client.call_tool("gate", {}))
            ask = await until_asked(perdure)
            await asyncio.sleep(10)
            assert (await until_asked(perdure)) == ask
            await answered_elsewhere(perdure, ask["ask_id"], False)
            assert structured(await call) == [False, "eve", "cli", None]

    play(story)
    assert len(person.shown) == 1


@played(play)
async def test_a_call_that_is_made_again_after_its_run_has_ended_begins_no_other(
    opened: Opened, perdure: PerdureClient, /
) -> None:
    async with opened(elicitation_callback=Person()) as client:
        given = {"name": "gate", "arguments": {}}
        told = await raw(client, "tools/call", **given)
        assert told["resultType"] == "input_required"
        (key,) = told["inputRequests"]
        await answered_elsewhere(perdure, (await until_asked(perdure))["ask_id"], False)
        said = {key: {"action": "accept", "content": {"answer": True}}}
        again = await raw(client, "tools/call", **given, requestState=told["requestState"], inputResponses=said)
        assert again["structuredContent"]["result"][:2] == [False, "eve"]
        for state in ("{", "[1]", "{}", '["nobody"]'):
            told = await raw(client, "tools/call", **given, requestState=state)
            assert told["isError"], state
        assert len(await perdure.ask("list", None, None, None, 100)) == 1


@played(play)
async def test_a_task_requires_what_its_run_and_those_below_it_ask(opened: Opened, perdure: PerdureClient, /) -> None:
    async with opened(extensions=[advertise(TASKS)]) as client:
        waiting = await task(client, "house", kind="int")
        ((key, asked),) = (await polled(client, waiting, "input_required"))["inputRequests"].items()
        assert asked["params"]["requestedSchema"]["properties"] == {"answer": {"type": "integer"}}
        for wrong in ({"answer": "x"}, {}):
            said = {key: {"action": "accept", "content": wrong}}
            with pytest.raises(MCPError):
                await raw(client, "tasks/update", taskId=waiting, inputResponses=said)
        said = {key: {"action": "accept", "content": {"answer": 7}}, "nothing": {"action": "cancel"}}
        for _ in range(2):
            await raw(client, "tasks/update", taskId=waiting, inputResponses=said)
        whole = await polled(client, waiting, "completed")
        assert whole["result"]["structuredContent"]["result"] == [7, STDIO, "mcp", None]


@played(play)
async def test_a_task_of_a_chat_requires_what_a_run_of_its_turn_asks(opened: Opened, perdure: PerdureClient, /) -> None:
    async with opened(extensions=[advertise(TASKS)]) as client:
        waiting = await task(client, "clerk", message="please inquire")
        ((key, asked),) = (await polled(client, waiting, "input_required"))["inputRequests"].items()
        assert asked["params"]["message"].startswith("Open the gate?")
        said = {key: {"action": "accept", "content": {"answer": True}}}
        await raw(client, "tasks/update", taskId=waiting, inputResponses=said)
        assert not (await polled(client, waiting, "completed"))["result"]["isError"]


@pytest.mark.parametrize(
    ("who", "input", "is_shown"),
    [
        (LOCAL, {"self_answer": False, "to": "ops"}, True),
        (ANN, {"self_answer": True}, True),
        (ANN, {"self_answer": False}, False),
        (BOB, {"to": "board"}, False),
        (BOB, {"to": "bob"}, True),
        (READER, {"to": None}, False),
    ],
)
def test_only_whoever_may_answer_is_asked(who: Principal, input: dict[str, Any], is_shown: bool) -> None:
    person = Person(True)

    async def story(opened: Opened, perdure: PerdureClient) -> None:
        async with opened("legacy", who, elicitation_callback=person) as client:
            call = asyncio.ensure_future(client.call_tool("gate", input))
            ask = await until_asked(perdure)
            assert ask["began_by"] == (None if who is LOCAL else who.name)
            await asyncio.sleep(5)
            if not is_shown:
                await answered_elsewhere(perdure, ask["ask_id"])
            assert structured(await call)[1] == (who.name if is_shown else "eve")

    play(story)
    assert len(person.shown) == is_shown


@played(lambda story: play(story, may_address=lambda who, kind, name: who.name == name))
async def test_the_inbox_has_no_questions_of_agents_that_a_principal_may_not_address_unless_it_is_named_in_them(
    opened: Opened, perdure: PerdureClient, /
) -> None:
    run = await perdure.start(Gate, {})
    given = {"ask_id": (row := await until_asked(perdure))["ask_id"], "value": True}
    eve, bea = [Principal(name, frozenset({Scope.READ, Scope.CHAT})) for name in ("eve", "bea")]
    async with opened(who=eve) as stranger, opened(who=replace(bea, groups=OPS)) as named:
        assert structured(await stranger.call_tool("list_asks", {})) == {"asks": []}
        assert f"no question {given['ask_id']!r} is known" in words(await stranger.call_tool("answer_ask", given))
        assert structured(await named.call_tool("list_asks", {})) == {"asks": [row]}
        assert structured(await named.call_tool("answer_ask", given))["status"] == "answered"
    assert (await run.result()).output[:2] == [True, "bea"]


@played(play)
async def test_a_client_without_forms_waits_and_people_answer_by_the_tools_of_the_inbox(
    opened: Opened, perdure: PerdureClient, /
) -> None:
    async with opened("legacy", ANN) as ann, opened("legacy", BOB) as bob, opened("legacy", READER) as rita:
        call = asyncio.ensure_future(ann.call_tool("gate", {"self_answer": False, "args": {"n": 1}}))
        row = await until_asked(perdure)
        for client in (ann, bob, rita):
            assert (await client.call_tool("list_asks", {})).structured_content == {"asks": [row]}
        assert (await bob.call_tool("list_asks", {"to": "board"})).structured_content == {"asks": []}
        given = {"ask_id": row["ask_id"], "value": True, "args": {"n": 2}, "digest": row["digest"]}
        assert "ann began the run" in words(await ann.call_tool("answer_ask", given))
        assert words(await rita.call_tool("answer_ask", given)) == "rita has not the scope 'chat'"
        refused = {
            "value: is missing": {"ask_id": row["ask_id"]},
            "ask_id: is missing": {"value": True},
            "answers for nobody else": {**given, "who": "eve"},
            "no question 'nobody:1'": {**given, "ask_id": "nobody:1"},
            "is not of type 'boolean'": {**given, "value": "maybe"},
            "has no such argument": {**given, "channel": "telepathy"},
            "no object of arguments": {**given, "args": 5},
            "has changed": {**given, "digest": "other"},
        }
        for said, wrong in refused.items():
            told = await bob.call_tool("answer_ask", wrong)
            assert (told.is_error, said in words(told)) == (True, True), words(told)
        told = await bob.call_tool("answer_ask", given)
        assert structured(told)["status"] == "answered"
        assert "already answered by bob (mcp)" in words(await bob.call_tool("answer_ask", given))
        assert structured(await call) == [True, "bob", "mcp", {"n": 2}]


@played(play)
async def test_where_nobody_is_known_the_tool_says_who_answers(opened: Opened, perdure: PerdureClient, /) -> None:
    async with opened("legacy") as client:
        call = asyncio.ensure_future(client.call_tool("gate", {"self_answer": False}))
        ask_id = (await until_asked(perdure))["ask_id"]
        await client.call_tool("answer_ask", {"ask_id": ask_id, "value": False, "who": "dora"})
        assert structured(await call) == [False, "dora", "mcp", None]


def row(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"question": "Which?", "schema": schema, "args": None, "note": None, **more}


FLAT = {"type": "object", "properties": {"n": {"type": "integer"}, "by": {"type": "string"}}, "required": ["n"]}
NESTED = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}}


@pytest.mark.parametrize(
    ("schema", "field", "given", "value"),
    [
        ({"type": "boolean"}, {"type": "boolean"}, False, False),
        ({"type": "number", "minimum": 1}, {"type": "number", "minimum": 1}, 1.5, 1.5),
        ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}, "b", "b"),
        ({"enum": [1, None, "x"]}, {"type": "string", "enum": ["1", "null", "x"]}, "null", None),
        ({"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["a"]}, "a", "a"),
        ({"type": "string", "pattern": "a+"}, "JSON", '"aa"', "aa"),
        ({"type": "string", "format": "uuid"}, "JSON", '"u"', "u"),
        ({"type": ["string", "null"]}, "JSON", "null", None),
        ({}, "JSON", "[1]", [1]),
        (NESTED, "JSON", '{"n": [1]}', {"n": [1]}),
    ],
)
def test_a_schema_is_a_field_of_a_form_or_its_json(schema: Any, field: Any, given: Any, value: Any) -> None:
    asked: Any = form_elicitation(row(schema))["params"]
    shown = asked["requestedSchema"]["properties"]["answer"]
    assert (shown["type"] == "string" and "JSON" in shown["description"]) if field == "JSON" else shown == field
    types.ElicitRequestFormParams.model_validate(asked)
    assert filled_in(row(schema), {"answer": given}) == (value, None)


def test_a_flat_object_is_a_form_as_it_is() -> None:
    asked: Any = form_elicitation(row(FLAT, args={"n": None, "on": True}, note="the code has changed"))["params"]
    assert asked["message"].startswith("Which?\nAsked again: the code has changed.")
    shown = asked["requestedSchema"]
    assert (shown["properties"]["n"], shown["required"]) == ({"type": "integer"}, ["n"])
    content = {"n": 4, "args.n": "null", "args.on": False}
    assert filled_in(row(FLAT, args={"n": None, "on": True}), content) == ({"n": 4}, {"on": False})


@pytest.mark.parametrize(
    ("schema", "content", "field"),
    [
        ({"type": "boolean"}, {}, "answer"),
        ({"enum": ["a"]}, {"answer": "c"}, "answer"),
        ({"enum": ["a"]}, {"answer": ["a"]}, "answer"),
        ({}, {"answer": "{"}, "answer"),
        ({"type": "boolean"}, {"answer": True, "args.n": "{"}, "args.n"),
    ],
)
def test_what_is_no_answer_is_refused(schema: Any, content: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        filled_in(row(schema, args={"n": [1]}), content)
    assert refused.value.field == field


def test_what_is_handed_back_says_which_run_it_is_about() -> None:
    assert InputRound.of(InputRound("r", frozenset({"b", "a"})).text) == ("r", {"a", "b"})
    assert InputRound.of(None) is None
    for wrong in ("", "{", "5", "[]", "[1]", '["r", 2]'):
        with pytest.raises(BadRequest):
            InputRound.of(wrong)
