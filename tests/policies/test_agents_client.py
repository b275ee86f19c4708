"""What the frames of the `agents` clients ask for, and what they are told: every row of the tables."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from perdure.policies import ProbeAnswer, Situation, TurnPlan, plan_request, probe_answer, run_events, shown_chunk

STORED = [["u1", "user"], ["a1", "assistant"], ["u2", "user"], ["a2", "assistant"]]


def message(message_id: str, role: str = "user") -> dict[str, Any]:
    return {"id": message_id, "role": role, "parts": []}


@pytest.mark.shows(chat_recovery="C-1194")
def test_a_probe_has_one_answer_in_each_situation() -> None:
    for bits in product((False, True), repeat=5):
        now = Situation(*bits)
        answer = probe_answer(now)
        if now.streams:
            assert answer is (ProbeAnswer.OWNED if now.is_owned_elsewhere else ProbeAnswer.RESUMING)
        elif now.continues_soon or now.is_accepted:
            assert answer is ProbeAnswer.PENDING
        else:
            assert answer is (ProbeAnswer.RESUMING if now.has_unseen else ProbeAnswer.IDLE)


@pytest.mark.parametrize(
    ("sent", "trigger", "plan"),
    [
        (
            [message("u1"), message("a1", "assistant"), message("u3")],
            "submit-message",
            TurnPlan("chat", [message("u3")]),
        ),
        ([message("mine", "assistant"), message("u3")], "submit-message", TurnPlan("chat", [message("u3")])),
        ([message("u1")], "submit-message", TurnPlan("chat", [{"role": "user", "parts": []}], "u1")),
        ([message("u1"), message("a1", "assistant")], "submit-message", TurnPlan(None)),
        ([], "submit-message", TurnPlan(None)),
        (["junk", 7], "submit-message", TurnPlan(None)),
        ([message("u1")], "regenerate-message", TurnPlan("regenerate", (), "a1")),
        (
            [message("u1"), message("a1", "assistant"), message("u2")],
            "regenerate-message",
            TurnPlan("regenerate", (), "a2"),
        ),
        ([], "regenerate-message", TurnPlan("regenerate", (), "a1")),
        ([message("gone")], "regenerate-message", TurnPlan(None)),
    ],
)
def test_a_request_asks_for_one_turn(sent: list[Any], trigger: str, plan: TurnPlan) -> None:
    found = plan_request(STORED, sent, trigger)
    assert (found.trigger, list(found.messages), found.instead_of) == (
        plan.trigger, list(plan.messages), plan.instead_of,
    )  # fmt: skip
    assert bool(found.why) == (found.trigger is None)


def test_a_message_without_an_answer_is_asked_again() -> None:
    found = plan_request([["u1", "user"]], [message("u1")], "regenerate-message")
    assert (found.trigger, found.instead_of) == ("chat", "u1")


def test_ends_and_withdrawals_are_no_chunks_and_a_refusal_is_one() -> None:
    for kind in ("data-retract", "finish", "error", "abort"):
        assert shown_chunk({"type": kind}) is None
    assert shown_chunk({"type": "tool-approval-response", "toolCallId": "c", "approved": True}) is None
    denied = {"type": "tool-output-denied", "toolCallId": "c"}
    assert shown_chunk({"type": "tool-approval-response", "toolCallId": "c", "approved": False}) == denied
    assert shown_chunk({"type": "text-end", "id": "1"}) == {"type": "text-end", "id": "1"}


def test_each_chunk_of_a_frame_has_a_number_of_its_own() -> None:
    body = {"type": "chunks", "chunks": [{"type": "start-step"}, {"type": "finish"}, {"type": "text-start", "id": "1"}]}
    told = run_events({"run_id": "r", "sequence": 2, "event": {"kind": "chunk", "body": body}})
    assert [(number, event["body"]["type"]) for number, event in told] == [
        (2 * 65536, "start-step"), (2 * 65536 + 1, "text-start"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"kind": "finished", "summary": "s", "output": 1}, {"kind": "finished", "summary": "s"}),
        ({"kind": "error", "error": "e"}, {"kind": "error", "error": "e"}),
        ({"kind": "aborted", "reason": "why"}, {"kind": "aborted", "reason": "why"}),
        (
            {"kind": "interrupted", "error": "e", "reason": "r", "child_still_running": True},
            {"kind": "interrupted", "error": "e", "reason": "r", "childStillRunning": True},
        ),
        ({"kind": "attempt", "attempt": 2}, {"kind": "chunk", "body": {"type": "start-step"}}),
        ({"kind": "attempt", "attempt": 1}, None),
        ({"kind": "cleared"}, None),
        ({"kind": "retried"}, None),
        (
            {"kind": "started", "agent_type": "shop:Child", "order": 1, "input_preview": "x" * 900},
            {"kind": "started", "agentType": "Child", "order": 1, "inputPreview": "x" * 500},
        ),
    ],
)
def test_each_kind_of_event_has_its_frame(event: dict[str, Any], told: dict[str, Any] | None) -> None:
    found = run_events({"run_id": "r", "sequence": 1, "event": event})
    assert found == ([] if told is None else [(65536, {"runId": "r", **told})])
