"""What an explanation is about, and the words for times and counts in it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import NamedTuple

from perdure.ledger.run import Run
from perdure.ledger.view import View
from perdure.policies import Limits

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"))


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


def lasting(ms: float) -> str:
    """A duration in words: `400 ms`, `12.5 s`, `2 h 10 min`, `for ever`."""
    if ms == math.inf:
        return "without end"
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < 2 * _MINUTE:
        return f"{ms / _SECOND:.1f}".removesuffix(".0") + " s"
    words, rest = [], int(ms)
    for size, name in _UNITS:
        if rest >= size:
            words.append(f"{rest // size} {name}")
            rest %= size
    return " ".join(words[:2])


def first(words: str) -> str:
    return words[:1].upper() + words[1:]


def nth(number: int) -> str:
    """A number in a row, such as `2nd`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number}{last}"


def counted(number: int, one: str) -> str:
    return f"{number} {one if number == 1 else one + 's'}"
