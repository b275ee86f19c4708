"""How many messages one turn of the supervisor decides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import Limits, turn_size_after

LIMITS = Limits(turn_max=1_000)


def test_after_a_long_turn_the_next_one_takes_half_as_many() -> None:
    assert turn_size_after(1_000, 800, 100.0, LIMITS) == 400
    assert turn_size_after(400, 400, 41.0, LIMITS) == 200


def test_one_that_was_short_though_it_was_full_is_followed_by_a_larger_one() -> None:
    assert turn_size_after(200, 200, 5.0, LIMITS) == 400
    assert turn_size_after(200, 199, 5.0, LIMITS) == 200
    assert turn_size_after(200, 200, 25.0, LIMITS) == 200
    assert turn_size_after(900, 900, 5.0, LIMITS) == 1_000


@given(st.integers(0, 1_000), st.floats(0.001, 0.5))
def test_turns_come_to_last_as_long_as_whoever_asks_may_wait(first: int, each_ms: float) -> None:
    size = 1_000
    for _ in range(12):
        size = turn_size_after(size, size, size * each_ms, LIMITS)
    assert size * each_ms <= 40.0
    assert size == 1_000 or size * each_ms >= 10.0
    assert turn_size_after(size, min(first, size), 0.0, LIMITS) >= size
