"""Runs that wait without a process: what ends a wait, what a pause holds back, what becomes of events, and what it all costs: nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.ledger import (
    HARD,
    Awake,
    Cancel,
    Clear,
    DeliverEvents,
    Effect,
    EventRefused,
    Fact,
    Forget,
    HostLost,
    PauseAttempt,
    PauseRefused,
    Released,
    Request,
    Retry,
    Row,
    Send,
    StartAttempt,
    StopAgent,
    Tick,
    Took,
    UnknownRun,
    Unstarted,
    Up,
    Waiting,
    WakeAgent,
    arm,
    assign_hosts,
    audit,
    dirty_records,
    everything,
    explain,
    inspected,
    meta_of,
    outstanding,
    pack_value,
    receipt,
    record_fact,
    restore,
)
from perdure.ledger import Pause as PauseAsked
from perdure.ledger.facts import (
    AgentActivated,
    AgentReleased,
    AgentStopped,
    AttemptLost,
    AttemptStarted,
    CodeAdopted,
    EventSent,
    EventTaken,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunParked,
    RunPaused,
    RunReattached,
    RunRetried,
    RunSucceeded,
    RunWaiting,
    TeardownBegan,
)
from perdure.ledger.run import RECEIPTS_KEPT
from perdure.ledger.status import Status
from perdure.ledger.stimulus import Adopt
from perdure.ledger.store.batches import Batch
from perdure.ledger.store.memory_store import MemoryStore
from perdure.policies import Leap, Limits
from perdure.scenarios.testing.checks import out_of_step, unlike_the_shadow
from tests.kit import NOW_MS, PARENT, TYPE, Change, Ledger, asked, begun, child, enacted, placed

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BODY = pack_value("value", 7)
DETACHED: dict[str, Any] = {"detached": True, "on_finish": "f"}
DONE = RunSucceeded("r", 1, b"\x2a", "", released=True)


class Booted(Ledger):
    """A ledger that is booted again after each change, to the same view; and whose indexes are held against its records."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.store = MemoryStore()

    def given(self, *facts: Fact) -> Booted:
        for fact in facts:
            self._keep([record_fact(self.view, fact, self.now_ms)])
        return self

    def enact(self, changes: Iterator[Change]) -> list[Fact | Batch]:
        made: list[Fact | Batch] = []
        for fact, row in enacted(self.view, changes, self.now_ms):
            made.append(fact)
            self.store.append([row], [])
        self._keep([])
        return made

    def _keep(self, rows: list[Row]) -> None:
        self.store.append(rows, [])
        self._compare()
        self.store.checkpoint(meta_of(self.view), self.view.seq, dirty_records(self.view), [])
        self.view.dirty_runs, self.view.dirty_agents, self.view.dirty_mail = {}, {}, {}
        self._compare()

    def _compare(self) -> None:
        booted = restore(self.store.boot())
        for view in (self.view, booted):
            arm(view, view.runs, self.limits)
            assert list(out_of_step(view)) == []
        if not self.view.settled:  # what has settled is not read by a boot
            assert list(unlike_the_shadow(self.view, booted)) == []
        assert set(self.view.waiting) <= set(booted.waiting), "what is due is looked at anew"

    def later(self, ms: float) -> Booted:
        super().later(ms)
        return self

    def passes(self, ms: float) -> list[Fact | Batch]:
        """Time passes, the timers fire, and whoever waits for a place gets one."""
        self.later(ms)
        return [*self.when(Tick()), *self.seated()]

    def seated(self) -> list[Fact | Batch]:
        return self.enact(assign_hosts(self.view, self.now_ms, self.limits))

    def effects(self) -> list[Effect]:
        return list(outstanding(self.view, everything(self.view), self.now_ms))


def waits(
    *events: str, ms: float = math.inf, wall_ms: float | None = None, released: bool = True, attempt: int = 1
) -> RunWaiting:
    """A run began to wait at `NOW_MS`."""
    if wall_ms is not None:
        return RunWaiting("r", attempt, list(events), wall_ms, True, wall_ms, released)
    return RunWaiting("r", attempt, list(events), NOW_MS + ms, False, NOW_MS + ms + 5, released)


def at_work(**options: Any) -> Booted:
    return Booted().given(asked(**options), placed(), begun())


def resting(*events: str, options: dict[str, Any] | None = None, **wait: Any) -> Booted:
    return at_work(**(options or {})).given(waits(*events, **wait))


def sent(name: str = "go", mail_id: str = "event!1", run_id: str = "r") -> Send:
    return Send(mail_id, run_id, name, "", BODY, 0)


