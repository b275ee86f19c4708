"""Deleting agents and clearing runs: whoever is being deleted asks for nothing, is told nothing, and does not come back."""

from __future__ import annotations

import pytest

from perdure.ledger import (
    AgentBeingDeleted,
    Alarm,
    Clear,
    Fact,
    Forget,
    ForgetStorage,
    HostLost,
    Released,
    Request,
    StopAgent,
    Tell,
    Tick,
    UnknownRun,
    assign_hosts,
    everything,
    outstanding,
    restore,
)
from perdure.ledger.facts import (
    AgentActivated,
    AgentDoomed,
    AgentForgotten,
    AgentLost,
    AgentReleased,
    AlarmRang,
    AlarmSet,
    MailPosted,
    MailSuppressed,
    RunAborted,
    RunCleared,
)
from perdure.ledger.ids import sub_agent_id
from tests.kit import NOW_MS, PARENT, TYPE, Ledger, asked, begun, child, placed
from tests.ledger.test_snapshot import life_of

DUE_MS = NOW_MS + 5_000
SUB = sub_agent_id(PARENT, "tests.toys:Sub", "s")
SUB_OF_CHILD = sub_agent_id(child(), "tests.toys:Sub", "s")
CLEARED = [asked(), placed(), begun(), RunAborted("r", "cleared"), RunCleared("r")]


def family() -> Ledger:
    """An agent that is awake, and its sub-agent, which sleeps until its alarm."""
    asleep = [AgentActivated(SUB, 2, "h2"), AlarmSet(SUB, DUE_MS), AgentReleased(SUB, 2)]
    return Ledger().given(AgentActivated(PARENT, 1, "h1"), AlarmSet(PARENT, DUE_MS), *asleep)


def doomed() -> Ledger:
    """The same, being deleted."""
    return family().given(AgentDoomed(PARENT))


def told(mail_id: str, recipient: str = PARENT, sender: str = "") -> Tell:
    return Tell(mail_id, recipient, sender, "hear", b"", None, 1)


def woken(ledger: Ledger) -> list[Fact]:
    return ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))


@pytest.mark.parametrize(
    ("ledger", "parent"), [(doomed(), PARENT), (doomed(), SUB), (Ledger().given(*CLEARED), child())]
)
def test_whoever_is_being_deleted_requests_nothing(ledger: Ledger, parent: str) -> None:
    with pytest.raises(UnknownRun) as refused:
        ledger.when(Request("below", TYPE, parent, "", "digest", b"\x01", {}, 1, wait=True))
    assert refused.value.field == "parent"


@pytest.mark.parametrize("relative", [PARENT, SUB])
def test_whoever_is_being_deleted_is_told_nothing_and_tells_nobody_anything(relative: str) -> None:
    for said, is_sender in ((told("m", relative), False), (told("m", "other@tests.toys:Parent", relative), True)):
        with pytest.raises(AgentBeingDeleted) as refused:
            doomed().when(said)
        assert refused.value.is_sender is is_sender


def test_the_alarm_of_a_doomed_agent_does_not_bring_it_back() -> None:
    ledger = doomed()
    assert ledger.when(Alarm(PARENT, 1, DUE_MS, None)) == []
    assert ledger.later(5_000).when(Tick()) == []
    assert ledger.when(Released(PARENT, 1)) == [AgentReleased(PARENT, 1)]
    assert ledger.later(5_000).when(Tick()) == []
    assert woken(ledger) == []


def test_the_alarm_of_the_child_of_a_cleared_run_is_not_set_any_more() -> None:
    assert Ledger().given(*CLEARED).when(Alarm(child(), 1, DUE_MS, None)) == []


ALARM = [AlarmSet(child(), DUE_MS)]
RINGING = [*ALARM, AlarmRang(child())]


