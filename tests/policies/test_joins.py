"""Conditions of joins, as a table: what decides about a leaf, about so many of several, and in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import (
    Condition,
    EndOf,
    JoinStanding,
    MilestoneOf,
    Of,
    Source,
    condition_from,
    condition_in_words,
    depth_of,
    judge_condition,
    leaves_of,
    plain_condition,
    runs_of,
)

MET, OPEN, NEVER = JoinStanding.MET, JoinStanding.OPEN, JoinStanding.NEVER
SOURCES: dict[str, Source | None] = {
    "live": Source(False, False, (), ""),
    "late": Source(False, False, {"m"}, "was given up (no-progress)"),  # its child still works
    "done": Source(True, True, (), "has completed"),
    "done with m": Source(True, True, {"m"}, "has completed"),
    "failed": Source(False, True, (), "has failed (boom)"),
    "failed after m": Source(False, True, {"m"}, "has failed (boom)"),
    "cleared": None,
}


def judged(condition: Condition) -> JoinStanding:
    return judge_condition(condition, SOURCES.__getitem__).standing


@pytest.mark.parametrize(
    ("run_id", "end", "milestone"),
    [
        ("live", OPEN, OPEN),
        ("late", OPEN, MET),
        ("done", MET, NEVER),
        ("done with m", MET, MET),
        ("failed", NEVER, NEVER),
        ("failed after m", NEVER, MET),
        ("cleared", NEVER, NEVER),
    ],
)
def test_what_is_known_of_a_run_decides_about_its_leaves(
    run_id: str, end: JoinStanding, milestone: JoinStanding
) -> None:
    assert judged(EndOf(run_id)) is end
    assert judged(MilestoneOf(run_id, "m")) is milestone


DONE, LIVE, LOST = EndOf("done"), EndOf("live"), EndOf("failed")


@pytest.mark.parametrize(
    ("count", "parts", "standing"),
    [
        (1, (DONE,), MET),
        (1, (LIVE, DONE), MET),
        (1, (LOST, DONE), MET),
        (1, (LOST, LIVE), OPEN),
        (1, (LOST, LOST), NEVER),
        (2, (DONE, LIVE), OPEN),
        (2, (DONE, LOST), NEVER),
        (2, (DONE, LIVE, LOST), OPEN),
        (2, (DONE, LOST, LOST), NEVER),
        (2, (DONE, DONE, LOST), MET),
        (3, (DONE, DONE, LIVE), OPEN),
        (2, (DONE, Of(1, (LOST, DONE))), MET),
        (2, (DONE, Of(2, (LOST, LIVE))), NEVER),
        (1, (Of(2, (LIVE, LIVE)), Of(1, (LIVE, LOST))), OPEN),
    ],
)
def test_so_many_of_several(count: int, parts: tuple[Condition, ...], standing: JoinStanding) -> None:
    assert judged(Of(count, parts)) is standing


def test_the_leaves_that_are_met_are_told_by_their_places_also_in_parts_that_are_not() -> None:
    verdict = judge_condition(Of(1, (Of(2, (DONE, LIVE)), MilestoneOf("late", "m"), LOST)), SOURCES.__getitem__)
    assert (verdict.standing, verdict.met) == (MET, (0, 2))


def test_what_can_never_come_true_says_why_and_names_each_cause_once() -> None:
    lost = Of(3, (LOST, LOST, MilestoneOf("done", "m"), EndOf("cleared"), MilestoneOf("failed", "x"), LIVE))
    verdict = judge_condition(lost, SOURCES.__getitem__)
    assert verdict.why == (
        "run failed has failed (boom); run done has completed without milestone 'm'; run cleared was cleared; 1 more"
    )


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (EndOf("a"), "the end of a"),
        (Of(1, (MilestoneOf("a", "sources"), EndOf("b"))), "1 of: milestone 'sources' of a, the end of b"),
        (Of(2, (EndOf("a"), EndOf("b"))), "all of: the end of a, the end of b"),
        (Of(1, (EndOf("a"),)), "1 of: the end of a"),
        (
            Of(1, (Of(2, (EndOf("a"), EndOf("b"))), EndOf("c"))),
            "1 of: (all of: the end of a, the end of b), the end of c",
        ),
        (Of(2, tuple(map(EndOf, "abcde"))), "2 of: the end of a, the end of b, the end of c, 2 more"),
    ],
)
def test_a_condition_in_words(condition: Condition, words: str) -> None:
    assert condition_in_words(condition) == words


RUNS = st.sampled_from(list(SOURCES))
CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    st.builds(EndOf, RUNS) | st.builds(MilestoneOf, RUNS, st.sampled_from(["m", "x"])),
    lambda inner: st.lists(inner, min_size=1, max_size=4).flatmap(
        lambda parts: st.builds(Of, st.integers(1, len(parts)), st.just(tuple(parts)))
    ),
    max_leaves=12,
)


@given(CONDITIONS)
def test_a_condition_survives_as_plain_data(condition: Condition) -> None:
    again = condition_from(plain_condition(condition))
    assert again == condition
    assert (leaves_of(again), runs_of(again), depth_of(again)) == (
        leaves_of(condition),
        runs_of(condition),
        depth_of(condition),
    )


@given(CONDITIONS, RUNS)
def test_what_was_decided_stays_whatever_becomes_of_a_live_run(condition: Condition, end: str) -> None:
    before = judged(condition)
    after = judge_condition(condition, lambda run_id: SOURCES[end if run_id == "live" else run_id]).standing
    assert before is OPEN or after is before