def event(name: str = "go", mail_id: str = "event!1") -> EventSent:
    return EventSent(mail_id, "r", name, "", BODY)


def said(*events: str, ms: float = math.inf, released: bool = True, incarnation: int = 1, attempt: int = 1) -> Waiting:
    return Waiting("r", incarnation, attempt, list(events), NOW_MS + ms + 5, ms, by_wall=False, released=released)


AGAIN = placed(attempt=2, incarnation=2)


# ---------------------------------------------------------------- what ends a wait


def test_a_wait_for_a_time_is_over_at_its_instant_and_not_before_and_costs_no_attempt() -> None:
    ledger = at_work()
    assert ledger.when(said(ms=DAY_MS)) == [waits(ms=DAY_MS)]
    assert (ledger.run().status, ledger.run().host_id, ledger.view.agents) == (Status.RUNNING, "", {})
    assert ledger.passes(DAY_MS - 1) == []
    assert ledger.passes(1) == [AGAIN]
    run = ledger.run()
    assert (run.counted_attempts, run.idle_attempts, run.losses, run.waited_ms) == (1, 1, 0, DAY_MS)
    assert (run.wait, run.over_ms) == (None, NOW_MS + DAY_MS + 5), (
        "the child hears that the deadline by its clock has passed"
    )
    assert StartAttempt("h1", child(), 2, "r", 2, b"\x01", False, {}, 0, 0, run.over_ms) in ledger.effects()


def test_a_fraction_of_a_millisecond_is_waited_out_and_not_looked_at_over_and_over() -> None:
    ledger = at_work()
    ledger.when(said(ms=1000.4))
    assert ledger.passes(1000) == []
    assert ledger.view.timers.next_at_ms == ledger.now_ms + 1
    assert ledger.passes(1) == [AGAIN]


@pytest.mark.parametrize("ms", [0, -5.0])
def test_a_wait_that_was_over_when_it_was_told_is_over_at_once(ms: float) -> None:
    ledger = at_work()
    (fact,) = ledger.when(said(ms=ms))
    assert isinstance(fact, RunWaiting)
    assert fact.until_ms == NOW_MS
    assert ledger.passes(0) == [AGAIN]


def test_a_wait_for_an_event_is_over_when_one_of_its_names_comes_and_for_no_other_and_not_with_time() -> None:
    ledger = resting("go", "stop")
    assert ledger.passes(10 * 365 * DAY_MS) == []
    assert ledger.when(sent("else")) == [event("else")]
    assert ledger.seated() == []
    assert ledger.when(sent("stop", "event!2")) == [event("stop", "event!2")]
    assert ledger.seated() == [AGAIN]
    assert ledger.run().over_ms == 0


@pytest.mark.parametrize("first", ["event", "time"])
def test_of_an_event_and_a_time_the_first_ends_the_wait(first: str) -> None:
    ledger = resting("go", ms=1000)
    if first == "event":
        ledger.later(999).when(sent())
        assert ledger.seated() == [AGAIN]
        assert ledger.run().over_ms == 0, "its time has not come"
    else:
        assert ledger.passes(1000) == [AGAIN]
        assert ledger.run().over_ms == NOW_MS + 1005
        ledger.when(sent())
        assert ledger.passes(1) == []


def test_an_event_that_came_before_the_wait_or_before_it_was_told_ends_it_at_once() -> None:
    ledger = at_work()
    ledger.when(sent())
    assert DeliverEvents("h1", child(), 1, "r") in ledger.effects()
    assert list(ledger.view.events["r"].to_hand(ledger.now_ms, 1)) == ["event!1"]
    ledger.when(said("go"))  # it was on its way to the life that has left
    assert ledger.seated() == [AGAIN]
    assert list(ledger.view.events["r"].to_hand(ledger.now_ms, 1)) == ["event!1"], "the next attempt is told it anew"


def test_a_wait_until_an_instant_of_the_calendar_goes_by_the_wall_clock() -> None:
    ledger = resting(wall_ms=NOW_MS + 1000)
    ledger.later(5000)
    assert ledger.when(Tick(behind_ms=4001)) == []  # the clock was set back: it is NOW_MS + 999 there
    assert ledger.seated() == []
    ledger.later(1)
    assert ledger.when(Tick(behind_ms=4001)) == []
    assert ledger.seated() == [AGAIN]
    assert ledger.run().over_ms == 0


def test_a_leap_of_the_ledgers_time_is_no_time_that_was_slept() -> None:
    ledger = resting(ms=1000)
    ledger.view.leaps = (Leap(NOW_MS + 100, DAY_MS),)
    assert ledger.passes(DAY_MS + 999) == []
    assert ledger.passes(1) == [AGAIN]


