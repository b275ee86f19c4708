"""What lies outside every simulated process in one play: the model's provider, Telegram, and the effects that tools had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.sim import SimProvider
from perdure.scenarios.telegram.sim import SimTelegram


class Outside:
    """The outside of one part of a story, for one seed."""

    def __init__(self, script: Script, pace: Pace | None = None) -> None:
        self.provider, self.telegram = SimProvider(script, pace=pace), SimTelegram()
        self.model = self.provider.model()
        self.effects: Counter[str] = Counter()

    def complaints(self) -> Iterator[str]:
        """What is wrong in the end."""
        for effect, times in self.effects.items():
            if times > 1:
                yield f"the effect of {effect} happened {times} times"
        if self.provider.counters().illegal:
            yield f"{self.provider.counters().illegal} requests to the model were illegal"


_outsides: dict[str, Outside] = {}


@contextmanager
def outside(part: str, script: Script, pace: Pace | None = None) -> Iterator[Outside]:
    """Have an outside for a part of a story meanwhile."""
    _outsides[part] = Outside(script, pace)
    try:
        yield _outsides[part]
    finally:
        del _outsides[part]


def outside_of(part: str) -> Outside:
    """The outside that a part of a story has now."""
    return _outsides[part]
