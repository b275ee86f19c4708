"""What a request of an AI SDK client asks of the turns of its agent: pairs, without an agent."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.actors.ai_sdk.turn_requests import REPLACED, AskedTurns, TurnRequest, in_place_of
from perdure.actors.gateway.chat_turns import CallAnswer, ChatTurns
from perdure.actors.gateway.refusals import NotNow
from perdure.ledger import BadRequest, ConflictingRequest, PerdureError, request_of
from perdure.policies import TurnPlan
from tests.gateway.deciding import call, decided, said, turn

ASKED, OTHER_WORDS = (said("u1", "user", {"type": "text", "text": text}) for text in ("first", "second"))
GONE, NAMELESS = {**ASKED, "id": "u9"}, {"role": "user", "parts": []}
U1 = request_of("u1")
WAITS, ANSWERED = (said("a1", "assistant", call(each)) for each in ("input-available", "output-available"))
RUNNING, OVER, FAILED = (turn(each, U1) for each in ("running", "completed", "error"))
QUEUED = {**turn("accepted", request_of("u9")), "waiting": [GONE]}
FOLLOWED = {**FAILED, "message_id": "a0"}
NEW, LOST = ({"accepted": is_new, "status": "error"} for is_new in (True, False))
OTHER = ConflictingRequest("request_id", "other content")
OTHER_MESSAGE = ConflictingRequest("messages[0].id", "other content")
AGAIN = {"trigger": "regenerate-message"}
CANCEL = (ChatTurns.cancel_under_way, REPLACED)
ASK, PLAN = (ChatTurns.begin, TurnPlan("chat", [ASKED]), U1), TurnPlan("chat", [ASKED])
INSTEAD = (ChatTurns.begin_first, [TurnPlan("chat", [ASKED], "u1"), PLAN], "new")
PLAN_GONE = TurnPlan("chat", [GONE])
ASK_GONE = (ChatTurns.begin, PLAN_GONE, request_of("u9"))
INSTEAD_OF_GONE = (ChatTurns.begin_first, [TurnPlan("chat", [GONE], "u9"), PLAN_GONE], "new")
OTHER_ANSWER = (ChatTurns.begin_first, [TurnPlan("regenerate", instead_of="a1"), *INSTEAD[1]], "new")
INSTEAD_OTHERWISE = (ChatTurns.begin_first, in_place_of(OTHER_WORDS, "u1"), "new")
OTHER_ANSWER_OF_A1 = (
    ChatTurns.begin_first,
    [TurnPlan("regenerate", instead_of="a1"), *in_place_of({**OTHER_WORDS, "id": "a1"}, "a1")],
    "new",
)
DECISIONS: dict[str, tuple[dict[str, Any], list[Any], Any, list[Any], str]] = {
    # what is asked, the turns, what comes of one that is begun; what is done, and the turn that is told
    "a message": ({"messages": [ASKED]}, [], NEW, [ASK], U1),
    "one without an id": (
        {"messages": [NAMELESS]}, [], NEW, [(ChatTurns.begin_first, [TurnPlan("chat", [NAMELESS])], "new")], "new"
    ),
    "one whose turn failed": ({"messages": [ASKED]}, [FAILED], LOST, [ASK, INSTEAD], "new"),
    "one with other fields beside it, under way": ({"messages": [ASKED]}, [RUNNING], OTHER, [ASK], U1),
    "one with other fields beside it, afterwards": ({"messages": [ASKED]}, [OVER], OTHER, [ASK], U1),
    "one with other fields beside it, whose turn failed": ({"messages": [ASKED]}, [FAILED], OTHER, [ASK, INSTEAD], "new"),
    "other content of one that was deleted": (
        {"messages": [GONE]}, [turn("completed", request_of("u9"))], OTHER, [ASK_GONE, INSTEAD_OF_GONE], "new"
    ),
    "one in place of another": ({"messages": [ASKED], "messageId": "u1"}, [], NEW, [CANCEL, INSTEAD], "new"),
    "another answer": ({"messages": [ASKED], **AGAIN}, [OVER], NEW, [CANCEL, OTHER_ANSWER], "new"),
    "another one, to other words": ({"messages": [OTHER_WORDS], **AGAIN}, [OVER], NEW, [CANCEL, INSTEAD_OTHERWISE], "new"),
    "another one by its id, to other words": (
        {"messages": [OTHER_WORDS], "messageId": "a1", **AGAIN}, [OVER], NEW, [CANCEL, INSTEAD_OTHERWISE], "new"
    ),
    "another one, to words that are not the user's": (
        {"messages": [{**OTHER_WORDS, "id": "a1"}], **AGAIN}, [OVER], NEW, [CANCEL, OTHER_ANSWER_OF_A1], "new"
    ),
    "another one than is written": ({"messages": [ASKED], **AGAIN}, [RUNNING], NEW, [CANCEL, INSTEAD], "new"),
    "a result": (
        {"messages": [ANSWERED]}, [turn("parked")], None, [(ChatTurns.answer_in, WAITS, [CallAnswer("c1")])], "t"
    ),
}  # fmt: skip
KNOWN = r"u1 was sent before, and says 'first'; to edit it send its id as messageId too"
REFUSED: list[tuple[dict[str, Any], list[Any], Any, type[PerdureError], str]] = [
    ({"messages": [OTHER_WORDS]}, [RUNNING], OTHER, ConflictingRequest, KNOWN),
    ({"messages": [OTHER_WORDS]}, [OVER], OTHER, ConflictingRequest, KNOWN),
    ({"messages": [OTHER_WORDS]}, [FAILED], OTHER, ConflictingRequest, KNOWN),
    ({"messages": [OTHER_WORDS]}, [], OTHER_MESSAGE, ConflictingRequest, KNOWN),
    ({"messages": [{**OTHER_WORDS, "id": "u9"}]}, [QUEUED], OTHER, ConflictingRequest, "u9 was sent before"),
    ({"messages": [ASKED]}, [FOLLOWED], LOST, ConflictingRequest, "followed by what another answer would take away"),
    ({"messages": [ASKED]}, [], OTHER_MESSAGE, ConflictingRequest, "followed by what another answer would take away"),
    ({"messages": [], **AGAIN, "messageId": "a1"}, [RUNNING], NEW, BadRequest, "no answer to give again"),
    ({"messages": [ANSWERED]}, [], None, NotNow, "waits for no answer"),
    ({"messages": [said("a9", "assistant")]}, [OVER], None, NotNow, "no message is known"),
]


def asked(body: dict[str, Any], turns: list[Any], begun: Any) -> tuple[Any, list[Any]]:
    return decided(AskedTurns(7, lambda: "new").begin(TurnRequest.of(body)), turns, [ASKED, WAITS], begun)


@pytest.mark.parametrize(("body", "turns", "begun", "deeds", "told"), DECISIONS.values(), ids=DECISIONS)
def test_what_a_client_asks_is_decided_by_what_is_known(
    body: dict[str, Any], turns: list[Any], begun: Any, deeds: list[Any], told: str
) -> None:
    following, done = asked(body, turns, begun)
    assert (done, following.request_id) == (deeds, told)


@pytest.mark.parametrize(("body", "turns", "begun", "problem", "words"), REFUSED)
def test_what_fits_no_turn_is_refused(
    body: dict[str, Any], turns: list[Any], begun: Any, problem: type[PerdureError], words: str
) -> None:
    with pytest.raises(problem, match=words):
        asked(body, turns, begun)
