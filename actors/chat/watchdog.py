"""Limits for many short waits, one after the other: one timer for all, because an `asyncio.timeout` for each costs more than most take.

The stall watchdog is the limit of how long a provider may say nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Final, NamedTuple, TypeVar

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

    def put_off(self, until_s: float) -> None:
        """Let the wait that is under way take longer, or change nothing."""
        self._until_s = max(self._until_s, until_s)

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
    """No event came for `waited_ms`.

    `has_begun`: none after the first one. `is_alive`: bytes did come meanwhile.
    """

    def __init__(self, waited_ms: float, *, has_begun: bool, is_alive: bool) -> None:
        super().__init__(waited_ms)
        self.waited_ms, self.has_begun, self.is_alive = waited_ms, has_begun, is_alive

    def __str__(self) -> str:
        return f"the model's stream said nothing for {self.waited_ms:g} ms"


class Limit(NamedTuple):
    """How long a provider may keep us waiting: `silent_ms` without a byte, and `most_ms` without an event. 0 is for ever."""

    silent_ms: float = 0
    most_ms: float = 0


NO_LIMIT: Final = Limit()


class Watchdog:
    """The limits of one request, which begins when this is made.

    The clock runs only while the next event is awaited: not while events are stored or shown, or tools work. The first event has a limit
    of its own, because a model may think before it speaks (spec W-42). Bytes that are no event, such as the keep-alives of a connection,
    are no silence, and no event either.

    Args:
        first: the limit of the first event.
        between: that of each further one.
    """

    def __init__(self, first: Limit = NO_LIMIT, between: Limit = NO_LIMIT) -> None:
        self._limit, self._between, self._has_begun = first, between, False
        self._event_s = self._byte_s = asyncio.get_running_loop().time()
        self._waits = ShortWaits()

    async def within(self, job: Awaitable[T]) -> T:
        # Raises `Stalled` if the job takes too long, or if `cut` is called meanwhile.
        try:
            return await self._waits.within(job, min(self._silent_until_s, self._most_until_s))
        except WaitedTooLong as problem:
            is_most = self._most_until_s < self._silent_until_s
            waited_ms = self._limit.most_ms if is_most else self._limit.silent_ms
            # Bytes at the beginning alone, such as a first frame without a word, are no sign of life at the end.
            is_alive = is_most and (self._most_until_s - self._byte_s) * 1000 < waited_ms / 2
            raise Stalled(waited_ms, has_begun=self._has_begun, is_alive=is_alive) from problem

    def heard(self) -> None:
        self._limit, self._has_begun = self._between, True
        self._event_s = self._byte_s = asyncio.get_running_loop().time()

    def alive(self) -> None:
        """Bytes have come."""
        self._byte_s = asyncio.get_running_loop().time()
        self._waits.put_off(min(self._silent_until_s, self._most_until_s))

    @property
    def _silent_until_s(self) -> float:
        return self._byte_s + self._limit.silent_ms / 1000 if self._limit.silent_ms else math.inf

    @property
    def _most_until_s(self) -> float:
        return self._event_s + self._limit.most_ms / 1000 if self._limit.most_ms else math.inf

    def cut(self) -> None:
        self._waits.cut()

    def close(self) -> None:
        self._waits.close()
