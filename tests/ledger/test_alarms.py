"""The one alarm of an agent: set by its life, rung by the clock, and not lost by whatever becomes of either."""

from __future__ import annotations

from perdure.ledger import Alarm, HostLost, Released, Tick, assign_hosts, everything, restore
from perdure.ledger.facts import AgentActivated, AgentLost, AgentReleased, AlarmRang, AlarmSet
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, due, placed
from tests.ledger.test_snapshot import life_of

DUE_MS = NOW_MS + 5_000
HOME = [1.0, [], "", False]


def awake(life: int = 1) -> Ledger:
    return Ledger().given(AgentActivated(PARENT, life, "h1"))


def woken(ledger: Ledger) -> list[AgentActivated]:
    facts = []
    for fact in ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits)):
        assert isinstance(fact, AgentActivated)
        facts.append(fact)
    return facts


def asleep() -> Ledger:
    """An agent that sleeps until its alarm."""
    return awake().given(AlarmSet(PARENT, DUE_MS), AgentReleased(PARENT, 1))


def test_an_alarm_is_set_by_the_life_that_is_there_and_by_no_other() -> None:
    ledger = awake(life=3)
    assert ledger.when(Alarm(PARENT, 2, DUE_MS, None)) == []
    assert ledger.when(Alarm("stranger@t", 3, DUE_MS, None)) == []
    assert ledger.when(Alarm(PARENT, 3, DUE_MS, HOME)) == [AlarmSet(PARENT, DUE_MS, HOME)]
    assert ledger.when(Alarm(PARENT, 3, DUE_MS, HOME)) == [], "said twice"
    assert ledger.when(Alarm(PARENT, 3, 0, HOME)) == [AlarmSet(PARENT, 0, HOME)]


def test_a_sleeping_agent_is_woken_when_its_alarm_rings_and_not_before() -> None:
    ledger = asleep()
    assert ledger.later(4_999).when(Tick()) == []
    assert woken(ledger) == []
    assert ledger.later(1).when(Tick()) == [AlarmRang(PARENT)]
    assert woken(ledger) == [AgentActivated(PARENT, 2, "h1", None)]
    assert ledger.later(10_000).when(Tick()) == [], "it rings once"


def test_an_alarm_rings_by_the_wall_clock() -> None:
    ledger = asleep().later(60_000)
    assert ledger.when(Tick(behind_ms=55_001)) == [], "it was set back, and the ledger's time was not"
    assert ledger.when(Tick(behind_ms=55_000)) == [AlarmRang(PARENT)]


def test_what_the_class_asks_of_its_host_is_known_when_the_alarm_rings() -> None:
    ledger = awake().given(AlarmSet(PARENT, DUE_MS, HOME), AgentReleased(PARENT, 1))
    ledger.view.hosts["h1"].spec = HOME
    ledger.later(5_000).when(Tick())
    assert woken(ledger) == [AgentActivated(PARENT, 2, "h1", HOME)]


def test_an_agent_that_was_leaving_when_its_alarm_rang_is_woken_again() -> None:
    ledger = awake().given(AlarmSet(PARENT, DUE_MS))
    assert ledger.later(5_000).when(Tick()) == [AlarmRang(PARENT)]
    assert woken(ledger) == [], "it is awake"
    assert ledger.when(Released(PARENT, 1)) == [AgentReleased(PARENT, 1)]
    assert [fact.incarnation for fact in woken(ledger)] == [2]
    assert ledger.when(Released(PARENT, 2)) == [AgentReleased(PARENT, 2)]
    assert woken(ledger) == []


def test_an_agent_that_has_seen_to_its_alarm_sleeps_in_peace() -> None:
    ledger = awake().given(AlarmSet(PARENT, DUE_MS)).later(5_000)
    ledger.when(Tick())
    assert ledger.when(Alarm(PARENT, 1, 0, None)) == [AlarmSet(PARENT, 0)]
    ledger.when(Released(PARENT, 1))
    assert woken(ledger) == []
    assert PARENT not in ledger.view.agents


def test_an_agent_that_dies_before_its_alarm_is_woken_at_once_and_its_alarm_stays() -> None:
    ledger = awake().given(AlarmSet(PARENT, DUE_MS))
    assert ledger.when(HostLost("h1", "killed")) == [AgentLost(PARENT, 1, ledger.now_ms, "its host died (killed)")]
    assert ledger.when(Tick()) == []
    assert len(woken(ledger)) == 1
    assert ledger.later(5_000).when(Tick()) == [AlarmRang(PARENT)]


def test_an_alarm_rings_for_the_child_of_a_run_that_has_ended() -> None:
    ledger = Ledger().given(asked(), placed(), begun(), AlarmSet(child(), DUE_MS))
    ledger.when(Released(child(), 1))
    assert ledger.view.agents[child()].alarm_at_ms == DUE_MS


def test_alarms_outlive_the_supervisor_and_ring_soon_if_they_came_due_meanwhile() -> None:
    _, store = life_of(AgentActivated(PARENT, 1, "h1"), AlarmSet(PARENT, DUE_MS, HOME), AgentReleased(PARENT, 1))
    booted = restore(store.boot())
    assert booted.agents[PARENT].home == HOME
    assert due(booted, DUE_MS - 1) == []
    assert due(booted, DUE_MS) == [PARENT]


def test_a_sweep_does_not_look_at_those_who_sleep() -> None:
    assert everything(asleep().view) == []
