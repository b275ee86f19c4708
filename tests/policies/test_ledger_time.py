"""The ledger's time follows the wall clock forward, and what is measured does not notice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import LEAP_MS, Leap, LedgerTime, carried, with_leap
from perdure.policies.ledger_time import LEAPS_MAX

TIME = LedgerTime(1_000_000, 50)
JUMPS = st.lists(st.tuples(st.integers(0, 100_000), st.integers(-3_600_000, 3_600_000)), max_size=40)


def test_it_goes_as_fast_as_the_steady_clock() -> None:
    assert TIME.now_ms(50) == 1_000_000
    assert TIME.now_ms(1_050) == 1_001_000


def test_it_leaps_to_a_wall_clock_that_is_ahead_and_not_to_one_that_is_behind() -> None:
    assert TIME.leap(1_000_000 + LEAP_MS - 1, 50) is None
    assert TIME.leap(900_000, 50) is None
    leap = TIME.leap(1_060_000, 50)
    assert leap == Leap(1_000_000, 60_000)
    assert TIME.after(leap).now_ms(1_050) == 1_061_000


@given(JUMPS, st.integers(0, 40))
def test_what_is_measured_is_the_time_that_passed_whatever_clocks_are_set_to(
    jumps: list[tuple[int, int]], since: int
) -> None:
    time, leaps, steady_ms, wall_ms = LedgerTime(10**12, 0), (), 0, 10**12
    begun: tuple[int, int] | None = None
    last_ms = time.now_ms(0)
    for number, (passed_ms, jump_ms) in enumerate(jumps):
        if number == since:
            begun = time.now_ms(steady_ms), steady_ms
        steady_ms, wall_ms = steady_ms + passed_ms, wall_ms + passed_ms + jump_ms
        leap = time.leap(wall_ms, steady_ms)
        if leap is not None:
            time, leaps = time.after(leap), with_leap(leaps, leap)
        assert time.now_ms(steady_ms) >= max(last_ms, wall_ms - LEAP_MS + 1)
        last_ms = time.now_ms(steady_ms)
    if begun is not None:
        assert time.now_ms(steady_ms) - carried(begun[0], leaps) == steady_ms - begun[1]


def test_what_began_after_a_leap_is_not_moved() -> None:
    leaps = (Leap(1_000, 500), Leap(2_000, 100))
    assert [carried(instant, leaps) for instant in (1_000, 1_500, 2_000, 2_100)] == [1_600, 1_600, 2_100, 2_100]


def test_so_many_leaps_are_known_and_the_two_oldest_count_as_one_then() -> None:
    leaps: tuple[Leap, ...] = ()
    for number in range(LEAPS_MAX + 10):
        leaps = with_leap(leaps, Leap(number * 10, 5))
    assert len(leaps) == LEAPS_MAX
    assert carried(0, leaps) == (LEAPS_MAX + 10) * 5
