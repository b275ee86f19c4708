"""What a provider is asked after it failed, how often, and what is left on record of it."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Client
from perdure.scenarios.provider.events import Done
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.actors.chat.desk import WHOLE, Adder, Listener, Outside, ask, strike_at_work
from tests.actors.chat.talk import Worker, asks_for, bodies, call, tell, until, values

LIMITED = Fault(kind=FaultKind.ERROR, event=2, type="rate_limit_error", code="rate_limit_exceeded", message="Slow down")


def recoveries(heard: list[Any]) -> list[dict[str, Any]]:
    return [dict(event.payload) for event in heard if event.type == "chat:transport:recovery"]


@pytest.mark.shows(transport_recovery="22 44 54 57 B4")
def test_thoughts_that_a_rate_limit_cut_off_again_and_again_leave_a_notice_and_no_thought() -> None:
    """Cases 22 and 54: one request and five recoveries, each with a longer pause, then a notice; the record says which and why."""

    async def story(client: Client) -> None:
        listener = Listener()
        result = await call(client, Adder, "chat", "sum", listener, request_id="asked")
        assert (result.status, result.reason) == ("error", "recovery_exhausted")
        assert [part["type"] for part in result.message["parts"]] == ["data-notice"]
        assert listener.ends == ["on_error"]
        assert listener.types.count("data-retract") == 6, "each attempt withdrew what it had shown"
        told = await call(client, Adder, "inspect_turn", "asked")
        assert (told["status"], told["reason"], told["attempt"], told["incident"]) == ("error", result.reason, 1, None)
        assert (await call(client, Adder, "chat", "words")).ok
        assert "incomplete" not in bodies()[-1], "the notice is for people"

    heard = tell(story, plan=FaultPlan(rules=(Rule(fault=LIMITED, times=6),)))
    assert [(each["recovery"], each["phase"], each["mode"]) for each in recoveries(heard)] == [
        (number, "P1", "replay") for number in range(1, 6)
    ]
    at_ms = [record.at_ms for record in Outside.provider.log()[:6]]
    pauses = [later - earlier for earlier, later in itertools.pairwise(at_ms)]
    assert pauses == sorted(pauses)
    assert 1_000 <= pauses[0] <= 2_100
    finish = next(event for event in heard if event.type == "chat:turn:finish")
    assert finish.payload["status"] == "error"
    assert sum(pauses) - 1 < finish.payload["durationMs"] < sum(pauses) + 1_000, "instants are whole milliseconds"


@pytest.mark.shows(transport_recovery="25 35 B13")
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.RESET, FaultKind.END])
def test_a_text_that_was_cut_off_is_gone_on_with_and_never_spliced_in_silence(kind: FaultKind) -> None:
    """Case 25, B13: what people have read stays, the model is shown it, asked to go on, and says the rest once."""
    cut = Fault(kind=kind, event=3, type="server_error", message="The server had an error")

    async def story(client: Client) -> None:
        listener = Listener()
        result = await call(client, Adder, "chat", "words", listener)
        assert result.ok, result
        assert result.text == "Only words: 0 results.\nThat is all. ∎"
        assert "".join(values(result.message, "text")) == result.text
        shown = "".join(each[1]["delta"] for each in listener.heard if each[0] == "on_event" and "delta" in each[1])
        assert shown == result.text
        assert "data-retract" not in listener.types
        last = Outside.provider.log()[1].body["messages"]
        assert [each["role"] for each in last[-2:]] == ["assistant", "user"]
        assert result.text.startswith(last[-2]["content"])
        assert "cut off" in last[-1]["content"]

    heard = tell(story, plan=FaultPlan.at({1: cut}))
    assert [(each["phase"], each["mode"]) for each in recoveries(heard)] == [("P2", "continue")]


@pytest.mark.shows(transport_recovery="36")
@pytest.mark.parametrize(
    ("error", "requests"),
    [({"type": "server_error", "code": "server_is_overloaded"}, 2), ({"type": "odd", "code": "never_heard_of"}, 1)],
)
def test_an_error_in_the_stream_is_waited_out_only_if_it_is_known_to_pass(error: dict[str, str], requests: int) -> None:
    """Case 36: one that nobody knows ends the turn with its words."""

    async def story(client: Client) -> None:
        result = await call(client, Adder, "chat", "words")
        assert result.ok is (requests == 2)
        assert result.ok or "Something happened" in result.error

    failure = Fault(kind=FaultKind.ERROR, event=2, message="Something happened", **error)
    tell(story, plan=FaultPlan.at({1: failure}))
    assert len(Outside.provider.log()) == requests


def test_a_provider_that_sends_no_answer_is_asked_twice_more_and_then_it_is_said_what_it_sends() -> None:
    """The connection was fine, so nobody is told that it broke, and nobody waits for long."""
    script = Script(questions=(ScriptedQuestion(asks="words", rounds=(), verbatim=((Done(),),)),))

    async def story(client: Client) -> None:
        began_at = asyncio.get_running_loop().time()
        result = await call(client, Adder, "chat", "words")
        assert (result.status, result.reason) == ("error", "recovery_exhausted")
        assert "failed repeatedly (what came has no answer in it: text/event-stream" in result.error
        assert "data: [DONE]; check the provider's address, and that it can stream)" in result.error
        assert "connection" not in result.error
        assert asyncio.get_running_loop().time() - began_at < 7

    tell(story, script)
    assert len(Outside.provider.log()) == 3


class Alert(Adder):
    """Waits a second for the first event, and a minute between two."""

    chat_first_token_timeout_ms = 1_000
    chat_stream_stall_timeout_ms = 60_000


@pytest.mark.shows(chat_recovery="W-42", transport_recovery="28 60")
@pytest.mark.parametrize("event", [None, 0, 1])
def test_a_provider_that_never_begins_has_a_limit_of_its_own(event: int | None) -> None:
    """Cases 28 and 60: neither a connection nor an empty first frame is a word, and the one stall is a success in the end."""
    plan = FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=event)})

    async def story(client: Client) -> None:
        began_at = asyncio.get_running_loop().time()
        result, listeners = await ask(client, Alert, "words")
        assert asyncio.get_running_loop().time() - began_at < 5
        assert result.ok, result
        assert [each.ends for each in listeners] == [["on_interrupted"], ["on_done"]]
        assert Outside.provider.log()[0].ended == "gone", "the silent connection was closed"
        told = await call(client, Alert, "inspect_turn", "asked")
        assert (told["status"], told["attempt"], told["incident"]) == ("completed", 2, None)

    heard = [event.type for event in tell(story, plan=plan)]
    assert heard.count("chat:stream:stalled") == heard.count("chat:recovery:completed") == 1
    assert "chat:recovery:failed" not in heard


@pytest.mark.shows(transport_recovery="42 55 A16 B2")
def test_what_tools_did_in_a_turn_that_failed_is_in_the_next_request() -> None:
    """Cases 42 and 44: the error is the turn's, and no message is dropped for it; of notices the model reads nothing."""
    refused = Fault(
        kind=FaultKind.STATUS, status=401, type="invalid_request_error", message="Wrong key sk-abcdefghijkl"
    )

    async def story(client: Client) -> None:
        failed = await call(client, Adder, "chat", "sum")
        assert failed.status == "error"
        assert "Wrong key [key]" in failed.error, "a key is nobody's to read (case 55)"
        await call(client, Adder, "submit_messages", "sum", request_id="slow")
        await until(lambda: Outside.effects["double", 7] > 0)
        await call(client, Adder, "cancel_chat", "slow")
        assert (await call(client, Adder, "chat", "words")).ok
        said = Outside.provider.log()[-1].body["messages"]
        results = [each["content"] for each in said if each["role"] == "tool"]
        assert results[:3] == ["2", "3", "4"]
        assert len(results) > 3, "a cancelled answer is kept as far as it goes"
        assert "Wrong key" not in bodies()[-1]

    tell(story, plan=FaultPlan.at({2: refused}))


