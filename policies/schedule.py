"""When a schedule is due next, what becomes of the times that it missed, and how a callback that failed is tried again.

A *tick* is a time at which a recurring schedule wants to run. `Every` has a tick each interval, counted from a fixed first one, so it never
drifts. `Cron` has them where five fields (minute, hour, day of month, month, day of week) say so, read in a time zone by `cronsim`, as
Debian's cron reads them.

**When clocks are changed** a schedule is either of two kinds:

- *At a time of day*: neither the minute nor the hour begins with `*` (`30 2 * * *`, `0 9-17 * * 1-5`). It runs once for each time it
  names. On the day that skips 02:30 it runs at the first instant after the gap (03:00); if several of its times fall into the gap, once
  for all of them. On the day that has 02:30 twice it runs at the first of the two, and not at the second.
- *Ever so often*: the minute or the hour begins with `*` (`*/15 * * * *`, `30 * * * *`, `*/30 2 * * *`). It follows the time that truly
  passes: it runs in both of the repeated hours, and where an hour is skipped it has no ticks (so `*/30 2 * * *` does not run that day).

**Catch-up** says what becomes of ticks that came due while the agent could not run them: it slept too long, or its host was dead.

| | |
|---|---|
| `once` | one occurrence for all of them: the first that was missed, which says how many more were folded into it |
| `skip` | they are dropped; the last one still runs if it is not later than a grace time, or each wake-up would come too late |
| `all` | each of them, in order, up to a bound; of more the oldest are folded into the first that runs |

**Overlap** says what becomes of ticks that come due while an occurrence of the same schedule is at work or waits to be tried again. A
schedule never overlaps itself. `skip` drops them; `queue` lets them follow when it has ended, as missed ticks, so the catch-up policy folds
them or not. There is no `allow`: an occurrence is one transaction that also moves its row on, so two of them at the same time would be run
one after the other anyhow. Work that may overlap is a fiber or a run that the callback starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, tzinfo
from enum import StrEnum
from itertools import islice, takewhile
from typing import NamedTuple, Protocol

from cronsim import CronSim, CronSimError

from perdure.policies.limits import Limits
from perdure.policies.numbers import InvalidValue, is_number, number, whole
from perdure.policies.retry import backoff_ms

MISSED_COUNTED_MAX = 1_000  # ticks of a cron schedule that are counted one by one; more are told as so many
CRON_CHARS_MAX, CRON_FIELDS = 256, 5


class CatchUp(StrEnum):
    """What becomes of ticks that came due while the agent could not run them."""

    ONCE = "once"
    SKIP = "skip"
    ALL = "all"


class TickOverlap(StrEnum):
    """What becomes of ticks that come due while an occurrence of the same schedule is at work."""

    SKIP = "skip"
    QUEUE = "queue"


# ---------------------------------------------------------------- when


class Pattern(Protocol):
    """The ticks of a recurring schedule."""

    def after(self, instant_ms: int) -> int | None:
        """The first tick later than an instant, or None if there is none within fifty years."""

    def missed(self, tick_ms: int, now_ms: int) -> int:
        """How many ticks later than `tick_ms` have come by now."""

    def latest(self, tick_ms: int, now_ms: int, most: int) -> list[int]:
        """The last ticks from `tick_ms` until now, in order, at most so many."""


@dataclass(frozen=True)
class Every:
    """A tick each `interval_ms`, counted from `first_ms`."""

    interval_ms: int
    first_ms: int

    def after(self, instant_ms: int) -> int:
        """The first tick later than an instant."""
        return self.first_ms + max(0, (instant_ms - self.first_ms) // self.interval_ms + 1) * self.interval_ms

    def missed(self, tick_ms: int, now_ms: int) -> int:
        """How many ticks later than `tick_ms` have come by now."""
        return max(0, (now_ms - tick_ms) // self.interval_ms)

    def latest(self, tick_ms: int, now_ms: int, most: int) -> list[int]:
        """The last ticks until now."""
        count = min(most, self.missed(tick_ms, now_ms) + 1)
        last = self.after(now_ms) - self.interval_ms
        return [last - back * self.interval_ms for back in range(count)][::-1]


@dataclass(frozen=True)
class Cron:
    """The ticks of a cron text of five fields, in a time zone."""

    text: str
    zone: tzinfo

    def after(self, instant_ms: int) -> int | None:
        """The first tick later than an instant. Around a change of clocks the library may name one again; it is passed over."""
        return next(self._from(instant_ms), None)

    def missed(self, tick_ms: int, now_ms: int) -> int:
        """How many ticks later than `tick_ms` have come by now; at most `MISSED_COUNTED_MAX`."""
        return sum(1 for _ in islice(takewhile(lambda each: each <= now_ms, self._from(tick_ms)), MISSED_COUNTED_MAX))

    def latest(self, tick_ms: int, now_ms: int, most: int) -> list[int]:
        """The last ticks until now."""
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


def _in_ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


def cron(text: str, zone: tzinfo, now_ms: int) -> Cron:
    """Read a cron text. Raises `InvalidValue` if it is none, has a field for seconds, or names no time that ever comes."""
    if len(text) > CRON_CHARS_MAX:
        raise InvalidValue("when", f"a cron text of {len(text)} characters; the limit is {CRON_CHARS_MAX}")
    if len(text.split()) != CRON_FIELDS:
        words = "minute, hour, day of month, month, day of week"
        raise InvalidValue("when", f"{text!r} is no cron text of five fields ({words}); for seconds use schedule_every")
    found = Cron(text, zone)
    try:
        comes = found.after(now_ms) is not None
    except CronSimError as problem:
        raise InvalidValue("when", f"{text!r} is no cron text: {problem}") from None
    if not comes:
        raise InvalidValue("when", f"{text!r} names a time that does not come within fifty years")
    return found


def moment_ms(field: str, moment: datetime) -> float:
    """The instant of a datetime. A naive one is another instant on each machine. Raises `InvalidValue`."""
    if moment.utcoffset() is None:
        raise InvalidValue(
            field, f"{moment!r} has no time zone, so it stands for no instant; use datetime(..., tzinfo=...)"
        )
    return moment.timestamp() * 1000


def instant_ms(when: object, now_ms: int, limits: Limits) -> int:
    """The instant that a datetime, or a number of seconds from now, stands for: rounded up, for nothing may run early.

    One in the past is as good as now. Raises `InvalidValue`.
    """
    if isinstance(when, datetime):
        at_ms = -int(-moment_ms("when", when) // 1)
    elif not is_number(when):
        kind = "a date without a time" if isinstance(when, date) else type(when).__name__
        raise InvalidValue("when", f"{when!r:.200} is {kind}; give a datetime, seconds from now, or a cron text")
    else:
        seconds = number("when", when, most=limits.schedule_ahead_ms_max / 1000, unit="seconds")
        at_ms = now_ms - int(-seconds * 1000 // 1)
    if not 0 <= at_ms <= now_ms + limits.schedule_ahead_ms_max:
        years = limits.schedule_ahead_ms_max // 31_536_000_000
        raise InvalidValue("when", f"{when!s:.200} is before 1970, or more than {years} years ahead")
    return at_ms


def interval_ms(interval_s: object, limits: Limits) -> int:
    """The interval in milliseconds. Raises `InvalidValue`."""
    least, most = limits.schedule_interval_ms_min / 1000, limits.schedule_interval_ms_max / 1000
    return round(number("interval_s", interval_s, least, most, unit="seconds") * 1000)


# ---------------------------------------------------------------- what is run


class Firing(NamedTuple):
    """What is run for a schedule that is due: the occurrence of a tick, or nothing (None). `missed` ticks are told with it, or dropped."""

    tick_ms: int | None
    missed: int


def firing(pattern: Pattern, tick_ms: int, now_ms: int, catch_up: CatchUp, *, grace_ms: float, most: int) -> Firing:
    """What is run now, where the schedule has been due since `tick_ms`.

    Args:
        grace_ms: so late a tick may still run under `skip`.
        most: so many missed ticks run under `all`.
    """
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
    """The next tick of a schedule whose occurrence for `done_ms` began and ended; None if it will never run again.

    What had come due before it began was folded into it or dropped, but for `all`. What came due since then `overlap` keeps or drops.
    """
    following = pattern.after(done_ms) if catch_up == CatchUp.ALL else pattern.after(max(done_ms, began_at_ms))
    if overlap == TickOverlap.SKIP and following is not None and began_at_ms < following <= ended_at_ms:
        return pattern.after(ended_at_ms)
    return following


# ---------------------------------------------------------------- trying again


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often a callback is tried, and the pauses in between. What is None is as the agent's class, or the runtime, has it.

    The pause before the next try is drawn from the whole range from 0 to a bound that doubles from `first_ms` to `most_ms` (full jitter),
    so that what failed together does not come back together.
    """

    attempts_max: int | None = None
    first_ms: float | None = None
    most_ms: float | None = None

    def over(self, default: Retries) -> Retries:
        """With what is left open filled in. Raises `InvalidValue` where it makes no sense; so mistakes are told when a job is asked for."""
        chosen = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) is not None}
        filled = {each.name: chosen.get(each.name, getattr(default, each.name)) for each in fields(self)}
        _check_retries(filled)
        return Retries(**filled)


def _check_retries(told: dict[str, object]) -> None:
    whole("retry.attempts_max", told["attempts_max"])
    first_ms, most_ms = (
        number(f"retry.{name}", told[name], unit="milliseconds", is_finite=True, above=True)
        for name in ("first_ms", "most_ms")
    )
    if first_ms > most_ms:
        raise InvalidValue("retry.first_ms", f"{told['first_ms']} is more than most_ms, which is {told['most_ms']}")


def full_jitter_ms(failures: int, first_ms: float, most_ms: float, roll: float) -> int:
    """The pause after so many failures, anywhere below its bound."""
    return int(backoff_ms(failures, first_ms, most_ms) * roll)
