"""Every cell of the table: what the fold does, and that no echo from outside becomes a fact."""

from __future__ import annotations

import math
from itertools import product

import pytest

from perdure.ledger import Fact, Status
from perdure.ledger.facts import (
    AskAnswered,
    AskEscalated,
    AskLapsed,
    AskOpened,
    AskWithdrawn,
    AttemptLost,
    AttemptStarted,
    ChunkEmitted,
    EventTaken,
    JoinMet,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunParked,
    RunPaused,
    RunReattached,
    RunRequested,
    RunRetried,
    RunStarted,
    RunSucceeded,
    RunWaiting,
    TeardownBegan,
    UndoBegan,
    UndoPromised,
)
from perdure.ledger.run import Run, apply, open_run
from perdure.ledger.transitions import TABLE, cell, permits
from perdure.policies import Cell, IllegalTransition
from tests.kit import asked

ORDER = "starting running interrupted completed error aborted".split()

EXPECTED = """
    RunRequested      illegal  illegal  illegal  illegal  illegal  illegal
    JoinMet           starting illegal  illegal  illegal  illegal  illegal
    AttemptStarted    starting starting illegal  illegal  illegal  illegal
    RunStarted        running  ignored  ignored  ignored  ignored  ignored
    ProgressReported  running  running  interrupted ignored ignored ignored
    MilestoneReached  running  running  interrupted ignored ignored ignored
    ChunkEmitted      running  running  interrupted ignored ignored ignored
    RunSucceeded      completed completed completed ignored ignored ignored
    RunErrored         error    error    error    ignored  ignored  ignored
    RunAborted        aborted  aborted  aborted  ignored  ignored  ignored
    RunInterrupted    interrupted interrupted ignored ignored ignored ignored
    TeardownBegan     starting running  ignored  ignored  ignored  ignored
    AttemptLost       starting starting interrupted ignored ignored ignored
    RunReattached     starting running  running  ignored  ignored  ignored
    RunCleared        illegal  illegal  interrupted completed error aborted
    RunParked         starting starting ignored  ignored  ignored  ignored
    RunWaiting        running  running  running  ignored  ignored  ignored
    EventTaken        starting running  interrupted ignored ignored ignored
    RunPaused         starting running  interrupted ignored ignored ignored
    UndoPromised      running  running  interrupted ignored ignored ignored
    UndoBegan         starting running  starting ignored  ignored  ignored
    AskOpened         running  running  interrupted ignored ignored ignored
    AskAnswered       starting running  interrupted ignored ignored ignored
    AskLapsed         starting running  interrupted ignored ignored ignored
    AskEscalated      starting running  interrupted ignored ignored ignored
    AskWithdrawn      starting running  interrupted ignored ignored ignored
    RunRetried        starting illegal  starting illegal  starting starting
"""
ROWS = {row.split()[0]: row.split()[1:] for row in EXPECTED.strip().splitlines()}

FACTS: dict[type[Fact], Fact] = {
    RunRequested: asked(),
    JoinMet: JoinMet("r", [0]),
    AttemptStarted: AttemptStarted("r", 2, 2, "h2"),
    RunStarted: RunStarted("r", 1),
    AskOpened: AskOpened("r", 1, "d", "Ship?", b"\x80", None, [], 0, 1, False, "", 0, None),
    AskAnswered: AskAnswered("r", 1, "a", "d", "ada", "cli", b"\xc3", None, True),
    AskLapsed: AskLapsed("r", 1),
    AskEscalated: AskEscalated("r", 1, 1),
    AskWithdrawn: AskWithdrawn("r", 1),
    ProgressReported: ProgressReported("r", 1, b"\x80"),
    MilestoneReached: MilestoneReached("r", 1, 0, "m", 1, b"\x80"),
    ChunkEmitted: ChunkEmitted("r", 1, 0, b"\xc0"),
    RunSucceeded: RunSucceeded("r", 1, b"\xc0", "", released=True),
    RunErrored: RunErrored("r", 1, "it broke", released=True),
    RunAborted: RunAborted("r", "cancelled"),
    RunInterrupted: RunInterrupted("r", "no-progress", True, "too long"),
    TeardownBegan: TeardownBegan("r", "budget-exceeded"),
    AttemptLost: AttemptLost("r", 1, "its host died", 0),
    RunReattached: RunReattached("r", 2, 1),
    RunCleared: RunCleared("r"),
    RunParked: RunParked("r", 1, "its input does not fit"),
    RunWaiting: RunWaiting("r", 1, ["approval"], math.inf, False, math.inf, released=True),
    RunPaused: RunPaused("r", paused=True),
    EventTaken: EventTaken("r", 1, "event!1", "draft"),
    UndoPromised: UndoPromised("r", 1),
    UndoBegan: UndoBegan("r", 1, "aborted", "cancelled"),
    RunRetried: RunRetried("r"),
}
CELLS = list(product(FACTS, Status))


def run_in(status: Status) -> Run:
    run = open_run(asked(), 1, 1_000)
    run.status, run.attempt, run.host_id = status, 1, "h1"
    return run


def expected(fact: type[Fact], status: Status) -> str:
    return ROWS[fact.__name__][ORDER.index(status)]


def test_the_table_has_a_row_for_every_fact_about_a_run_and_a_cell_for_every_status() -> None:
    assert set(TABLE) == set(FACTS)
    assert {len(row) for row in TABLE.values()} == {len(Status)}


@pytest.mark.parametrize(("fact", "status"), CELLS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_the_cell_says_what_is_expected(fact: type[Fact], status: Status) -> None:
    said = cell(status, fact)
    assert (said.value if isinstance(said, Cell) else str(said)) == expected(fact, status)
    assert permits(status, fact) is (expected(fact, status) not in ("ignored", "illegal"))


@pytest.mark.parametrize(("fact", "status"), CELLS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_the_fold_moves_the_run_there_or_refuses_and_leaves_it_alone(fact: type[Fact], status: Status) -> None:
    run = run_in(status)
    before = run.to_plain()
    if permits(status, fact):
        apply(run, FACTS[fact], 7, 2_000)
        assert str(run.status) == expected(fact, status)
        assert run.last_seq == 7
    else:
        with pytest.raises(IllegalTransition) as refused:
            apply(run, FACTS[fact], 7, 2_000)
        assert (refused.value.subject, refused.value.state, refused.value.fact) == ("r", status, fact.__name__)
        assert run.to_plain() == before


def test_a_hard_end_is_left_by_nothing_but_a_person_s_retry_and_a_completion_not_even_by_that() -> None:
    ways = {Status.COMPLETED: [], Status.ERROR: [RunRetried], Status.ABORTED: [RunRetried]}
    for status, expected_ways in ways.items():
        leaving = [fact for fact in TABLE if permits(status, fact) and cell(status, fact) is not status]
        assert leaving == expected_ways


def test_an_interruption_is_left_by_an_end_a_request_a_retry_a_wait_or_for_its_undos_and_by_nothing_else() -> None:
    leaving = {
        fact
        for fact in TABLE
        if permits(Status.INTERRUPTED, fact) and cell(Status.INTERRUPTED, fact) is not Status.INTERRUPTED
    }
    assert leaving == {RunSucceeded, RunErrored, RunAborted, RunReattached, RunWaiting, UndoBegan, RunRetried}
