"""The table of steps that are tried, timed, or asked for, row by row."""

from __future__ import annotations

from itertools import product

import pytest

from perdure.policies import StepRecord, StepVerdict, look_at_step

NOW = 1_000


@pytest.mark.parametrize(("used_up", "late", "pauses", "began"), list(product((False, True), repeat=4)))
def test_each_combination_has_one_verdict(used_up: bool, late: bool, pauses: bool, began: bool) -> None:
    record = StepRecord(
        began=began,
        failures=3 if used_up else 2,
        next_try_ms=NOW + 1 if pauses else NOW,
        deadline_ms=NOW if late else NOW + 1,
    )
    expected = (
        StepVerdict.FAILED
        if used_up
        else StepVerdict.TIMED_OUT
        if late
        else StepVerdict.PAUSE
        if pauses
        else StepVerdict.PROBE
        if began
        else StepVerdict.BEGIN
    )
    assert look_at_step(record, NOW, 3, has_probe=True) is expected
    without = StepVerdict.BEGIN if expected is StepVerdict.PROBE else expected
    assert look_at_step(record, NOW, 3, has_probe=False) is without


def test_without_a_retry_and_a_limit_nothing_is_used_up_or_late() -> None:
    assert look_at_step(StepRecord(failures=99), NOW, None, has_probe=True) is StepVerdict.BEGIN


def test_another_count_forgets_failures_pause_and_limit_and_keeps_what_is_to_be_undone() -> None:
    record = StepRecord(1, True, 3, 50, 60, "no", 2, ["method", "undo"], ["method", "probe"])
    assert record.counted_anew(4) == StepRecord(4, True, 0, 0, 0, "", 2, ["method", "undo"], ["method", "probe"])
