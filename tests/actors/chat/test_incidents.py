"""The incident of a turn that was cut off: opened, counted, told, and closed with its turn; and its hooks, which stop nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from perdure.actors import ChatRecovery, ChatRecoveryContext, Client, KillPoint
from perdure.actors.chat.stream import last_boundary
from perdure.actors.events.observability import ObservedEvent, subscribe
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from perdure.scenarios.provider.script import ScriptedCall
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside, ask, strike_at_work
from tests.actors.chat.room import Room, visit
from tests.actors.chat.talk import Worker, asks_for, call, values
from tests.kit import Death

STALL = Fault(kind=FaultKind.STALL, event=3)
TOLD: list[Any] = []


class Told(Adder):
    """Writes down, in order, what its hooks are told."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Remember."""
        TOLD.append(context)
        return None

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Remember."""
        TOLD.append(response["status"])


def story_of(
    agent: type[Adder], plan: FaultPlan, question: str = "sum", kill_when: Any = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Play one question to its true end; its result and its row. `TOLD` has what hooks were told, among the events of the channel."""
    TOLD.clear()
    Outside.begin(SCRIPT, plan)
    forget = subscribe("chat", TOLD.append)

    async def story(client: Client) -> tuple[Any, dict[str, Any]]:
        result, _ = await ask(client, agent, question, **options)
        return result, await call(client, agent, "inspect_turn", "asked")

    try:
        with Laboratory(3, kill_when=kill_when) as laboratory:
            result, row = laboratory.play(story)
            laboratory.settle()
            laboratory.simulation.raise_errors()
    finally:
        forget()
    return result, row


def names() -> list[str]:
    """What was told, by its name."""
    return [
        each.type if isinstance(each, ObservedEvent) else each if isinstance(each, str) else type(each).__name__
        for each in TOLD
    ]


@pytest.mark.shows(chat_recovery="C-0189 C-0192 C-0194 C-0195 C-0239 C-0297 C-1083", sub_agents="B171")
def test_a_recovery_happens_in_one_order_and_leaves_a_turn_like_any_other() -> None:
    """C-0189, C-0192, C-0194, C-0195, C-0239, C-0273, C-0297: found, counted, announced; then the hook; then it is over and gone."""
    tools = [{"name": "ask_user", "description": "Ask.", "parameters": {"type": "object"}}]
    result, row = story_of(Told, FaultPlan.at({2: STALL}), metadata={"page": 7}, client_tools=tools)
    assert result.text == WHOLE
    assert names() == [
        "chat:turn:start",
        "chat:stream:stalled",
        "chat:recovery:detected",
        "chat:recovery:attempt",
        "chat:recovery:scheduled",
        "ChatRecoveryContext",
        "chat:recovery:completed",
        "chat:turn:finish",
        "completed",
    ]
    context = TOLD[5]
    assert TOLD[3].payload["incidentId"] == context.incident_id == "asked:asked-0"
    assert TOLD[3].payload["recoveryKind"] == context.recovery_kind == "continue"
    base = {"incidentId": context.incident_id, "attempt": 1, "maxAttempts": 10, "recoveryKind": "continue"}
    assert TOLD[4].payload == {"requestId": "asked", **base, "cause": "stall", "reason": None}
    assert TOLD[6].payload == {"requestId": "asked", **base}
    assert (context.last_body, context.last_client_tools) == ({"page": 7}, tools)
    assert [message["id"] for message in context.messages] == ["asked-0"]
    assert (row["status"], row["incident"], row["attempt"], row["metadata"]) == ("completed", None, 2, {"page": 7})
    assert row["work"] > 4, "each call, each result and each text is progress"


@pytest.mark.shows(chat_recovery="C-0272 C-0273")
def test_progress_counts_from_nothing() -> None:
    """C-0272, C-0273: a turn that has not begun has made none, and it never falls."""
    seen: list[int] = []

    async def story(client: Client) -> None:
        told = await call(client, Adder, "submit_messages", "sum", request_id="asked")
        seen.append(told["work"])
        while told["status"] != "completed":
            await asyncio.sleep(0.02)
            told = await call(client, Adder, "inspect_turn", "asked")
            seen.append(told["work"])

    Outside.begin(SCRIPT)
    with Laboratory(3) as laboratory:
        laboratory.play(story)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] >= 8


