"""Limits: every one has a default, and a value that makes no sense is refused by name."""

from __future__ import annotations

import math
from dataclasses import asdict, fields

import pytest

from perdure.policies import INFINITY, InvalidValue, Limits

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
@pytest.mark.parametrize("value", [-1, -0.5, math.nan, "many", None, True, False])
def test_a_limit_that_is_no_number_in_its_range_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name}: .*is not a (whole |finite )?number of at least [01]$"):
        Limits(**{name: value})  # type: ignore[arg-type]


# What says of itself that 0 means none, off or at once, and what goes on with 0.
GO_WITH_0 = """
    hosts_max hosts_warm inline_agents_max host_idle_ms heartbeat_misses_max blocked_warn_ms teardown_grace_ms recovery_deadline_ms
    rss_mb_max alone_after_losses schedules_max schedule_grace_ms schedule_histories_max queued_max reattach_no_progress_ms
    reattach_window_ms detached_max_budget_ms detached_no_progress_budget_ms stream_kept_ms fiber_recoveries_max fiber_recovery_first_ms
    fiber_recovery_most_ms fibers_kept_max fibers_kept_ms stash_bytes_max metadata_bytes_max wait_in_memory_ms events_max asks_max
    progress_ms inbox_max turn_max linger_ms checkpoint_facts retained_in_memory ended_kept_ms ended_kept_max inline_bytes_max
    logs_bytes_max
""".split()
END_AT_INFINITY = """
    hosts_max blocked_warn_ms blocked_max_ms sweep_ms retry_first_ms retry_most_ms handler_attempts_max
    schedule_interval_ms_min schedule_history_max fiber_recovery_first_ms events_max group_max error_chars_max
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_0_is_a_limit_only_where_something_can_be_done_with_it(name: str) -> None:
    if name in GO_WITH_0:
        assert getattr(Limits(**{name: 0}), name) == 0
        return
    with pytest.raises(InvalidValue, match=f"^{name}: 0 is not a (whole |finite )?number of at least 1$"):
        Limits(**{name: 0})
    assert getattr(Limits(**{name: 1}), name) == 1


@pytest.mark.parametrize("name", NAMES)
def test_infinity_is_a_limit_only_where_nobody_counts_up_to_it(name: str) -> None:
    if name not in END_AT_INFINITY:
        assert getattr(Limits(**{name: INFINITY}), name) == INFINITY  # type: ignore[arg-type]
        return
    with pytest.raises(InvalidValue, match=f"^{name}: inf is not a finite number of at least [01]$"):
        Limits(**{name: INFINITY})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["hosts_max", "attempts_max", "waiting_max", "input_bytes_max", "error_chars_max"])
def test_what_is_counted_is_whole(name: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}: 2.5 is not a whole number"):
        Limits(**{name: 2.5})  # type: ignore[arg-type]


def test_times_need_not_be_whole() -> None:
    assert Limits(idle_ms=1_500.5).idle_ms == 1_500.5  # type: ignore[arg-type]


def test_limits_of_an_earlier_version_can_be_read_though_they_are_refused_now() -> None:
    assert Limits.recorded({"attempts_max": 0, "waiting_max": 0}).attempts_max == 0


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
