"""Whatever the order of the frames, and however often they come, the runs end the same."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.actors.events.reducer import AgentToolEvents
from tests.actors.events.test_event_frames import frame, prose, replayed, shown, started, text

Frames = list[dict[str, Any]]


@pytest.mark.shows(agent_tools="W-32")
def test_a_chunk_that_overtakes_started_waits_for_it() -> None:
    """Spec W-32: nothing is marked seen unless it is applied or waits."""
    events = shown(text(2, "b"), text(1, "a"))
    assert events.runs_by_id == {}
    assert events.missing("r") == range(1)
    assert events.apply(started())
    assert prose(events.runs_by_id["r"]) == "ab"
    assert not events.missing("r")


def test_the_last_number_and_the_missing_ones_say_where_a_replay_goes_on() -> None:
    events = shown(started(), text(1, "a"), text(5, "f"), text(4, "e"))
    assert (events.last_sequence("r"), events.missing("r")) == (1, range(2, 4))
    assert (events.last_sequence("unknown"), events.missing("unknown")) == (-1, range(0))


def test_beyond_the_bound_the_farthest_frames_are_given_up_and_a_replay_brings_them_back() -> None:
    frames = [started(), *(text(number, str(number)) for number in range(1, 8))]
    events = AgentToolEvents(waiting_max=2)
    for each in (frames[6], frames[7], frames[5], frames[2]):
        assert not events.apply(each)
    assert events.missing("r") == range(2)
    for each in (frames[0], frames[1]):
        assert events.apply(each)
    assert (events.last_sequence("r"), events.missing("r")) == (2, range(3, 5))
    for each in frames[events.last_sequence("r") + 1 :]:
        events.apply(each)
    assert prose(events.runs_by_id["r"]) == "1234567"


def test_the_expected_frame_gets_in_even_when_nothing_may_wait() -> None:
    events = AgentToolEvents(waiting_max=0)
    assert events.apply(started())
    assert not events.apply(text(2, "b"))
    assert events.apply(text(1, "a"))
    assert events.missing("r") == range(2, 3)


# --- any life of two runs, in any weather

SIGNAL = {
    "fraction": st.floats(0, 1),
    "message": st.sampled_from(["m", "n"]),
    "phase": st.just("p"),
    "data": st.just([1]),
}
AT = st.integers(0, 5)
BODIES = st.sampled_from(
    [
        {"type": "text-delta", "delta": "x"},
        {"type": "text-start", "id": "1"},
        {"type": "text-delta", "id": "1", "delta": "y"},
        {"type": "text-end", "id": "1"},
        '{"type": "reasoning-delta", "delta": "z"}',
        {"type": "tool-input-available", "toolCallId": "c", "toolName": "t", "input": {}},
        {"type": "tool-output-available", "toolCallId": "c", "output": 1},
        {"type": "data-agent-milestone", "data": 1},
        "not a chunk",
    ]
)
MIDDLES = st.one_of(
    st.fixed_dictionaries({"kind": st.just("chunk"), "body": BODIES}),
    st.fixed_dictionaries({"kind": st.just("progress"), "at_ms": AT}, optional=SIGNAL),
    st.fixed_dictionaries(
        {"kind": st.just("milestone"), "name": st.just("m"), "milestone_sequence": st.integers(0, 3), "at_ms": AT},
        optional=SIGNAL,
    ),
    st.fixed_dictionaries({"kind": st.just("attempt"), "attempt": st.integers(1, 4)}),
    st.fixed_dictionaries(
        {"kind": st.just("interrupted"), "error": st.just("e")},
        optional={"reason": st.just("no-progress"), "child_still_running": st.booleans()},
    ),
    st.just({"kind": "started", "agent_type": "Again", "order": 3}),
    st.just({"kind": "of-the-future"}),
)
ENDS: st.SearchStrategy[list[dict[str, Any]]] = st.sampled_from(
    [
        [],
        [{"kind": "finished", "summary": "s", "output": 1}],
        [{"kind": "error", "error": "e"}],
        [{"kind": "aborted", "reason": "a"}],
        [{"kind": "finished", "summary": "s"}, {"kind": "error", "error": "late"}],
        [{"kind": "finished", "summary": "s"}, {"kind": "cleared"}],
        [{"kind": "cleared"}],
    ]
)


@st.composite
def lives(draw: st.DrawFn, run: str) -> Frames:
    """All frames of one run, in order."""
    opening = {"kind": "started", "agent_type": "R", "order": draw(st.integers(0, 1))}
    contents = [opening, *draw(st.lists(MIDDLES, max_size=8)), *draw(ENDS)]
    return [frame(number, run=run, **content) for number, content in enumerate(contents)]


@st.composite
def weathers(draw: st.DrawFn) -> tuple[Frames, Frames]:
    """The frames of two runs in order, and the same frames as they may arrive: shuffled, some of them doubled."""
    in_order = [*draw(lives("r")), *draw(lives("s"))]
    doubled = draw(st.lists(st.sampled_from(in_order), max_size=8))
    return in_order, draw(st.permutations([*in_order, *replayed(doubled)]))


@given(weathers())
def test_any_order_and_any_doubling_of_the_frames_end_in_the_same_state(weather: tuple[Frames, Frames]) -> None:
    in_order, arriving = weather
    calm, rough = shown(*in_order), shown(*arriving)
    assert rough.runs_by_id == calm.runs_by_id
    assert [rough.last_sequence(run) for run in "rs"] == [calm.last_sequence(run) for run in "rs"]
    assert not rough.missing("r")
    assert rough.runs_by_tool_call_id == calm.runs_by_tool_call_id


@given(weathers(), st.integers(0, 3))
def test_with_any_bound_a_replay_after_the_last_number_ends_in_the_same_state(
    weather: tuple[Frames, Frames], waiting_max: int
) -> None:
    in_order, arriving = weather
    bounded = AgentToolEvents(waiting_max=waiting_max)
    for each in arriving:
        bounded.apply(each)
    for each in replayed(in_order):
        if each["sequence"] > bounded.last_sequence(each["run_id"]):
            bounded.apply(each)
    assert bounded.runs_by_id == shown(*in_order).runs_by_id


@given(weathers())
def test_no_frame_changes_what_was_shown_before_and_the_answer_says_whether_anything_changed(
    weather: tuple[Frames, Frames],
) -> None:
    events = AgentToolEvents()
    for each in weather[1]:
        before = events.runs_by_id
        kept = deepcopy(before)
        changed = events.apply(each)
        assert before == kept
        assert changed == (events.runs_by_id != kept)
