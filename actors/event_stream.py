"""What is followed, for a `for` or an `async for`: events, values, ends of runs. They arrive on the loop of another thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, cast

from perdure.actors.tasks import Pending
from perdure.actors.threads import awaitable, wait_for

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Followed(Protocol[T_co]):
    """What an agent gives to be iterated over: by `for` in sync code, which blocks meanwhile, or by `async for`."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __aiter__(self) -> AsyncIterator[T_co]: ...
    def __anext__(self) -> Awaitable[T_co]: ...


# Runs a job on another loop, and gives its future.
class Submit(Protocol):
    def __call__(self, job: Pending[T], /) -> Future[T]: ...


class EventSource(NamedTuple, Generic[T]):
    """Where the events of one iteration come from.

    Args:
        stream: gives them, on a loop.
        submit: runs a job on that loop.
        is_open: whether that loop still runs.
    """

    stream: AsyncGenerator[T, None]
    submit: Submit
    is_open: Callable[[], bool]


class EventStream(Generic[T]):
    """Every iteration starts at the requested number, unless `next` has begun one: then that goes on. That of a run ends with the run.

    `begin` is called for each iteration.
    """

    def __init__(self, begin: Callable[[], EventSource[T]]) -> None:
        self._begin = begin
        self._begun: Iterator[T] | None = None
        self._begun_async: AsyncIterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        return _each(self._begin) if self._begun is None else self._begun

    def __next__(self) -> T:
        self._begun = iter(self)
        return next(self._begun)

    def __aiter__(self) -> AsyncIterator[T]:
        return _each_async(self._begin) if self._begun_async is None else self._begun_async

    def __anext__(self) -> Awaitable[T]:
        self._begun_async = aiter(self)
        return anext(self._begun_async)


# They do not hold the stream, which holds those that `next` has begun: so these end as soon as it is let go.
def _each(begin: Callable[[], EventSource[T]]) -> Iterator[T]:
    stream, submit, is_open = begin()
    reading = _Reading(stream)
    try:
        while (event := wait_for(submit(reading.next()))) is not _OVER:
            yield cast("T", event)
    finally:
        if is_open():
            wait_for(submit(reading.leave()))


async def _each_async(begin: Callable[[], EventSource[T]]) -> AsyncGenerator[T, None]:
    stream, submit, is_open = begin()
    reading = _Reading(stream)
    try:
        while (event := await awaitable(submit(reading.next()))) is not _OVER:
            yield cast("T", event)
    finally:
        if is_open():
            await awaitable(submit(reading.leave()))


# One iteration, on the client's loop. A cancelled wait there ends later, and `leave` waits for it.
class _Reading(Generic[T]):
    def __init__(self, stream: AsyncGenerator[T, None]) -> None:
        self._stream, self._turn = stream, asyncio.Lock()  # a generator that is still running cannot be closed

    async def next(self) -> T | object:
        async with self._turn:
            return await anext(self._stream, _OVER)

    async def leave(self) -> None:
        async with self._turn:
            await self._stream.aclose()


_OVER: Final = object()
