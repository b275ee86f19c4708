"""What counts as a frame, and what becomes of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.actors.events.reducer import AgentToolEvents, RunState


def frame(sequence: int, kind: str, run: str = "r", call: str | None = "tool-1", **fields: Any) -> dict[str, Any]:
    envelope: dict[str, Any] = {"type": "agent-tool-event", "run_id": run, "sequence": sequence}
    if call is not None:
        envelope["parent_tool_call_id"] = call
    return {**envelope, "event": {"kind": kind, **fields}}


def started(sequence: int = 0, run: str = "r", call: str | None = "tool-1", **fields: Any) -> dict[str, Any]:
    return frame(sequence, "started", run, call, **{"agent_type": "Researcher", "order": 0, **fields})


def text(sequence: int, delta: str) -> dict[str, Any]:
    return frame(sequence, "chunk", body={"type": "text-delta", "delta": delta})


def replayed(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "replay": True} for each in frames]


def shown(*frames: Any) -> AgentToolEvents:
    events = AgentToolEvents()
    for each in frames:
        events.apply(each)
    return events


def prose(run: RunState) -> str:
    return "".join(part["text"] for part in run.parts)


@pytest.mark.shows(agent_tools="28 156", chat_recovery="C-0928")
@pytest.mark.parametrize(
    "junk",
    [
        7,
        None,
        [],
        "",
        "{broken",
        "[" * 100_000,
        b"\xff\xfe",
        '{"type": "cf_agent_use_chat_response"}',
        {},
        {"type": "other", "run_id": "r", "sequence": 1, "event": {"kind": "chunk", "body": {}}},
        {"type": "agent-tool-event"},
        {"type": "agent-tool-event", "run_id": "r", "sequence": 1},
        {"type": "agent-tool-event", "run_id": "r", "sequence": 1, "event": {}},
        frame(1, "finished"),
        frame(1, "error", error=None),
        frame(1, "attempt", attempt="2"),
        frame(1, "attempt", attempt=True),
        frame(1, "milestone", name="m", at_ms=1),
        frame(1, "chunk", body={1, 2}),
        {**text(1, "a"), "sequence": -1},
        {**text(1, "a"), "sequence": "1"},
        {**text(1, "a"), "sequence": True},
        {**text(1, "a"), "run_id": 7},
    ],
    ids=repr,
)
def test_what_is_no_frame_of_ours_is_ignored_without_raising_and_does_not_use_up_its_number(junk: object) -> None:
    """Case 28."""
    events = shown(started())
    before = events.runs_by_id
    assert events.apply(junk) is False
    assert events.runs_by_id == before
    assert events.apply(text(1, "good"))
    assert prose(events.runs_by_id["r"]) == "good"


def test_a_frame_may_come_as_the_text_from_the_wire() -> None:
    assert prose(shown(json.dumps(started()), json.dumps(text(1, "a")).encode()).runs_by_id["r"]) == "a"


def test_only_the_well_typed_fields_of_a_signal_are_shown() -> None:
    events = shown(started(), frame(1, "progress", fraction="half", message=7, phase="p", data=[1], at_ms=1))
    assert events.runs_by_id["r"].progress == {"phase": "p", "data": [1], "at_ms": 1}


def test_an_event_of_a_newer_kind_takes_its_number_and_shows_nothing() -> None:
    events = shown(started())
    assert not events.apply(frame(1, "of-the-future", anything=1))
    assert events.apply(text(2, "a"))
    assert events.last_sequence("r") == 2


def test_a_frame_is_copied_so_its_sender_may_use_it_again() -> None:
    reused = frame(2, "progress", data={"files": [1]}, at_ms=1)
    events = shown(reused, started(), text(1, "a"))
    reused["event"]["data"]["files"].append(2)
    progress = events.runs_by_id["r"].progress
    assert progress is not None
    assert progress["data"] == {"files": [1]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


KINDS = "started attempt chunk progress milestone finished error aborted interrupted cleared of-the-future".split()
FIELDS = "agent_type order attempt body at_ms name milestone_sequence summary error reason fraction display".split()


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON), JSON)
def test_nothing_that_arrives_makes_the_reducer_raise(kind: str, fields: dict[str, Any], anything: object) -> None:
    events = shown(started(), text(1, "a"))
    for junk in (
        anything,
        json.dumps(anything),
        {**frame(2, kind), "event": {"kind": kind, **fields}},
        {**frame(2, kind), "event": anything},
        {**frame(2, kind), "sequence": anything},
        {**frame(2, kind), "run_id": anything},
    ):
        assert events.apply(junk) in (True, False)
