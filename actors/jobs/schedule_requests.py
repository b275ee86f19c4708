"""What an author asks of schedules and of the queue, checked and made into rows. What is wrong is told before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Any, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perdure.actors.code.schema import Shape
from perdure.actors.jobs.callback_rows import SCHEDULE_TYPES, Row, RowKind
from perdure.actors.life.life import Life
from perdure.ledger import BadRequest, check_id, check_number, checked, digest_of, pack
from perdure.policies import (
    CallbackStatus,
    CatchUp,
    Cron,
    Every,
    InvalidValue,
    Pattern,
    Retries,
    TickOverlap,
    cron,
    instant_ms,
    interval_ms,
    is_number,
    moment_ms,
)

JITTER_MS_MAX = 86_400_000
ZONE_CHARS_MAX = 100
_ANYTHING = Shape(Any)
Word = TypeVar("Word", bound=StrEnum)


class Asked(TypedDict):
    """What an author says of a callback besides its time, its method and its payload."""

    key: str | None
    retry: object
    schedule_id: NotRequired[str | None]
    time_zone: NotRequired[str]
    catch_up: NotRequired[str]
    overlap: NotRequired[str]
    jitter_ms: NotRequired[float]


class _Ticks(TypedDict, total=False):
    """The fields of a row that say when it recurs."""

    cron: str
    time_zone: str
    interval_ms: int
    first_ms: int


class _Common(TypedDict):
    """The fields that rows of every kind have."""

    number: int
    kind: RowKind
    callback: str
    payload: bytes
    retry: list[float | None]
    created_at_ms: int
    key: str
    is_named: bool


def timed(life: Life, when: object, callback: object, payload: object, now_ms: int, told: Asked) -> Row:
    """The row for `Agent.schedule`."""
    zone = zone_of(told["time_zone"])
    if isinstance(when, str):
        return _recurring(life, (when, zone), callback, payload, now_ms, told)
    if told["catch_up"] != CatchUp.ONCE:
        raise BadRequest(
            "catch_up", f"{told['catch_up']!r:.200} is for what recurs; a single time that was missed runs at once"
        )
    if told["overlap"] != TickOverlap.SKIP:
        raise BadRequest("overlap", f"{told['overlap']!r:.200} is for what recurs; a single time overlaps nothing")
    at_ms = checked(lambda: instant_ms(when, now_ms, life.limits))
    kind = RowKind.SCHEDULED if isinstance(when, datetime) else RowKind.DELAYED
    common = _common(life, kind, callback, payload, now_ms, told)
    dice = life.dice
    row_id = _id(life, told) or dice.token()
    row = Row(**common, id=row_id, tick_ms=at_ms, due_at_ms=at_ms, jitter_ms=_jitter(told["jitter_ms"], JITTER_MS_MAX))
    return at_tick(row, at_ms, dice.roll)


def every(life: Life, interval_s: object, callback: object, payload: object, now_ms: int, told: Asked) -> Row:
    """The row for `Agent.schedule_every`."""
    length_ms = checked(lambda: interval_ms(interval_s, life.limits))
    return _recurring(life, length_ms, callback, payload, now_ms, told)


def queued(life: Life, callback: object, payload: object, now_ms: int, told: Asked) -> Row:
    """The row for `Agent.queue`."""
    common = _common(life, RowKind.QUEUED, callback, payload, now_ms, told)
    return Row(**common, tick_ms=now_ms, due_at_ms=now_ms, id=_id(life, told) or life.dice.token())


def _recurring(
    life: Life, times: tuple[str, tzinfo] | int, callback: object, payload: object, now_ms: int, told: Asked
) -> Row:
    catch_up = _one_of("catch_up", told["catch_up"], CatchUp)
    if told["overlap"] == "allow":
        words = "a schedule does not overlap itself; start a fiber or a run from the callback, and these may overlap"
        raise BadRequest("overlap", words)
    overlap = _one_of("overlap", told["overlap"], TickOverlap)
    kind = RowKind.INTERVAL if isinstance(times, int) else RowKind.CRON
    common = _common(life, kind, callback, payload, now_ms, told)
    if isinstance(times, int):
        jitter_ms = _jitter(told["jitter_ms"], times)
        what: _Ticks = {"interval_ms": times, "first_ms": now_ms + times}
    else:
        text, zone = times
        checked(lambda: cron(text, zone, now_ms))
        jitter_ms = _jitter(told["jitter_ms"], JITTER_MS_MAX)
        what = {"cron": " ".join(text.split()), "time_zone": told["time_zone"]}
    content = pack(
        [kind, common["callback"], common["payload"], what.get("cron"), what.get("time_zone"), what.get("interval_ms")]
    )
    row = Row(
        **common,
        **what,
        catch_up=catch_up,
        overlap=overlap,
        jitter_ms=jitter_ms,
        tick_ms=0,
        due_at_ms=0,
        id=_id(life, told) or f"{kind}-{digest_of(content)}",
    )
    tick_ms = pattern_of(row).after(now_ms)
    assert tick_ms is not None, "a cron text that never comes was refused"
    return at_tick(row, tick_ms, life.dice.roll)


def _common(life: Life, kind: RowKind, callback: object, payload: object, now_ms: int, told: Asked) -> _Common:
    return {
        "number": 0,
        "kind": kind,
        "callback": callback_name(life, callback),
        "payload": _ANYTHING.encode("payload", payload, life.limits.callback_payload_bytes_max),
        "retry": _retry(life, told["retry"]),
        "created_at_ms": now_ms,
        "key": told["key"] or "",
        "is_named": told["key"] is not None or told.get("schedule_id") is not None,
    }


def _id(life: Life, told: Asked) -> str:
    """The id that the author gave, or the one that a key stands for; empty if it gave neither."""
    given, key, most = told.get("schedule_id"), told["key"], life.limits.id_max
    if given is not None and key is not None:
        raise BadRequest("key", "is given beside a schedule_id; each of them names the schedule, so give one")
    if given is not None:
        return check_id("schedule_id", given, most)
    return f"key-{digest_of(check_id('key', key, most).encode())}" if key is not None else ""


# ---------------------------------------------------------------- ticks


def pattern_of(row: Row) -> Pattern:
    """The ticks of a recurring schedule."""
    return Cron(row.cron, zone_of(row.time_zone)) if row.kind is RowKind.CRON else Every(row.interval_ms, row.first_ms)


def at_tick(row: Row, tick_ms: int, roll: Callable[[], float]) -> Row:
    """The row, waiting for this tick."""
    jitter_ms = int(roll() * row.jitter_ms) if row.jitter_ms else 0
    return row.afresh(tick_ms, tick_ms + jitter_ms)


def zone_of(name: object) -> tzinfo:
    """A time zone by its name in the tz database."""
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


# ---------------------------------------------------------------- single arguments


def callback_name(life: Life, callback: object) -> str:
    """The name of a method of the agent. A method itself is as good."""
    agent = life.agent
    name = getattr(callback, "__name__", None) if getattr(callback, "__self__", None) is agent else callback
    if not isinstance(name, str):
        raise BadRequest("callback", f"{callback!r:.200} is neither the name of a method nor a method of this agent")
    if not callable(getattr(agent, name, None)):
        raise BadRequest("callback", f"{type(agent).__name__} has no method {name!r}")
    return name


def _retry(life: Life, given: object) -> list[float | None]:
    """What is given for a callback, if it makes sense with what the agent's class and the runtime say of the rest."""
    chosen = _as_retries(given)
    checked(lambda: chosen.over(_default_retries(life)))
    return [chosen.attempts_max, chosen.first_ms, chosen.most_ms]


