"""What becomes of each call, and of each word, when the connection breaks around it: what the message keeps, and what is asked next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Client, agent_tool
from perdure.scenarios.provider.events import ArgumentsDelta, CallStart, Role
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Listener, Outside
from tests.actors.chat.talk import Worker, asks_for, bodies, call, streams, tell, until, until_parked, values

A, B = (
    ScriptedCall(name="work", arguments={"what": "a", "seconds": 5}),
    ScriptedCall(name="work", arguments={"what": "b", "seconds": 1}),
)
CUT = FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=6)})


def phases(heard: list[Any]) -> list[tuple[str, str]]:
    """Phase and mode of each recovery of a request."""
    told = [event.payload for event in heard if event.type == "chat:transport:recovery"]
    return [(each["phase"], each["mode"]) for each in told]


@pytest.mark.shows(chat_recovery="C-0814", transport_recovery="4 B10")
def test_a_tool_that_fails_while_the_connection_is_gone_reports_its_own_error() -> None:
    """Case 4: one part, with what the tool said, and no word of an interruption; the model reads it and goes on."""

    async def story(client: Client) -> None:
        result = await call(client, Worker, "chat", "go")
        assert result.ok, result
        failed, done = values(result.message, "toolCallId")
        assert failed == "call-a"
        assert done != "call-b"
        (words,) = values(result.message, "errorText")
        assert "a cannot be done" in words
        assert "OUTCOME" not in words
        assert "a cannot be done" in bodies()[1]

    heard = tell(story, streams(ScriptedCall(name="fail", arguments={"what": "a"}), B), CUT)
    assert Outside.effects["began", "a"] == 1
    assert phases(heard) == [("P7", "continue")]
    (why,) = [event.payload["why"] for event in heard if event.type == "chat:transport:recovery"]
    assert why.startswith("the connection was lost"), "that is the cause, and the tool's error is none (B10)"


@pytest.mark.shows(transport_recovery="3")
def test_a_tool_at_work_ends_its_work_though_the_provider_has_refused_for_good() -> None:
    """Case 3: it is not aborted, its result is kept, and the turn ends with the refusal; no further request is made."""
    wrong = Fault(
        kind=FaultKind.ERROR, event=6, type="authentication_error", code="invalid_api_key", message="Wrong key"
    )

    async def story(client: Client) -> None:
        result = await call(client, Worker, "chat", "go")
        assert (result.status, "Wrong key" in result.error) == ("error", True)
        assert values(result.message, "output") == ["worked on a"]
        assert not values(result.message, "errorText")

    tell(story, streams(A, B), FaultPlan.at({1: wrong}))
    assert (Outside.effects["began", "a"], Outside.effects["done", "a"], Outside.effects["stopped", "a"]) == (1, 1, 0)
    assert len(Outside.provider.log()) == 1


class Impatient(Worker):
    """Gives no tool more than two seconds."""

    tool_timeout_ms = 2_000


@pytest.mark.shows(chat_recovery="C-0815", sub_agents="B170", transport_recovery="5 11 43 63 B12")
@pytest.mark.parametrize("name", ["work", "brood"])
def test_a_tool_that_never_returns_costs_its_own_limit_and_is_told_with_caution(name: str) -> None:
    """Cases 5 and 11: the drain ends with the tool's own time, the call ran once, and the next request says what is not known."""
    first = ScriptedCall(name=name, arguments={"what": "a", "seconds": 900})

    async def story(client: Client) -> None:
        began_at = asyncio.get_running_loop().time()
        result = await call(client, Impatient, "chat", "go")
        assert result.ok, result
        assert asyncio.get_running_loop().time() - began_at < 30
        (words,) = values(result.message, "errorText")
        assert words.startswith("OUTCOME UNKNOWN: its time was over")
        assert "Do not issue it again blindly" in words
        assert "within 2000 ms" in words
        assert "OUTCOME UNKNOWN: its time was over" in bodies()[1]
        assert result.message["parts"][-1]["type"] == "text"

    heard = tell(story, streams(first, B), CUT)
    assert Outside.effects["began", "a"] == 1
    assert [event.type for event in heard if event.type.startswith("chat:turn")] == [
        "chat:turn:start",
        "chat:turn:finish",
    ]


@pytest.mark.shows(transport_recovery="6 19")
def test_a_call_whose_arguments_broke_off_is_written_again_and_runs_once() -> None:
    """Cases 6, 15, 19: nobody acts on half of them, no word of caution is said, and the failure is charged to its own step."""
    only = ScriptedCall(name="work", arguments={"what": "b", "seconds": 1})
    script = Script(
        questions=(ScriptedQuestion(asks="go", rounds=(Round(calls=(A,)), Round(calls=(only,)))), *SCRIPT.questions)
    )
    plan = FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=1), 3: Fault(kind=FaultKind.RESET, event=4)})

    async def story(client: Client) -> None:
        result = await call(client, Worker, "chat", "go")
        assert result.ok, result
        assert not values(result.message, "errorText")
        assert len(values(result.message, "toolCallId")) == 2

    heard = tell(story, script, plan)
    assert (Outside.effects["began", "a"], Outside.effects["began", "b"]) == (1, 1)
    assert phases(heard) == [("P0", "replay"), ("P3", "replay")]


