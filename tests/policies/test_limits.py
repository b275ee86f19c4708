"""Limits: every one has a default, and a value that makes no sense is refused by name."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from policies import INFINITY, Limits

NAMES = [field.name for field in fields(Limits)]


def test_the_options_of_the_seed_have_its_defaults() -> None:
    limits = Limits()
    assert limits.reattach_no_progress_ms == 120_000
    assert limits.reattach_window_ms == INFINITY
    assert limits.detached_max_budget_ms == 86_400_000
    assert limits.detached_no_progress_budget_ms == 3_600_000
    assert limits.progress_ms == 200
    assert limits.preview_chars_max == 500


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, "many", None])
def test_a_limit_that_is_no_number_of_at_least_0_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*is not a number of at least 0"):
        Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, 1, INFINITY])
def test_0_and_infinity_are_limits_like_any_other(name: str, value: float) -> None:
    assert getattr(Limits(**{name: value}), name) == value  # type: ignore[arg-type]
