"""When a schedule is due, what happens to missed times, and how a failed callback is retried.

A *tick* is a time at which a recurring schedule is due. `Every` has a tick each interval, counted from the first, so it does not drift.
`Cron` has five fields (minute, hour, day of month, month, day of week), which `cronsim` reads in a time zone like Debian's cron.

**When clocks change**, a schedule is of one of two kinds:

- *At a time of day*: neither minute nor hour begins with `*` (`30 2 * * *`, `0 9-17 * * 1-5`). Each named time runs once. Times that a day
  skips run once, at the first instant after the gap (03:00). Of a repeated time the first one runs.
- *At an interval*: minute or hour begins with `*` (`*/15 * * * *`, `30 * * * *`, `*/30 2 * * *`). It follows elapsed time: it runs in both
  repeated hours, and has no ticks in a skipped hour.

**Catch-up** is about ticks that came due while the agent slept or its host was dead:

| | |
|---|---|
| `once` | one occurrence for all: the first missed tick, with the number of the others |
| `skip` | they are dropped, but the last one runs if it is within a grace time |
| `all` | all run in order, up to a bound; the oldest of more are folded into the first that runs |

**Overlap** is about ticks that come due while an occurrence runs or waits for its next try. A schedule never overlaps itself. `skip` drops
them. With `queue` they follow as missed ticks, by the catch-up policy. An occurrence is one transaction, so there is no `allow`: work that
may overlap belongs in a fiber or a run that the callback starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import islice, takewhile
from typing import NamedTuple

from cronsim import CronSim, CronSimError

from perdure.policies.limits import Limits
from perdure.policies.numbers import InvalidValue, is_number, number, whole
from perdure.policies.retry import backoff_ms

MISSED_COUNTED_MAX = 1_000  # missed ticks of a cron schedule are counted up to this
CRON_CHARS_MAX = 256
# And how many values each has.
CRON_FIELDS = {"minute": 60, "hour": 24, "day of month": 31, "month": 12, "day of week": 7}


class CatchUp(StrEnum):
    """What happens to ticks that came due while the agent could not run them."""

    ONCE = "once"
    SKIP = "skip"
    ALL = "all"


class TickOverlap(StrEnum):
    """What happens to ticks that come due while an occurrence of the same schedule runs."""

    SKIP = "skip"
    QUEUE = "queue"


# ---------------------------------------------------------------- when


# A tick each `interval_ms`, counted from `first_ms`.
@dataclass(frozen=True)
class Every:
    interval_ms: int
    first_ms: int

    def after(self, instant_ms: int) -> int:
        return self.first_ms + max(0, (instant_ms - self.first_ms) // self.interval_ms + 1) * self.interval_ms

    def missed(self, tick_ms: int, now_ms: int) -> int:
        return max(0, (now_ms - tick_ms) // self.interval_ms)

    def latest(self, tick_ms: int, now_ms: int, most: int) -> list[int]:
        count = min(most, self.missed(tick_ms, now_ms) + 1)
        last = self.after(now_ms) - self.interval_ms
        return [last - back * self.interval_ms for back in range(count)][::-1]


@dataclass(frozen=True)
class Cron:
    """The ticks of a cron text of five fields, in a time zone."""

    text: str
    zone: tzinfo

    def after(self, instant_ms: int) -> int | None:
        """The first tick later than an instant, or None if there is none within fifty years."""
        return next(self._from(instant_ms), None)

    def missed(self, tick_ms: int, now_ms: int) -> int:
        return sum(1 for _ in islice(takewhile(lambda each: each <= now_ms, self._from(tick_ms)), MISSED_COUNTED_MAX))

    def latest(self, tick_ms: int, now_ms: int, most: int) -> list[int]:
        back = CronSim(self.text, self._local(now_ms + 1_000), reverse=True)
        found: dict[int, None] = {}
        for each in takewhile(lambda each: each >= tick_ms, map(_in_ms, back)):
            if each <= now_ms:
                found[each] = None
            if len(found) == most:
                break
        return sorted(found)

    def _from(self, instant_ms: int) -> Iterator[int]:
        last = instant_ms
        for each in map(_in_ms, CronSim(self.text, self._local(instant_ms))):
            if each > last:
                last = each
                yield each

    def _local(self, instant_ms: int) -> datetime:
        return datetime.fromtimestamp(instant_ms // 1000, UTC).astimezone(self.zone)


Pattern = Every | Cron
"""The ticks of a recurring schedule."""


def _in_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


def cron(text: str, zone: tzinfo, now_ms: int) -> Cron:
    """Read a cron text. Raises `InvalidValue` if it is invalid, has a field for seconds or a step beyond its field, or never comes."""
    if len(text) > CRON_CHARS_MAX:
        raise InvalidValue("when", f"a cron text of {len(text)} characters; the limit is {CRON_CHARS_MAX}")
    if len(text.split()) != len(CRON_FIELDS):
        words = ", ".join(CRON_FIELDS)
        raise InvalidValue("when", f"{text!r} is no cron text of five fields ({words}); for seconds use schedule_every")
    found = Cron(text, zone)
    try:
        comes = found.after(now_ms) is not None
    except CronSimError as problem:
        raise InvalidValue("when", f"{text!r} is no cron text: {problem}") from None
    for (name, size), field in zip(CRON_FIELDS.items(), text.split(), strict=True):
        _check_steps(text, name, size, field)
    if not comes:
        raise InvalidValue("when", f"{text!r} names a time that does not come within fifty years")
    return found


def _check_steps(text: str, name: str, size: int, field: str) -> None:
    for step in [int(term.partition("/")[2]) for term in field.split(",") if "/" in term]:
        if step > size:
            why = f"has a step of {step:,} in the field {name}, which has {size} values, so it would come at the first of them alone"
            raise InvalidValue("when", f"{text!r} {why}; for longer intervals use schedule_every")


def moment_ms(field: str, moment: datetime) -> float:
    if moment.utcoffset() is None:
        raise InvalidValue(
            field, f"{moment!r} has no time zone, so it stands for no instant; use datetime(..., tzinfo=...)"
        )
    return moment.timestamp() * 1000


def duration_ms(field: str, value: object, most_ms: float) -> float:
    """A while, from seconds or a `timedelta`, as milliseconds. It is not negative, and bounded. Raises `InvalidValue`."""
    return number(field, seconds(value), 0, most_ms / 1000, unit="seconds") * 1000


def seconds(value: object) -> object:
    """A `timedelta` as seconds; anything else as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def instant_ms(when: object, now_ms: int, limits: Limits) -> int:
    """The instant of a datetime, or of a while from now: seconds or a `timedelta`. It is rounded up, so nothing runs early. Raises
    `InvalidValue`."""
    delay = seconds(when)
    if isinstance(when, datetime):
        at_ms = -int(-moment_ms("when", when) // 1)
    elif not is_number(delay):
        kind = "a date without a time" if isinstance(when, date) else type(when).__name__
        raise InvalidValue(
            "when", f"{when!r:.200} is {kind}; give a datetime, seconds or a timedelta from now, or a cron text"
        )
    else:
        delay = number("when", delay, most=limits.schedule_ahead_ms_max / 1000, unit="seconds")
        at_ms = now_ms - int(-delay * 1000 // 1)
    if not 0 <= at_ms <= now_ms + limits.schedule_ahead_ms_max:
        years = limits.schedule_ahead_ms_max // 31_536_000_000
        raise InvalidValue("when", f"{when!s:.200} is before 1970, or more than {years} years ahead")
    return at_ms


def interval_ms(interval_s: object, limits: Limits) -> int:
    least, most = limits.schedule_interval_ms_min / 1000, limits.schedule_interval_ms_max / 1000
    return round(number("interval_s", seconds(interval_s), least, most, unit="seconds") * 1000)


# ---------------------------------------------------------------- what is run


# The occurrence that a due schedule runs, or None. `missed` ticks are folded into it, or dropped.
class Firing(NamedTuple):
    tick_ms: int | None
    missed: int


def firing(pattern: Pattern, tick_ms: int, now_ms: int, catch_up: CatchUp, *, grace_ms: float, most: int) -> Firing:
    """What runs now, for a schedule that has been due since `tick_ms`. `skip` uses `grace_ms`, and `all` uses `most`."""
    missed = pattern.missed(tick_ms, now_ms)
    if catch_up == CatchUp.ONCE:
        return Firing(tick_ms, missed)
    if catch_up == CatchUp.SKIP:
        last = pattern.latest(tick_ms, now_ms, 1)[-1] if missed else tick_ms
        return Firing(last, missed) if now_ms - last <= grace_ms else Firing(None, missed + 1)
    if missed < most:
        return Firing(tick_ms, 0)
    return Firing(pattern.latest(tick_ms, now_ms, most)[0], missed + 1 - most)


def next_tick(
    pattern: Pattern, done_ms: int, began_at_ms: int, ended_at_ms: int, catch_up: CatchUp, overlap: TickOverlap
) -> int | None:
    """The next tick after an occurrence for `done_ms`, or None if there is none.

    Earlier ticks were folded into the occurrence or dropped, except under `all`. `overlap` decides about ticks that came due since.
    """
    following = pattern.after(done_ms) if catch_up == CatchUp.ALL else pattern.after(max(done_ms, began_at_ms))
    if overlap == TickOverlap.SKIP and following is not None and began_at_ms < following <= ended_at_ms:
        return pattern.after(ended_at_ms)
    return following


# ---------------------------------------------------------------- trying again


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often a callback is tried, and the pauses in between. None takes the value of the agent's class, or of the runtime.

    A pause is drawn between 0 and a bound that doubles from `first_ms` to `most_ms` (full jitter).
    """

    attempts_max: int | None = None
    first_ms: float | None = None
    most_ms: float | None = None

    def over(self, default: Retries) -> Retries:
        """Fill in what is None. Raises `InvalidValue` for an invalid value."""
        chosen = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) is not None}
        filled = {each.name: chosen.get(each.name, getattr(default, each.name)) for each in fields(self)}
        _check_retries(filled)
        return Retries(**filled)


def default_retries(limits: Limits) -> Retries:
    most, first_ms, most_ms = limits.handler_attempts_max, limits.retry_first_ms, limits.retry_most_ms
    return Retries(attempts_max=most, first_ms=first_ms, most_ms=most_ms)


def _check_retries(told: dict[str, object]) -> None:
    whole("retry.attempts_max", told["attempts_max"])
    first_ms, most_ms = (
        number(f"retry.{name}", told[name], unit="milliseconds", is_finite=True, above=True)
        for name in ("first_ms", "most_ms")
    )
    if first_ms > most_ms:
        raise InvalidValue("retry.first_ms", f"{told['first_ms']} is more than most_ms, which is {told['most_ms']}")


def full_jitter_ms(failures: int, first_ms: float, most_ms: float, roll: float) -> int:
    return int(backoff_ms(failures, first_ms, most_ms) * roll)
