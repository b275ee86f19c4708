"""Agents of the swarm that wait without a process: for times, events, messages and people."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from pydantic import BaseModel

from perdure import Agent, RunContext


class WaitJob(BaseModel):
    """What a run waits for: naps, then events (one after the other, or all at once), then so many messages, then an answer."""

    naps_ms: list[int] = []
    events: list[str] = []
    at_once: bool = False
    messages: int = 0
    asks: bool = False

    def expected(self) -> list[Any]:
        """What the run gives back when each event came with its place, each message with its number, and the answer was yes."""
        return [*range(len(self.events)), *range(self.messages), *([True] * self.asks)]


class PatientRun(Agent):
    attempts_max: ClassVar[int | None] = 50

    async def run(self, input: WaitJob, run: RunContext) -> list[Any]:
        # Each nap and each message has a step before or after it, so that it is entered again with something remembered.
        for place, nap_ms in enumerate(input.naps_ms):
            run.step(f"nap {place}", lambda: 1)
            await run.sleep(nap_ms / 1000)
        if input.at_once:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run.wait_for(event)) for event in input.events]
            given: list[Any] = [task.result() for task in tasks]
        else:
            given = [await run.wait_for(event) for event in input.events]
        for _ in range(input.messages):
            given.append((await run.receive()).value)
            run.step("read", lambda: 1)
        if input.asks:
            given.append((await run.ask("Go on?")).value)
        return given