def test_a_leap_over_an_instant_of_the_calendar_makes_it_due() -> None:
    ledger = resting(wall_ms=NOW_MS + 1000)
    ledger.view.leaps = (Leap(NOW_MS + 100, DAY_MS),)
    assert ledger.passes(DAY_MS) == [AGAIN]


def test_a_run_that_waits_again_and_again_has_one_attempt_left_to_count_each_time() -> None:
    ledger = Booted(Limits(attempts_max=2)).given(asked(), placed(), begun())
    for number in range(1, 6):
        ledger.given(RunWaiting("r", number, [], ledger.now_ms + 10, False, ledger.now_ms + 10, True))
        assert ledger.passes(10) == [placed(attempt=number + 1, incarnation=number + 1)]
        assert ledger.when(Up("r", number + 1)) != []
    assert (ledger.run().attempt, ledger.run().counted_attempts, ledger.run().reentries) == (6, 1, 5)
    (lost,) = ledger.when(HostLost("h1", "killed"))
    assert isinstance(lost, AttemptLost)
    (again,) = ledger.passes(1000)
    assert isinstance(again, AttemptStarted)
    assert (again.collect, ledger.run().counted_attempts) == (False, 2)


def test_a_report_that_is_doubled_late_or_of_another_life_is_an_echo() -> None:
    ledger = resting("go", released=False)
    assert ledger.when(said("go", released=False)) == []
    ledger.when(sent())
    assert ledger.seated() == [placed(attempt=2)]
    assert ledger.when(said("go", released=False)) == [], "the attempt before this one said so"
    assert ledger.when(said("go", incarnation=7, attempt=2)) == []
    assert ledger.when(said("go", released=False, attempt=2)) != []
    assert Ledger().when(said("go")) == []


@pytest.mark.parametrize("status", sorted(HARD))
def test_a_run_that_has_ended_waits_for_nothing_and_its_child_leaves(status: Status) -> None:
    ends: dict[Status, Fact] = {
        Status.COMPLETED: RunSucceeded("r", 1, b"", "", released=False),
        Status.ERROR: RunErrored("r", 1, "no", released=False),
        Status.ABORTED: RunAborted("r", "cancelled"),
    }
    ledger = at_work().given(ends[status])
    assert ledger.when(said("go")) == [AgentReleased(child(), 1)]


def test_a_child_that_is_torn_down_and_says_that_it_waits_has_stopped() -> None:
    ledger = at_work(**DETACHED).given(TeardownBegan("r", "budget-exceeded"))
    released, interrupted = ledger.when(said("go"))
    assert released == AgentReleased(child(), 1)
    assert isinstance(interrupted, RunInterrupted)
    assert interrupted.child_still_running is False
    assert ledger.when(said("go")) == []


def test_an_interrupted_child_that_is_heard_to_wait_is_alive() -> None:
    ledger = at_work().given(RunReattached("r", 2, 1), RunInterrupted("r", "no-progress", True, "silent"))
    assert ledger.when(said("go")) == [waits("go")]
    assert (ledger.run().status, ledger.run().reason, ledger.run().ended_at_ms) == (Status.RUNNING, "", 0)
    ledger.when(sent())
    assert ledger.seated() == [AGAIN]


# ---------------------------------------------------------------- beside other work of the child


def test_a_child_that_stays_awake_for_other_work_is_entered_again_where_it_is() -> None:
    ledger = resting("go", released=False)
    activation = ledger.view.agents[child()]
    assert (activation.host_id, activation.run_id, activation.confirmed) == ("h1", "", True)
    assert not any(isinstance(effect, StopAgent) for effect in ledger.effects())
    ledger.when(sent())
    assert not any(isinstance(effect, StopAgent) for effect in ledger.effects())
    assert ledger.seated() == [placed(attempt=2, incarnation=1)]
    assert ledger.run().reentries == 1
    starts = [effect for effect in ledger.effects() if isinstance(effect, StartAttempt)]
    assert [(start.incarnation, start.attempt) for start in starts] == [(1, 2)]


def test_a_child_that_is_woken_for_other_work_while_it_waits_is_entered_there_once_it_is_up() -> None:
    ledger = resting("go")
    ledger.view.want(child())
    assert ledger.seated() == [AgentActivated(child(), 2, "h1", None)]
    assert any(isinstance(effect, WakeAgent) for effect in ledger.effects())
    ledger.when(sent())
    assert ledger.seated() == [], "it comes up yet"
    ledger.when(Awake(child(), 2))
    assert ledger.seated() == [placed(attempt=2, incarnation=2)]


