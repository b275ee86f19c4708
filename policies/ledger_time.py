"""The time of the ledger: how it follows the wall clock, and what is measured without it.

People, NTP and machines that slept set clocks. There are three times:

| time | told by | what goes by it |
|---|---|---|
| steady | a clock that nobody sets, and that stands still while the machine sleeps | how long anything took |
| the ledger's | the steady clock, from the wall clock at the boot; a *leap* each time the wall clock is found ahead | the stamps of facts |
| the wall's | the clock of the supervisor's machine | alarms: schedules and whatever else is due at an instant |

- **Set forward**, by a person or because the machine slept, the ledger's time leaps to the wall's within seconds. So stamps are true, and
  what is kept for a time (retention) is kept by the calendar. What is due at an instant that was leaped over is due at once.
- **A leap is no time that passed.** What is measured from an instant before it (budgets, silence, starts, the pause before another attempt)
  is measured from that instant moved over the leap (`carried`), so nobody is given up for it.
- **Two pauses count a leap as time**: before a mail is delivered again, and before an agent whose host died is woken again. They bound how
  often something is tried in a row, and no promise depends on them. A leap cuts short the one pause that it meets (`retry_most_ms`, 30 s,
  is the longest); the number of tries stays. After a laptop slept, to try at once is what one would want.
- **Set back**, the ledger's time goes on steadily, because it never runs backwards. What is due at an instant waits until the wall clock
  says so, for the second time if need be.
- **A boot** begins at the wall's time, or at that of the last fact if it is later. Leaps of earlier lives are not known any more: an
  absolute budget counts them, as it counts the time in which nobody served.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LEAP_MS: Final = 1_000
"""By so much the wall clock must be ahead before the ledger's time leaps."""
LEAPS_MAX: Final = 64


# At `from_ms` of the ledger's time it became `by_ms` later at once.
class Leap(NamedTuple):
    from_ms: int
    by_ms: int


# It was `at_ms` when the steady clock said `steady_ms`.
class LedgerTime(NamedTuple):
    at_ms: int
    steady_ms: int

    def now_ms(self, steady_ms: int) -> int:
        return self.at_ms + steady_ms - self.steady_ms

    def leap(self, wall_ms: int, steady_ms: int) -> Leap | None:
        """The leap that is due, if the wall clock is ahead. Read the wall clock first: a process that stands still in between
        must not seem to leap."""
        now_ms = self.now_ms(steady_ms)
        return Leap(now_ms, wall_ms - now_ms) if wall_ms - now_ms >= LEAP_MS else None

    def after(self, leap: Leap) -> LedgerTime:
        return LedgerTime(self.at_ms + leap.by_ms, self.steady_ms)


def carried(instant_ms: int, leaps: tuple[Leap, ...]) -> int:
    """An instant, moved over all later leaps, so that what is measured from it does not count them."""
    for leap in leaps:
        if instant_ms <= leap.from_ms:
            instant_ms += leap.by_ms
    return instant_ms


def with_leap(leaps: tuple[Leap, ...], leap: Leap) -> tuple[Leap, ...]:
    # Beyond `LEAPS_MAX` the two oldest count as one.
    first, *others = (*leaps, leap)
    if len(others) < LEAPS_MAX:
        return first, *others
    return Leap(first.from_ms, first.by_ms + others[0].by_ms), *others[1:]
