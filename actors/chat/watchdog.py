"""The stall watchdog: how long a provider may say nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

from perdure.actors.chat.waits import WaitedTooLong, Waits

T = TypeVar("T")


class Stalled(Exception):
    """No event came for `waited_ms`."""

    def __init__(self, waited_ms: float) -> None:
        super().__init__(waited_ms)
        self.waited_ms = waited_ms

    def __str__(self) -> str:
        return f"the model's stream said nothing for {self.waited_ms:g} ms"


class Watchdog:
    """The limits of one request, which begins when this is made.

    The clock runs only while the next event is awaited: not while events are stored or shown, or tools work. The first event has a limit
    of its own, because a model may think before it speaks (spec W-42). Keep-alives of a connection are no events.

    Args:
        first_ms: the limit of the first event; 0 is none.
        between_ms: the same for each further one.
    """

    def __init__(self, first_ms: float = 0, between_ms: float = 0) -> None:
        self._limit_ms, self._between_ms = first_ms, between_ms
        self._since_s = asyncio.get_running_loop().time()
        self._waits = Waits()

    async def within(self, job: Awaitable[T]) -> T:
        """What a job gives. Raises `Stalled` if it takes too long, or if `cut` is called meanwhile."""
        until_s = self._since_s + self._limit_ms / 1000 if self._limit_ms else math.inf
        try:
            return await self._waits.within(job, until_s)
        except WaitedTooLong as problem:
            raise Stalled(self._limit_ms) from problem

    def heard(self) -> None:
        self._limit_ms, self._since_s = self._between_ms, asyncio.get_running_loop().time()

    def cut(self) -> None:
        self._waits.cut()

    def close(self) -> None:
        self._waits.close()
