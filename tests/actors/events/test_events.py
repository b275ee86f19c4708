"""Frames become runs: whatever the order, however often, and never by changing what was shown before."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.actors.events.reducer import RunState
from tests.actors.events.test_event_frames import frame, prose, replayed, shown, started, text


def the_run(*frames: Any) -> RunState:
    return shown(*frames).runs_by_id["r"]


# --- what was seen, and in which order


@pytest.mark.shows(agent_tools="22")
def test_a_replay_of_what_was_seen_live_is_dropped_and_the_next_new_frame_applies() -> None:
    """Case 22."""
    live = [started(), text(1, "a"), text(2, "b")]
    events = shown(*live)
    assert [events.apply(each) for each in replayed(live)] == [False, False, False]
    assert prose(events.runs_by_id["r"]) == "ab"
    assert events.apply(text(3, "c"))
    assert prose(events.runs_by_id["r"]) == "abc"


@pytest.mark.shows(agent_tools="23")
def test_distinct_numbers_of_one_run_all_apply() -> None:
    """Case 23: equal content under distinct numbers is not taken for an echo."""
    events = shown(started())
    assert all(events.apply(text(sequence, "x")) for sequence in range(1, 6))
    assert prose(events.runs_by_id["r"]) == "xxxxx"


@pytest.mark.shows(agent_tools="24")
def test_a_stray_started_after_the_end_is_ignored() -> None:
    """Case 24: the number is new, but the end stands."""
    events = shown(started(), frame(1, "finished", summary="done"))
    before = events.runs_by_id
    assert not events.apply(started(2, agent_type="Other", order=9))
    assert events.runs_by_id == before
    assert (before["r"].status, before["r"].summary) == ("completed", "done")


def test_a_second_started_renews_the_description_of_a_running_run_and_keeps_its_parts() -> None:
    events = shown(started(), text(1, "a"))
    assert not events.apply(started(2))
    assert events.apply(started(3, order=4, input_preview="new"))
    run = events.runs_by_id["r"]
    assert (run.order, run.input_preview, prose(run)) == (4, "new", "a")


@pytest.mark.shows(agent_tools="25")
def test_after_a_reset_the_same_frames_apply_again() -> None:
    """Case 25."""
    frames = [started(), text(1, "a"), frame(2, "finished", summary="s")]
    events = shown(*frames)
    before = events.runs_by_id
    events.reset()
    assert (events.runs_by_id, events.unbound_runs, events.last_sequence("r")) == ({}, [], -1)
    assert [events.apply(each) for each in frames] == [True, True, True]
    assert events.runs_by_id == before


@pytest.mark.shows(agent_tools="26")
def test_runs_are_grouped_by_their_tool_call_and_the_others_are_unbound() -> None:
    """Case 26."""
    events = shown(
        started(run="c", order=1),
        started(run="b", order=0),
        started(run="a", order=1),
        started(run="other", call="tool-2"),
        started(run="free", call=None),
    )
    by_call = events.runs_by_tool_call_id
    assert {call: [run.run_id for run in runs] for call, runs in by_call.items()} == {
        "tool-1": ["b", "a", "c"],
        "tool-2": ["other"],
    }
    assert events.runs_for_tool_call("tool-1") == by_call["tool-1"]
    assert events.runs_for_tool_call("unknown") == []
    assert [run.run_id for run in events.unbound_runs] == ["free"]


@pytest.mark.shows(agent_tools="21 27 35 36 37", chat_recovery="C-0474 C-0475")
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (
            frame(1, "finished", summary="sum", output={"n": 1}),
            {"status": "completed", "summary": "sum", "output": {"n": 1}, "error": None},
        ),
        (frame(1, "error", error="boom"), {"status": "error", "error": "boom", "reason": None}),
        (frame(1, "aborted", reason="by user"), {"status": "aborted", "error": "by user", "reason": None}),
        (frame(1, "aborted"), {"status": "aborted", "error": None}),
        (
            frame(1, "interrupted", error="silent", reason="no-progress", child_still_running=True),
            {"status": "interrupted", "error": "silent", "reason": "no-progress", "child_still_running": True},
        ),
        (
            frame(1, "interrupted", error="ceiling", reason="window-exceeded", child_still_running=False),
            {"status": "interrupted", "reason": "window-exceeded", "child_still_running": False},
        ),
        (
            frame(1, "interrupted", error="parent restarted"),
            {"status": "interrupted", "error": "parent restarted", "reason": None, "child_still_running": None},
        ),
    ],
)
def test_each_end_shows_its_fields(end: dict[str, Any], expected: dict[str, Any]) -> None:
    """Cases 27 and 35 to 37: False is not None."""
    run = the_run(started(), end)
    assert {name: getattr(run, name) for name in expected} == expected


@pytest.mark.shows(agent_tools="29")
def test_siblings_that_started_in_another_order_are_listed_in_theirs() -> None:
    """Case 29."""
    events = shown(started(run="b", order=1), started(run="a", order=0))
    assert [run.run_id for run in events.runs_by_tool_call_id["tool-1"]] == ["a", "b"]


@pytest.mark.shows(agent_tools="30")
@pytest.mark.parametrize("body", [{"type": "text-delta", "delta": "hello"}, '{"type": "text-delta", "delta": "hello"}'])
def test_a_chunk_body_grows_the_parts(body: object) -> None:
    """Case 30: a lone text delta makes a text part, as an object or as opaque text."""
    parts = the_run(started(), frame(1, "chunk", body=body)).parts
    assert [(part["type"], part["text"]) for part in parts] == [("text", "hello")]


@pytest.mark.parametrize("body", ["{broken", "plain", 7, None, [1], {"no": "type"}, {"type": "no-such-chunk"}])
def test_a_chunk_that_is_no_ui_chunk_shows_nothing_but_takes_its_number(body: object) -> None:
    events = shown(started())
    assert not events.apply(frame(1, "chunk", body=body))
    assert events.last_sequence("r") == 1
    assert events.runs_by_id["r"].parts == []


@pytest.mark.shows(agent_tools="31", chat_recovery="C-0473")
def test_the_same_delta_on_the_same_state_does_not_double_the_text() -> None:
    """Case 31: what was shown before stays as it was, whoever applies the next frame to it."""
    first, second = shown(started(), text(1, "hello")), shown(started(), text(1, "hello"))
    before = first.runs_by_id["r"]
    for events in (first, second):
        events.apply(text(2, " world"))
        assert prose(events.runs_by_id["r"]) == "hello world"
    assert prose(before) == "hello"


@pytest.mark.shows(agent_tools="32")
def test_progress_is_shown_without_a_part_and_the_latest_wins() -> None:
    """Case 32."""
    events = shown(started(), frame(1, "progress", fraction=0.6, phase="reading", message="Reading…", at_ms=10))
    run = events.runs_by_id["r"]
    assert run.parts == []
    assert run.progress == {"fraction": 0.6, "phase": "reading", "message": "Reading…", "at_ms": 10}
    assert events.apply(frame(2, "progress", fraction=1, phase="done", at_ms=20))
    assert not events.apply(frame(3, "progress", fraction=1, phase="done", at_ms=20))
    assert events.runs_by_id["r"].progress == {"fraction": 1, "phase": "done", "at_ms": 20}
    body = {"type": "data-agent-progress", "transient": True, "data": {"fraction": 0.5}}
    assert not events.apply(frame(4, "chunk", body=body))


def milestone(sequence: int, number: int, name: str, at_ms: int, **fields: Any) -> dict[str, Any]:
    return frame(sequence, "milestone", name=name, milestone_sequence=number, at_ms=at_ms, **fields)


@pytest.mark.shows(agent_tools="33")
def test_milestones_are_kept_once_in_order_and_the_newest_is_the_progress() -> None:
    """Case 33."""
    events = shown(started(), milestone(1, 1, "synthesized", 1001, phase="two", data={"k": 1}))
    events.apply(milestone(2, 0, "sources-gathered", 1000, phase="one"))
    assert not events.apply(milestone(3, 1, "synthesized", 1001, phase="two"))
    run = events.runs_by_id["r"]
    assert run.milestones == [
        {"name": "sources-gathered", "milestone_sequence": 0, "at_ms": 1000, "phase": "one"},
        {"name": "synthesized", "milestone_sequence": 1, "at_ms": 1001, "phase": "two", "data": {"k": 1}},
    ]
    assert run.progress == {"phase": "two", "milestone": "synthesized", "at_ms": 1001}


def test_a_milestone_older_than_the_progress_does_not_roll_it_back() -> None:
    """Spec B33."""
    run = the_run(started(), frame(1, "progress", fraction=0.9, at_ms=50), milestone(2, 0, "m", 40, fraction=0.1))
    assert run.progress == {"fraction": 0.9, "at_ms": 50}
    assert [mark["name"] for mark in run.milestones] == ["m"]


@pytest.mark.shows(agent_tools="34")
@pytest.mark.parametrize("call", [None, ""])
def test_a_run_without_a_tool_call_is_unbound_only(call: str | None) -> None:
    """Case 34."""
    events = shown(started(call=call, agent_type="Planner"))
    assert [run.agent_type for run in events.unbound_runs] == ["Planner"]
    assert events.runs_by_tool_call_id == {}


# --- the weaknesses of the original that are absent


FULL_LIFE = [
    started(input_preview="topic", display={"name": "R"}, parent="p@Assistant"),
    text(1, "a"),
    milestone(2, 0, "m", 10),
    frame(3, "interrupted", error="silent", reason="no-progress", child_still_running=True),
    text(4, "b"),
    frame(5, "finished", summary="done", output=[1]),
]


@pytest.mark.shows(agent_tools="19 20")
def test_a_late_client_gets_everything_by_replay_and_a_reconnecting_one_nothing_twice() -> None:
    """Cases 19 and 20 as the reducer sees them; spec W-29 (milestones are replayed) and W-34 (so are chunks)."""
    late = shown(*replayed(FULL_LIFE))
    run = late.runs_by_id["r"]
    assert (run.status, run.summary, prose(run), len(run.milestones)) == ("completed", "done", "ab", 1)
    assert (run.input_preview, run.display, run.parent) == ("topic", {"name": "R"}, "p@Assistant")
    back = shown(*FULL_LIFE, *replayed(FULL_LIFE))
    assert back.runs_by_id == late.runs_by_id


def test_the_frames_of_a_re_attached_run_go_on_where_the_others_ended() -> None:
    """Spec W-30: the end of a repaired run is not taken for a doubled interruption."""
    events = shown(*FULL_LIFE[:4])
    statuses = [events.runs_by_id["r"].status]
    for each in FULL_LIFE[4:]:
        assert events.apply(each)
        statuses.append(events.runs_by_id["r"].status)
    assert statuses == ["interrupted", "interrupted", "completed"]


@pytest.mark.shows(agent_tools="W-33")
def test_a_repaired_run_keeps_nothing_of_its_interruption() -> None:
    """Spec W-33, and case 18 as the reducer sees it."""
    for repair in (frame(4, "finished", summary=""), frame(4, "error", error="e"), frame(4, "aborted")):
        run = the_run(*FULL_LIFE[:4], repair)
        assert run.status != "interrupted"
        assert (run.reason, run.child_still_running) == (None, None)
        assert run.error != "silent"


def test_a_second_interruption_replaces_the_first() -> None:
    run = the_run(*FULL_LIFE[:4], frame(4, "interrupted", error="later", reason="budget-exceeded"))
    assert (run.status, run.error, run.reason, run.child_still_running) == (
        "interrupted",
        "later",
        "budget-exceeded",
        None,
    )


LATER = [
    frame(2, "error", error="late"),
    frame(2, "finished", summary="late"),
    frame(2, "aborted", reason="late"),
    frame(2, "interrupted", error="late", reason="no-progress"),
    frame(2, "attempt", attempt=2),
    text(2, "late"),
    frame(2, "progress", fraction=0.1, at_ms=99),
    milestone(2, 0, "late", 99),
]


@pytest.mark.parametrize("late", LATER, ids=lambda late: late["event"]["kind"])
@pytest.mark.parametrize("end", [frame(1, "finished", summary="s"), frame(1, "error", error="e"), frame(1, "aborted")])
def test_a_hard_end_never_changes(end: dict[str, Any], late: dict[str, Any]) -> None:
    events = shown(started(), end)
    before = events.runs_by_id
    assert not events.apply(late)
    assert events.runs_by_id == before


# --- attempts


def test_a_new_attempt_starts_its_parts_afresh_and_those_before_are_kept_apart() -> None:
    run = the_run(
        started(),
        text(1, "half an ans"),
        frame(2, "attempt", attempt=2),
        text(3, "whole"),
        frame(4, "attempt", attempt=4),
    )
    assert (run.attempt, run.status, run.parts) == (4, "running", [])
    assert {number: parts[0]["text"] for number, parts in run.previous_parts.items()} == {1: "half an ans", 2: "whole"}


def test_an_attempt_after_an_interruption_shows_the_run_at_work_again() -> None:
    again = the_run(*FULL_LIFE[:4], frame(4, "attempt", attempt=2))
    assert (again.status, again.error, again.reason, again.child_still_running) == ("running", None, None, None)
    assert [mark["name"] for mark in again.milestones] == ["m"]
    same = the_run(*FULL_LIFE[:4], frame(4, "attempt", attempt=1))
    assert (same.status, same.attempt, prose(same)) == ("running", 1, "a")


def test_an_echo_of_an_attempt_changes_nothing() -> None:
    events = shown(started(), frame(1, "attempt", attempt=2), text(2, "a"))
    assert not events.apply(frame(3, "attempt", attempt=2))
    assert not events.apply(frame(4, "attempt", attempt=1))
    assert prose(events.runs_by_id["r"]) == "a"


# --- clear, unknown kinds, bounds


def test_a_cleared_run_is_gone_and_nothing_brings_it_back() -> None:
    events = shown(started(), text(1, "a"))
    assert events.apply(frame(7, "cleared"))  # 2 to 6 are gone from the ledger for ever
    assert events.runs_by_id == {}
    assert not any(events.apply(each) for each in [*FULL_LIFE, frame(7, "cleared"), frame(8, "finished", summary="")])
    assert events.runs_by_id == {}
    assert not events.missing("r")


def test_a_run_that_was_cleared_before_it_was_seen_never_shows() -> None:
    events = shown(frame(7, "cleared"))
    assert not events.apply(started())
    assert events.runs_by_id == {}
