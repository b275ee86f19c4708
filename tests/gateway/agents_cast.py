"""The agents of the tests of the `agents` client over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from perdure.actors import Agent, exposed


class Counter(Agent):
    """Counts, and tells whoever watches its state."""

    @exposed
    def add(self, left: int, right: int) -> int:
        """Add two numbers."""
        return left + right

    @exposed
    def count(self) -> int:
        """Count one further."""
        self.state["count"] = self.state.get("count", 0) + 1
        return int(self.state["count"])

    @exposed
    def fail(self) -> None:
        """Raise."""
        raise ValueError("as asked")

    @exposed
    async def slow(self, seconds: float) -> str:
        """Take a while."""
        await asyncio.sleep(seconds)
        return f"after {seconds}"

    @exposed
    async def numbers(self, count: int) -> AsyncGenerator[int, None]:
        """Numbers, one after the other."""
        for each in range(count):
            yield each

    def validate_state(self, state: dict[str, Any]) -> None:
        """No negative counts."""
        if state.get("count", 0) < 0:
            raise ValueError("the count is negative")

    def secret(self) -> str:
        """Exposed to nobody."""
        raise AssertionError("this was called from outside")


class HTTPAgent(Agent):
    """Has a name of capitals."""
