"""What time decides, who gets a place, and what is left to do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from perdure.ledger import (
    Awake,
    DeliverMail,
    Effect,
    Fact,
    ForgetStorage,
    HostLost,
    StartAttempt,
    StopAgent,
    TellEnd,
    Tick,
    WakeAgent,
    arm,
    assign_hosts,
    everything,
    hosts_wanted,
    inspected,
    is_exclusive,
    outstanding,
    wants_of,
)
from perdure.ledger.activation import STARTS_MAX, HostView, PoolTrouble
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
    RunInterrupted,
    RunReattached,
    RunSucceeded,
    TeardownBegan,
)
from perdure.ledger.timeouts import next_look
from perdure.policies import Leap, Limits
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, placed

SIGNAL = ProgressReported("r", 1, b"\x80")
DONE = RunSucceeded("r", 1, b"\x2a", "", released=True)


def tick(ledger: Ledger, after_ms: float) -> list[Fact]:
    """Let time pass, wake up as the timers say, and return what was decided."""
    arm(ledger.view, ledger.view.runs, ledger.limits)
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


@pytest.mark.shows(agent_tools="96", chat_recovery="C-0889")
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


def hostless(ledger: Ledger) -> Ledger:
    ledger.view.hosts.clear()
    return ledger


def test_a_run_without_a_place_is_given_up_without_a_teardown_to_wait_for() -> None:
    ledger = Ledger().given(asked(**DETACHED, max_budget_ms=100))
    began, interrupted = tick(ledger, 100)
    assert began == TeardownBegan("r", "budget-exceeded")
    assert isinstance(interrupted, RunInterrupted)
    assert interrupted.child_still_running is False


def test_a_lost_run_that_finds_no_place_is_interrupted_after_the_recovery_deadline() -> None:
    ledger = hostless(Ledger()).given(asked(), placed(), AttemptLost("r", 1, "its host died", 0))
    assert tick(ledger, 299_999) == []
    (fact,) = tick(ledger, 1)
    assert isinstance(fact, RunInterrupted)
    assert (fact.reason, fact.child_still_running) == ("recovery-deadline", None)
    assert "its host died" in fact.error


def test_the_recovery_deadline_also_comes_if_the_parent_was_lost_too_and_has_asked_again() -> None:
    lost = AttemptLost("r", 1, "its host died", 0)
    ledger = hostless(Ledger()).given(asked(reattach_no_progress_ms=math.inf), placed(), begun(), lost).later(200_000)
    ledger.given(RunReattached("r", 2, 1))
    assert inspected(ledger.run())["waits_for_host"]
    assert inspected(ledger.run())["lost_by"] == "its host died"
    assert tick(ledger, 299_999) == []
    (fact,) = tick(ledger, 1)
    assert isinstance(fact, RunInterrupted)
    assert (fact.reason, "its host died" in fact.error) == ("recovery-deadline", True)
    assert not inspected(ledger.run())["waits_for_host"]


LOST: list[Fact] = [asked(), placed(), AttemptLost("r", 1, "its host died", 0)]
LOST_WITH_ITS_PARENT: list[Fact] = [asked(), placed(), begun(), SIGNAL, *LOST[2:], RunReattached("r", 2, 1)]
LOST_DETACHED: list[Fact] = [asked(**DETACHED, no_progress_budget_ms=120_000), placed(), begun(), SIGNAL, *LOST[2:]]


@pytest.mark.parametrize(
    ("facts", "patience_ms"), [(LOST, 300_000), (LOST_WITH_ITS_PARENT, 120_000), (LOST_DETACHED, 120_000)]
)
def test_who_waits_in_line_for_hosts_that_are_up_has_all_its_patience_from_when_the_last_of_them_goes(
    facts: list[Fact], patience_ms: int
) -> None:
    ledger = Ledger().given(*facts)
    ledger.view.timers.arm("r", NOW_MS)
    for _ in range(5):
        assert tick(ledger, patience_ms) == []
        assert ledger.view.timers.next_at_ms == ledger.now_ms + patience_ms, "it is not looked at all the time"
    ledger.when(HostLost("h1", "killed"))
    assert tick(ledger, 60_000) == []
    ledger.when(HostLost("h2", "killed"))
    assert tick(ledger, patience_ms - 1) == []
    assert len(tick(ledger, 1)) >= 1


def test_silence_is_not_held_against_a_child_while_no_supervisor_heard_it() -> None:
    ledger = Ledger().given(asked(**DETACHED, no_progress_budget_ms=500), placed(), begun(), SIGNAL)
    ledger.view.awake_at_ms = NOW_MS + 10_000
    assert tick(ledger, 10_400) == []
    assert tick(ledger, 100) == [TeardownBegan("r", "no-progress")]


NEVER_UP: list[Fact] = [asked(), placed()]
STOPPING: list[Fact] = [asked(), placed(), begun(), TeardownBegan("r", "budget-exceeded")]
PLACELESS: list[Fact] = [asked(), placed(), AttemptLost("r", 1, "gone", NOW_MS + 10**9)]


@pytest.mark.parametrize(
    ("facts", "patience_ms", "kind"),
    [(NEVER_UP, 30_000, TeardownBegan), (STOPPING, 5_000, RunInterrupted), (PLACELESS, 300_000, RunInterrupted)],
)
def test_coming_up_stopping_and_finding_a_place_have_all_their_time_after_a_boot(
    facts: list[Fact], patience_ms: int, kind: type[Fact]
) -> None:
    ledger = Ledger().given(*facts)
    if facts is PLACELESS:
        hostless(ledger)
    ledger.view.awake_at_ms = NOW_MS + 10_000
    ledger.view.timers.arm("r", NOW_MS)
    assert tick(ledger, 10_000 + patience_ms - 1) == []
    assert [type(fact) for fact in tick(ledger, 1)] == [kind]


RETRIED: list[Fact] = [asked(), placed(), AttemptLost("r", 1, "gone", NOW_MS + 400)]


@pytest.mark.parametrize(
    ("facts", "patience_ms", "then"),
    [
        (NEVER_UP, 30_000, TeardownBegan),
        (STOPPING, 5_000, RunInterrupted),
        (PLACELESS, 300_000, RunInterrupted),
        ([asked(**DETACHED, max_budget_ms=500), placed(), begun()], 500, TeardownBegan),
        ([asked(**DETACHED, no_progress_budget_ms=500), placed(), begun(), SIGNAL], 500, TeardownBegan),
        (RETRIED, 400, AttemptStarted),
    ],
)
def test_a_leap_of_the_ledgers_time_is_no_time_that_passed(
    facts: list[Fact], patience_ms: int, then: type[Fact]
) -> None:
    ledger = Ledger().given(*facts)
    if facts is PLACELESS:
        hostless(ledger)
    ledger.view.timers.arm("r", NOW_MS + patience_ms)
    assert [tick(ledger, 100), seated(ledger)] == [[], []]
    ledger.view.leaps = (Leap(ledger.now_ms, 86_400_000),)
    assert [tick(ledger, 86_400_000 + patience_ms - 101), seated(ledger)] == [[], []]
    assert [type(fact) for fact in (*tick(ledger, 1), *seated(ledger))] == [then]


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
    ledger.view.timers.arm("b", NOW_MS)
    assert [tick(ledger, 0), seated(ledger), list(ledger.view.queues)] == [[], [], []]
    ledger.given(begun("a"), RunSucceeded("a", 1, None, "", released=True))
    assert [fact[0] for fact in seated(ledger)] == ["b"]
    ledger.given(begun("b"), RunSucceeded("b", 1, None, "", released=False))
    assert seated(ledger) == []
    ledger.given(AgentReleased(child("b"), 2))
    assert [fact[0] for fact in seated(ledger)] == ["c"]


def test_an_agent_that_merely_waits_is_no_load_to_its_host() -> None:
    ledger = Ledger().given(asked(), AgentActivated(PARENT, 1, "h1"))
    steps: list[Fact] = [AgentReleased(PARENT, 1), AgentActivated(PARENT, 2, "h1"), RunAborted("r", "")]
    assert [ledger.given(fact).view.hosts["h1"].load for fact in steps] == [0, 0, 1]


def test_a_retry_waits_for_its_pause() -> None:
    ledger = Ledger().given(asked(), placed(), AttemptLost("r", 1, "gone", NOW_MS + 400))
    ledger.view.timers.arm("r", NOW_MS)  # whatever makes somebody look at it before
    assert [tick(ledger, 399), seated(ledger)] == [[], []]
    tick(ledger, 1)
    assert seated(ledger) == [AttemptStarted("r", 2, 2, "h1")]


def test_a_run_that_was_lost_is_looked_at_when_its_pause_is_over() -> None:
    ledger = Ledger().given(asked(), placed(), AttemptLost("r", 1, "gone", NOW_MS + 400))
    tick(ledger, 400)
    assert seated(ledger) == [AttemptStarted("r", 2, 2, "h1")]


def test_the_attempt_after_the_last_one_may_only_collect() -> None:
    ledger = Ledger().given(asked(attempts_max=1), placed(), AttemptLost("r", 1, "gone", NOW_MS))
    tick(ledger, 0)
    assert seated(ledger) == [AttemptStarted("r", 2, 2, "h1", collect=True)]


def test_a_run_that_is_asked_for_again_after_it_lost_its_place_gets_another() -> None:
    lost = [asked(), placed(), AttemptLost("r", 1, "gone", 0), RunInterrupted("r", "recovery-deadline", None, "")]
    ledger = Ledger().given(*lost)
    assert [tick(ledger, 0), seated(ledger)] == [[], []]
    ledger.given(RunReattached("r", 2, 1))
    tick(ledger, 0)
    assert seated(ledger) == [AttemptStarted("r", 2, 2, "h1")]


def test_an_agent_that_was_lost_is_woken_after_its_pause_whoever_calls_it() -> None:
    ledger = Ledger().given(AgentActivated(PARENT, 1, "h1"), AgentLost(PARENT, 1, NOW_MS + 400))
    ledger.view.want(PARENT)
    assert [tick(ledger, 399), seated(ledger)] == [[], []]
    tick(ledger, 1)
    assert seated(ledger) == [AgentActivated(PARENT, 2, "h1")]
    assert seated(ledger) == []


def test_nothing_but_its_attempt_wakes_the_child_of_a_run_that_waits_for_a_place() -> None:
    ledger = Ledger().given(asked(), placed(), AttemptLost("r", 1, "gone", NOW_MS + 400))
    ledger.view.want(child())
    assert seated(ledger) == []
    tick(ledger, 400)
    assert seated(ledger) == [AttemptStarted("r", 2, 2, "h1")]


def test_an_agent_that_is_awake_for_other_work_leaves_before_its_run_begins() -> None:
    ledger = Ledger().given(AgentActivated(child(), 1, "h1"), asked())
    assert seated(ledger) == []
    assert list(outstanding(ledger.view, ["r"], NOW_MS)) == [StopAgent("h1", child(), 1)]
    ledger.given(AgentReleased(child(), 1))
    assert seated(ledger) == [AttemptStarted("r", 1, 2, "h1")]


def test_an_exclusive_run_has_its_host_to_itself() -> None:
    spec = [0.0, [], "", True]
    ledger = Ledger(Limits(hosts_max=2)).given(asked("x", pool=spec))
    for host in ledger.view.hosts.values():
        host.spec = spec
    (fact,) = seated(ledger)
    ledger.given(asked("y", pool=spec), asked("z", pool=spec))
    assert [each[3] for each in seated(ledger)] == [({"h1", "h2"} - {fact[3]}).pop()]
    assert len(hosts_wanted(wants_of(ledger.view, ledger.limits))) >= 1


def test_a_run_whose_host_died_twice_is_placed_alone() -> None:
    ledger = Ledger(Limits(hosts_max=2)).given(asked("r"))
    for attempt in (1, 2):
        ledger.given(placed(attempt=attempt, incarnation=attempt), AttemptLost("r", attempt, "gone", 0))
    ledger.given(asked("o"), placed("o", incarnation=3, host="h1"))
    tick(ledger, 0)
    assert [fact[3] for fact in seated(ledger)] == ["h2"]
    assert ledger.view.hosts["h2"].exclusive


def bereaved_batch(most: int, losses: int) -> Ledger:
    """Nine runs that were lost together, so many times."""
    ledger = Ledger(Limits(hosts_max=2, attempts_max=most)).given(*(asked(f"r{number}") for number in range(9)))
    for attempt in range(1, losses + 1):
        for number in range(9):
            lost = AttemptLost(f"r{number}", attempt, "the machine died", 0)
            ledger.given(placed(f"r{number}", attempt, attempt * 10 + number), lost)
    tick(ledger, 0)
    return ledger


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_each_of_a_batch_whose_hosts_die_is_alone_for_its_last_attempt(most: int) -> None:
    ledger = bereaved_batch(most, max(1, most - 1))
    assert len(seated(ledger)) == 2, "the others wait until there is such a host for them"
    assert all(host.exclusive and len(host.tenants) == 1 for host in ledger.view.hosts.values())
    assert [is_exclusive(ledger.view, host, ledger.limits) for host in ledger.view.hosts.values()] == [True, True]


def test_where_no_other_host_comes_a_last_attempt_is_made_beside_others_rather_than_never() -> None:
    ledger = bereaved_batch(5, 4)
    ledger.view.hosts["h3"] = HostView("h3", None, waits=True)
    assert len(seated(ledger)) == 6, "the others wait for their share of it"
    ledger = bereaved_batch(5, 4)
    ledger.view.troubles[""] = PoolTrouble(None, "no room for it", STARTS_MAX, NOW_MS)
    assert len(seated(ledger)) == 9


def test_a_batch_whose_hosts_died_twice_is_packed_again() -> None:
    ledger = bereaved_batch(5, 2)
    assert [fact[0] for fact in seated(ledger)] == [f"r{number}" for number in range(9)]
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
    assert hosts_wanted(wants_of(ledger.view, ledger.limits)) == [None]


def test_a_batch_of_agents_whose_hosts_died_twice_is_packed_again() -> None:
    batch = [f"a{number}@T" for number in range(9)]
    ledger = Ledger(Limits(hosts_max=2))
    for number, agent in enumerate(batch):
        ledger.given(*bereaved(agent, 2, first=number * 2 + 1))
    tick(ledger, 0)
    assert [fact[0] for fact in seated(ledger)] == batch
    assert not any(host.exclusive for host in ledger.view.hosts.values())


def test_who_was_lost_more_often_than_the_batch_is_alone_and_runs_and_agents_are_weighed_together() -> None:
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
        [ForgetStorage, TellEnd],
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


def test_an_agent_that_came_up_is_not_woken_again() -> None:
    ledger = Ledger().given(AgentActivated(PARENT, 1, "h1"))
    ledger.when(Awake(PARENT, 1))
    assert list(outstanding(ledger.view, [PARENT], NOW_MS)) == []


@pytest.mark.parametrize("pause_ms", [0, 200])
def test_an_agent_that_leaves_with_mail_waiting_is_woken_for_it_when_it_is_due(pause_ms: int) -> None:
    ledger = Ledger().given(asked(detached=True, hook=True), placed(), begun(), DONE, AgentActivated(PARENT, 2, "h2"))
    if pause_ms:
        ledger.given(MailFailed("r!finish", "it raised", NOW_MS + pause_ms), AgentReleased(PARENT, 2))
        assert [tick(ledger, pause_ms - 1), seated(ledger), tick(ledger, 1)] == [[], [], []]
    else:
        ledger.given(AgentReleased(PARENT, 2))
    assert seated(ledger) == [AgentActivated(PARENT, 3, "h1")]


def test_what_is_outstanding_is_a_function_of_the_ledger_and_not_of_what_was_tried() -> None:
    ledger = Ledger().given(asked(), placed())
    keys = everything(ledger.view)
    first = list(outstanding(ledger.view, keys, NOW_MS))
    assert first == list(outstanding(ledger.view, keys, NOW_MS))
    assert first[0] == StartAttempt("h1", child(), 1, "r", 1, b"\x01", collect=False, options={})


def test_the_pool_is_kept_warm_and_grows_with_what_waits() -> None:
    ledger = Ledger(Limits(hosts_max=4, hosts_warm=2))
    assert hosts_wanted(wants_of(ledger.view, ledger.limits)) == []
    ledger.given(*(asked(run_id) for run_id in "abcd"))
    assert hosts_wanted(wants_of(ledger.view, ledger.limits)) == [None, None]
    wide = replace(ledger.limits, hosts_max=3)
    assert hosts_wanted(wants_of(ledger.view, wide)) == [None]


def test_a_pool_that_nobody_has_come_for_can_do_without_its_empty_hosts() -> None:
    ledger = Ledger(Limits(hosts_warm=2))
    assert [wants_of(ledger.view, ledger.limits, warm=warm)[""].missing for warm in (True, False)] == [0, -2]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parked", "no code"),
        ("teardown", "stalled"),
        ("reattached_at_ms", NOW_MS + 70),
        ("signal_at_ms", NOW_MS + 80),
        ("retried_at_ms", NOW_MS + 90),
        ("requested_at_ms", NOW_MS - 90),
        ("host_id", ""),
        ("placed_at_ms", NOW_MS + 60),
        ("confirmed", True),
        ("options", {"detached": True, "max_budget_ms": 5}),
    ],
)
def test_runs_that_differ_are_looked_at_each_in_its_own_time(field: str, value: object) -> None:
    ledger = Ledger()
    ledger.given(asked("r1", detached=True), asked("r2", detached=True))
    first, second = ledger.view.runs["r1"], ledger.view.runs["r2"]
    second.options = first.options
    for run in (first, second):
        run.host_id, run.placed_at_ms, run.requested_at_ms, run.signal_at_ms = "h1", NOW_MS + 5, NOW_MS, NOW_MS + 7
    setattr(second, field, value)
    arm(ledger.view, ["r1", "r2"], ledger.limits)
    for run in (first, second):
        due_ms = next_look(ledger.view, run, ledger.limits)
        armed = ledger.view.timers.armed.get(run.run_id, ())
        assert armed == ((int(due_ms),) if due_ms < math.inf else ())
