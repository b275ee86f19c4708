"""How long the callbacks of schedules and of the queue have taken on one host: those that are known to be quick are called together."""

from __future__ import annotations

from perdure.ledger import type_of

QUICK_MS = 5
NEWEST_SHARE = 0.25  # of the latest call in what is taken for the pace


class Paces:
    """How long callbacks have taken on one host of late. A single slow call (the machine was busy) is forgotten after a few quick ones."""

    def __init__(self) -> None:
        self._pace_ms: dict[tuple[str, str], float] = {}

    def note(self, agent_id: str, callback: str, took_ms: int) -> None:
        """One call was done."""
        key = type_of(agent_id), callback
        pace_ms = self._pace_ms.get(key, took_ms)
        self._pace_ms[key] = pace_ms + (took_ms - pace_ms) * NEWEST_SHARE

    def is_quick(self, agent_id: str, callback: str) -> bool:
        """Whether it was called here before, and has been quick of late."""
        return self._pace_ms.get((type_of(agent_id), callback), QUICK_MS) < QUICK_MS
