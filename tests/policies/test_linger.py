"""How long the supervisor waits between two commits to a bucket."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import INFINITY, CommitPace, Limits, linger_ms, pace_after

LIMITS = Limits(linger_ms=100)
LINGERS = CommitPace(began_ms=1_000, lingers=True)


@pytest.mark.parametrize(
    ("pace", "now_ms", "waiting", "limits", "waits_ms"),
    [
        pytest.param(LINGERS, 1_020, 5, LIMITS, 80, id="until the limit has passed since the last commit began"),
        pytest.param(LINGERS, 1_020, 99, LIMITS, 80, id="not quite many"),
        pytest.param(LINGERS, 1_020, 100, LIMITS, 0, id="many wait"),
        pytest.param(LINGERS, 1_130, 5, LIMITS, 0, id="the commit itself took longer"),
        pytest.param(LINGERS, 9_000, 1, LIMITS, 0, id="the last commit was long ago"),
        pytest.param(LINGERS._replace(lingers=False), 1_020, 5, LIMITS, 0, id="it does not linger"),
        pytest.param(LINGERS, 1_000, 5, Limits(linger_ms=0), 0, id="no linger"),
        pytest.param(LINGERS, 1_000, 5, Limits(linger_ms=INFINITY), 5_000, id="it is bounded"),
    ],
)
def test_how_long(pace: CommitPace, now_ms: float, waiting: int, limits: Limits, waits_ms: float) -> None:
    assert linger_ms(pace, now_ms, waiting, limits) == waits_ms


Second = tuple[int, int, int]
"""Every so many milliseconds a commit, of so many messages, with so many agents awake."""


def after(*seconds: Second, limits: Limits = LIMITS) -> CommitPace:
    pace, at_ms = CommitPace(), 0
    for every_ms, messages, awake in seconds:
        for _ in range(1_000 // every_ms):
            at_ms += every_ms
            pace = pace_after(pace, at_ms, messages, awake, limits)
    return pace


BUSY, CROWDED, SLOWED = (20, 4, 1_000), (100, 20, 1_000), (100, 4, 1_000)


@pytest.mark.parametrize(
    ("seconds", "lingers"),
    [
        pytest.param([BUSY], True, id="a busy second"),
        pytest.param([BUSY, CROWDED, CROWDED], True, id="as many messages come while it lingers"),
        pytest.param([BUSY, (100, 13, 1_000)], True, id="nearly as many do"),
        pytest.param([BUSY, (100, 11, 1_000)], False, id="fewer do, so that it only slows down"),
        pytest.param([BUSY, CROWDED, (100, 5, 1_000)], True, id="less is to be done, later on"),
        pytest.param([BUSY, CROWDED, (100, 20, 19)], False, id="the agents went to sleep"),
        pytest.param([BUSY, SLOWED, BUSY], False, id="it was given up a while ago"),
        pytest.param([BUSY, SLOWED, BUSY, BUSY], True, id="it is tried again"),
        pytest.param(
            [BUSY, SLOWED, BUSY, BUSY, SLOWED, BUSY, BUSY, BUSY], False, id="it was given up twice, for longer"
        ),
        pytest.param([BUSY, SLOWED, BUSY, BUSY, SLOWED, BUSY, BUSY, BUSY, BUSY], True, id="it is tried once more"),
        pytest.param(
            [(20, 20, 1_000), SLOWED, BUSY, BUSY, CROWDED, CROWDED], True, id="only the first second was that busy"
        ),
        pytest.param([(20, 4, 19)], False, id="a few agents"),
        pytest.param([(20, 1, 1)] * 20, False, id="one agent awaits one run after the other"),
        pytest.param([(50, 4, 1_000)], True, id="twice as many commits as with a linger"),
        pytest.param([(62, 4, 1_000)], False, id="not so many"),
    ],
)
def test_when_it_lingers(seconds: Iterable[Second], lingers: bool) -> None:
    assert after(*seconds).lingers is lingers


def test_with_a_shorter_limit_only_a_quicker_stream_lingers() -> None:
    assert not after(BUSY, limits=Limits(linger_ms=30)).lingers
    assert not after(BUSY, limits=Limits(linger_ms=0)).lingers
    assert after(BUSY, limits=Limits(linger_ms=40)).lingers


def test_a_burst_that_ends_within_a_second_does_not_make_it_linger() -> None:
    assert not any(
        pace.lingers
        for pace in accumulate(
            range(5_020, 5_980, 20),
            lambda pace, at: pace_after(pace, at, 9, 99, LIMITS),
            initial=CommitPace(5_000, since_ms=5_000),
        )
    )


@given(st.lists(st.tuples(st.floats(0, 3_000), st.integers(0, 999), st.integers(0, 99))), st.floats(0, 1_000))
def test_whatever_came_before_no_turn_waits_longer_than_the_limit(
    commits: list[tuple[float, int, int]], pause_ms: float
) -> None:
    pace, at_ms = CommitPace(), 0.0
    for after_ms, messages, awake in commits:
        at_ms += after_ms
        pace = pace_after(pace, at_ms, messages, awake, LIMITS)
        assert 0 <= linger_ms(pace, at_ms + pause_ms, 1, LIMITS) <= 100
