"""What becomes of fibers: every row of the table, the pauses, the verdicts of hooks, and who is kept how long."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from perdure.policies import (
    AskHook,
    Drop,
    Enter,
    FiberResult,
    FiberRetry,
    Interruption,
    Limits,
    Settle,
    SettledFiber,
    after_error,
    after_hook,
    outlived,
    recovery_pause_after,
    take_up,
)

LIMITS = Limits(attempts_max=3, fiber_recoveries_max=2)
CUT_OFF = Interruption(
    is_waiting=False, is_managed=True, has_hook=False, recoveries=0, retry=None, attempt=1, idle_attempts=1
)
RETRIED = CUT_OFF._replace(retry=FiberRetry())


def letter(found: Interruption) -> str:
    """The row of the table, told by other words than the policy's."""
    has_hook, asks_on = found.has_hook, found.recoveries < 2
    if found.is_waiting:
        return "A"
    if has_hook and asks_on:
        return "B"
    if not found.is_managed:
        return "G" if has_hook else "H"
    if has_hook:
        return "C"
    if found.retry is None:
        return "F"
    return "D" if found.idle_attempts < 3 else "E"


VERDICTS = {"A": Enter, "B": AskHook, "C": Settle, "D": Enter, "E": Settle, "F": Settle, "G": Drop, "H": Drop}


def test_every_combination_has_the_verdict_of_its_row() -> None:
    seen = set()
    for waiting, managed, hook, recoveries, retry, idle in product(
        (False, True), (False, True), (False, True), (0, 2), (None, FiberRetry()), (1, 3)
    ):
        found = Interruption(waiting, managed, hook, recoveries, retry, attempt=idle, idle_attempts=idle)
        verdict = take_up(found, LIMITS, 0.5)
        assert type(verdict) is VERDICTS[letter(found)], found
        assert not isinstance(verdict, Settle) or verdict.status == "interrupted"
        seen.add(letter(found))
    assert seen == set(VERDICTS)


def test_the_first_death_costs_no_pause_and_later_ones_ever_more() -> None:
    pauses = [
        take_up(CUT_OFF._replace(retry=FiberRetry(9, 100, 300), idle_attempts=idle), LIMITS, 0.0)
        for idle in (1, 2, 3, 4, 5)
    ]
    assert pauses == [Enter(0), Enter(50), Enter(100), Enter(150), Enter(150)]


def test_progress_gives_new_attempts_but_the_whole_life_has_a_bound() -> None:
    assert isinstance(take_up(RETRIED._replace(attempt=99, idle_attempts=0), LIMITS, 0), Enter)
    spent = take_up(RETRIED._replace(attempt=100, idle_attempts=0), LIMITS, 0)
    assert isinstance(spent, Settle)
    assert "recovery_work_max" in str(spent.error)


def test_a_hook_is_left_alone_for_longer_and_longer() -> None:
    pauses = [recovery_pause_after(times, Limits(), 0.999) for times in range(1, 21)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (999, 299850)
    assert sum(pauses) > 3_600_000, "its budget spans more than an hour"


@pytest.mark.parametrize(
    ("given", "retry", "verdict"),
    [
        (None, None, Settle("interrupted", None)),
        (None, FiberRetry(), Enter(0)),
        (FiberResult("retry"), None, Enter(0)),
        (FiberResult("completed"), None, Settle("completed", None)),
        (FiberResult("interrupted", error="later"), FiberRetry(), Settle("interrupted", "later")),
    ],
)
def test_a_verdict_of_a_hook(given: FiberResult | None, retry: FiberRetry | None, verdict: object) -> None:
    assert after_hook(given, CUT_OFF._replace(retry=retry), LIMITS, 0) == verdict


def test_a_hook_cannot_retry_for_ever() -> None:
    spent = after_hook(FiberResult("retry"), CUT_OFF._replace(idle_attempts=3), LIMITS, 0)
    assert isinstance(spent, Settle)
    assert spent.status == "interrupted"


def test_unmanaged_work_is_forgotten_whatever_the_hook_says() -> None:
    assert isinstance(after_hook(FiberResult("retry"), CUT_OFF._replace(is_managed=False), LIMITS, 0), Drop)


def test_what_raised_is_tried_again_if_it_may_and_as_often() -> None:
    assert after_error(CUT_OFF, "no", LIMITS, 0) == Settle("error", "no")
    assert after_error(CUT_OFF._replace(retry=FiberRetry(on_error=False)), "no", LIMITS, 0) == Settle("error", "no")
    assert after_error(RETRIED, "no", LIMITS, 0) == Enter(100)
    assert after_error(RETRIED._replace(idle_attempts=3), "no", LIMITS, 0) == Settle("error", "no")


@pytest.mark.parametrize(
    ("given", "policy"),
    [(None, None), (False, None), (True, FiberRetry()), (4, FiberRetry(4)), (FiberRetry(2), FiberRetry(2))],
)
def test_retry_is_said_in_short_or_in_full(given: object, policy: FiberRetry | None) -> None:
    assert FiberRetry.of(given) == policy


@pytest.mark.parametrize("given", [0, -1, "yes", 1.5])
def test_a_retry_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"attempts_max|not True"):
        FiberRetry.of(given)


def test_a_result_has_one_of_five_statuses() -> None:
    with pytest.raises(ValueError, match="status: 'done'"):
        FiberResult("done")  # type: ignore[arg-type]


def test_what_is_settled_is_kept_by_number_and_age_but_interrupted_ones_for_ever() -> None:
    limits = Limits(fibers_kept_max=2, fibers_kept_ms=100)
    settled = [
        SettledFiber("a", "completed", 900),
        SettledFiber("old", "error", 899),
        SettledFiber("b", "aborted", 950),
        SettledFiber("waits", "interrupted", 1),
    ]
    assert outlived(settled, 1_000, limits) == ["old"]
    assert outlived(settled[:2], 1_000, limits) == ["old"], "by age alone"
    assert outlived(settled, 1_051, limits) == ["old", "a", "b"]
