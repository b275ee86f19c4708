"""When ended runs are due by their age and by their number."""

from __future__ import annotations

from perdure.policies import Limits, is_retention_on, retention_due, snapshot_age_max_ms


def test_it_is_off_unless_a_bound_is_set() -> None:
    assert not is_retention_on(Limits())
    assert is_retention_on(Limits(ended_kept_ms=1))
    assert is_retention_on(Limits(ended_kept_max=1))
    assert not retention_due(10**15, 10**7, Limits()).any


def test_a_run_is_due_by_its_age() -> None:
    due = retention_due(10_000, 5, Limits(ended_kept_ms=3_000))
    assert due.any
    assert due.has(6_999, 0)
    assert not due.has(7_000, 0)


def test_the_oldest_are_due_when_there_are_too_many() -> None:
    due = retention_due(10_000, 5, Limits(ended_kept_max=3))
    assert [due.has(9_999, chosen) for chosen in range(4)] == [True, True, False, False]
    assert not retention_due(10_000, 3, Limits(ended_kept_max=3)).any
    assert retention_due(10_000, 3, Limits(ended_kept_max=0)).surplus == 3


def test_the_snapshot_follows_within_a_tenth_of_the_age_that_is_kept_a_minute_at_least_and_ten_at_most() -> None:
    hour_ms = 3_600_000
    kept_ms = {1: 60_000, hour_ms: hour_ms // 10, 24 * hour_ms: 600_000, float("inf"): float("inf")}
    assert {each: snapshot_age_max_ms(Limits(ended_kept_ms=each), 0) for each in kept_ms} == kept_ms
    assert snapshot_age_max_ms(Limits(ended_kept_max=5), 0) == 600_000


def test_the_snapshot_follows_within_ten_seconds_while_there_are_too_many() -> None:
    assert snapshot_age_max_ms(Limits(ended_kept_max=5), 5) == 600_000
    assert snapshot_age_max_ms(Limits(ended_kept_max=5), 6) == 10_000
    assert snapshot_age_max_ms(Limits(ended_kept_ms=1), 10**6) == 60_000
