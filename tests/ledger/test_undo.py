"""Runs whose steps are undone before they end: what is decided, and that nothing else ends them meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ledger import (
    Cancel,
    Clear,
    Ended,
    Fact,
    HostLost,
    Milestone,
    PromiseUndo,
    Released,
    Request,
    Retry,
    RunErrored,
    RunInterrupted,
    StaleIncarnation,
    StartAttempt,
    StopAgent,
    Tick,
    Undo,
    Undoing,
    Unstarted,
    arm,
    assign_hosts,
    explain,
    outstanding,
)
from perdure.ledger.facts import (
    AgentLost,
    AgentReleased,
    AttemptLost,
    AttemptStarted,
    RunAborted,
    RunCleared,
    RunParked,
    RunRetried,
    RunSucceeded,
    UndoBegan,
    UndoPromised,
)
from perdure.ledger.inspection import at_stake
from perdure.policies import Limits
from tests.kit import PARENT, TYPE, Ledger, asked, begun, child, placed

PROMISED = UndoPromised("r", 1)
CANCELLED = UndoBegan("r", 1, "aborted", "enough")
STOPPED = AttemptLost("r", 1, "it was told to stop", 0)


def running(*more: Fact, limits: Limits | None = None, **options: Any) -> Ledger:
    return Ledger(limits).given(asked(**options), placed(), begun(), *more)


def undoing(*more: Fact, undo: str = "aborted", **options: Any) -> Ledger:
    """A run whose second attempt undoes."""
    began = UndoBegan("r", 1, undo, "enough")
    return running(PROMISED, began, STOPPED, placed(attempt=2, incarnation=2, host="h2"), *more, **options)


def effects(ledger: Ledger) -> list[Any]:
    return list(outstanding(ledger.view, ["r", child()], ledger.now_ms))


def seats(ledger: Ledger) -> list[AttemptStarted]:
    made = ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))
    return [fact for fact in made if isinstance(fact, AttemptStarted)]


# ---------------------------------------------------------------- the promise


def test_the_first_step_with_an_undo_is_put_on_record_and_others_need_not_be() -> None:
    ledger = running()
    assert ledger.when(PromiseUndo("r", 1)) == [PROMISED]
    assert ledger.when(PromiseUndo("r", 1)) == []


@pytest.mark.parametrize(
    ("before", "incarnation"),
    [
        ([RunAborted("r", "enough")], 1),
        ([RunErrored("r", 1, "it broke", released=True)], 1),
        ([PROMISED, CANCELLED], 1),
        ([AttemptLost("r", 1, "gone", 0)], 1),
        ([AttemptLost("r", 1, "gone", 0), placed(attempt=2, incarnation=2)], 1),
        ([], 7),
    ],
)
def test_no_step_with_an_undo_begins_if_nobody_would_undo_it(before: list[Fact], incarnation: int) -> None:
    ledger = running(*before)
    with pytest.raises(StaleIncarnation, match="it begins no step that has an undo"):
        ledger.when(PromiseUndo("r", incarnation))


def test_the_child_of_an_interrupted_run_may_still_begin_one() -> None:
    assert running(RunInterrupted("r", "no-progress", True, "")).when(PromiseUndo("r", 1)) == [PROMISED]


# ---------------------------------------------------------------- cancelled


def test_without_a_promise_a_cancelled_run_is_aborted_at_once() -> None:
    assert running().when(Cancel("r", None, "enough")) == [RunAborted("r", "enough")]


def test_with_a_promise_its_child_is_stopped_and_the_next_attempt_undoes_and_then_it_is_aborted() -> None:
    ledger = running(PROMISED)
    assert ledger.when(Cancel("r", None, "enough")) == [CANCELLED]
    assert ledger.when(Cancel("r", None, "again")) == []
    assert effects(ledger) == [StopAgent("h1", child(), 1)]
    assert ledger.when(Released(child(), 1)) == [AttemptLost("r", 1, "it was told to stop", ledger.now_ms)]
    ledger.when(Tick())
    assert [fact.attempt for fact in seats(ledger)] == [2]
    start = next(each for each in effects(ledger) if isinstance(each, StartAttempt))
    assert (start.undo, start.after, start.collect) == (["aborted", "enough"], 1, False)
    life = ledger.run().incarnation
    assert ledger.when(Ended("r", life, None, "", "enough", released=True)) == [
        RunAborted("r", "enough"),
        AgentReleased(child(), life),
    ]
    assert (ledger.run().status, ledger.run().undo, ledger.run().host_id) == ("aborted", "", "")


@pytest.mark.parametrize(
    "end", [Ended("r", 1, b"\x01", "done", None, released=True), Ended("r", 1, None, "", "it broke", released=True)]
)
def test_an_end_of_the_attempt_that_was_told_to_stop_does_not_count(end: Ended) -> None:
    ledger = running(PROMISED, CANCELLED)
    assert ledger.when(end._replace(released=False)) == []
    assert ledger.when(end) == [AttemptLost("r", 1, "it was told to stop", ledger.view.at_ms)]
    assert ledger.run().is_undoing


def test_a_start_that_failed_before_it_heard_of_it_does_not_count() -> None:
    ledger = running(PROMISED, CANCELLED)
    assert [type(fact) for fact in ledger.when(Unstarted("r", 1, "unfit", "no"))] == [AttemptLost]


def test_a_host_that_dies_meanwhile_changes_nothing_but_the_place() -> None:
    ledger = running(PROMISED, CANCELLED)
    assert [type(fact) for fact in ledger.when(HostLost("h1", "killed"))] == [AttemptLost]
    assert ledger.run().is_undoing


def test_what_it_waits_for_is_aborted_when_that_begins() -> None:
    ledger = running(PROMISED).given(asked("below", parent=child()))
    facts = ledger.when(Cancel("r", None, "enough"))
    assert facts == [CANCELLED, RunAborted("below", "run r that waited for it has ended")]


def test_an_interrupted_run_that_is_cancelled_is_undone_too() -> None:
    ledger = running(PROMISED, AttemptLost("r", 1, "gone", 0), RunInterrupted("r", "recovery-deadline", None, ""))
    assert ledger.when(Cancel("r", None, "enough")) == [CANCELLED]
    ledger.when(Tick())
    assert [fact.attempt for fact in seats(ledger)] == [2]


def test_a_parked_run_that_is_cancelled_is_undone_too() -> None:
    ledger = running(PROMISED, RunParked("r", 1, "its input does not fit"))
    assert ledger.when(Cancel("r", None, "enough")) == [CANCELLED]
    assert not ledger.view.parked
    ledger.when(Tick())
    assert [fact.attempt for fact in seats(ledger)] == [2]


# ---------------------------------------------------------------- failed


def test_a_child_that_raised_undoes_in_the_same_life() -> None:
    ledger = running(PROMISED)
    assert ledger.when(Undoing("r", 1, "it broke", "trace")) == [UndoBegan("r", 0, "error", "it broke", "trace")]
    assert ledger.when(Undoing("r", 1, "it broke", "trace")) == []
    assert effects(ledger) == []
    assert ledger.when(Ended("r", 1, None, "", "it broke", True, "trace")) == [
        RunErrored("r", 1, "it broke", released=True, trace="trace")
    ]


def test_a_child_without_a_promise_has_nothing_to_undo() -> None:
    assert running().when(Undoing("r", 1, "it broke")) == []


def test_a_death_while_it_undoes_has_the_next_attempt_go_on_however_few_attempts_it_may_have() -> None:
    ledger = running(PROMISED, attempts_max=1)
    ledger.when(Undoing("r", 1, "it broke"))
    assert [type(fact) for fact in ledger.when(HostLost("h1", "killed"))] == [AttemptLost]
    ledger.when(Tick())
    assert [(fact.attempt, fact.collect) for fact in seats(ledger)] == [(2, False)]


def test_a_run_whose_attempts_are_used_up_is_undone_before_it_fails() -> None:
    ledger = running(PROMISED, limits=Limits(recovery_work_max=1))
    lost, began = ledger.when(HostLost("h1", "killed"))
    assert type(lost) is AttemptLost
    assert isinstance(began, UndoBegan)
    assert (began.attempt, began.undo) == (1, "error")
    assert "recovery_work_max is 1; the last time: its host died (killed)" in began.error
    ledger.when(Tick())
    assert [fact.attempt for fact in seats(ledger)] == [2]


def test_so_is_one_whose_last_attempt_has_left_nothing() -> None:
    ledger = running(PROMISED, AttemptLost("r", 1, "gone", 0), AttemptStarted("r", 2, 2, "h2", collect=True))
    assert ledger.when(Unstarted("r", 2, "collected-nothing", "nothing")) == [
        AttemptLost("r", 2, "gone", ledger.now_ms),
        UndoBegan("r", 2, "error", "nothing; the last time: gone"),
    ]


def test_a_result_that_was_committed_before_the_attempts_were_used_up_still_counts() -> None:
    ledger = undoing(undo="error")
    assert [type(fact) for fact in ledger.when(Ended("r", 2, b"\x01", "done", None))] == [RunSucceeded]


# ---------------------------------------------------------------- parked


@pytest.mark.parametrize("cause", ["undo-failed", "unfit", "unimportable", "not-runnable"])
def test_what_cannot_be_undone_is_parked_and_goes_on_when_it_is_retried(cause: str) -> None:
    ledger = undoing()
    assert ledger.when(Unstarted("r", 2, cause, "no such booking")) == [RunParked("r", 2, "no such booking")]
    assert ledger.view.parked == {"r": None}
    assert ledger.when(Retry("r")) == [RunRetried("r", None)]
    assert (ledger.run().error, ledger.run().is_undoing) == ("enough", True)
    assert [fact.attempt for fact in seats(ledger)] == [3]
    assert next(each.undo for each in effects(ledger) if isinstance(each, StartAttempt)) == ["aborted", "enough"]


def test_so_is_one_that_is_lost_each_time() -> None:
    ledger = undoing()
    for attempt in range(2, 7):
        host = ledger.run().host_id
        facts = ledger.when(HostLost(host, "killed"))
        ledger.view.hosts[host] = type(ledger.view.hosts["h1" if host == "h2" else "h2"])(host, None, up=True)
        if isinstance(facts[-1], AgentLost):
            assert attempt == 6, "it has all its attempts for that"
            break
        ledger.later(60_000).when(Tick())
        assert [fact.attempt for fact in seats(ledger)] == [attempt + 1]
    assert [type(fact) for fact in facts[:2]] == [AttemptLost, RunParked]
    assert "its steps could not be undone" in ledger.run().parked


@pytest.mark.parametrize(
    ("asked_for", "facts"),
    [
        (Cancel("r", None, "give up"), [RunAborted("r", "give up")]),
        (Clear(["r"]), [RunAborted("r", "cleared"), RunCleared("r")]),
    ],
)
def test_a_person_gives_up_what_is_parked(asked_for: Any, facts: list[Fact]) -> None:
    assert undoing(RunParked("r", 2, "no")).when(asked_for) == facts


# ---------------------------------------------------------------- cleared


def test_a_live_run_is_undone_before_it_is_cleared() -> None:
    ledger = running(PROMISED)
    assert ledger.when(Clear(["r"])) == [UndoBegan("r", 1, "cleared", "cleared")]
    ledger.given(STOPPED, placed(attempt=2, incarnation=2, host="h2"))
    ended = ledger.when(Ended("r", 2, None, "", "cleared"))
    assert ended == [RunAborted("r", "cleared"), RunCleared("r")]


def test_one_that_is_being_undone_is_cleared_after_that() -> None:
    ledger = undoing()
    assert ledger.when(Clear(["r"])) == [UndoBegan("r", 1, "cleared", "enough")]
    assert ledger.when(Clear(["r"])) == []
    assert not ledger.run().stops_to_undo
    assert at_stake(ledger.view, ["r"], "").runs == 0


def test_what_is_at_stake_counts_it() -> None:
    assert at_stake(running(PROMISED).view, ["r"], "").runs == 1
    assert at_stake(undoing().view, ["r"], "").runs == 1


# ---------------------------------------------------------------- time, and who asks again


def test_no_time_limit_applies_while_it_is_undone() -> None:
    ledger = undoing(detached=True, max_budget_ms=1, no_progress_budget_ms=1)
    ledger.when(Milestone("r", 2, "m", 1, b"\x80"))
    arm(ledger.view, ["r"], ledger.limits)
    assert ledger.later(10**9).when(Tick()) == []
    assert ledger.when(HostLost("h2", "killed")) != []
    assert all(not isinstance(fact, RunInterrupted) for fact in ledger.later(10**9).when(Tick()))
    assert ledger.run().is_live


def test_who_asks_for_it_again_waits_for_its_end_and_the_reason_stays() -> None:
    ledger = undoing()
    ledger.when(Request("r", TYPE, PARENT, "", "digest", b"\x01", {}, 2, wait=True))
    assert (ledger.run().error, ledger.run().is_undoing) == ("enough", True)


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        (running(PROMISED), "It has begun a step that is undone if the run fails or is cancelled."),
        (running(PROMISED, CANCELLED), "Its child was told to stop."),
        (undoing(), "It is over, and its steps are being undone: enough When that is done it is aborted."),
        (undoing(undo="error"), "When that is done it fails."),
        (undoing(undo="cleared"), "When that is done it is aborted and cleared."),
        (undoing(RunParked("r", 2, "no such booking")), "It is parked: no such booking"),
    ],
)
def test_it_is_explained(ledger: Ledger, words: str) -> None:
    assert words in " ".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))


def test_the_words_for_the_ends_are_those_that_the_record_keeps() -> None:
    assert [str(each) for each in Undo] == ["promised", "error", "aborted", "cleared"]
