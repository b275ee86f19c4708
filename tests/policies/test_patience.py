"""When a parent stops waiting, and why: the table of budgets, with what 0 and infinity mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import Budget, Sighting, expiry, is_window
from perdure.policies.patience import NEVER

INF = math.inf
OFF = {"absolute_ms": INF, "silence_ms": INF, "reattach_silence_ms": INF, "reattach_window_ms": INF}


def detached(requested: int = 1_000, signal: int = 0) -> Sighting:
    return Sighting(True, requested, signal, 0)


def awaited(reattached: int = 0, signal: int = 0) -> Sighting:
    return Sighting(False, 1_000, signal, reattached)


TABLE: list[tuple[str, Sighting, dict[str, float], tuple[float, str, bool]]] = [
    ("an absolute budget counts from the request", detached(), {"absolute_ms": 500}, (1_500, "budget-exceeded", True)),
    ("an absolute budget of 0 gives up at once", detached(), {"absolute_ms": 0}, (1_000, "budget-exceeded", True)),
    ("an infinite absolute budget never ends", detached(), {}, (INF, "budget-exceeded", True)),
    ("silence counts from the last signal", detached(signal=1_200), {"silence_ms": 100}, (1_300, "no-progress", True)),
    ("silence is off without a signal", detached(), {"silence_ms": 1}, (INF, "budget-exceeded", True)),
    ("a window of 0 is off", detached(signal=1_200), {"silence_ms": 0}, (INF, "budget-exceeded", True)),
    (
        "the first of two ends counts",
        detached(signal=1_200),
        {"silence_ms": 100, "absolute_ms": 250},
        (1_250, "budget-exceeded", True),
    ),
    (
        "an awaited run has no budget before a re-attach",
        awaited(),
        {"absolute_ms": 0, "silence_ms": 1, "reattach_silence_ms": 0},
        (INF, "", False),
    ),
    (
        "after a re-attach silence counts from it",
        awaited(2_000),
        {"reattach_silence_ms": 100},
        (2_100, "no-progress", False),
    ),
    (
        "a later signal moves the end",
        awaited(2_000, 2_050),
        {"reattach_silence_ms": 100},
        (2_150, "no-progress", False),
    ),
    (
        "an earlier signal does not",
        awaited(2_000, 1_050),
        {"reattach_silence_ms": 100},
        (2_100, "no-progress", False),
    ),
    ("a silence of 0 does not wait", awaited(2_000), {"reattach_silence_ms": 0}, (2_000, "no-progress", False)),
    ("an infinite silence never seals", awaited(2_000), {}, (INF, "no-progress", False)),
    (
        "a hard window caps the whole wait",
        awaited(2_000, 2_900),
        {"reattach_silence_ms": 500, "reattach_window_ms": 1_000},
        (3_000, "window-exceeded", True),
    ),
    ("a hard window of 0 is off", awaited(2_000), {"reattach_window_ms": 0}, (INF, "no-progress", False)),
]


@pytest.mark.parametrize(("seen", "given_ms", "ends"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_patience_ends(seen: Sighting, given_ms: dict[str, float], ends: tuple[float, str, bool]) -> None:
    assert expiry(Budget(**{**OFF, **given_ms}), seen) == ends


@pytest.mark.parametrize(("limit", "on"), [(0, False), (-1, False), (INF, False), (1, True), (0.5, True), (1e12, True)])
def test_a_window_is_on_between_0_and_infinity(limit: float, on: bool) -> None:
    assert is_window(limit) is on


def test_nan_is_no_window() -> None:
    assert not is_window(math.nan)


millis: Any = st.one_of(st.just(0.0), st.just(INF), st.floats(0, 1e7))


@given(millis, millis, millis, millis, st.booleans(), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_later_signal_never_moves_the_end_earlier(
    absolute: float, silence: float, quiet: float, window: float, is_detached: bool, signal: int, more: int
) -> None:
    budget = Budget(absolute, silence, quiet, window)
    reattached = 0 if is_detached else 500
    before = expiry(budget, Sighting(is_detached, 1, signal, reattached))
    after = expiry(budget, Sighting(is_detached, 1, signal + more, reattached))
    assert after.at_ms >= before.at_ms


def test_never_is_later_than_anything() -> None:
    assert NEVER.at_ms == INF
    assert not NEVER.teardown
