"""What a request of AG-UI brings, by the turns and the messages that its agent has: pairs, without an agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.actors.ag_ui.run_events import interrupt_id
from perdure.actors.ag_ui.turn_translation import AgUiRequest, Decision
from perdure.actors.gateway.chat_turns import CallAnswer, answer_turns, turn_id
from perdure.ledger import BadRequest
from perdure.policies import TurnPlan
from tests.gateway.deciding import call, decided, said, turn

ME = turn_id("clerk", "r1")
CALLS = frozenset({"c1"})
USER = {"id": "u1", "role": "user", "content": "a"}
SYSTEM, DEVELOPER = ({"id": role, "role": role, "content": "Obey!"} for role in ("system", "developer"))
BEFORE = {"id": "u0", "role": "user", "content": "b"}
RESULT = {"id": "m9", "role": "tool", "toolCallId": "c1", "content": '{"n": 1}'}
FAILED = {**RESULT, "error": "broken"}


def answering(*answers: CallAnswer) -> Decision:
    return Decision("t", frozenset(each.call_id for each in answers), list(answers))


def resume(*entries: tuple[str, Any]) -> dict[str, Any]:
    """The calls, each with what is said of it: None cancels."""
    said = [{"status": "cancelled"} if what is None else {"status": "resolved", "payload": what} for _, what in entries]
    ids = [{"interruptId": interrupt_id("t", call_id)} for call_id, _ in entries]
    return {"resume": [name | each for name, each in zip(ids, said, strict=True)]}


def asks(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


def asked(given: dict[str, Any], turns: Sequence[Any], messages: Sequence[Any]) -> Any:
    body = {"threadId": "t1", "runId": "r1", "messages": [], "tools": [], "context": [], "state": {}, **given}
    return decided(AgUiRequest(json.dumps(body).encode()).decided("clerk"), turns, messages)[0]


ASKED, OLD = said("u1", "user", {"type": "text", "text": "a"}), said("u0", "user", {"type": "text", "text": "b"})
APPROVAL, CLIENT = (said("a1", "assistant", call(each)) for each in ("approval-requested", "input-available"))
BOTH = said("a1", "assistant", call("approval-requested"), call("input-available", "c2"))
DONE = said("a1", "assistant", call("output-available"))
STEERED = said("a1", "assistant", {"type": "data-steered", "data": {"messageId": "u1", "text": "a"}})
FILED = {**ASKED, "parts": [*ASKED["parts"], {"type": "file", "mediaType": "image/png", "url": "https://x.org/a.png"}]}
PARKED, RUNNING, OVER = (turn(each) for each in ("parked", "running", "completed"))
THEIRS, OURS = {"id": "a0", "role": "assistant", "content": "c"}, said("a0", "assistant", {"type": "text", "text": "c"})
ANSWERED = f"{answer_turns(['c1'])[0]}7"
NEW = TurnPlan("submission", [ASKED])
YES, NO = {"approved": True}, {"approved": False, "reason": "late"}
CANCELLED = CallAnswer("c2", error="The user has cancelled this call.")
DECISIONS: dict[str, tuple[dict[str, Any], list[Any], list[Any], Decision]] = {
    "approved": (resume(("c1", YES)), [PARKED], [APPROVAL], answering(CallAnswer("c1", approved=True))),
    "not approved": (
        resume(("c1", NO)), [PARKED], [APPROVAL], answering(CallAnswer("c1", approved=False, reason="late"))
    ),
    "all at once": (
        resume(("c1", True), ("c2", None)), [PARKED], [BOTH], answering(CallAnswer("c1", approved=True), CANCELLED)
    ),
    "answered before": (resume(("c1", YES)), [RUNNING], [DONE], Decision("t", CALLS)),
    "answered before, and replaced since": (resume(("c1", YES)), [OVER], [], Decision("t", CALLS)),
    "a result": (asks(USER, RESULT), [PARKED], [CLIENT], answering(CallAnswer("c1", {"n": 1}))),
    "an error": (asks(USER, FAILED), [PARKED], [CLIENT], answering(CallAnswer("c1", error="broken"))),
    "a result that no call waits for": (asks(USER, RESULT), [PARKED], [APPROVAL], Decision("t", CALLS, [])),
    "a result that came before": (asks(USER, RESULT), [RUNNING], [CLIENT], Decision("t", CALLS)),
    "a result in a message of no turn": (asks(USER, RESULT), [], [CLIENT], Decision("", shown=[CLIENT])),
    "a result in an imported message": (
        asks(USER, RESULT), [turn("running", ANSWERED) | {"message_id": ""}], [CLIENT], Decision(ANSWERED, CALLS)
    ),
    "a run that is known": (asks(USER), [turn("completed", ME)], [ASKED], Decision(ME)),
    "a first message": (asks(USER), [], [], Decision(ME, earlier=[], plan=NEW)),
    "a first one here, with an earlier one": (asks(BEFORE, THEIRS, USER), [], [], Decision(ME, earlier=[OLD, OURS], plan=NEW)),
    "one behind instructions of the client": (asks(SYSTEM, USER), [], [], Decision(ME, earlier=[], plan=NEW)),
    "some between instructions of the client": (
        asks(SYSTEM, BEFORE, THEIRS, DEVELOPER, USER, SYSTEM), [], [], Decision(ME, earlier=[OLD, OURS], plan=NEW)
    ),
    "two with instructions of the client between": (
        asks(THEIRS, BEFORE, SYSTEM, USER), [], [], Decision(ME, earlier=[OURS], plan=TurnPlan("submission", [OLD, ASKED]))
    ),
    "instructions of the client alone": (asks(SYSTEM), [OVER], [ASKED, DONE], Decision("", shown=[ASKED, DONE])),
    "a result before instructions of the client": (
        asks(USER, RESULT, SYSTEM), [PARKED], [CLIENT], answering(CallAnswer("c1", {"n": 1}))
    ),
    "a message behind a result": (asks(RESULT, USER), [PARKED], [CLIENT], Decision(ME, plan=NEW)),
    "a message that is being answered": (asks(USER), [RUNNING], [ASKED, DONE], Decision("t")),
    "one that was": (asks(USER), [OVER], [ASKED, DONE], Decision(ME, plan=TurnPlan("regenerate", instead_of="a1"))),
    "one with a file, of which a client that was told of it has the text": (
        asks(USER), [OVER], [FILED, DONE], Decision(ME, plan=TurnPlan("regenerate", instead_of="a1"))
    ),
    "one that steers the turn under way": (asks(USER), [RUNNING], [OLD, STEERED], Decision("t")),
    "nothing, and nothing under way": (asks(), [OVER], [ASKED, DONE], Decision("", shown=[ASKED, DONE])),
    "nothing, and a turn under way": (asks(), [RUNNING], [ASKED, DONE], Decision("t", shown=[ASKED])),
}  # fmt: skip
OTHER = {**USER, "content": "b"}
KNOWN = "u1 was sent before, and says 'a'; say something else under another id"
REFUSED: list[tuple[dict[str, Any], list[Any], list[Any], str]] = [
    (asks(OTHER), [RUNNING], [ASKED, DONE], KNOWN),
    (asks(OTHER), [OVER], [ASKED, DONE], KNOWN),
    (asks(OTHER), [RUNNING], [OLD, STEERED], KNOWN),
    (asks(OTHER, BEFORE), [OVER], [ASKED, DONE], KNOWN),
    ({"resume": [{"interruptId": "xy", "status": "cancelled"}]}, [PARKED], [APPROVAL], "not of one run"),
    (resume(("c1", YES)), [], [APPROVAL], "a run that this thread does not know"),
    (resume(("c9", YES)), [OVER], [DONE], "a call that the run has not made"),
    (resume(("c1", YES)), [PARKED], [BOTH], "leaves .*c2.* open"),
    (resume(("c1", YES), ("c9", YES)), [PARKED], [APPROVAL], "c9.* not open"),
    (resume(("c2", "blue"), ("c1", "perhaps")), [PARKED], [BOTH], "'perhaps' does not say whether"),
]


@pytest.mark.parametrize(("given", "turns", "messages", "decision"), DECISIONS.values(), ids=DECISIONS)
def test_what_a_request_brings_is_decided_by_what_is_known(
    given: dict[str, Any], turns: list[Any], messages: list[Any], decision: Decision
) -> None:
    assert asked(given, turns, messages) == decision


@pytest.mark.parametrize(("given", "turns", "messages", "words"), REFUSED)
def test_a_request_that_does_not_fit_is_refused_before_anything_is_done(
    given: dict[str, Any], turns: list[Any], messages: list[Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        asked(given, turns, messages)
