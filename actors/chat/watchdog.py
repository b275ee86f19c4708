"""Limits for many short waits, one after the other: one timer for all, because an `asyncio.timeout` for each costs more than most take.

The stall watchdog is the limit of how long a provider may say nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class WaitedTooLong(TimeoutError):
    """The limit of a wait, and no timeout of what was waited for."""


class ShortWaits:
    """The waits of one task at a time. The timer looks at whichever is under way when it fires, and goes on for that one."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._until_s = math.inf
        self._is_cut = False
        self._timer: asyncio.TimerHandle | None = None

    async def within(self, job: Awaitable[T], until_s: float = math.inf) -> T:
        """What a job gives. Raises `WaitedTooLong` if it is not there by then, by the loop's clock, or if `cut` is called meanwhile."""
        task = self._task = asyncio.current_task()
        assert task is not None, "only a task can be told that it waited too long"
        before = task.cancelling()
        self._until_s, self._is_cut = until_s, False
        if self._timer is None or until_s < self._timer.when():
            self._set_timer()
        try:
            return await job
        except asyncio.CancelledError as cancelled:
            if self._is_cut and task.cancelling() - 1 <= before:
                raise WaitedTooLong from cancelled
            raise
        finally:
            self._task = None
            if self._is_cut:
                task.uncancel()

    def cut(self) -> None:
        if self._task is not None and not self._is_cut:
            self._is_cut = True
            self._task.cancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.close()
        if self._until_s < math.inf:
            self._timer = asyncio.get_running_loop().call_at(self._until_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._until_s <= asyncio.get_running_loop().time():
            self.cut()
        else:
            self._set_timer()


class Stalled(Exception):
    """No event came for `waited_ms`; `has_begun`: none after the first one."""

    def __init__(self, waited_ms: float, has_begun: bool) -> None:
        super().__init__(waited_ms, has_begun)
        self.waited_ms, self.has_begun = waited_ms, has_begun

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
        self._limit_ms, self._between_ms, self._has_begun = first_ms, between_ms, False
        self._since_s = asyncio.get_running_loop().time()
        self._waits = ShortWaits()

    async def within(self, job: Awaitable[T]) -> T:
        # Raises `Stalled` if the job takes too long, or if `cut` is called meanwhile.
        until_s = self._since_s + self._limit_ms / 1000 if self._limit_ms else math.inf
        try:
            return await self._waits.within(job, until_s)
        except WaitedTooLong as problem:
            raise Stalled(self._limit_ms, self._has_begun) from problem

    def heard(self) -> None:
        self._limit_ms, self._has_begun = self._between_ms, True
        self._since_s = asyncio.get_running_loop().time()

    def cut(self) -> None:
        self._waits.cut()

    def close(self) -> None:
        self._waits.close()