def test_a_run_that_is_due_wakes_its_child_itself() -> None:
    ledger = resting("go")
    ledger.when(sent())
    ledger.view.want(child())
    assert ledger.seated() == [AGAIN]


def test_a_child_that_left_before_it_is_entered_again_is_entered_somewhere() -> None:
    ledger = resting("go", released=False)
    assert ledger.when(Released(child(), 1)) == [AgentReleased(child(), 1)]
    ledger.when(sent())
    assert ledger.seated() == [AGAIN]


def test_a_host_that_dies_under_a_child_that_is_awake_for_other_work_costs_its_run_nothing() -> None:
    ledger = resting("go", released=False)
    facts = ledger.when(HostLost("h1", "killed"))
    assert not any(isinstance(fact, AttemptLost | RunInterrupted | RunErrored) for fact in facts)
    assert (ledger.run().status, ledger.run().losses) == (Status.RUNNING, 0)
    ledger.when(sent())
    (again,) = ledger.passes(60_000)
    assert again == AttemptStarted("r", 2, ledger.view.incarnation, "h2")


def test_a_child_that_is_asked_to_leave_is_not_entered_there() -> None:
    ledger = resting("go", released=False)
    ledger.given(AgentStopped(child()))
    ledger.when(sent())
    assert ledger.seated() == []
    ledger.when(Released(child(), 1))
    assert ledger.seated() == [AGAIN]


def test_a_parents_limit_also_holds_back_a_run_whose_child_is_awake() -> None:
    ledger = resting("go", released=False, options={"limit": 1})
    ledger.given(asked("s", limit=1))
    assert ledger.seated() == [placed("s", incarnation=2, host="h2")]
    ledger.when(sent())
    assert ledger.seated() == []
    assert ledger.view.held
    ledger.given(RunSucceeded("s", 1, b"", "", released=True))
    assert ledger.seated() == [placed(attempt=2, incarnation=1)]


def test_a_run_that_waits_leaves_its_place_to_the_next_one_of_its_parent() -> None:
    ledger = at_work(limit=1).given(asked("s", limit=1))
    assert ledger.seated() == []
    ledger.when(said("go"))
    assert ledger.seated() == [placed("s", incarnation=2)]


# ---------------------------------------------------------------- pause


def test_a_run_is_paused_and_goes_on_in_each_place_where_it_can_be() -> None:
    ledger = Booted().given(asked())
    assert ledger.when(PauseAsked("r", paused=True)) == [RunPaused("r", paused=True)]
    assert ledger.when(PauseAsked("r", paused=True)) == []
    assert ledger.passes(DAY_MS) == []
    assert ledger.when(PauseAsked("r", paused=False)) == [RunPaused("r", paused=False)]
    assert ledger.passes(0) == [placed()]
    assert ledger.when(PauseAsked("r", paused=False)) == []
    assert (ledger.run().counted_attempts, ledger.run().reentries) == (1, 0)


def test_a_run_that_its_parents_limit_holds_back_is_paused() -> None:
    ledger = at_work(limit=1).given(asked("s", limit=1))
    assert ledger.seated() == []
    ledger.when(PauseAsked("s", paused=True))
    ledger.given(DONE)
    assert ledger.passes(1000) == []
    ledger.when(PauseAsked("s", paused=False))
    assert ledger.passes(0) == [placed("s", incarnation=2)]


def test_a_run_at_work_is_told_and_stops_by_waiting_for_nothing() -> None:
    ledger = at_work()
    ledger.when(PauseAsked("r", paused=True))
    assert PauseAttempt("h1", child(), 1, "r") in ledger.effects()
    assert ledger.when(said()) == [waits()]
    assert ledger.passes(DAY_MS) == []
    ledger.when(PauseAsked("r", paused=False))
    assert ledger.passes(0) == [AGAIN]
    assert ledger.run().waited_ms == DAY_MS


def test_a_run_that_is_let_go_on_before_it_stopped_is_entered_again_at_once() -> None:
    ledger = at_work().given(RunPaused("r", paused=True))
    ledger.when(PauseAsked("r", paused=False))
    assert not any(isinstance(effect, PauseAttempt) for effect in ledger.effects())
    ledger.when(said())
    assert ledger.passes(0) == [AGAIN]


