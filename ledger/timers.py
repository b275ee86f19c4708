"""Timers: at which times which records are looked at again.

A timer is a hint, not a promise. A key that is due is looked at, what its record says is done, and the record says when to look again.
What has ended is disarmed, so that only what is live costs memory, and a look.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

_SPARE_MAX: Final = 1_000  # times of the heap at which nothing is due any more, beyond those at which something is


class Timers:
    """The keys of runs, agents and mailboxes by the times at which they are due.

    `armed` holds the times for which each key is armed; it fires at each of them. `fired` holds the keys that were due at the last tick, in
    the order of their times.
    """

    def __init__(self) -> None:
        self.armed: dict[str, tuple[int, ...]] = {}
        self.fired: list[str] = []
        self._instants: list[int] = []
        self._keys: dict[int, dict[str, None]] = {}

    @property
    def next_at_ms(self) -> float:
        return self._instants[0] if self._instants else math.inf

    def arm(self, key: str, at_ms: float) -> None:
        instant = int(at_ms)
        if instant not in self._keys:  # keys that are due together share one entry of the heap
            self._keys[instant] = {}
            heapq.heappush(self._instants, instant)
        elif key in self._keys[instant]:
            return
        self._keys[instant][key] = None
        self.armed[key] = (*self.armed.get(key, ()), instant)

    def arm_by(self, key: str, at_ms: float) -> None:
        """Look at this key again at that time, unless it is armed for that or an earlier one. Infinity arms nothing."""
        if at_ms < min(self.armed.get(key, (math.inf,))):
            self.arm(key, at_ms)

    def disarm(self, key: str) -> None:
        for instant in self.armed.pop(key, ()):
            line = self._keys[instant]
            del line[key]
            if not line:
                del self._keys[instant]
        self._drop_spare()

    def disarm_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self.armed:
                self.disarm(key)

    def fire(self, at_ms: int) -> None:
        """Disarm every key that is due by then, and keep them in `fired`."""
        keys: dict[str, None] = {}
        while self._instants and self._instants[0] <= at_ms:
            keys.update(self._keys.pop(heapq.heappop(self._instants), {}))
        for key in keys:
            later = tuple(instant for instant in self.armed.pop(key) if instant > at_ms)
            if later:
                self.armed[key] = later
        self.fired = list(keys)
        self._drop_spare()

    def _drop_spare(self) -> None:
        while self._instants and self._instants[0] not in self._keys:
            heapq.heappop(self._instants)
        # A heap gives up only its first entry, so it is built anew when most of it is spare.
        if len(self._instants) > 2 * len(self._keys) + _SPARE_MAX:
            self._instants = sorted(self._keys)

    def clear(self) -> None:
        self.armed.clear()
        self.fired.clear()
        self._instants.clear()
        self._keys.clear()
