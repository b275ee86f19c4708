"""What an explanation is about, and its words for instants and limits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from perdure.ledger.run import Run
from perdure.ledger.view import View
from perdure.ledger.wording import lasting
from perdure.policies import Limits


class Case(NamedTuple):
    """The run to explain, and the moment. Silence does not count against a child while no supervisor is there (`served` is false)."""

    view: View
    run: Run
    at_ms: int
    limits: Limits
    served: bool

    @property
    def awake_at_ms(self) -> int:
        return self.view.awake_at_ms if self.served else self.at_ms

    @property
    def parent(self) -> str:
        return "its parent" if self.run.parent else "the client that asked for it"

    def ago(self, at_ms: int) -> str:
        return f"{lasting(max(0, self.at_ms - at_ms))} ago"

    def due(self, at_ms: float, *, since_start: bool = False) -> str:
        """`in 5 min, at 2026-11-21 12:00:03 UTC`. With `since_start`, the time runs only while a supervisor does."""
        if at_ms <= self.at_ms:
            return "any moment now" if self.served else "at the next start"
        if since_start and not self.served:
            return f"{lasting(at_ms - self.at_ms)} after the next start"
        return (
            f"in {lasting(at_ms - self.at_ms)}, at {datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        )

    def limit(self, option: str, name: str) -> str:
        """`max_budget_ms is 1 h`: the run's own option, or else the runtime's limit."""
        value = self.run.options.get(option)
        return f"{option} is {lasting(value)}" if value is not None else self.general(name)

    def general(self, name: str) -> str:
        """`start_timeout_ms is 30 s`."""
        return f"{name} is {lasting(getattr(self.limits, name))}"