@pytest.mark.parametrize("ends", ["time", "event", "wall"])
def test_what_a_paused_run_waits_for_goes_on_to_come(ends: str) -> None:
    ledger = resting("go", ms=1000) if ends != "wall" else resting(wall_ms=NOW_MS + 1000)
    ledger.when(PauseAsked("r", paused=True))
    if ends == "event":
        ledger.when(sent())
    assert ledger.passes(2000) == []
    ledger.when(PauseAsked("r", paused=False))
    assert ledger.passes(0) == [AGAIN]


def test_a_run_that_waits_on_after_its_pause_waits_for_the_rest() -> None:
    ledger = resting(ms=1000).given(RunPaused("r", paused=True)).later(500)
    ledger.when(PauseAsked("r", paused=False))
    assert ledger.passes(499) == []
    assert ledger.passes(1) == [AGAIN]


def test_a_run_whose_event_has_come_is_paused_before_it_has_a_place() -> None:
    ledger = resting("go")
    ledger.when(sent())
    ledger.when(PauseAsked("r", paused=True))
    assert ledger.passes(1000) == []
    ledger.when(PauseAsked("r", paused=False))
    assert ledger.passes(0) == [AGAIN]


def test_a_paused_run_whose_host_dies_is_entered_by_nobody_until_it_goes_on() -> None:
    ledger = at_work().given(RunPaused("r", paused=True))
    (lost,) = ledger.when(HostLost("h1", "killed"))
    assert isinstance(lost, AttemptLost)
    assert "r" in ledger.view.waiting
    assert ledger.passes(60_000) == []
    assert ledger.passes(DAY_MS) == [], "the deadline for a place does not run"
    ledger.when(PauseAsked("r", paused=False))
    (again,) = ledger.passes(0)
    assert again == AttemptStarted("r", 2, 2, "h2")


@pytest.mark.parametrize("options", [DETACHED, {**DETACHED, "no_progress_budget_ms": 1000}])
def test_the_time_of_a_pause_is_held_against_nobody_afterwards(options: dict[str, Any]) -> None:
    ledger = at_work(**options).given(AttemptLost("r", 1, "its host died", NOW_MS + 400), RunPaused("r", paused=True))
    for host in ledger.view.hosts.values():
        host.up = False
    assert ledger.passes(2 * DAY_MS) == []
    ledger.when(PauseAsked("r", paused=False))
    assert ledger.passes(0) == []
    assert ledger.passes(999) == []
    for host in ledger.view.hosts.values():
        host.up = True
    assert ledger.seated() == [AGAIN]


def test_a_parked_run_is_paused_and_stays_parked_and_paused_until_both_are_undone() -> None:
    ledger = Booted().given(asked(), placed(), RunParked("r", 1, "its input does not fit"))
    ledger.when(PauseAsked("r", paused=True))
    assert ledger.passes(DAY_MS) == []
    assert ledger.when(Retry("r")) == [RunRetried("r")]
    assert ledger.passes(DAY_MS) == [], "code or a person may come meanwhile; it is paused all the same"
    ledger.when(PauseAsked("r", paused=False))
    assert ledger.passes(0) == [AGAIN]


def test_a_parked_run_that_goes_on_first_stays_parked() -> None:
    ledger = Booted().given(asked(), placed(), RunParked("r", 1, "its input does not fit"), RunPaused("r", paused=True))
    ledger.when(PauseAsked("r", paused=False))
    assert ledger.passes(1000) == []
    ledger.when(Retry("r"))
    assert ledger.passes(0) == [AGAIN]


def test_a_run_that_is_torn_down_may_be_paused_and_is_given_up_all_the_same() -> None:
    ledger = at_work(**DETACHED).given(TeardownBegan("r", "budget-exceeded"))
    ledger.when(PauseAsked("r", paused=True))
    interrupted, *_ = ledger.passes(Limits().teardown_grace_ms)
    assert isinstance(interrupted, RunInterrupted)
    assert not ledger.run().paused


ENDED = [
    DONE,
    RunErrored("r", 1, "no", released=True),
    RunAborted("r", "no"),
    RunInterrupted("r", "budget-exceeded", None, ""),
]


@pytest.mark.parametrize("end", ENDED)
@pytest.mark.parametrize("paused", [True, False])
def test_what_has_ended_is_not_paused_and_does_not_go_on(end: Fact, paused: bool) -> None:
    ledger = at_work().given(end)
    with pytest.raises(PauseRefused, match="only a live run is paused"):
        ledger.when(PauseAsked("r", paused))


