"""What the processes of one gateway tell each other: they share a port, and nobody chooses which of them a connection comes to.

Nothing of it is durable. What must not be lost stands in the ledger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

NEWS_MAX: Final = 1_000
"""How much waits to be fetched. Where nobody fetches it, because there is one process alone, the oldest is forgotten."""
Listener = Callable[..., Awaitable[None]]


class Announcement(NamedTuple):
    """What one process tells the others."""

    topic: str
    words: tuple[str, ...]


class GatewayBus:
    """The other processes, as one of them sees them."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._told: deque[Announcement] = deque(maxlen=NEWS_MAX)
        self._some = asyncio.Event()

    def tell(self, topic: str, *words: str) -> None:
        """Tell the others something. It returns at once, and whether anybody hears it is not known."""
        self._told.append(Announcement(topic, words))
        self._some.set()

    def on(self, topic: str, listener: Listener) -> None:
        self._listeners[topic] = listener

    async def news(self) -> list[Announcement]:
        """Wait until there is something to tell, and take it. Whoever keeps the processes carries it to the others."""
        await self._some.wait()
        self._some.clear()
        found = list(self._told)
        self._told.clear()
        return found

    async def hear(self, news: list[Announcement]) -> None:
        for topic, words in news:
            if topic in self._listeners:
                await self._listeners[topic](*words)