class Fatal(Told):
    """Its model is gone when the turn is recovered."""

    def get_model(self) -> Any:
        """Raise from the second attempt on."""
        if any(isinstance(each, ChatRecoveryContext) for each in TOLD):
            raise LookupError("the model was withdrawn")
        return super().get_model()


@pytest.mark.shows(chat_recovery="C-0196 C-0246")
def test_a_recovery_that_fails_closes_its_incident_with_the_cause() -> None:
    """C-0196, C-0246: the turn ends once, in words; the incident is sealed with it and says why."""
    result, row = story_of(Fatal, FaultPlan.at({2: STALL}))
    assert (result.status, result.reason) == ("error", "LookupError")
    assert "the model was withdrawn" in result.error
    assert (row["incident"]["status"], row["incident"]["reason"]) == ("failed", "LookupError")
    assert names()[-4:] == ["chat:request:failed", "chat:recovery:failed", "chat:turn:finish", "error"]
    assert TOLD[-3].payload["reason"] == "LookupError"


def test_a_hook_that_kills_its_process_uses_up_attempts() -> None:
    """An incident is durable before anybody is asked about it, so that a recovery which never gets further is given up, too (W-27)."""
    after_the_hook = Death(
        KillPoint.MID_STORAGE, of="before", when=lambda: bool(TOLD) and isinstance(TOLD[-1], ChatRecoveryContext)
    )
    result, row = story_of(Told, FaultPlan.at({2: STALL}), kill_when=after_the_hook)
    assert after_the_hook.victims
    assert result.text == WHOLE
    assert names().count("chat:recovery:detected") == 1
    assert names().count("chat:recovery:attempt") == 2
    assert (row["incident"], row["attempt"]) == (None, 2)


class Declining(Told):
    """Does not go on."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Say so."""
        TOLD.append(context)
        return {"continue": False}


@pytest.mark.shows(chat_recovery="C-0197")
def test_a_recovery_that_was_declined_closes_its_incident_as_skipped() -> None:
    """C-0197: sealed with its reason, told once."""
    result, row = story_of(Declining, FaultPlan.at({2: STALL}))
    assert result.status == "error"
    assert (row["incident"]["status"], row["incident"]["reason"]) == ("skipped", "continue_disabled")
    assert names().count("chat:recovery:skipped") == 1
    assert "chat:recovery:failed" not in names()


def _refuse(_context: Any) -> None:
    TOLD.append(_context)
    raise RuntimeError("I do not want to hear of it")


class Spent(Told):
    """Has patience for one attempt; whoever is told of that raises."""

    chat_stream_stall_timeout_ms = 40_000
    chat_recovery = ChatRecovery(max_attempts=1, terminal_message="No more.", on_exhausted=_refuse)


class Silent(Spent):
    """The same, and nobody is told."""

    chat_recovery = ChatRecovery(max_attempts=1, terminal_message="No more.")


