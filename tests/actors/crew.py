"""More of the cast: parents that fan out, nest, compare and refuse."""

from __future__ import annotations

import asyncio
from typing import Any

from actors import Agent, RunContext, RunInfo, exposed
from tests.actors.cast import Doubler, Sleeper


class Wordy(Agent):
    """Gives back what it was given."""

    async def run(self, input: str | None, run: RunContext) -> str | None:
        return input


class Summariser(Agent):
    """Has its own idea of a summary."""

    async def run(self, input: int, run: RunContext) -> list[int]:
        return list(range(input))

    def get_agent_tool_summary(self, output: list[int]) -> str:
        return f"{len(output)} numbers"


class Crowd(Agent):
    """Asks for children without naming them, waits a little, and adds nothing up."""

    async def run(self, input: int, run: RunContext) -> list[int]:
        results = await self.run_agent_tools([(Doubler, {"n": number}) for number in range(input)])
        await asyncio.sleep(5)
        return [result.output for result in results]


class Narrow(Agent):
    """Allows two runs at a time."""

    max_concurrent_agent_tools = 2

    @exposed
    async def fan_out(self, count: int) -> list[str]:
        results = await self.run_agent_tools([(Sleeper, 100 + number) for number in range(count)])
        return [result.status for result in results]

    @exposed
    async def sleep(self, ms: float, run_id: str, on_limit: str = "queue") -> str:
        result = await self.run_agent_tool(Sleeper, ms, run_id=run_id, on_limit=on_limit)  # type: ignore[arg-type]
        return str(result.status)


class Middle(Agent):
    """In the middle of a chain: allows one child at a time."""

    max_concurrent_agent_tools = 1

    async def run(self, input: int, run: RunContext) -> list[str]:
        return [result.status async for result in self.as_completed([(Doubler, {"n": n}) for n in range(input)])]


class Starter(Agent):
    """Refuses one run, compares two, and asks for the same twice."""

    async def on_agent_tool_start(self, run: RunInfo) -> None:
        if run.run_id == "never":
            raise RuntimeError("not today")

    @exposed
    async def refused(self) -> Any:
        return (await self.run_agent_tool(Doubler, {"n": 1}, run_id="never")).status

    @exposed
    async def twice(self) -> list[int]:
        results = await self.run_agent_tools([(Doubler, {"n": 1}), (Doubler, {"n": 1})])
        return [result.output for result in results]

    @exposed
    async def compare(self, tool_call: str) -> list[str]:
        asked = [
            {"agent_class": Doubler, "input": {"n": 1}, "run_id": name, "parent_tool_call_id": tool_call, "display_order": n}
            for n, name in enumerate(("first", "second"))
        ]
        return [result.status for result in await self.run_agent_tools(asked)]
