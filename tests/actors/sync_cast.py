"""Agents in plain sync code, for the stories about threads."""

from __future__ import annotations

import asyncio
from typing import Any

from actors import Agent, Detached, RunContext, RunInfo, RunResult, exposed
from ledger import StaleIncarnation


class Tree(Agent):
    """Waits for as many children as the first number says, each of which does so with the rest. Returns how many there are below it."""

    def run(self, input: list[int]) -> int:
        if not input:
            return 0
        asked = [{"agent_class": Tree, "input": input[1:], "run_id": f"{self.name}/{n}"} for n in range(input[0])]
        return sum(1 + result.output for result in self.run_agent_tools(asked))


class Leaf(Agent):
    """Ends at once."""

    def run(self, input: int) -> int:
        return 1


class Family(Agent):
    """Waits for its children one by one, and hears of others."""

    @exposed
    def gather(self, count: int) -> list[int]:
        for number in range(count):
            self.run_agent_tool(Leaf, 10 + number, detached=Detached(on_finish="on_leaf"))
        return [self.run_agent_tool(Leaf, number).output for number in range(count)]

    def on_leaf(self, run: RunInfo, result: RunResult) -> None:
        known: Any = self.inspect_agent_tool_run(run.run_id)
        self.state[run.run_id] = known["status"]

    @exposed
    def seen(self) -> list[str]:
        return list(self.state.values())


class Endless(Agent):
    """Never ends of itself."""

    async def run(self, input: Any, run: RunContext) -> None:
        await asyncio.Event().wait()


class Waiting(Agent):
    """Waits for a child that never ends, and asks once more when it is told to stop."""

    heard: list[str] = []  # noqa: RUF012 - of this process, for the test

    def run(self, input: str) -> None:
        for _ in range(2):
            try:
                self.run_agent_tool(Endless, run_id=input)
            except StaleIncarnation as told:
                self.heard.append(type(told).__name__)
