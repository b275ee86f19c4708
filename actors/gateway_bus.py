"""Announcements between the processes of one gateway. They share a port, and the kernel chooses which of them a connection comes to.

Announcements are not durable. What must not be lost stands in the ledger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

NEWS_MAX: Final = 1_000
"""How many announcements wait to be fetched. A gateway of one process fetches none, so the oldest are dropped."""
Listener = Callable[..., Awaitable[object]]


class Announcement(NamedTuple):
    topic: str
    words: tuple[str, ...]


class GatewayBus:
    """One process's way to the others."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._outgoing: deque[Announcement] = deque(maxlen=NEWS_MAX)
        self._has_news = asyncio.Event()

    def tell(self, topic: str, *words: str) -> None:
        """Announce something to the others, without waiting, and without knowing whether it arrives."""
        self._outgoing.append(Announcement(topic, words))
        self._has_news.set()

    def on(self, topic: str, listener: Listener) -> None:
        self._listeners[topic] = listener

    # Announcements of this process. The parent of the processes passes them on.
    async def news(self) -> list[Announcement]:
        await self._has_news.wait()
        self._has_news.clear()
        found, self._outgoing = list(self._outgoing), deque(maxlen=NEWS_MAX)
        return found

    async def hear(self, news: list[Announcement]) -> None:
        for topic, words in news:
            if topic in self._listeners:
                await self._listeners[topic](*words)
