"""When silence counts against a host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import COMING, MUTE, Limits, Silence, is_noteworthy, is_unbearable, silence_after, was_late

LIMITS = Limits(heartbeat_ms=2_000, heartbeat_misses_max=5, blocked_warn_ms=5_000, blocked_max_ms=60_000)


def looks_until_the_end(signs: list[str]) -> int | None:
    """After how many of these looks a host is ended; None if it never is."""
    silence = None
    for number, sign in enumerate(signs, 1):
        silence = silence_after(silence, sign)
        if is_unbearable(silence, LIMITS):
            return number
    return None


@pytest.mark.parametrize(
    ("sign", "looks"),
    [(MUTE, 6), ("17", 31), (COMING, 151)],
)
def test_each_kind_of_silence_has_a_patience_of_its_own(sign: str, looks: int) -> None:
    assert looks_until_the_end([sign] * 1_000) == looks


def test_a_loop_that_goes_from_one_piece_of_work_to_the_next_is_never_ended() -> None:
    assert looks_until_the_end([str(number // 30) for number in range(100_000)]) is None


def test_a_blocked_loop_is_told_once_and_after_its_time() -> None:
    silence, told = None, []
    for number in range(1, 31):
        silence = silence_after(silence, "4")
        told += [number] * is_noteworthy(silence, LIMITS)
    assert told == [3], "5 s are three looks of 2 s"


@given(st.lists(st.sampled_from(["1", "2", MUTE])))
def test_the_count_is_that_of_the_same_sign_in_a_row(signs: list[str]) -> None:
    silence: Silence | None = None
    for number, sign in enumerate(signs):
        silence = silence_after(silence, sign)
        assert signs[number - silence.looks + 1 : number + 1] == [sign] * silence.looks
        assert signs[: number - silence.looks + 1][-1:] != [sign]


def test_a_supervisor_counts_as_late_when_it_missed_a_whole_heartbeat() -> None:
    assert [was_late(ms, LIMITS) for ms in (0, 1_999, 2_000)] == [False, False, True]
