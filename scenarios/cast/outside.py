"""What lies outside of the agents' processes in the simulated world: the model's provider, Telegram, and the effects that tools had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from perdure.scenarios.cast.environment import MODEL, OUTSIDES, SIMULATED, with_environment
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.sim import SimProvider
from perdure.scenarios.simulated_telegram import BotApi


class Outside:
    """The outside of one play in the simulated world. Tools count their `effects` here."""

    def __init__(self, script: Script, pace: Pace | None = None) -> None:
        self.provider, self.telegram = SimProvider(script, pace=pace), BotApi()
        self.model = self.provider.model(SIMULATED)
        self.effects: Counter[str] = Counter()

    def complaints(self) -> Iterator[str]:
        for effect, times in self.effects.items():
            if times > 1:
                yield f"the effect of {effect} happened {times} times"
        if self.provider.counters().illegal:
            yield f"{self.provider.counters().illegal} requests to the model were illegal"


@contextmanager
def simulated(script: Script, pace: Pace | None = None) -> Iterator[Outside]:
    """Have a new outside meanwhile, with a provider that knows this script. The environment names its model."""
    OUTSIDES.append(Outside(script, pace))
    try:
        with with_environment({MODEL: SIMULATED}):
            yield OUTSIDES[-1]
    finally:
        OUTSIDES.pop()
