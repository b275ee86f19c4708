"""The time of the ledger in one supervisor life, which follows the wall clock (`policies.ledger_time`)."""

from __future__ import annotations

import logging

from perdure.actors.ports import Clock
from perdure.ledger import Tick, View
from perdure.policies import LedgerTime, with_leap

log = logging.getLogger("perdure.supervisor")


class LedgerClock:
    """It begins at the wall's time, never before the last fact."""

    def __init__(self, clock: Clock, view: View) -> None:
        self._clock, self._view = clock, view
        self.began_ms = max(clock.now_ms(), view.at_ms)
        self._time = LedgerTime(self.began_ms, clock.steady_ms())

    def now_ms(self) -> int:
        """The ledger's time."""
        return self._time.now_ms(self._clock.steady_ms())

    def follow(self) -> None:
        """Leap, if the wall clock was set forward."""
        wall_ms = self._clock.now_ms()
        leap = self._time.leap(wall_ms, self._clock.steady_ms())
        if leap is not None:
            self._time = self._time.after(leap)
            self._view.leaps = with_leap(self._view.leaps, leap)
            log.info("the wall clock is %.1f s ahead: it was set, or the machine slept", leap.by_ms / 1000)

    def tick(self) -> Tick:
        """Time passed, by the ledger and by the wall."""
        wall_ms = self._clock.now_ms()
        return Tick(self.now_ms() - wall_ms)

    def due_ms(self) -> float:
        """The ledger's time when the next timer or alarm is due; infinity if there is none."""
        return min(self._view.timers.next_at_ms, self._view.alarms.next_at_ms + self.tick().behind_ms)
