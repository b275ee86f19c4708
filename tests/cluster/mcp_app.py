"""A gateway that offers an agent over MCP."""

from __future__ import annotations

import asyncio

from perdure.actors import Agent
from perdure.actors.serve.app import Gateway


class Waiter(Agent):
    """Waits for ever."""

    async def run(self, input: int) -> int:
        """Wait."""
        await asyncio.Event().wait()
        return input


app = Gateway([Waiter], mcp_tools=[Waiter])
