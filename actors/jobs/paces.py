"""How long the callbacks of schedules and of the queue have taken on one host: those that are known to be quick are called together."""

from __future__ import annotations

from ledger import type_of

QUICK_MS = 5


class Paces:
    """How long callbacks have taken on one host, at most."""

    def __init__(self) -> None:
        self._slowest_ms: dict[tuple[str, str], int] = {}

    def note(self, agent_id: str, callback: str, took_ms: int) -> None:
        """One call was done."""
        key = type_of(agent_id), callback
        self._slowest_ms[key] = max(took_ms, self._slowest_ms.get(key, 0))

    def is_quick(self, agent_id: str, callback: str) -> bool:
        """Whether it was called here before, and was never slow."""
        return self._slowest_ms.get((type_of(agent_id), callback), QUICK_MS) < QUICK_MS
