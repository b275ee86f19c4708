"""What time decides, who gets a place, and what is left to do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from perdure.ledger import (
    DeliverMail,
    Effect,
    Fact,
    ForgetStorage,
    StartAttempt,
    StopAgent,
    TellEnd,
    Tick,
    WakeAgent,
    arm,
    assign_hosts,
    everything,
    hosts_wanted,
    is_exclusive,
    next_look,
    outstanding,
)
from perdure.ledger.facts import (
    AgentActivated,
    AgentLost,
    AgentReleased,
    AgentStopped,
    AlarmRang,
    AlarmSet,
    AttemptLost,
    AttemptStarted,
    MailDelivered,
    MailFailed,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunCompleted,
    RunInterrupted,
    RunReattached,
    TeardownBegan,
)
from perdure.policies import Limits
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, placed

SIGNAL = ProgressReported("r", 1, b"\x80")
DONE = RunCompleted("r", 1, b"\x2a", "", released=True)


def tick(ledger: Ledger, after_ms: float) -> list[Fact]:
    """Let time pass, wake up as the timers say, and return what was decided."""
    for run in ledger.view.runs.values():
        arm(ledger.view, run, ledger.limits)
    return ledger.later(after_ms).when(Tick())


def seated(ledger: Ledger) -> list[Fact]:
    return ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))


# ---------------------------------------------------------------- the clock

DETACHED: dict[str, Any] = {"detached": True, "on_finish": "f"}

EXPIRIES: list[tuple[str, dict[str, Any], list[Fact], float, str, bool]] = [
    ("budget", {**DETACHED, "max_budget_ms": 500}, [placed(), begun()], 500, "budget-exceeded", True),
    ("budget 0", {**DETACHED, "max_budget_ms": 0}, [placed(), begun()], 0, "budget-exceeded", True),
    ("silence", {**DETACHED, "no_progress_budget_ms": 500}, [placed(), begun(), SIGNAL], 500, "no-progress", True),
    (
        "re-attached",
        {"reattach_no_progress_ms": 500},
        [placed(), begun(), RunReattached("r", 2, 1)],
        500,
        "no-progress",
        False,
    ),
    (
        "window",
        {"reattach_window_ms": 500},
        [placed(), begun(), RunReattached("r", 2, 1)],
        500,
        "window-exceeded",
        True,
    ),
    ("never came up", {}, [placed()], 30_000, "inspect-timeout", True),
]


@pytest.mark.parametrize(
    ("options", "facts", "at_ms", "reason", "teardown"), [e[1:] for e in EXPIRIES], ids=[e[0] for e in EXPIRIES]
)
def test_patience_ends_at_its_instant_and_not_before(
    options: dict[str, Any], facts: list[Fact], at_ms: float, reason: str, teardown: bool
) -> None:
    ledger = Ledger().given(asked(**options), *facts)
    if at_ms:
        assert tick(ledger, at_ms - 1) == []
    (fact,) = tick(ledger, 1 if at_ms else 0)
    assert fact == TeardownBegan("r", reason) if teardown else isinstance(fact, RunInterrupted)
    if isinstance(fact, RunInterrupted):
        assert (fact.reason, fact.child_still_running) == (reason, True)


@pytest.mark.parametrize(
    "options",
    [
        {**DETACHED, "max_budget_ms": math.inf, "no_progress_budget_ms": 0},
        {**DETACHED, "max_budget_ms": math.inf, "no_progress_budget_ms": math.inf},
        {"reattach_no_progress_ms": math.inf, "reattach_window_ms": 0},
        {"reattach_no_progress_ms": math.inf, "reattach_window_ms": math.inf},
        {},
    ],
)
def test_what_is_switched_off_never_ends(options: dict[str, Any]) -> None:
    ledger = Ledger().given(asked(**options), placed(), begun(), SIGNAL)
    if not options.get("detached") and options:
        ledger.given(RunReattached("r", 2, 1))
    assert tick(ledger, 10**12) == []
    assert next_look(ledger.view, ledger.run(), ledger.limits) == math.inf


def test_a_child_that_does_not_stop_in_time_is_said_to_run_on() -> None:
    ledger = Ledger().given(asked(**DETACHED), placed(), begun(), TeardownBegan("r", "budget-exceeded"))
    assert tick(ledger, 4_999) == []
    (fact,) = tick(ledger, 1)
    assert isinstance(fact, RunInterrupted)
    assert (fact.reason, fact.child_still_running) == ("budget-exceeded", True)


def test_a_run_without_a_place_is_given_up_without_a_teardown_to_wait_for() -> None:
    ledger = Ledger().given(asked(**DETACHED, max_budget_ms=100))
    began, interrupted = tick(ledger, 100)
    assert began == TeardownBegan("r", "budget-exceeded")
    assert isinstance(interrupted, RunInterrupted)
    assert interrupted.child_still_running is False


def test_a_lost_run_that_finds_no_place_is_interrupted_after_the_recovery_deadline() -> None:
    ledger = Ledger().given(asked(), placed(), AttemptLost("r", 1, "its host died", 0))
    assert tick(ledger, 299_999) == []
    (fact,) = tick(ledger, 1)
    assert isinstance(fact, RunInterrupted)
    assert (fact.reason, fact.child_still_running) == ("recovery-deadline", None)
    assert "its host died" in fact.error


def test_silence_is_not_held_against_a_child_while_no_supervisor_heard_it() -> None:
    ledger = Ledger().given(asked(**DETACHED, no_progress_budget_ms=500), placed(), begun(), SIGNAL)
    ledger.view.awake_at_ms = NOW_MS + 10_000
    assert tick(ledger, 10_400) == []
    assert tick(ledger, 100) == [TeardownBegan("r", "no-progress")]


def test_an_absolute_budget_runs_on_while_no_supervisor_lives() -> None:
    ledger = Ledger().given(asked(**DETACHED, max_budget_ms=500), placed(), begun())
    ledger.view.awake_at_ms = NOW_MS + 10_000
    assert tick(ledger, 10_000) == [TeardownBegan("r", "budget-exceeded")]


# ---------------------------------------------------------------- places


def test_runs_are_seated_in_the_order_of_their_requests_each_on_a_host_of_its_own() -> None:
    ledger = Ledger(Limits(hosts_max=2)).given(asked("z"), asked("a"))
    assert seated(ledger) == [AttemptStarted("z", 1, 1, "h1"), AttemptStarted("a", 1, 2, "h2")]


def test_agents_that_are_woken_go_before_runs() -> None:
    ledger = Ledger().given(asked("r"))
    ledger.view.want(PARENT)
    assert [type(fact) for fact in seated(ledger)] == [AgentActivated, AttemptStarted]


def test_a_parents_limit_holds_its_runs_back_and_lets_the_next_one_go_when_one_leaves() -> None:
    ledger = Ledger(Limits(hosts_max=2)).given(*(asked(run_id, limit=1) for run_id in ("a", "b", "c")))
    assert [fact[0] for fact in seated(ledger)] == ["a"]
    assert seated(ledger) == []
    ledger.given(begun("a"), RunCompleted("a", 1, None, "", released=True))
    assert [fact[0] for fact in seated(ledger)] == ["b"]


def test_a_retry_waits_for_its_pause() -> None:
    ledger = Ledger().given(asked(), placed(), AttemptLost("r", 1, "gone", NOW_MS + 400))
    assert [tick(ledger, 399), seated(ledger)] == [[], []]
    tick(ledger, 1)
    assert seated(ledger) == [AttemptStarted("r", 2, 2, "h1")]


def test_the_attempt_after_the_last_one_may_only_collect() -> None:
    ledger = Ledger().given(asked(attempts_max=1), placed(), AttemptLost("r", 1, "gone", NOW_MS))
    tick(ledger, 0)
    assert seated(ledger) == [AttemptStarted("r", 2, 2, "h1", collect=True)]


def test_an_exclusive_run_has_its_host_to_itself() -> None:
    spec = [0.0, [], "", True]
    ledger = Ledger(Limits(hosts_max=2)).given(asked("x", pool=spec))
    for host in ledger.view.hosts.values():
        host.spec = spec
    (fact,) = seated(ledger)
    ledger.given(asked("y", pool=spec), asked("z", pool=spec))
    assert [each[3] for each in seated(ledger)] == [({"h1", "h2"} - {fact[3]}).pop()]
    assert len(hosts_wanted(ledger.view, ledger.limits)) >= 1


def test_a_run_whose_host_died_twice_is_placed_alone() -> None:
    ledger = Ledger(Limits(hosts_max=2)).given(asked("r"))
    for attempt in (1, 2):
        ledger.given(placed(attempt=attempt, incarnation=attempt), AttemptLost("r", attempt, "gone", 0))
    ledger.given(asked("o"), placed("o", incarnation=3, host="h1"))
    tick(ledger, 0)
    assert [fact[3] for fact in seated(ledger)] == ["h2"]
    assert ledger.view.hosts["h2"].exclusive


def test_a_crowd_whose_hosts_died_twice_is_packed_again() -> None:
    crowd = [f"r{number}" for number in range(9)]
    ledger = Ledger(Limits(hosts_max=2)).given(*map(asked, crowd))
    for attempt in (1, 2):
        for number, run_id in enumerate(crowd):
            incarnation = attempt * 10 + number
            ledger.given(placed(run_id, attempt, incarnation), AttemptLost(run_id, attempt, "the machine died", 0))
    tick(ledger, 0)
    assert [fact[0] for fact in seated(ledger)] == crowd
    assert not any(host.exclusive for host in ledger.view.hosts.values())


def test_the_next_life_of_the_supervisor_sees_which_hosts_are_exclusive() -> None:
    ledger = Ledger().given(asked("x", pool=[0.0, [], "", True]), placed("x", host="h1"))
    ledger.given(asked("y"), placed("y", incarnation=2, host="h2"))
    assert [is_exclusive(ledger.view, host, ledger.limits) for host in ledger.view.hosts.values()] == [True, False]


def bereaved(agent: str, times: int, first: int = 1) -> list[Fact]:
    """So many hosts died under an agent in a row."""
    lives = range(first, first + times)
    return [fact for life in lives for fact in (AgentActivated(agent, life, "h1"), AgentLost(agent, life, NOW_MS))]


def test_an_agent_whose_host_died_twice_is_woken_alone() -> None:
    ledger = Ledger(Limits(hosts_max=2)).given(*bereaved("x@T", 2), AgentActivated("o@T", 9, "h1"))
    tick(ledger, 0)
    assert [fact[2] for fact in seated(ledger)] == ["h2"]
    assert ledger.view.hosts["h2"].exclusive
    assert [is_exclusive(ledger.view, host, ledger.limits) for host in ledger.view.hosts.values()] == [False, True]
    ledger.given(AgentActivated("y@T", 10, "h1"), AgentLost("y@T", 10, NOW_MS))
    tick(ledger, 0)
    assert [fact[2] for fact in seated(ledger)] == ["h1"], "one death is no reason"


def test_an_agent_that_must_be_alone_has_a_host_started() -> None:
    ledger = Ledger(Limits(hosts_max=2)).given(*bereaved("x@T", 2))
    ledger.given(AgentActivated("o@T", 8, "h1"), AgentActivated("p@T", 9, "h2"))
    tick(ledger, 0)
    assert seated(ledger) == []
    assert hosts_wanted(ledger.view, ledger.limits) == [None]


def test_a_crowd_of_agents_whose_hosts_died_twice_is_packed_again() -> None:
    crowd = [f"a{number}@T" for number in range(9)]
    ledger = Ledger(Limits(hosts_max=2))
    for number, agent in enumerate(crowd):
        ledger.given(*bereaved(agent, 2, first=number * 2 + 1))
    tick(ledger, 0)
    assert [fact[0] for fact in seated(ledger)] == crowd
    assert not any(host.exclusive for host in ledger.view.hosts.values())


def test_who_was_lost_more_often_than_the_crowd_is_alone_and_runs_and_agents_are_weighed_together() -> None:
    ledger = Ledger(Limits(hosts_max=2)).given(*bereaved("x@T", 3), *bereaved("y@T", 2, first=4))
    for number, run_id in enumerate("rs"):
        ledger.given(asked(run_id))
        for attempt in (1, 2):
            ledger.given(placed(run_id, attempt, 6 + 2 * number + attempt), AttemptLost(run_id, attempt, "gone", 0))
    tick(ledger, 0)
    assert [fact[0] for fact in seated(ledger)] == ["x@T", "y@T", "r", "s"]
    assert [list(host.tenants) for host in ledger.view.hosts.values()] == [["x@T"], ["y@T", child("r"), child("s")]]
    assert [host.exclusive for host in ledger.view.hosts.values()] == [True, False]


def test_a_suspect_is_packed_rather_than_left_waiting_for_those_who_are_alone_already() -> None:
    ledger = Ledger(Limits(hosts_max=1)).given(*bereaved("x@T", 2))
    tick(ledger, 0)
    assert [fact[2] for fact in seated(ledger)] == ["h1"]
    ledger.given(*bereaved("y@T", 2, first=5))
    tick(ledger, 0)
    assert [fact[2] for fact in seated(ledger)] == ["h2"]
    assert [host.exclusive for host in ledger.view.hosts.values()] == [True, False]


def test_neither_sleep_nor_mail_makes_an_agent_innocent_but_time_does() -> None:
    ledger = Ledger().given(*bereaved("x@T", 2), AgentActivated("x@T", 3, "h1"))
    ledger.given(AlarmSet("x@T", NOW_MS + 5_000), MailDelivered("x@T", []), AgentReleased("x@T", 3))
    assert (ledger.view.agents["x@T"].losses, ledger.view.agents["x@T"].deaths) == (0, 2)
    ledger.later(599_999).given(AlarmRang("x@T"))
    assert ledger.view.agents["x@T"].deaths == 2
    ledger.later(1).given(AlarmRang("x@T"))
    assert ledger.view.agents["x@T"].deaths == 0
    ledger.given(*bereaved("x@T", 1, first=4))
    assert ledger.later(600_000).given(*bereaved("x@T", 1, first=5)).view.agents["x@T"].deaths == 1


# ---------------------------------------------------------------- what is left to do


def left(*facts: Fact, at_ms: int = NOW_MS) -> list[type[Effect]]:
    ledger = Ledger().given(*facts)
    return [type(effect) for effect in outstanding(ledger.view, everything(ledger.view), at_ms)]


LEFT: list[tuple[str, list[Fact], list[type[Effect]]]] = [
    ("a waiting run needs nothing but a place", [asked()], []),
    ("an attempt is started until it is confirmed", [asked(), placed()], [StartAttempt]),
    ("a confirmed attempt needs nothing", [asked(), placed(), begun()], []),
    ("a torn-down child is stopped", [asked(), placed(), begun(), TeardownBegan("r", "x")], [StopAgent]),
    ("a cancelled child is stopped and its end told", [asked(), placed(), RunAborted("r", "")], [StopAgent, TellEnd]),
    ("a run cancelled before its place is not started", [asked(), RunAborted("r", "")], []),
    ("an agent without a run is woken", [AgentActivated(PARENT, 1, "h1")], [WakeAgent]),
    ("a life that was told to end is stopped", [AgentActivated(PARENT, 1, "h1"), AgentStopped(PARENT)], [StopAgent]),
    (
        "a life that was told to end is given no mail any more",
        [
            asked(detached=True, hook=True),
            placed(),
            begun(),
            DONE,
            AgentActivated(PARENT, 2, "h2"),
            AgentStopped(PARENT),
        ],
        [StopAgent],
    ),
    (
        "the life after that is left in peace",
        [
            AgentActivated(PARENT, 1, "h1"),
            AgentStopped(PARENT),
            AgentReleased(PARENT, 1),
            AgentActivated(PARENT, 2, "h1"),
        ],
        [WakeAgent],
    ),
    (
        "mail goes to the agent that is up",
        [asked(detached=True, hook=True), placed(), begun(), DONE, AgentActivated(PARENT, 2, "h2")],
        [WakeAgent, DeliverMail],
    ),
    (
        "mail for an agent that sleeps waits for its waking",
        [asked(detached=True, hook=True), placed(), begun(), DONE],
        [],
    ),
    (
        "delivered mail is not delivered again",
        [
            asked(detached=True, hook=True),
            placed(),
            begun(),
            DONE,
            AgentActivated(PARENT, 2, "h2"),
            MailDelivered(PARENT, ["r!finish"]),
        ],
        [WakeAgent],
    ),
    (
        "a cleared run's child is stopped before its storage is deleted",
        [asked(), placed(), RunAborted("r", "cleared"), RunCleared("r")],
        [StopAgent, TellEnd],
    ),
    (
        "a cleared run's storage is deleted",
        [asked(), placed(), RunAborted("r", "cleared"), RunCleared("r"), AgentReleased(child(), 1)],
        [TellEnd, ForgetStorage],
    ),
]


@pytest.mark.parametrize(("facts", "effects"), [row[1:] for row in LEFT], ids=[row[0] for row in LEFT])
def test_what_is_outstanding(facts: list[Fact], effects: list[type[Effect]]) -> None:
    assert left(*facts) == effects


def test_mail_that_waits_for_its_next_try_is_not_outstanding_until_then() -> None:
    facts = [asked(detached=True, hook=True), placed(), begun(), DONE, AgentActivated(PARENT, 2, "h2")]
    failed = MailFailed("r!finish", "it raised", NOW_MS + 200)
    assert DeliverMail not in left(*facts, failed)
    assert DeliverMail in left(*facts, failed, at_ms=NOW_MS + 200)


def test_what_is_outstanding_is_a_function_of_the_ledger_and_not_of_what_was_tried() -> None:
    ledger = Ledger().given(asked(), placed())
    keys = everything(ledger.view)
    first = list(outstanding(ledger.view, keys, NOW_MS))
    assert first == list(outstanding(ledger.view, keys, NOW_MS))
    assert first[0] == StartAttempt("h1", child(), 1, "r", 1, b"\x01", collect=False, options={})


def test_the_pool_is_kept_warm_and_grows_with_what_waits() -> None:
    ledger = Ledger(Limits(hosts_max=4, hosts_warm=2))
    assert hosts_wanted(ledger.view, ledger.limits) == []
    ledger.given(*(asked(run_id) for run_id in "abcd"))
    assert hosts_wanted(ledger.view, ledger.limits) == [None, None]
    wide = replace(ledger.limits, hosts_max=3)
    assert hosts_wanted(ledger.view, wide) == [None]
