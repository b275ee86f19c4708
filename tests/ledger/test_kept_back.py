"""What keeps runs back, and who waits for them: as far as the ledger alone can tell."""

from __future__ import annotations

from perdure.ledger import BATCH_MIN, Ended, all_waiting, end_together, hold_ups, unheeded
from perdure.ledger.activation import STARTS_MAX, PoolTrouble, pool_key
from perdure.ledger.facts import AgentActivated, AgentReleased, JoinMet, RunAborted, RunParked, RunPaused, RunSucceeded
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, placed

FAR = [0.0, [["far", 1.0]], "", False]
ELSEWHERE = {"pool": FAR}


def test_whoever_awaits_a_run_waits_for_it_and_whoever_only_asked_for_it_does_not() -> None:
    ledger = Ledger().given(asked("r"), asked("s", detached=True))
    assert list(all_waiting(ledger.view, child("r"), lambda _agent: ())) == [child("r"), PARENT]
    assert list(all_waiting(ledger.view, child("s"), lambda _agent: ())) == [child("s")]


def test_whoever_waits_is_found_through_runs_calls_and_conditions_each_once() -> None:
    ledger = Ledger().given(asked("p", parent=""), asked("r", parent=child("p")))
    ledger.given(asked("j", parent="", after=["end", "p"]))
    callers = {child("j"): ["never@asked"]}
    found = all_waiting(ledger.view, child("r"), lambda agent: callers.get(agent, ()))
    assert list(found) == [child("r"), child("p"), child("j")]
    ledger.given(JoinMet("j", [0]))
    assert list(all_waiting(ledger.view, child("p"), lambda _agent: ())) == [child("p")]
    calls = {"a@b": ["c@d"], "c@d": ["a@b"]}
    assert list(all_waiting(ledger.view, "a@b", lambda agent: calls.get(agent, ()))) == ["a@b", "c@d"]


def test_of_many_runs_that_are_parked_or_wait_those_that_are_awaited_are_looked_at_in_any_case() -> None:
    ledger = Ledger()
    for name in [f"r{number}" for number in range(1_001)]:
        ledger.given(asked(name), placed(name), RunParked(name, 1, "no"))
    assert "r0" not in _held(ledger)
    assert _held(ledger, ["r0", "unknown"]).count("r0") == 1


def test_a_run_that_was_paused_is_kept_back_and_one_that_is_still_at_work_is_not() -> None:
    ledger = Ledger().given(asked("r"), asked("s"), placed("s"), begun("s"), asked("t"))
    ledger.given(*(RunPaused(each, paused=True) for each in "rst"))
    assert _held(ledger) == ["t", "r"]
    ledger.given(RunPaused("r", paused=False), RunAborted("t", "enough"), RunSucceeded("s", 1, None, "", True))
    assert not ledger.view.paused


def test_one_that_ends_together_with_others_was_paused_once() -> None:
    ledger, names = Ledger(), [f"r{number}" for number in range(BATCH_MIN + 1)]
    for incarnation, name in enumerate(names, 1):
        ledger.given(asked(name, parent=""), placed(name, incarnation=incarnation), begun(name))
    ledger.given(RunPaused("r1", paused=True))
    ended = [Ended(name, number, b"\x01", "", None, released=True) for number, name in enumerate(names, 1)]
    facts = ledger.enact(end_together(ledger.view, ended, ledger.limits))
    assert {ledger.run(name).status for name in names} == {"completed"}
    assert len(facts) > 1, "it has an end of its own"
    assert not ledger.view.paused


def test_what_misses_a_host_is_kept_back_unless_it_is_about_to_fail_for_that() -> None:
    ledger, key = Ledger().given(asked("r", **ELSEWHERE)), pool_key(FAR)
    ledger.view.homes["a@b"] = FAR
    assert not [*hold_ups(ledger.view, (), ["a@b"])]
    ledger.view.troubles[key] = PoolTrouble(FAR, "no node has it", 0, NOW_MS, is_lack=True)
    found = [*hold_ups(ledger.view, (), ["a@b", "c@d"])]
    assert [each.agent for each in found] == [child("r"), "a@b"]
    assert (
        found[1]
        .told("a@b", None)
        .startswith("agent 'a@b' waits for a host, and you go on waiting: no host (1 far) can")
    )
    ledger.view.troubles[key] = PoolTrouble(FAR, "it is broken", STARTS_MAX, NOW_MS)
    assert [each.agent for each in hold_ups(ledger.view, (), ["a@b"])] == ["a@b"]


def test_a_life_that_was_told_to_stop_and_has_ended_keeps_nothing_back() -> None:
    ledger = Ledger().given(asked("r"), placed("r"), begun("r"), AgentActivated("a@b", 2, "h1", None))
    found = [*unheeded(ledger.view, [(child("r"), 1), ("a@b", 1), ("a@b", 2), ("gone@b", 1)])]
    assert [(each.agent, each.run) for each in found] == [(child("r"), ledger.run("r")), ("a@b", None)]
    ledger.given(AgentReleased("a@b", 2))
    assert not [*unheeded(ledger.view, [("a@b", 2)])]


def _held(ledger: Ledger, awaited: list[str] | None = None) -> list[str]:
    return [each.run.run_id for each in hold_ups(ledger.view, awaited or (), ()) if each.run is not None]
