"""What followers, parents and people are told of a run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ledger import Fact, Kept, audit, counts, frame_of, inspected, outcome_of, pack, parked, record_fact
from perdure.ledger.facts import (
    AttemptLost,
    ChunkEmitted,
    MailDelivered,
    MailFailed,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunReattached,
    RunSucceeded,
)
from tests.kit import NOW_MS, PARENT, TYPE, Ledger, asked, begun, placed

SAID = pack({"fraction": 0.5, "phase": "reading"})
INTERRUPTED = RunInterrupted("r", "no-progress", True, "silence")

EVENTS: list[tuple[Fact, dict[str, Any]]] = [
    (ProgressReported("r", 1, SAID), {"kind": "progress", "fraction": 0.5, "phase": "reading"}),
    (
        MilestoneReached("r", 1, 0, "m", 1, pack({"data": 7})),
        {"kind": "milestone", "name": "m", "milestone_sequence": 0, "data": 7},
    ),
    (ChunkEmitted("r", 1, 0, pack("text")), {"kind": "chunk", "body": Kept(pack("text"))}),
    (
        RunSucceeded("r", 1, pack(42), "said", released=True),
        {"kind": "finished", "summary": "said", "output": Kept(pack(42))},
    ),
    (RunErrored("r", 1, "it broke", released=True), {"kind": "error", "error": "it broke"}),
    (RunAborted("r", "enough"), {"kind": "aborted", "reason": "enough"}),
    (INTERRUPTED, {"kind": "interrupted", "error": "silence", "reason": "no-progress", "child_still_running": True}),
    (
        RunInterrupted("r", "recovery-deadline", None, "no place"),
        {"kind": "interrupted", "error": "no place", "reason": "recovery-deadline"},
    ),
]


@pytest.mark.shows(agent_tools="14 15 16", chat_recovery="C-0933 C-0934 C-0935")
@pytest.mark.parametrize(("fact", "event"), EVENTS, ids=lambda each: type(each).__name__)
def test_a_fact_is_told_as_its_event(fact: Fact, event: dict[str, Any]) -> None:
    ledger = Ledger().given(asked(tool_call="call-1"), placed(), begun())
    frame = frame_of(record_fact(ledger.view, fact, NOW_MS), ledger.run())
    assert frame == {
        "type": "agent-tool-event",
        "run_id": "r",
        "sequence": 1,
        "parent_tool_call_id": "call-1",
        "event": {**event, "at_ms": NOW_MS},
    }


def test_the_first_event_says_who_was_asked_by_whom_in_which_order_and_how_it_is_shown() -> None:
    ledger = Ledger()
    display = {"name": "Researcher"}
    row = record_fact(ledger.view, asked(order=2, preview="short", display=display), NOW_MS)
    frame = frame_of(row, ledger.run(), replay=True)
    assert frame is not None
    assert frame["sequence"] == 0
    assert frame["replay"] is True
    assert "parent_tool_call_id" not in frame
    assert frame["event"] == {
        "kind": "started",
        "agent_type": TYPE,
        "order": 2,
        "parent": PARENT,
        "at_ms": NOW_MS,
        "input_preview": "short",
        "display": display,
    }


def test_only_attempts_after_the_first_are_events() -> None:
    ledger = Ledger().given(asked())
    assert frame_of(record_fact(ledger.view, placed(), NOW_MS), ledger.run()) is None
    ledger.given(AttemptLost("r", 1, "gone", 0))
    frame = frame_of(record_fact(ledger.view, placed(attempt=2, incarnation=2), NOW_MS), ledger.run())
    assert frame is not None
    assert frame["event"]["kind"] == "attempt"
    assert frame["event"]["attempt"] == 2


def test_numbers_have_no_holes_whatever_happens_to_a_run() -> None:
    ledger = Ledger().given(asked())
    facts: list[Fact] = [
        placed(),
        begun(),
        ProgressReported("r", 1, SAID),
        AttemptLost("r", 1, "gone", 0),
        placed(attempt=2, incarnation=2),
        INTERRUPTED,
        RunReattached("r", 2, 2),
        RunSucceeded("r", 2, None, "", released=True),
        RunCleared("r"),
    ]
    run = ledger.run()
    frames = [frame_of(record_fact(ledger.view, fact, NOW_MS), run) for fact in facts]
    assert [frame["sequence"] for frame in frames if frame] == [1, 2, 3, 4, 5, 6]


def test_an_inspection_tells_the_outcome_progress_milestones_and_deliveries() -> None:
    ledger = Ledger().given(
        asked(detached=True, on_finish="f", tool_call="call-1"),
        placed(),
        MilestoneReached("r", 1, 0, "m", 1, pack({"data": 7})),
        ProgressReported("r", 1, SAID),
        RunSucceeded("r", 1, pack(42), "said", released=True),
    )
    told = inspected(ledger.run())
    assert (told["status"], told["output"], told["summary"]) == ("completed", Kept(pack(42)), "said")
    assert told["progress"] == {"fraction": 0.5, "phase": "reading", "at_ms": NOW_MS}
    assert told["milestones"] == [{"name": "m", "sequence": 0, "at_ms": NOW_MS, "data": 7}]
    assert told["deliveries"] == {"finish": "pending"}
    assert told["parent_tool_call_id"] == "call-1"


@pytest.mark.shows(agent_tools="18", chat_recovery="C-0937")
def test_an_interruption_carries_its_cause_and_a_repair_nothing_of_it() -> None:
    ledger = Ledger().given(asked(), placed(), begun(), INTERRUPTED)
    told = outcome_of(ledger.run())
    assert (told["reason"], told["child_still_running"]) == ("no-progress", True)
    ledger.given(RunSucceeded("r", 1, None, "", released=True))
    assert "reason" not in outcome_of(ledger.run())


def test_the_audit_equation_balances_at_every_step() -> None:
    ledger = Ledger().given(asked(detached=True, on_finish="f", on_give_up="g"), placed(), begun())
    steps: list[tuple[Fact, dict[str, int]]] = [
        (INTERRUPTED, {"enqueued": 1, "pending": 1}),
        (RunSucceeded("r", 1, None, "", released=True), {"enqueued": 2, "pending": 1, "superseded": 1}),
        (MailFailed("r!finish", "no", None), {"enqueued": 2, "parked": 1, "superseded": 1}),
    ]
    for fact, expected in steps:
        ledger.given(fact)
        told = audit(ledger.view)
        assert told.pop("balanced")
        assert {key: value for key, value in told.items() if value} == expected
    assert parked(ledger.view)[0]["error"] == "no"


def test_a_give_up_that_was_handled_although_a_finish_superseded_it_counts_as_delivered() -> None:
    ledger = Ledger().given(asked(detached=True, on_finish="f"), placed(), begun(), INTERRUPTED)
    ledger.given(RunSucceeded("r", 1, None, "", released=True), MailDelivered(PARENT, ["r!give-up"]))
    told = audit(ledger.view)
    assert (told["delivered"], told["superseded"], told["pending"], told["balanced"]) == (1, 0, 1, True)


def test_counts_name_every_status() -> None:
    ledger = Ledger().given(asked("a"), asked("b"), RunAborted("b", ""))
    assert counts(ledger.view) == {
        "starting": 1, "running": 0, "interrupted": 0, "completed": 0, "error": 0, "aborted": 1,
    }  # fmt: skip