@pytest.mark.shows(chat_recovery="C-0225 C-0226 C-0227 C-0228 C-0229 C-1086 C-1110 C-1111")
@pytest.mark.parametrize(("agent", "event"), [(Spent, 2), (Silent, 2), (Spent, None)])
def test_an_exhausted_turn_ends_whatever_its_hook_does(
    agent: type[Told], event: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """C-0225 to C-0229, C-0245, C-1110, C-1111: the event, then the hook, then the end with the same words; no recovery is asked about."""
    with caplog.at_level(logging.WARNING):
        result, row = story_of(
            agent, FaultPlan(rules=(Rule(fault=Fault(kind=FaultKind.STALL, event=event), times=None),)), "words"
        )
    assert (result.status, result.error, result.reason) == ("error", "No more.", "max_attempts_exceeded")
    assert row["incident"]["status"] == "exhausted"
    last = names()[names().index("chat:recovery:exhausted") :]
    hook = ["ExhaustedContext"] if agent is Spent else []
    assert last == ["chat:recovery:exhausted", *hook, "chat:turn:finish", "error"]
    if agent is Spent:
        context = next(each for each in TOLD if type(each).__name__ == "ExhaustedContext")
        assert (context.reason, context.terminal_message) == (result.reason, result.error)
        assert context.incident_id == row["incident"]["incident_id"]
        assert context.recovery_kind == ("retry" if event is None else "continue")
        assert caplog.text.count("on_exhausted") == 1


class Muddled(Told):
    """Has an answer that is no text."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, Any] | None:
        """A number."""
        return {"answer": 42}


def test_an_answer_of_the_recovery_hook_that_is_no_text_is_told_in_the_log_and_the_turn_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        result, _ = story_of(Muddled, FaultPlan.at({1: STALL}))
    assert result.ok
    assert "on_chat_recovery: answer: 42 is int, not a text" in caplog.text


def _undecided(_context: Any) -> bool:
    TOLD.append("asked")
    raise RuntimeError("I cannot say")


class Undecided(Told):
    """Cannot say whether to go on."""

    chat_recovery = ChatRecovery(should_keep_recovering=_undecided)


@pytest.mark.shows(chat_recovery="C-0245")
def test_a_life_that_finds_a_turn_whose_patience_is_gone_ends_it_and_asks_for_nothing() -> None:
    """C-0245: no hook is asked whether it shall go on, and no model for an answer."""
    TOLD.clear()
    forget = subscribe("chat", TOLD.append)

    async def story(room: Room) -> None:
        await room.do("submit_messages", "words", request_id="asked")
        await room.until(lambda: len(Outside.provider.log()) == 2)
        assert names()[-1] == "ChatRecoveryContext"
        await asyncio.sleep(35)
        room.kill()
        result = await room.do("attach", "asked")
        assert (result.status, result.error, result.reason) == ("error", "No more.", "max_attempts_exceeded")

    try:
        visit(Spent, story, plan=FaultPlan(rules=(Rule(fault=Fault(kind=FaultKind.STALL), times=None),)))
    finally:
        forget()
    last = names()[len(names()) - names()[::-1].index("ChatRecoveryContext") :]
    attempt, *after = last
    assert attempt == "chat:recovery:attempt"
    assert after == ["chat:recovery:exhausted", "ExhaustedContext", "chat:turn:finish", "error"]
    assert len(Outside.provider.log()) == 2


@pytest.mark.shows(chat_recovery="C-0288")
def test_a_predicate_that_raises_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """C-0288: the turn goes on, and its author reads once why they were not heard."""
    stall = Fault(kind=FaultKind.STALL)
    with caplog.at_level(logging.WARNING):
        result, _ = story_of(Undecided, FaultPlan.at({1: stall, 2: stall}), "words")
    assert result.ok, result
    assert names().count("asked") == 1, "not at the first loss, but at the second"
    assert caplog.text.count("failed in should_keep_recovering") == caplog.text.count("I cannot say\n") == 1


class Dropping(Worker):
    """Wants none of its half answers."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Drop what there is."""
        TOLD.append(context)
        return {"persist": False}


@pytest.mark.shows(transport_recovery="B9")
def test_a_call_that_has_begun_is_not_dropped_with_a_half_answer() -> None:
    """It would be made again under another id, and happen twice: what has begun is work, though it has no result yet (invariant 4)."""
    while_it_works = strike_at_work()
    TOLD.clear()
    Outside.begin(asks_for(ScriptedCall(name="work", arguments={"what": "a", "seconds": 5})))
    with Laboratory(3, kill_when=while_it_works) as laboratory:
        result, _ = laboratory.play(lambda client: ask(client, Dropping, "go"))
        laboratory.settle()
    assert while_it_works.victims
    assert result.ok, result
    assert [context.cause for context in TOLD] == ["process_lost"]
    assert Outside.effects["began", "a"] == 1
    assert "worked on a" in values(result.message, "output")


def test_a_step_that_was_withdrawn_says_nothing_of_where_a_turn_stands() -> None:
    """Nor does its end: a turn whose whole answer was dropped after its last word is not answered (W-05)."""
    first = [{"type": "start-step"}, {"type": "finish-step", "finishReason": "tool_call"}]
    second = [{"type": "start-step"}, {"type": "finish-step", "finishReason": "stop"}]
    withdrawn = {"type": "data-retract", "data": {"parts": 0, "step": True}}
    assert last_boundary([*second, withdrawn]) is None
    assert last_boundary([*first, *second, withdrawn]) == first[1]
    assert last_boundary([*first, second[0], withdrawn, second[0]]) == second[0]