@pytest.mark.parametrize(("option", "limit"), [({"attempts_max": 1}, 5), ({}, 1)])
def test_a_run_that_may_be_entered_once_is_paused_until_it_is_at_work(option: dict[str, Any], limit: int) -> None:
    ledger = Booted(Limits(attempts_max=limit)).given(asked(**option))
    assert ledger.when(PauseAsked("r", paused=True)) == [RunPaused("r", paused=True)]
    assert ledger.when(PauseAsked("r", paused=False)) == [RunPaused("r", paused=False)]
    ledger.passes(0)
    with pytest.raises(PauseRefused, match="has one attempt"):
        ledger.when(PauseAsked("r", paused=True))
    assert ledger.when(PauseAsked("r", paused=False)) == []


def test_an_unknown_or_cleared_run_is_neither_paused_nor_sent_anything() -> None:
    ledger = at_work().given(RunAborted("r", "cleared"), RunCleared("r"))
    for run_id in ("r", "other"):
        with pytest.raises(UnknownRun, match="no run"):
            ledger.when(PauseAsked(run_id, paused=True))
        with pytest.raises(UnknownRun, match="sent to nobody"):
            ledger.when(sent(run_id=run_id))


# ---------------------------------------------------------------- time limits


def test_no_limit_but_a_budget_of_its_own_applies_to_a_run_that_waits() -> None:
    ledger = resting("go", options={**DETACHED, "no_progress_budget_ms": 1000})
    assert ledger.passes(30 * DAY_MS) == []
    own = resting("go", options={**DETACHED, "max_budget_ms": DAY_MS})
    assert own.passes(DAY_MS - 1) == []
    began, interrupted, *_ = own.passes(1)
    assert began == TeardownBegan("r", "budget-exceeded")
    assert isinstance(interrupted, RunInterrupted)
    assert (interrupted.child_still_running, own.view.waiting) == (False, {})


@pytest.mark.parametrize("paused", [False, True])
def test_a_budget_of_its_own_also_ends_a_paused_run(paused: bool) -> None:
    ledger = Booted().given(asked(**DETACHED, max_budget_ms=DAY_MS))
    if paused:
        ledger.given(RunPaused("r", paused=True))
    for host in ledger.view.hosts.values():
        host.up = False
    assert ledger.passes(DAY_MS - 1) == []
    assert ledger.passes(1)[0] == TeardownBegan("r", "budget-exceeded")


def test_the_general_budget_counts_the_time_at_work_and_not_that_of_waits() -> None:
    ledger = resting(ms=30 * DAY_MS, options=DETACHED)
    assert ledger.passes(30 * DAY_MS) == [AGAIN]
    ledger.when(Up("r", 2))
    most_ms = int(Limits().detached_max_budget_ms)
    ledger.view.awake_at_ms = ledger.now_ms + most_ms  # silence is another matter
    assert ledger.passes(most_ms - 1) == []
    assert ledger.passes(1) == [TeardownBegan("r", "budget-exceeded")]


def test_the_silence_of_a_child_is_counted_from_when_it_is_entered_again() -> None:
    ledger = resting(ms=DAY_MS, options={**DETACHED, "no_progress_budget_ms": 1000})
    assert ledger.passes(DAY_MS) == [AGAIN]
    ledger.when(Up("r", 2))
    assert ledger.passes(999) == []
    assert ledger.passes(1) == [TeardownBegan("r", "no-progress")]


@pytest.mark.parametrize(
    "options", [DETACHED, {**DETACHED, "no_progress_budget_ms": 1000}, {"reattach_no_progress_ms": 1000}]
)
def test_a_run_whose_wait_is_over_may_stand_in_the_queue_without_being_given_up_for_it(options: dict[str, Any]) -> None:
    ledger = at_work(**options)
    if "detached" not in options:
        ledger.given(RunReattached("r", 2, 1))
    ledger.given(waits(ms=2 * DAY_MS))
    for host in ledger.view.hosts.values():
        host.up = False
    assert ledger.passes(2 * DAY_MS) == []
    assert ledger.passes(2 * DAY_MS) == []
    for host in ledger.view.hosts.values():
        host.up = True
    assert ledger.seated() == [AGAIN]


def test_a_parent_that_comes_back_to_a_run_that_waits_finds_it_waiting_and_is_as_patient_as_it_said() -> None:
    ledger = resting("go", options={"reattach_no_progress_ms": 1000})
    asked_again = Request("r", TYPE, PARENT, "", "digest", b"\x01", {"reattach_no_progress_ms": 1000}, 2, True)
    assert ledger.when(asked_again) == [RunReattached("r", 2, 1)]
    assert ledger.run().status is Status.RUNNING
    assert ledger.passes(DAY_MS) == [], "nobody is silent who is known to wait"
    ledger.when(sent())
    assert ledger.seated() == [AGAIN]
    ledger.when(Up("r", 2))
    assert ledger.passes(999) == []
    (interrupted,) = ledger.passes(1)
    assert isinstance(interrupted, RunInterrupted)


