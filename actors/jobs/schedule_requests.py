"""What an author asks of schedules and of the queue, checked and made into rows. Nothing is written before all is checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, NotRequired, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perdure.actors.code.author_call import name_of_method
from perdure.actors.code.schema import Shape
from perdure.actors.code.signatures import check_takes
from perdure.actors.jobs.callback_rows import CallbackRow, RowKind
from perdure.actors.life.class_options import as_retries
from perdure.actors.life.life import Life
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import BadRequest, check_id, check_number, check_word, checked, digest_of, pack
from perdure.policies import (
    CatchUp,
    Cron,
    Every,
    InvalidValue,
    Pattern,
    Retries,
    TickOverlap,
    cron,
    default_retries,
    instant_ms,
    interval_ms,
    is_number,
    moment_ms,
)

JITTER_MS_MAX = 86_400_000
ZONE_CHARS_MAX = 100
_ANYTHING = Shape(Any)


# What an author says of a callback besides its time, its method and its payload.
class CallbackOptions(TypedDict):
    key: str | None
    retry: object
    schedule_id: NotRequired[str | None]
    time_zone: NotRequired[str]
    catch_up: NotRequired[str]
    overlap: NotRequired[str]
    jitter_ms: NotRequired[float]


def timed(
    life: Life, when: object, callback: object, payload: object, now_ms: int, told: CallbackOptions
) -> CallbackRow:
    zone = zone_of(told["time_zone"])
    if isinstance(when, str):
        row = _recurring(_row(life, RowKind.CRON, callback, payload, now_ms, told), told, JITTER_MS_MAX)
        checked(lambda: cron(when, zone, now_ms))
        return _first(life, replace(row, cron=" ".join(when.split()), time_zone=told["time_zone"]), now_ms)
    if (told["catch_up"], told["overlap"]) != (CatchUp.ONCE, TickOverlap.SKIP):
        field = "overlap" if told["catch_up"] == CatchUp.ONCE else "catch_up"
        raise BadRequest(
            field, "is for recurring schedules; this one has a single time, and runs at once if it was missed"
        )
    at_ms = checked(lambda: instant_ms(when, now_ms, life.limits))
    kind = RowKind.SCHEDULED if isinstance(when, datetime) else RowKind.DELAYED
    row = _row(life, kind, callback, payload, now_ms, told)
    row = replace(row, id=row.id or life.dice.token(), jitter_ms=_jitter(told["jitter_ms"], JITTER_MS_MAX))
    return at_tick(row, at_ms, life.dice.roll)


def every(
    life: Life, interval_s: object, callback: object, payload: object, now_ms: int, told: CallbackOptions
) -> CallbackRow:
    length_ms = checked(lambda: interval_ms(interval_s, life.limits))
    row = _recurring(_row(life, RowKind.INTERVAL, callback, payload, now_ms, told), told, length_ms)
    return _first(life, replace(row, interval_ms=length_ms, first_ms=now_ms + length_ms), now_ms)


def queued(life: Life, callback: object, payload: object, now_ms: int, told: CallbackOptions) -> CallbackRow:
    row = _row(life, RowKind.QUEUED, callback, payload, now_ms, told)
    return replace(row, id=row.id or life.dice.token())


def _row(
    life: Life, kind: RowKind, callback: object, payload: object, now_ms: int, told: CallbackOptions
) -> CallbackRow:
    # Its id is empty if the author gave neither an id nor a key.
    name = name_of_method(life.agent, "callback", callback)
    check_takes(type(life.agent), "callback", name, "payload", "occurrence")
    return CallbackRow(
        id=_id(life, told),
        number=0,
        kind=kind,
        callback=name,
        payload=_ANYTHING.encode("payload", payload, life.limits.callback_payload_bytes_max),
        retry=_retry(life, told["retry"]),
        created_at_ms=now_ms,
        tick_ms=now_ms,
        due_at_ms=now_ms,
        key=told["key"] or "",
        is_named=told["key"] is not None or told.get("schedule_id") is not None,
        trace=carried_text(),
    )


def _recurring(row: CallbackRow, told: CallbackOptions, jitter_ms_max: int) -> CallbackRow:
    catch_up = check_word("catch_up", told["catch_up"], CatchUp)
    if told["overlap"] == "allow":
        words = "a schedule does not overlap itself; start a fiber or a run from the callback, and these may overlap"
        raise BadRequest("overlap", words)
    overlap = check_word("overlap", told["overlap"], TickOverlap)
    return replace(row, catch_up=catch_up, overlap=overlap, jitter_ms=_jitter(told["jitter_ms"], jitter_ms_max))


def _first(life: Life, row: CallbackRow, now_ms: int) -> CallbackRow:
    # Without an id or key it is named by what it does.
    if not row.id:
        times = [row.cron or None, row.time_zone or None, row.interval_ms or None]
        row = replace(row, id=f"{row.kind}-{digest_of(pack([row.kind, row.callback, row.payload, *times]))}")
    tick_ms = pattern_of(row).after(now_ms)
    assert tick_ms is not None, "a cron text that never comes was refused"
    return at_tick(row, tick_ms, life.dice.roll)


def _id(life: Life, told: CallbackOptions) -> str:
    """The id that the author gave, or the one of a key; empty without both."""
    given, key, most = told.get("schedule_id"), told["key"], life.limits.id_max
    if given is not None and key is not None:
        raise BadRequest("key", "is given beside a schedule_id; each of them names the schedule, so give one")
    if given is not None:
        return check_id("schedule_id", given, most)
    return f"key-{digest_of(check_id('key', key, most).encode())}" if key is not None else ""


# ticks


def pattern_of(row: CallbackRow) -> Pattern:
    return Cron(row.cron, zone_of(row.time_zone)) if row.kind is RowKind.CRON else Every(row.interval_ms, row.first_ms)


def at_tick(row: CallbackRow, tick_ms: int, roll: Callable[[], float]) -> CallbackRow:
    return row.afresh(tick_ms, tick_ms + (int(roll() * row.jitter_ms) if row.jitter_ms else 0))


def zone_of(name: object) -> tzinfo:
    if not isinstance(name, str) or not 0 < len(name) <= ZONE_CHARS_MAX:
        raise BadRequest("time_zone", f"{name!r:.200} is not the name of a time zone, such as 'Europe/Berlin'")
    return _zone(name)


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRequest("time_zone", f"no time zone has the name {name!r}; one is 'Europe/Berlin'") from None


# single arguments


def _retry(life: Life, given: object) -> list[float | None]:
    chosen = as_retries(given)
    checked(lambda: chosen.over(_default_retries(life)))
    return [chosen.attempts_max, chosen.first_ms, chosen.most_ms]


def retries_of(life: Life, row: CallbackRow) -> Retries:
    # The class's setting is ignored if it was changed and no longer fits.
    attempts_max, first_ms, most_ms = row.retry
    given = Retries(attempts_max=attempts_max and int(attempts_max), first_ms=first_ms, most_ms=most_ms)  # type: ignore[arg-type]
    try:
        return given.over(_default_retries(life))
    except (InvalidValue, BadRequest):
        return default_retries(life.limits)


def _default_retries(life: Life) -> Retries:
    default = default_retries(life.limits)
    return default if life.agent is None else as_retries(life.agent.callback_retry).over(default)


def _jitter(given: object, most: int) -> int:
    return math.ceil(check_number("jitter_ms", given, most=most, unit="milliseconds"))


def span_of(given: object) -> tuple[float, float]:
    """The two ends of `between`, both inclusive: milliseconds, aware datetimes, or None for an open end."""
    match given:
        case None:
            return -math.inf, math.inf
        case (first, last):
            ends = (first, -math.inf), (last, math.inf)
            begin, end = (default if each is None else instant("between", each) for each, default in ends)
            return begin, end
    raise BadRequest("between", f"{given!r:.200} is no pair of instants")


def instant(field: str, given: object) -> float:
    if isinstance(given, datetime):
        return checked(lambda: moment_ms(field, given))
    if not is_number(given) or math.isnan(given):
        raise BadRequest(field, f"{given!r:.200} is neither milliseconds since the epoch nor a datetime")
    return given
