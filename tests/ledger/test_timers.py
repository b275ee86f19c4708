"""Timers: which keys fire when."""

from __future__ import annotations

import math

from perdure.ledger.indexes import Timers


def armed(**times: int) -> Timers:
    timers = Timers()
    for key, at_ms in times.items():
        timers.arm(key, at_ms)
    return timers


def test_keys_fire_at_their_times_in_order() -> None:
    timers = armed(late=30, early=10, also_early=10)
    assert timers.next_at_ms == 10
    timers.fire(29)
    assert timers.fired == ["early", "also_early"]
    assert timers.armed == {"late": (30,)}
    timers.fire(30)
    assert timers.fired == ["late"]
    assert timers.next_at_ms == math.inf


def test_a_key_that_is_due_twice_fires_once() -> None:
    timers = armed(run=10)
    timers.arm("run", 20)
    timers.fire(20)
    assert timers.fired == ["run"]


def test_an_earlier_time_of_a_key_still_fires() -> None:
    timers = armed(run=10)
    timers.arm("run", 20)
    timers.fire(10)
    assert timers.fired == ["run"]


def test_a_key_is_armed_by_a_time_only_if_that_is_earlier() -> None:
    timers = armed(run=10)
    timers.arm_by("run", 20)
    timers.arm_by("other", math.inf)
    assert timers.armed == {"run": (10,)}
    timers.arm_by("run", 5)
    assert timers.next_at_ms == 5
