"""Exposed generators, whose values a caller elsewhere fetches page by page.

A generator goes on only when the next page is requested, so it is at most one page ahead of its caller. One that is not asked for long is
closed, because its caller has gone. An open one keeps the agent awake. One task drives it from its first step to its close, in one context.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from threading import Lock
from typing import Final, TypedDict

from perdure.actors.code.author_call import tried
from perdure.actors.code.schema import Shape
from perdure.actors.code.signatures import exposed_call, gives_bit_by_bit
from perdure.actors.life.life import Life
from perdure.actors.threads import within
from perdure.ledger import BadRequest

HOLD_S: Final = 10.0  # how long an answer is held open while there is no value
GATHER_S: Final = 0.02  # how long it waits for each further one
PAGE_MAX: Final = 64
PAGE_BYTES: Final = 1_000  # what so many values take more together than each alone
LEFT_AFTER_S: Final = 60.0  # a generator that is not asked for so long is closed


# The next values, encoded, and whether there are no more.
class Values(TypedDict):
    values: list[bytes]
    is_over: bool


class CallStreams:
    """The open generators of one life of an agent."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._open: dict[str, _Open] = {}

    def begin(self, method_name: str, body: bytes) -> str:
        """Open the generator of an exposed method with these arguments, encoded as for a call. Returns its id. Raises `BadRequest` for any
        other method."""
        agent = self._life.agent
        arguments, given = exposed_call(type(agent), method_name, body)
        method = getattr(agent, method_name)
        if not gives_bit_by_bit(method):
            raise BadRequest("method", f"{method_name} gives its result at once")
        stream_id = self._life.dice.token()
        generator = method(*arguments.args, **arguments.kwargs)
        self._open[stream_id] = opened = _Open(self._life, generator, given)
        self._life.spawn(self._watch(stream_id, opened))
        return stream_id

    async def next(self, stream_id: str) -> Values:
        """The next values; after a while none. What the generator raises comes after the values before it. Raises `BadRequest` if it is
        not open."""
        opened = self._open.get(stream_id)
        if opened is None:
            raise BadRequest("stream", "is not open any more: the agent was started anew, or nobody asked for a while")
        return await opened.page()

    async def end(self, stream_id: str) -> None:
        opened = self._open.get(stream_id)
        if opened is not None:
            await opened.close()

    async def _watch(self, stream_id: str, opened: _Open) -> None:
        try:
            await opened.left()
        finally:
            self._open.pop(stream_id, None)
            await opened.close()


# At most one value is under way, and what came of a cancellation after it.
class _Open:
    def __init__(
        self, life: Life, generator: AsyncGenerator[object, None] | Generator[object, None, None], given: Shape
    ) -> None:
        self._life, self._generator, self._given = life, generator, given
        self._driver: asyncio.Task[None] | None = None  # None: it has not begun
        self._upcoming: asyncio.Future[bytes | None] | None = None  # None: it is over
        self._is_at_work = self._is_closed = False
        self._asked, self._wanted = asyncio.Event(), asyncio.Event()
        self._context: Context  # of sync code, whichever thread does a step of it
        self._step = Lock()

    async def page(self) -> Values:
        # What has no room in this page, which is an answer of a call, begins the next one.
        self._asked.set()
        found: list[bytes] = []
        room = self._life.limits.output_bytes_max - PAGE_BYTES
        while len(found) < PAGE_MAX and not self._is_closed:
            upcoming = self._want()
            done, _ = await asyncio.wait({upcoming}, timeout=GATHER_S if found else HOLD_S)
            if not done or (found and (_failed(upcoming) or len(upcoming.result() or b"") > room)):
                break
            self._upcoming = None
            if _failed(upcoming):
                await self.close()
            value = upcoming.result()
            if value is None:
                await self.close()
            else:
                found.append(value)
                room -= len(value)
        return {"values": found, "is_over": self._is_closed}

    def _want(self) -> asyncio.Future[bytes | None]:
        if self._upcoming is None:
            self._upcoming = asyncio.get_running_loop().create_future()
            self._wanted.set()
        if self._driver is None:
            self._driver = self._life.spawn_awaited(self._drive())
        return self._upcoming

    async def _drive(self) -> None:
        # What it enters before one value it leaves after another: a timeout and a task group in the same task, and context variables that
        # it has set in the same context.
        self._context = copy_context()
        cancelled: asyncio.CancelledError | None = None
        found: tuple[bytes | None, Exception | None] | None = None
        try:
            while not self._is_closed:
                cancelled = await self._until_wanted() or cancelled
                if found is None and not self._is_closed:
                    self._is_at_work = True
                    found = await tried(self._next(cancelled))
                    self._is_at_work, cancelled = False, None
                if found is not None and self._wanted.is_set() and not self._is_closed:
                    self._give(*found)
                    found = None
        finally:
            self._is_at_work = False
            if self._upcoming is not None:
                self._upcoming.cancel()
            await self._end()

    async def _until_wanted(self) -> asyncio.CancelledError | None:
        # What the generator has entered may cancel this task also between two values, as a timeout does. It is told at once, and what comes
        # of that is kept until it is wanted: anyio would cancel the task again and again until then.
        try:
            await self._wanted.wait()
        except asyncio.CancelledError as cancelled:
            if self._is_closed or self._life.is_leaving:
                raise
            return cancelled
        return None

    def _give(self, value: bytes | None, problem: Exception | None) -> None:
        self._wanted.clear()
        upcoming = self._want()
        if problem is None:
            upcoming.set_result(value)
        else:
            upcoming.set_exception(problem)

    async def _next(self, cancelled: asyncio.CancelledError | None) -> bytes | None:
        generator = self._generator
        if isinstance(generator, Generator):
            value = await self._on_thread(lambda: next(generator, _OVER))
        else:
            try:
                with self._life.code.entered(generator):
                    value = await (anext(generator) if cancelled is None else generator.athrow(cancelled))
            except StopAsyncIteration:
                return None
        if value is _OVER:
            return None
        return self._given.encode("yield", value, self._life.limits.output_bytes_max - PAGE_BYTES)

    async def _on_thread(self, work: Callable[[], object]) -> object:
        def step() -> object:
            if not self._step.acquire(blocking=False):
                raise ValueError("a thread is in the midst of it")
            try:
                return within(self._context, work)
            finally:
                self._step.release()

        async with self._life.threads.turn(self._life) as turn:
            return await self._life.threads.run(step, turn)

    async def _end(self) -> None:
        with suppress(ValueError):  # a thread is in the midst of it, and leaves it there
            if isinstance(self._generator, Generator):
                await self._on_thread(self._generator.close)
            else:
                try:
                    await self._generator.aclose()
                except* GeneratorExit:  # a task group that the close leaves counts it among its errors
                    pass

    async def left(self) -> None:
        while not self._is_closed:
            self._asked.clear()
            try:
                async with asyncio.timeout(LEFT_AFTER_S):
                    await self._asked.wait()
            except TimeoutError:
                return

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._asked.set()
        driver = self._driver
        if driver is None:
            return
        let_go = self._life.give_up(driver) if self._is_at_work else asyncio.wait({driver})
        self._wanted.set()
        await let_go
        if driver.done() and not driver.cancelled():
            driver.result()


def _failed(outcome: asyncio.Future[bytes | None]) -> bool:
    return outcome.cancelled() or outcome.exception() is not None


_OVER: Final = object()
