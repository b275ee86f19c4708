"""Limits: every one has a default, and a value that makes no sense is refused by name."""

from __future__ import annotations

import math
from dataclasses import asdict, fields

import pytest

from perdure.policies import INFINITY, Limits

NAMES = [field.name for field in fields(Limits)]


@pytest.mark.shows(agent_tools="106", chat_recovery="C-0899")
def test_the_options_of_the_seed_have_its_defaults() -> None:
    limits = Limits()
    assert limits.reattach_no_progress_ms == 120_000
    assert limits.reattach_window_ms == INFINITY
    assert limits.detached_max_budget_ms == 86_400_000
    assert limits.detached_no_progress_budget_ms == 3_600_000
    assert limits.progress_ms == 200


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, "many", None])
def test_a_limit_that_is_no_number_of_at_least_0_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*is not a number of at least 0"):
        Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, 1, INFINITY])
def test_0_and_infinity_are_limits_like_any_other(name: str, value: float) -> None:
    assert getattr(Limits(**{name: value}), name) == value  # type: ignore[arg-type]


def test_limits_are_the_same_after_they_were_recorded_also_by_another_version() -> None:
    mine = Limits(hosts_max=16, detached_max_budget_ms=INFINITY)
    assert Limits.recorded({**asdict(mine), "of_another_version": 3}) == mine
    assert Limits.recorded({"hosts_max": 16}) == Limits(hosts_max=16)


def test_limits_that_differ_are_named() -> None:
    assert Limits(hosts_max=16, idle_ms=1).differing(Limits()) == ["hosts_max", "idle_ms"]
    assert Limits().differing(Limits()) == []


@pytest.mark.parametrize(("cores", "hosts"), [(0, 2), (1, 2), (2, 2), (3, 3), (16, 16), (17, 16), (512, 16)])
def test_a_pool_has_a_host_for_each_core_unless_its_size_was_said(cores: int, hosts: int) -> None:
    assert Limits(idle_ms=1).for_cores(cores) == Limits(idle_ms=1, hosts_max=hosts)
    assert Limits(hosts_max=1).for_cores(cores) == Limits(hosts_max=1)


def test_a_size_that_is_left_to_the_cluster_is_whatever_it_is() -> None:
    assert Limits().differing(Limits(hosts_max=3)) == []
    assert Limits(hosts_max=4).differing(Limits(hosts_max=3)) == ["hosts_max"]
