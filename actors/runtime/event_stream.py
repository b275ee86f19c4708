"""The events of a run, for whoever reads them in a `for` or in an `async for`; the conversation itself lives on another thread's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Protocol, TypeVar

from perdure.actors.link.messages import Fields
from perdure.actors.tasks import Pending
from perdure.actors.threads import wait_for

T = TypeVar("T")
Frame = Fields
"""An event of a run, with its number."""


class Submit(Protocol):
    """Has something done on another loop, and gives the future of what it comes to."""

    def __call__(self, job: Pending[T], /) -> Future[T]: ...


class EventStream:
    """Every iteration begins anew, at the number that was asked for, and ends with the run or when it is left.

    Args:
        follow: begins to follow, on the client's loop.
        submit: has something done on that loop.
        is_open: whether there is such a loop still; without one, there is nothing left to be put away.
    """

    def __init__(
        self, follow: Callable[[], AsyncGenerator[Frame, None]], submit: Submit, is_open: Callable[[], bool]
    ) -> None:
        self._follow, self._submit, self._is_open = follow, submit, is_open

    def __iter__(self) -> Iterator[Frame]:
        """Each event, when it is there; this thread waits meanwhile."""
        reading = _Reading(self._follow())
        try:
            while (frame := wait_for(self._submit(reading.next()))) is not None:
                yield frame
        finally:
            if self._is_open():
                wait_for(self._submit(reading.leave()))

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Each event, when it is there; other tasks of this loop go on meanwhile."""
        reading = _Reading(self._follow())
        try:
            while (frame := await asyncio.wrap_future(self._submit(reading.next()))) is not None:
                yield frame
        finally:
            if self._is_open():
                await asyncio.wrap_future(self._submit(reading.leave()))


class _Reading:
    """One iteration, on the client's loop. Whoever was waiting there and is cancelled ends a little later: leaving waits for that."""

    def __init__(self, stream: AsyncGenerator[Frame, None]) -> None:
        self._stream, self._turn = stream, asyncio.Lock()

    async def next(self) -> Frame | None:
        async with self._turn:
            return await anext(self._stream, None)

    async def leave(self) -> None:
        async with self._turn:
            await self._stream.aclose()