@pytest.mark.shows(transport_recovery="18 48")
def test_each_loss_is_charged_to_the_attempt_that_it_broke() -> None:
    """Case 18: the calls of an earlier attempt are no facts of a later one, though they are of the same turn."""
    plan = FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=6), 2: Fault(kind=FaultKind.RESET, event=1)})

    async def story(client: Client) -> None:
        assert (await call(client, Worker, "chat", "go")).ok
        told = await call(client, Worker, "list_turns")
        assert told[0]["status"] == "completed"

    heard = tell(story, streams(A, B), plan)
    assert phases(heard) == [("P7", "continue"), ("P9", "replay")]
    assert (Outside.effects["began", "a"], Outside.effects["began", "b"]) == (1, 1)


def test_a_call_that_has_its_result_when_the_connection_breaks_is_told_apart_from_one_at_work() -> None:
    quick, slow = (ScriptedCall(name="work", arguments={"what": "a", "seconds": seconds}) for seconds in (0.1, 60))

    async def story(client: Client) -> None:
        assert (await call(client, Worker, "chat", "go")).ok

    for each, phase in ((quick, "P6"), (slow, "P5")):
        cut = FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=5, duration_ms=2_000)})
        # the call begins with event 4, and event 5 comes later than its result
        assert phases(tell(story, streams(each, B), cut, pace=Pace(between_ms=2_000))) == [(phase, "continue")]


LOST = Fault(kind=FaultKind.RESET, event=1)


@pytest.mark.parametrize(
    ("seconds", "lost", "event", "lost_again", "status"),
    [
        (0.1, 5, 6, 4, "completed"),  # it has its result before the connection breaks
        (5, 4, 6, 5, "completed"),  # and while the turn waits for it afterwards
        (5, 4, 6, 6, "error"),
        (0.1, 5, 3, 0, "error"),  # a call that was not whole has none
    ],
)
def test_a_result_of_a_tool_ends_the_row_of_lost_connections(
    seconds: float, lost: int, event: int, lost_again: int, status: str
) -> None:
    """It is progress that stays, although the answer that asked for it broke off (spec §4.11)."""
    more = range(lost + 2, lost + 2 + lost_again)
    faults = dict.fromkeys((*range(1, lost + 1), *more), LOST) | {lost + 1: Fault(kind=FaultKind.RESET, event=event)}

    async def story(client: Client) -> None:
        result = await call(client, Worker, "chat", "go")
        assert (result.status, result.reason) == (status, "" if status == "completed" else "recovery_exhausted")

    quick = ScriptedCall(name="work", arguments={"what": "a", "seconds": seconds})
    tell(story, streams(quick, B), FaultPlan.at(faults), pace=Pace(between_ms=300))
    assert len(Outside.provider.log()) >= lost + 1 + lost_again
    assert Outside.effects["began", "a"] == int(event == 6)


@pytest.mark.shows(transport_recovery="B2")
def test_a_half_written_call_in_front_of_a_whole_one_is_said_to_be_cut_off() -> None:
    """A8: a provider may begin several calls before it fills them. What stays half is settled, so the turn waits for nobody."""
    verbatim = (
        Role(),
        CallStart(index=0, id="call-half", name="work"),
        ArgumentsDelta(index=0, text='{"wh'),
        CallStart(index=1, id="call-whole", name="work"),
        ArgumentsDelta(index=1, text='{"what":"a","seconds":1}'),
        CallStart(index=2, id="call-third", name="work"),
        ArgumentsDelta(index=2, text='{"what"'),
        ArgumentsDelta(index=2, text=':"b"}'),
    )
    whole, lost = (
        ScriptedCall(name="work", arguments={"what": "a", "seconds": 1}),
        ScriptedCall(name="work", arguments={"what": "c", "seconds": 1}),
    )
    script = Script(
        questions=(ScriptedQuestion(asks="go", rounds=(Round(calls=(lost, whole)),), verbatim=(verbatim,)),)
    )

    async def story(client: Client) -> None:
        result = await call(client, Worker, "chat", "go")
        assert result.ok, result
        (words,) = values(result.message, "errorText")
        assert words.startswith("NOT RUN: this call of work was cut off while it was still being written")
        assert "call-third" not in values(result.message, "toolCallId")

    tell(story, script, FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=7)}))
    assert (Outside.effects["began", "a"], Outside.effects["began", "c"]) == (1, 1)