def test_a_window_of_a_parent_that_came_back_ends_while_its_child_waits() -> None:
    ledger = resting("go", options={"reattach_window_ms": 1000}).given(RunReattached("r", 2, 1))
    assert ledger.passes(999) == []
    assert ledger.passes(1)[0] == TeardownBegan("r", "window-exceeded")


# ---------------------------------------------------------------- ends of a run that waits


def test_a_run_that_waits_is_cancelled_cleared_and_forgotten_with_its_events() -> None:
    ledger = resting("go", wall_ms=NOW_MS + HOUR_MS, options=DETACHED)
    ledger.when(sent("else"))
    assert ledger.when(Cancel("r", None, "enough")) == [RunAborted("r", "enough")]
    assert (ledger.view.waiting, ledger.view.events, ledger.view.alarms.armed) == ({}, {}, {})
    assert receipt(ledger.view, ledger.run(), "event!1")["status"] == "withdrawn"
    assert audit(ledger.view)["balanced"]

    cleared = resting("go")
    cleared.when(sent("else"))
    facts = cleared.when(Clear(["r"]))
    assert [type(fact) for fact in facts] == [RunAborted, RunCleared]
    assert audit(cleared.view)["balanced"]

    forgotten = resting("go")
    forgotten.when(sent("else"))
    forgotten.when(Forget(PARENT))
    assert (forgotten.run().cleared, forgotten.view.waiting, forgotten.view.events) == (True, {}, {})
    assert audit(forgotten.view)["balanced"]


@pytest.mark.parametrize("end", ENDED[:3])
def test_events_that_were_not_taken_are_withdrawn_at_each_hard_end(end: Fact) -> None:
    ledger = at_work().given(event(), event("else", "event!2"), end)
    assert (ledger.view.events, ledger.view.mail) == ({}, {})
    assert receipt(ledger.view, ledger.run(), "event!2")["status"] == "withdrawn"
    assert audit(ledger.view)["balanced"]


def test_an_interrupted_run_keeps_its_events_for_whoever_tries_it_again() -> None:
    ledger = at_work().given(event(), RunInterrupted("r", "inspect-failed", None, ""))
    assert receipt(ledger.view, ledger.run(), "event!1")["status"] == "waits"
    assert ledger.when(sent("go", "event!2")) == [event("go", "event!2")]
    ledger.given(AttemptLost("r", 1, "gone", NOW_MS))
    assert ledger.when(Retry("r")) == [RunRetried("r")]
    assert ledger.seated() == [AGAIN]
    assert ledger.view.events["r"].to_hand(ledger.now_ms, 1) == ["event!1", "event!2"]


def test_a_run_that_failed_after_waits_is_tried_again_with_all_its_attempts_and_nothing_of_the_waits() -> None:
    ledger = resting(ms=1000)
    ledger.passes(1000)
    ledger.given(RunErrored("r", 2, "no", released=True))
    assert ledger.when(Retry("r")) == [RunRetried("r")]
    run = ledger.run()
    assert (run.wait, run.paused, run.waited_ms, run.reentries, run.over_ms) == (None, False, 0, 0, 0)
    assert ledger.seated() == [placed(attempt=3, incarnation=3)]
    assert (run.counted_attempts, ledger.run().counted_attempts) == (1, 1)


def test_an_attempt_that_cannot_begin_after_a_wait_is_lost_as_any_other() -> None:
    ledger = resting(ms=1000)
    ledger.passes(1000)
    (lost,) = ledger.when(Unstarted("r", 2, "start-failed", "no disk"))
    assert isinstance(lost, AttemptLost)
    assert ledger.run().wait is None
    assert ledger.passes(60_000) == [placed(attempt=3, incarnation=3)]


def test_code_that_comes_tries_a_parked_run_again_and_not_one_that_waits() -> None:
    ledger = resting("go")
    facts = ledger.when(Adopt("p1", {"tests.toys": "d1"}))
    assert not any(isinstance(fact, RunRetried) for fact in facts)
    assert all(isinstance(fact, CodeAdopted) for fact in facts)


# ---------------------------------------------------------------- events