def retries_of(life: Life, row: Row) -> Retries:
    """How often the callback is tried. What the class said may have been changed since; if it does not fit any more it is left out."""
    attempts_max, first_ms, most_ms = row.retry
    given = Retries(attempts_max=attempts_max and int(attempts_max), first_ms=first_ms, most_ms=most_ms)  # type: ignore[arg-type]
    try:
        return given.over(_default_retries(life))
    except (InvalidValue, BadRequest):
        return _runtimes_retries(life)


def _default_retries(life: Life) -> Retries:
    default = _runtimes_retries(life)
    return default if life.agent is None else _as_retries(life.agent.callback_retry).over(default)


def _runtimes_retries(life: Life) -> Retries:
    limits = life.limits
    return Retries(
        attempts_max=limits.handler_attempts_max, first_ms=limits.retry_first_ms, most_ms=limits.retry_most_ms
    )


def _as_retries(given: object) -> Retries:
    if given is None or isinstance(given, Retries):
        return given or Retries()
    if not isinstance(given, dict):
        raise BadRequest("retry", f"{given!r:.200} is neither a Retries nor a dictionary of its fields")
    unknown = given.keys() - {"attempts_max", "first_ms", "most_ms"}
    if unknown:
        raise BadRequest("retry", f"{min(map(str, unknown))!r:.200} is none of attempts_max, first_ms, most_ms")
    return Retries(**given)


def _jitter(given: object, most: int) -> int:
    return math.ceil(check_number("jitter_ms", given, most=most, unit="milliseconds"))


def _one_of(field: str, given: object, words: Iterable[Word]) -> Word:
    known = {str(word): word for word in words}
    if not isinstance(given, str) or given not in known:
        raise BadRequest(field, f"{given!r:.200} is none of {', '.join(known)}")
    return known[given]


def chosen_statuses(given: object) -> frozenset[CallbackStatus]:
    """Statuses that are asked for: one, several, or all of them (None)."""
    return chosen("status", given, CallbackStatus)


def chosen_types(given: object) -> frozenset[RowKind]:
    """Types that are asked for."""
    return chosen("type", given, SCHEDULE_TYPES)


def chosen(field: str, given: object, words: Iterable[Word]) -> frozenset[Word]:
    """Some of these words: one, several, or all of them (None)."""
    if given is None:
        return frozenset(words)
    wanted = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
    return frozenset(_one_of(field, each, words) for each in wanted)


def span_of(given: object) -> tuple[float, float]:
    """The two ends of `between`, both inclusive: milliseconds, aware datetimes, or None for an open end."""
    if given is None:
        return -math.inf, math.inf
    match given:
        case (first, last):
            return _end(first, -math.inf), _end(last, math.inf)
    raise BadRequest("between", f"{given!r:.200} is no pair of instants")


def _end(given: object, default: float) -> float:
    return default if given is None else instant("between", given)


def instant(field: str, given: object) -> float:
    """Milliseconds since the epoch, from such a number or from an aware datetime."""
    if isinstance(given, datetime):
        return checked(lambda: moment_ms(field, given))
    if not is_number(given) or math.isnan(given):
        raise BadRequest(field, f"{given!r:.200} is neither milliseconds since the epoch nor a datetime")
    return given