def test_a_call_that_was_allowed_but_had_not_begun_when_its_turn_failed_never_ran() -> None:
    """Case 6, B2: the model is told so in words, and is not left to believe that the call waits for its user still."""
    refused = Fault(kind=FaultKind.ERROR, event=6, type="invalid_request_error", message="No more", duration_ms=2_000)

    async def story(client: Client) -> None:
        listener = Listener()
        asking = asyncio.ensure_future(call(client, Worker, "chat", "go", listener))
        await until(lambda: "tool-approval-request" in listener.types)
        assert await call(client, Worker, "respond_to_approval", "call-a", True) is True
        result = await asking
        assert result.status == "error"
        (words,) = values(result.message, "errorText")
        assert words.startswith("NOT RUN: this call of risky was complete, but the turn failed")
        assert (await call(client, Worker, "chat", "words")).ok
        assert "NOT RUN: this call of risky" in bodies()[-1]

    tell(story, streams(ScriptedCall(name="risky", arguments={"what": "it"}), B), FaultPlan.at({1: refused}))
    assert not Outside.effects["risky", "it"]


@pytest.mark.shows(transport_recovery="7")
def test_a_result_that_comes_after_the_end_changes_nothing() -> None:
    """Case 7: an answer of a client, an approval, and a tool that could not be stopped are all too late, and are told so at once."""

    async def story(client: Client) -> None:
        await call(client, Worker, "submit_messages", "go", request_id="asked")
        call_id, _ = await until_parked(client, Worker)
        await call(client, Worker, "cancel_chat", "asked")
        before = await call(client, Worker, "get_messages")
        assert await call(client, Worker, "resolve_tool_call", call_id, "late") is False
        assert await call(client, Worker, "resolve_tool_call", call_id, None, "late") is False
        await asyncio.sleep(10)
        assert await call(client, Worker, "get_messages") == before

    tell(story, asks_for(ScriptedCall(name="ask_user"), A))
    assert Outside.effects["done", "a"] == 1


@pytest.mark.shows(transport_recovery="A3 B1 B15")
def test_a_tool_of_a_minute_outlives_a_connection_of_a_second() -> None:
    """A3, B1, B15: it is waited for under its own limit, it is never declared dead, and who watches is told what for."""

    async def story(client: Client) -> None:
        listener = Listener()
        result = await call(client, Worker, "chat", "go", listener)
        assert result.ok, result
        assert not values(result.message, "errorText")
        assert listener.ends == ["on_done"]
        told = [
            each[1]["data"] for each in listener.heard if each[0] == "on_event" and each[1]["type"] == "data-status"
        ]
        assert {"waitingFor": ["call-a"]} in told

    slow = ScriptedCall(name="work", arguments={"what": "a", "seconds": 60})
    tell(story, streams(slow, B), CUT)
    assert (Outside.effects["done", "a"], Outside.effects["stopped", "a"]) == (1, 0)


class Parent(Adder):
    """Has a chat as a tool."""

    def tools(self) -> list[Any]:
        """The child."""
        return [agent_tool(Worker, name="delegate", description="Ask another chat.")]


@pytest.mark.shows(transport_recovery="A13")
def test_a_child_agent_goes_on_while_its_parents_connection_is_gone() -> None:
    """A13: its turn is its own, with a budget of its own; the failures of one are not the other's."""
    first, second = (
        ScriptedCall(name="delegate", arguments={"message": words}) for words in ("words one", "words two")
    )
    plan = FaultPlan(
        rules=(
            Rule(fault=Fault(kind=FaultKind.RESET, event=6), asks="go", times=1),
            Rule(fault=Fault(kind=FaultKind.RESET, event=2), asks="words", times=2),
        )
    )

    async def story(client: Client) -> None:
        result = await call(client, Parent, "chat", "go", request_id="asked")
        assert result.ok, result
        assert len(values(result.message, "output")) == 2

    heard = tell(story, streams(first, second), plan, pace=Pace(between_ms=10))
    losses = [
        (event.agent_type.rpartition(":")[2], event.payload["recovery"])
        for event in heard
        if event.type == "chat:transport:recovery"
    ]
    assert losses.count(("Parent", 1)) == 1
    assert {agent for agent, _ in losses} == {"Parent", "Worker"}
    assert ("Parent", 2) not in losses
    asked = [record.asks for record in Outside.provider.log()]
    assert asked.count("words") == 4, "each child was asked once, and once again"


@pytest.mark.shows(transport_recovery="A14")
def test_a_question_that_is_open_when_the_connection_breaks_stays_open() -> None:
    """A14: the person answers when they like, and the call runs once, though the stream that asked is long gone."""
    first = ScriptedCall(name="risky", arguments={"what": "it"})

    async def story(client: Client) -> None:
        await call(client, Worker, "submit_messages", "go", request_id="asked")
        call_id, *_ = await until_parked(client, Worker)
        assert call_id == "call-a"
        assert await call(client, Worker, "respond_to_approval", call_id, True) is True
        result = await call(client, Worker, "attach", "asked")
        assert result.ok, result
        assert "did it" in values(result.message, "output")

    heard = tell(story, streams(first, B), CUT)
    assert Outside.effects["risky", "it"] == 1
    assert phases(heard) == [("P7", "continue")]