GONE = Fault(kind=FaultKind.RESET, event=1)


@pytest.mark.parametrize(
    ("name", "plan", "status"),
    [
        ("work", [5, 5], "completed"),
        ("work", [5, 6], "error"),
        ("work", [5, 5, 5, 5, 1], "error"),  # more than twenty in all
        ("ask_user", [5, 5], "completed"),
        ("ask_user", [5, 6], "error"),
    ],
)
def test_failures_in_a_row_are_counted_from_the_last_success(name: str, plan: list[int], status: str) -> None:
    """An answer that is whole ends the row, also one after which nothing but a person is waited for."""
    arguments = [{"what": str(number), "seconds": 0.1} for number in range(len(plan))]
    rounds = tuple(Round(calls=(ScriptedCall(name=name, arguments=each),)) for each in arguments)
    faults: dict[int, Fault] = {}
    at = 0
    for fails in plan:
        faults |= dict.fromkeys(range(at + 1, at + fails + 1), GONE)
        at += fails + 1

    async def story(client: Client) -> None:
        await call(client, Worker, "submit_messages", "go", request_id="asked")
        while (told := await call(client, Worker, "inspect_turn", "asked"))["status"] in (
            "accepted",
            "running",
            "parked",
        ):
            if told["status"] == "parked":
                (waits, *_) = await call(client, Worker, "get_messages", limit=1)
                assert await call(client, Worker, "resolve_tool_call", waits["parts"][-1]["toolCallId"], "yes") is True
            await asyncio.sleep(0.5)
        assert told["status"] == status
        assert status == "completed" or told["reason"] == "recovery_exhausted"

    tell(story, Script(questions=(ScriptedQuestion(asks="go", rounds=rounds),)), FaultPlan.at(faults))


class Switching(Adder):
    """Takes another model, under another name, for each request."""

    def get_model(self) -> Any:
        """The next one."""
        Outside.effects["models"] += 1
        return super().get_model()


