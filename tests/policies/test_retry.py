"""Pauses double, never exceed their bound, and are shaken by the die only in their second half."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import backoff_ms, jittered_ms


def test_a_pause_doubles_with_each_failure_up_to_its_bound() -> None:
    assert [backoff_ms(attempt, 200, 3_000) for attempt in range(1, 8)] == [200, 400, 800, 1600, 3000, 3000, 3000]


@pytest.mark.parametrize("attempt", [0, -3, 1])
def test_no_failure_at_all_counts_as_the_first(attempt: int) -> None:
    assert backoff_ms(attempt, 200, 3_000) == 200


@given(st.integers(-10, 10**9), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_pause_is_never_above_its_bound_and_never_negative(attempt: int, first: int, most: int) -> None:
    assert 0 <= backoff_ms(attempt, first, most) <= most


@given(st.floats(0, 1e9), st.floats(0, 1, exclude_max=True))
def test_the_die_moves_at_most_half_of_a_pause(pause: float, roll: float) -> None:
    assert pause / 2 <= jittered_ms(pause, roll) <= pause
