"""The events of a run or of a conversation, or what a method gives bit by bit, for a `for` or an `async for`.

They arrive on the loop of another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from perdure.actors.link.messages import Fields
from perdure.actors.tasks import Pending
from perdure.actors.threads import wait_for

T = TypeVar("T")
Frame = Fields
"""An event, with its number."""
_OVER: Final = object()


class Submit(Protocol):
    """Runs a job on another loop, and gives its future."""

    def __call__(self, job: Pending[T], /) -> Future[T]: ...


class EventStream:
    """Every iteration starts at the requested number. That of a run ends with the run.

    Args:
        follow: begins to follow, on the client's loop.
        submit: runs a job on that loop.
        is_open: whether that loop still runs.
    """

    def __init__(
        self, follow: Callable[[], AsyncGenerator[Frame, None]], submit: Submit, is_open: Callable[[], bool]
    ) -> None:
        self._follow, self._submit, self._is_open = follow, submit, is_open

    def __iter__(self) -> Iterator[Frame]:
        """The events. This thread blocks meanwhile."""
        reading = _Reading(self._follow())
        try:
            while (frame := wait_for(self._submit(reading.next()))) is not _OVER:
                yield frame
        finally:
            if self._is_open():
                wait_for(self._submit(reading.leave()))

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """The events. Other tasks of this loop go on."""
        reading = _Reading(self._follow())
        try:
            while (frame := await asyncio.wrap_future(self._submit(reading.next()))) is not _OVER:
                yield frame
        finally:
            if self._is_open():
                await asyncio.wrap_future(self._submit(reading.leave()))


class _Reading:
    """One iteration, on the client's loop. A cancelled wait there ends later, and `leave` waits for it."""

    def __init__(self, stream: AsyncGenerator[Frame, None]) -> None:
        self._stream, self._turn = stream, asyncio.Lock()

    async def next(self) -> Any:
        async with self._turn:
            return await anext(self._stream, _OVER)

    async def leave(self) -> None:
        async with self._turn:
            await self._stream.aclose()