@pytest.mark.shows(transport_recovery="B14")
def test_every_request_asks_for_its_model_also_one_that_recovers() -> None:
    """B14: there is no fail-over of ours, and an author's own needs no more than `get_model`."""

    async def story(client: Client) -> None:
        assert (await call(client, Switching, "chat", "words")).ok

    tell(story, plan=FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=1), 2: Fault(kind=FaultKind.RESET)}))
    assert Outside.effects["models"] == len(Outside.provider.log()) == 3


class Lasting(Worker):
    """Has one step, and no more."""

    max_steps = 1


def test_a_lost_connection_is_no_step() -> None:
    """`max_steps` bounds what the model does; how often it has to be asked for it is bounded by the budget of recovery (B4)."""
    lost = Fault(kind=FaultKind.RESET, event=2)

    async def story(client: Client) -> None:
        result = await call(client, Lasting, "chat", "words")
        assert result.ok, result
        result = await call(client, Lasting, "chat", "go")
        assert (result.status, result.reason) == ("error", "max_steps")
        assert values(result.message, "output") == ["worked on a"]

    tell(
        story,
        asks_for(ScriptedCall(name="work", arguments={"what": "a", "seconds": 1})),
        FaultPlan.at({1: lost, 2: lost, 3: lost}),
    )


@pytest.mark.shows(transport_recovery="A17 B1")
def test_a_late_result_corrects_what_the_model_was_told() -> None:
    """A17, B1: the tool was still running when its turn gave up waiting; when it has ended, the next turn begins with its result."""
    agents_host = strike_at_work()
    slow = asks_for(ScriptedCall(name="work", arguments={"what": "a", "seconds": 40}))
    Outside.begin(slow)
    with Laboratory(3, limits=replace(QUICK, reattach_no_progress_ms=5_000), kill_when=agents_host) as laboratory:

        async def story(client: Client) -> None:
            result, _ = await ask(client, Worker, "go")
            assert result.ok, result
            (words,) = values(result.message, "errorText")
            assert words.startswith("STILL RUNNING")
            assert "Do not issue it again" in words
            await until(lambda: Outside.effects["done", "a"] > 0)
            await asyncio.sleep(5)
            for _ in range(2):
                assert (await call(client, Worker, "chat", "words")).ok
            corrections = [
                each["parts"][0]["text"]
                for each in await call(client, Worker, "get_messages")
                if (each.get("metadata") or {}).get("source") == "late-result"
            ]
            assert len(corrections) == 1, "it is said once"
            assert corrections[0].startswith("CORRECTION")
            assert "worked on a" in corrections[0]
            assert "worked on a" in bodies()[-2]

        laboratory.play(story)
        laboratory.settle()
    assert agents_host.victims
    assert Outside.effects["began", "a"] == 1


@pytest.mark.parametrize("has_ended", [True, False])
def test_the_same_call_may_be_made_again_once_its_late_result_is_known_and_not_before(has_ended: bool) -> None:
    agents_host = strike_at_work()
    slow = ScriptedCall(name="work", arguments={"what": "a", "seconds": 40})
    script = asks_for(slow)
    again = ScriptedQuestion(asks="once more", rounds=(Round(calls=(slow,)),))
    Outside.begin(script.model_copy(update={"questions": (again, *script.questions)}))
    with Laboratory(3, limits=replace(QUICK, reattach_no_progress_ms=5_000), kill_when=agents_host) as laboratory:

        async def story(client: Client) -> None:
            result, _ = await ask(client, Worker, "go")
            assert values(result.message, "errorText")[0].startswith("STILL RUNNING")
            if has_ended:
                await until(lambda: Outside.effects["done", "a"] > 0)
                await asyncio.sleep(5)
            result = await call(client, Worker, "chat", "once more")
            assert result.ok, result
            if has_ended:
                assert values(result.message, "output") == ["worked on a"]
            else:
                assert values(result.message, "errorText")[0].startswith("NOT RUN: this is the same call of work")

        laboratory.play(story)
        laboratory.settle()
    assert agents_host.victims
    assert Outside.effects["began", "a"] == 1 + has_ended


@pytest.mark.shows(chat_recovery="W-48")
def test_a_turn_that_recovers_is_told_of_by_event_after_event() -> None:
    """Spec §10: begun, stalled, detected, attempted, scheduled, completed, finished; each under the turn's own id."""

    async def story(client: Client) -> None:
        result, _ = await ask(client, Adder, "sum")
        assert result.text == WHOLE

    heard = tell(story, plan=FaultPlan.at({2: Fault(kind=FaultKind.STALL, event=3)}))
    assert [event.type for event in heard] == [
        "chat:turn:start",
        "chat:stream:stalled",
        "chat:recovery:detected",
        "chat:recovery:attempt",
        "chat:recovery:scheduled",
        "chat:recovery:completed",
        "chat:turn:finish",
    ]
    assert {event.payload["requestId"] for event in heard} == {"asked"}
    base = {"incidentId", "attempt", "maxAttempts", "recoveryKind"}
    assert all(base <= event.payload.keys() for event in heard if event.type.startswith("chat:recovery"))