def test_events_are_handed_over_in_their_order_each_once_and_anew_to_the_next_life() -> None:
    ledger = at_work().given(*(event("go", f"event!{number}") for number in range(3)))
    line = ledger.view.events["r"]
    assert line.to_hand(ledger.now_ms, 1000) == ["event!0", "event!1", "event!2"]
    assert line.to_hand(ledger.now_ms + 999, 1000) == []
    assert ledger.when(Took("r", 1, "event!0", "draft")) == [EventTaken("r", 1, "event!0", "draft")]
    ledger.when(HostLost("h1", "killed"))
    ledger.passes(60_000)
    assert ledger.view.events["r"].to_hand(ledger.now_ms, 1000) == ["event!1", "event!2"]


def test_an_event_that_is_sent_again_is_the_same_before_and_after_it_was_taken_and_after_the_end() -> None:
    ledger = at_work()
    assert ledger.when(sent()) == [event()]
    assert ledger.when(sent()) == []
    ledger.when(Took("r", 1, "event!1", ""))
    assert ledger.when(sent()) == []
    ledger.given(DONE)
    assert ledger.when(sent()) == [], "who repeats it has lost the answer, not the event"
    with pytest.raises(EventRefused, match=r"has ended \(completed\)"):
        ledger.when(sent(mail_id="event!2"))


def test_a_run_keeps_so_many_events_and_refuses_more_until_it_has_taken_some() -> None:
    ledger = Booted(Limits(events_max=2)).given(asked(), placed(), begun(), event(), event("go", "event!2"))
    with pytest.raises(EventRefused, match="2 events that it has not taken"):
        ledger.when(sent(mail_id="event!3"))
    assert ledger.when(sent(mail_id="event!2")) == []
    ledger.when(Took("r", 1, "event!1", ""))
    assert ledger.when(sent(mail_id="event!3")) == [event("go", "event!3")]


def test_only_the_life_that_has_the_place_takes_events_and_only_those_of_its_run() -> None:
    ledger = at_work().given(event(), asked("s"))
    ledger.given(EventSent("event!s", "s", "go", "", BODY))
    assert ledger.when(Took("r", 7, "event!1", "")) == []
    assert ledger.when(Took("r", 1, "event!s", "")) == []
    assert ledger.when(Took("r", 1, "event!9", "")) == []
    assert ledger.when(Took("r", 1, "event!1", "")) == [EventTaken("r", 1, "event!1", "")]
    assert ledger.when(Took("r", 1, "event!1", "")) == []


def test_the_receipt_of_an_event_says_when_it_was_read_and_of_the_last_thousand_only() -> None:
    ledger = Ledger().given(asked(), placed(), begun())
    for number in range(RECEIPTS_KEPT + 1):
        ledger.given(event("go", f"event!{number}"))
        ledger.when(Took("r", 1, f"event!{number}", f"step {number}"))
    run = ledger.run()
    assert len(run.receipts) == RECEIPTS_KEPT
    assert receipt(ledger.view, run, "event!0")["status"] == "unknown"
    assert receipt(ledger.view, run, "event!1") == {
        "run_id": "r", "status": "read", "attempt": 1, "after_step": "step 1", "at_ms": NOW_MS
    }  # fmt: skip
    assert receipt(ledger.view, run, "nothing")["status"] == "unknown"


def test_events_of_a_run_are_no_mail_of_its_child() -> None:
    ledger = at_work().given(event())
    assert (ledger.view.mailbox, ledger.view.wanted) == ({}, {})
    assert ledger.run().slots == {}
    ledger.when(Took("r", 1, "event!1", ""))
    assert ledger.run().slots == {}
    tally = audit(ledger.view)
    assert tally["balanced"]


# ---------------------------------------------------------------- what a person reads


def test_what_a_run_waits_for_is_told_in_words_and_in_numbers() -> None:
    ledger = resting("go", ms=HOUR_MS, options={**DETACHED, "max_budget_ms": DAY_MS}).later(60_000)
    told = inspected(ledger.run())
    waits = {"events": ["go"], "asks": [], "until_ms": NOW_MS + HOUR_MS, "since_ms": NOW_MS, "paused": False}
    assert told["waits"] == waits
    assert not told["waits_for_host"]
    words = "\n".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    for piece in (
        "for event 'go' or until its time comes",
        "has waited for 60 s",
        "perdure send r go VALUE",
        "max_budget_ms",
    ):
        assert piece in words, words
    ledger.when(PauseAsked("r", paused=True))
    words = "\n".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    assert "until `perdure resume r`" in words
    assert inspected(at_work().run())["waits"] is None


def test_a_run_whose_wait_is_over_and_that_stands_in_the_queue_is_said_to_do_that() -> None:
    ledger = resting(ms=1000)
    for host in ledger.view.hosts.values():
        host.up = False
    ledger.passes(1000)
    words = "\n".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    assert "waits for a place" in words
