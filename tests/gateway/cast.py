"""The agents of the gateway's tests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from perdure.actors import Agent, ChatAgent, exposed
from perdure.scenarios.provider.faults import Pace
from tests.actors.chat.desk import SCRIPT, Adder, Outside


def script(first_ms: float = 0, between_ms: float = 0) -> None:
    """Give the provider the script of the chat agents' tests, at this pace."""
    Outside.begin(SCRIPT, pace=Pace(first_ms=first_ms, between_ms=between_ms))


class Talker(Adder):
    """A chat agent with tools, over the scripted provider."""


class Counter(Agent):
    """Counts, and tells everybody who watches its state."""

    @exposed
    def add(self, amount: int) -> int:
        """Add an amount, and return the sum."""
        self.state["count"] = self.state.get("count", 0) + amount
        return int(self.state["count"])

    @exposed
    def fail(self) -> None:
        """Raise."""
        raise ValueError("as asked")


class Gated(Agent):
    """Gets half of the way, and the rest when a file is there."""

    async def run(self, input: str) -> str:
        await self.report_progress(fraction=0.5, message="at the gate")
        while not await asyncio.to_thread(Path(input).exists):
            await asyncio.sleep(0.05)
        return "there"


class Walker(Agent):
    """Reports each step."""

    async def run(self, input: int) -> str:
        for step in range(input):
            await self.report_progress(fraction=(step + 1) / input, message=f"step {step}")
            await asyncio.sleep(1)
        return "there"


async def strike_nobody(_name: str, _pid: int) -> str:
    """Says that a process was killed."""
    return "SIGKILL"


CHAT: type[ChatAgent[Any]] = Talker