@pytest.mark.parametrize("owed", [[], ALARM, RINGING], ids=["nothing", "an alarm", "an alarm that rings"])
def test_the_child_of_a_cleared_run_is_not_woken_again_when_its_host_dies_whatever_it_owed(owed: list[Fact]) -> None:
    *before, aborted, cleared = CLEARED
    ledger = Ledger().given(*before, *owed, aborted, cleared)
    assert ledger.when(HostLost("h1", "killed")) == [AgentReleased(child(), 1)]
    assert ledger.later(5_000).when(Tick()) == []
    assert woken(ledger) == []
    assert ledger.view.may_be_forgotten("r")
    ledger = Ledger().given(*before, *owed, aborted)
    ledger.when(HostLost("h1", "killed"))
    ledger.later(5_000).when(Tick())
    assert [type(fact) for fact in woken(ledger)] == [AgentActivated], (
        "that of an aborted run is: it may owe other work"
    )


def test_the_child_of_a_run_that_is_cleared_is_not_woken_for_what_it_owed_since_its_host_died_unless_somebody_calls() -> (
    None
):
    for calls in (False, True):
        ledger = Ledger().given(*CLEARED[:-1])
        ledger.when(HostLost("h1", "killed"))
        if calls:
            ledger.view.want(child())
            ledger.view.homes[child()] = []
        ledger.given(RunCleared("r")).later(60_000).when(Tick())
        assert [type(fact) for fact in woken(ledger)] == [AgentActivated] * calls


def test_a_doomed_agent_whose_host_dies_is_not_woken_nor_is_one_that_somebody_calls() -> None:
    ledger = doomed()
    assert ledger.when(HostLost("h1", "killed")) == [AgentLost(PARENT, 1, ledger.now_ms, "its host died (killed)")]
    for agent in (PARENT, SUB):
        ledger.view.want(agent)
    ledger.when(Tick())
    assert woken(ledger) == []
    assert not ledger.view.agents[PARENT].unclean


def test_with_an_agent_go_the_runs_that_its_family_requested_and_what_was_told_to_it() -> None:
    ledger = family().given(asked("r"), asked("s", parent=SUB), asked("other", parent="o@tests.toys:Parent"))
    ledger.given(MailPosted("m1", PARENT, "", "hear", b""), MailPosted("m2", SUB, "", "hear", b""))
    assert ledger.when(Forget(PARENT)) == [
        AgentDoomed(PARENT),
        RunAborted("r", "cleared"),
        RunCleared("r"),
        RunAborted("s", "cleared"),
        RunCleared("s"),
        MailSuppressed("m1"),
        MailSuppressed("m2"),
    ]
    assert ledger.when(Forget(PARENT)) == []
    assert ledger.when(Forget(SUB)) == [], "it is being deleted with its ancestor"


def test_the_storages_of_a_family_are_deleted_when_nobody_of_it_is_awake() -> None:
    ledger = doomed()
    left = [list(outstanding(ledger.view, everything(ledger.view), NOW_MS))]
    ledger.given(AgentReleased(PARENT, 1))
    left.append(list(outstanding(ledger.view, everything(ledger.view), NOW_MS)))
    assert left == [[StopAgent("h1", PARENT, 1)], [ForgetStorage("", PARENT)]]


def test_a_cleared_run_takes_the_sub_agents_of_its_child_along_and_stays_until_they_are_deleted() -> None:
    ledger = Ledger().given(asked(), placed(), begun(), AgentActivated(SUB_OF_CHILD, 2, "h2"))
    facts = ledger.when(Clear(["r"]))
    assert facts == [RunAborted("r", "cleared"), RunCleared("r"), AgentDoomed(SUB_OF_CHILD)]
    steps: list[Fact] = [AgentReleased(SUB_OF_CHILD, 2), AgentForgotten(SUB_OF_CHILD), AgentReleased(child(), 1)]
    assert [ledger.given(fact).view.may_be_forgotten("r") for fact in steps] == [False, False, True]
    ledger = Ledger().given(*CLEARED, AgentReleased(child(), 1), AgentDoomed(SUB_OF_CHILD))
    assert not ledger.view.may_be_forgotten("r")


def test_a_deletion_outlives_the_supervisor() -> None:
    _, store = life_of(AgentActivated(PARENT, 1, "h1"), AgentDoomed(PARENT), AgentReleased(PARENT, 1))
    booted = restore(store.boot())
    assert list(booted.doomed) == [PARENT]
    assert list(outstanding(booted, everything(booted), NOW_MS)) == [ForgetStorage("", PARENT)]
