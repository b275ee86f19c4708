"""Timers: at which times which records are looked at again.

A timer is a hint, not a promise. A key that is due is looked at, what its record says is done, and the record says when to look again.
"""

from __future__ import annotations

import heapq
import math


class Timers:
    """The keys of runs, agents and mailboxes by the times at which they are due.

    `armed` holds the time that each key was armed for last; earlier ones still fire. `fired` holds the keys that were due at the last tick,
    in the order of their times.
    """

    def __init__(self) -> None:
        self.armed: dict[str, int] = {}
        self.fired: list[str] = []
        self._instants: list[int] = []
        self._keys: dict[int, list[str]] = {}

    @property
    def next_at_ms(self) -> int | None:
        """When the next key is due; None when nothing is armed."""
        return self._instants[0] if self._instants else None

    def arm(self, key: str, at_ms: float) -> None:
        """Look at this key again at that time."""
        instant = self.armed[key] = int(at_ms)
        if instant not in self._keys:  # keys that are due together share one entry of the heap
            self._keys[instant] = []
            heapq.heappush(self._instants, instant)
        self._keys[instant].append(key)

    def arm_by(self, key: str, at_ms: float) -> None:
        """Look at this key again at that time, unless it is armed for that or an earlier one. Infinity arms nothing."""
        if at_ms < self.armed.get(key, math.inf):
            self.arm(key, at_ms)

    def fire(self, at_ms: int) -> None:
        """Disarm every key that is due by then, and keep them in `fired`."""
        keys: dict[str, None] = {}
        while self._instants and self._instants[0] <= at_ms:
            keys.update(dict.fromkeys(self._keys.pop(heapq.heappop(self._instants))))
        for key in keys:
            self.armed.pop(key, None)
        self.fired = list(keys)

    def clear(self) -> None:
        """Disarm everything."""
        self.armed.clear()
        self.fired.clear()
        self._instants.clear()
        self._keys.clear()
