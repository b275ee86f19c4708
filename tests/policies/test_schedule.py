"""Times: the next tick of a schedule, also when clocks are changed, and what becomes of those that were missed."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.policies import (
    Cron,
    Every,
    Firing,
    InvalidValue,
    Limits,
    Retries,
    cron,
    firing,
    full_jitter_ms,
    instant_ms,
    interval_ms,
    next_tick,
)

BERLIN, NEW_YORK, APIA = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("Pacific/Apia")
NOW_MS = 1_750_000_000_000
LIMITS = Limits()
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def ticks(text: str, zone: ZoneInfo, start: str, count: int) -> list[str]:
    """The next ticks after a local time, as local times with their offsets."""
    pattern, found = Cron(text, zone), []
    at_ms: int | None = round(datetime.fromisoformat(start).replace(tzinfo=zone).timestamp() * 1000)
    for _ in range(count):
        assert at_ms is not None
        at_ms = pattern.after(at_ms)
        assert at_ms is not None
        found.append(datetime.fromtimestamp(at_ms / 1000, zone).strftime("%d %H:%M %z"))
    return found


# ---------------------------------------------------------------- days when clocks are changed


@pytest.mark.parametrize(
    ("zone", "start", "expected"),
    [
        (BERLIN, "2026-03-28T03:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        (NEW_YORK, "2026-03-07T03:00", ["08 03:00 -0400", "09 02:30 -0400"]),
    ],
)
def test_a_time_of_day_that_is_skipped_runs_at_the_first_instant_after_the_gap(
    zone: ZoneInfo, start: str, expected: list[str]
) -> None:
    assert ticks("30 2 * * *", zone, start, 2) == expected
    assert ticks("10,30,50 2 * * *", zone, start, 2) == [expected[0], expected[1].replace("02:30", "02:10")]


@pytest.mark.parametrize(
    ("zone", "text", "start", "expected"),
    [
        (BERLIN, "30 2 * * *", "2026-10-24T03:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31T03:00", ["01 01:30 -0400", "02 01:30 -0500"]),
    ],
)
def test_a_time_of_day_that_comes_twice_runs_the_first_time_only(
    zone: ZoneInfo, text: str, start: str, expected: list[str]
) -> None:
    assert ticks(text, zone, start, 2) == expected


def test_inside_the_repeated_hour_nothing_is_due_that_has_been() -> None:
    """An agent that wakes at 02:10 for the second time finds the next 02:30 tomorrow."""
    second = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    found = Cron("30 2 * * *", BERLIN).after(round(second.timestamp() * 1000))
    assert found == round(datetime(2026, 10, 26, 2, 30, tzinfo=BERLIN).timestamp() * 1000)


@pytest.mark.parametrize(
    ("zone", "start", "offsets"),
    [(BERLIN, "2026-10-25T01:45", ("+0200", "+0100")), (NEW_YORK, "2026-11-01T00:45", ("-0400", "-0500"))],
)
def test_what_runs_ever_so_often_runs_in_both_of_the_repeated_hours(
    zone: ZoneInfo, start: str, offsets: tuple[str, str]
) -> None:
    found = ticks("*/30 * * * *", zone, start, 4)
    assert [each[-5:] for each in found] == [offsets[0], offsets[0], offsets[1], offsets[1]]
    assert found[0][3:8] == found[2][3:8]


def test_what_runs_ever_so_often_has_no_ticks_in_a_skipped_hour() -> None:
    assert ticks("*/30 * * * *", BERLIN, "2026-03-29T01:15", 3) == [
        "29 01:30 +0100",
        "29 03:00 +0200",
        "29 03:30 +0200",
    ]
    assert ticks("*/30 2 * * *", BERLIN, "2026-03-28T12:00", 1) == ["30 02:00 +0200"]


def test_a_day_that_a_country_left_out_is_no_trouble() -> None:
    """Samoa had no 30 December 2011."""
    assert ticks("0 12 30 12 *", APIA, "2011-12-01T00:00", 1) == ["31 00:00 +1400"]


@settings(deadline=None, max_examples=60)
@given(
    text=st.sampled_from(
        ["30 2 * * *", "0 1,2,3 * * *", "*/20 * * * *", "15 * * * *", "5 0 1 * *", "0 3 * * 0", "0 2-4 29 * 1"]
    ),
    zone=st.sampled_from([BERLIN, NEW_YORK, ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/Sao_Paulo"), UTC]),
    start_ms=st.integers(1_600_000_000, 1_900_000_000).map(lambda second: second * 1000),
)
def test_ticks_rise_and_are_the_same_seen_from_behind(text: str, zone: Any, start_ms: int) -> None:
    pattern, found, at_ms = Cron(text, zone), [], start_ms
    for _ in range(4):
        later = pattern.after(at_ms)
        assert later is not None
        assert later > at_ms
        assert pattern.after(later - 1) == later
        found.append(later)
        at_ms = later
    assert pattern.latest(found[0], found[-1], 10) == found
    assert pattern.latest(found[0], found[-1] + 1, 2) == found[-2:]
    assert pattern.missed(found[0], found[-1]) == len(found) - 1


# ---------------------------------------------------------------- intervals


@settings(max_examples=60)
@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**7))
def test_an_interval_has_its_ticks_where_they_belong(length_ms: int, first_ms: int, now_ms: int) -> None:
    pattern = Every(length_ms, first_ms)
    later = pattern.after(now_ms)
    assert later > now_ms
    assert later >= first_ms
    assert (later - first_ms) % length_ms == 0
    assert later == first_ms or later - length_ms <= now_ms
    if now_ms >= first_ms:
        found = pattern.latest(first_ms, now_ms, 3)
        assert found[-1] == later - length_ms
        assert len(found) == min(3, pattern.missed(first_ms, now_ms) + 1)


# ---------------------------------------------------------------- missed and overlapping ticks

SECONDS = Every(1_000, 10_000)


@pytest.mark.parametrize(
    ("catch_up", "now_ms", "expected"),
    [
        ("once", 10_000, Firing(10_000, 0)),
        ("once", 14_500, Firing(10_000, 4)),
        ("skip", 10_050, Firing(10_000, 0)),
        ("skip", 14_050, Firing(14_000, 4)),
        ("skip", 14_500, Firing(None, 5)),
        ("all", 10_000, Firing(10_000, 0)),
        ("all", 12_500, Firing(10_000, 0)),
        ("all", 14_500, Firing(12_000, 2)),
    ],
)
def test_what_is_run_of_the_ticks_that_have_come(catch_up: str, now_ms: int, expected: Firing) -> None:
    assert firing(SECONDS, 10_000, now_ms, catch_up, grace_ms=100, most=3) == expected


@pytest.mark.parametrize(
    ("catch_up", "overlap", "ended_at_ms", "expected"),
    [
        ("once", "skip", 10_600, 11_000),
        ("once", "skip", 12_500, 13_000),
        ("once", "queue", 12_500, 11_000),
        ("all", "skip", 12_500, 13_000),
        ("all", "queue", 12_500, 11_000),
        ("skip", "queue", 12_500, 11_000),
    ],
)
def test_what_comes_after_an_occurrence_that_began_in_time(
    catch_up: str, overlap: str, ended_at_ms: int, expected: int
) -> None:
    assert next_tick(SECONDS, 10_000, 10_100, ended_at_ms, catch_up, overlap) == expected


def test_working_through_a_backlog_drops_none_of_it() -> None:
    assert next_tick(SECONDS, 10_000, 14_500, 14_600, "all", "skip") == 11_000
    assert next_tick(SECONDS, 10_000, 14_500, 14_600, "once", "skip") == 15_000


def test_a_schedule_that_was_away_for_years_is_not_counted_through() -> None:
    every_minute = Cron("* * * * *", UTC)
    told = firing(every_minute, NOW_MS, NOW_MS + 5 * 365 * DAY_MS, "once", grace_ms=0, most=100)
    assert told == Firing(NOW_MS, 1_000)
    told = firing(every_minute, NOW_MS, NOW_MS + 5 * 365 * DAY_MS, "all", grace_ms=0, most=100)
    assert told.tick_ms is not None
    assert NOW_MS + 5 * 365 * DAY_MS - told.tick_ms < 101 * MINUTE_MS


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "-1 * * * *",
        ),
        *(
            "*/0 * * * *",
            "5-1 * * * *",
            "@daily",
            "1,,2 * * * *",
            "* * * * MOO",
            "\x00 * * * *",
            "é * * * *",
            "* " * 200,
        ),
        *("0 0 30 2 *", "0 0 31 4,6,9,11 *"),
    ],
)
def test_a_text_that_is_no_cron_or_never_comes_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as problem:
        cron(text, UTC, NOW_MS)
    assert problem.value.field == "when"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("*/61 * * * *", "a step of 61 in the field minute, which has 60 values"),
        ("0,5/90 * * * *", "a step of 90 in the field minute"),
        ("0 */25 * * *", "a step of 25 in the field hour, which has 24"),
        ("0 0 1-31/32 * *", "a step of 32 in the field day of month"),
        ("0 0 1 */13 *", "a step of 13 in the field month"),
        ("0 0 * * */8", "a step of 8 in the field day of week, which has 7"),
    ],
)
def test_a_step_beyond_its_field_is_refused_by_its_name(text: str, words: str) -> None:
    with pytest.raises(InvalidValue, match=f"^when: .*{words}.*use schedule_every"):
        cron(text, UTC, NOW_MS)


@pytest.mark.parametrize(
    "text",
    ["*/60 */24 */31 */12 */7", "0 0 29 2 *", "*/15 9-17 * * MON-FRI", "0 12 L * *", "0 0 * * 5#3", "0 0 * JAN,JUL 0"],
)
def test_what_cron_can_say_is_understood(text: str) -> None:
    assert cron(text, BERLIN, NOW_MS).after(NOW_MS) is not None


@pytest.mark.parametrize(
    "when",
    [
        *(timedelta(-1), timedelta.max, math.nan, math.inf, -math.inf, -1, -0.001, True, None, [], b"x", 1e12, 2**80),
        *(datetime(2026, 1, 1), datetime(2026, 1, 1).date(), datetime(1, 1, 1, tzinfo=UTC)),  # noqa: DTZ001 - refused
        *(datetime(9999, 12, 31, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC)),
    ],
)
def test_a_time_that_is_none_or_is_absurd_is_refused(when: object) -> None:
    """Spec weakness 24, 13.7 case 11."""
    with pytest.raises(InvalidValue) as problem:
        instant_ms(when, NOW_MS, LIMITS)
    assert problem.value.field == "when"


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (0, NOW_MS),
        (1, NOW_MS + 1_000),
        (0.0001, NOW_MS + 1),
        (1.0005, NOW_MS + 1_001),
        (timedelta(minutes=1, microseconds=1), NOW_MS + 60_001),
        (datetime(2025, 6, 15, 12, 0, tzinfo=UTC), 1_749_988_800_000),
        (datetime(2025, 6, 15, 14, 0, 0, 1, tzinfo=BERLIN), 1_749_988_800_001),
    ],
)
def test_a_time_is_never_rounded_to_an_earlier_one(when: object, expected: int) -> None:
    assert instant_ms(when, NOW_MS, LIMITS) == expected


@pytest.mark.parametrize(
    "interval_s", [0, -1, 0.0999, timedelta(0), timedelta(31), 2_592_000.1, math.nan, math.inf, True, "10", None]
)
def test_an_interval_out_of_its_range_is_refused(interval_s: object) -> None:
    with pytest.raises(InvalidValue) as problem:
        interval_ms(interval_s, LIMITS)
    assert problem.value.field == "interval_s"
    assert (interval_ms(0.1, LIMITS), interval_ms(timedelta(30), LIMITS)) == (100, 2_592_000_000)


# ---------------------------------------------------------------- trying again

DEFAULT = Retries(attempts_max=8, first_ms=200, most_ms=30_000)


@pytest.mark.shows(schedules="S95 S96 S101 S102 S103 S104 S105 S106 S109 S110")
@pytest.mark.parametrize(
    ("given", "field"),
    [
        *(({"attempts_max": each}, "attempts_max") for each in (0, -1, 1.5, 2.0, math.inf, True, "3")),
        *(({"first_ms": each}, "first_ms") for each in (0, -1, math.nan, math.inf, True, "3")),
        *(({"most_ms": each}, "most_ms") for each in (0, -1, math.nan, math.inf, False)),
        ({"first_ms": 10, "most_ms": 9}, "first_ms"),
        ({"first_ms": 30_001}, "first_ms"),
        ({"most_ms": 199}, "first_ms"),
    ],
)
def test_retries_that_make_no_sense_are_refused_also_against_the_defaults(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as problem:
        Retries(**given).over(DEFAULT)
    assert problem.value.field == f"retry.{field}"


@pytest.mark.shows(schedules="S98 S99 S100 S107 S108 S111")
def test_what_is_left_open_is_as_the_defaults_have_it() -> None:
    assert Retries().over(DEFAULT) == DEFAULT
    assert Retries(attempts_max=1).over(DEFAULT) == Retries(attempts_max=1, first_ms=200, most_ms=30_000)
    assert Retries(first_ms=30_000).over(DEFAULT).first_ms == DEFAULT.most_ms, "equal is no contradiction"
    alone = Retries(first_ms=40_000)  # nothing is wrong with it, but with what stands beside it
    assert alone.over(Retries(attempts_max=3, first_ms=200, most_ms=50_000)).first_ms == 40_000


@pytest.mark.shows(schedules="S87")
@settings(max_examples=60)
@given(st.integers(1, 20), st.floats(0, 1, exclude_max=True))
def test_the_pause_is_drawn_from_the_whole_range_below_its_bound(failures: int, roll: float) -> None:
    bound = min(30_000, 200 * 2 ** (failures - 1))
    assert 0 <= full_jitter_ms(failures, 200, 30_000, roll) < bound
    drawn = {full_jitter_ms(failures, 200, 30_000, tenth / 10) for tenth in range(10)}
    assert len(drawn) == 10, "it depends on the roll"


@pytest.mark.shows(schedules="S88")
def test_the_bound_of_the_pause_doubles_up_to_its_limit() -> None:
    assert [full_jitter_ms(failures, 200, 1_000, 0.999999) for failures in (1, 2, 3, 4, 5)] == [199, 399, 799, 999, 999]
    assert full_jitter_ms(3, 200, 1_000, 0.0) == 0
