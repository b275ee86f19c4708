"""Exposed generators, whose values a caller elsewhere fetches page by page.

A generator goes on only when the next page is requested, so it is at most one page ahead of its caller. One that is not asked for long is
closed, because its caller has gone. An open one keeps the agent awake.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from typing import Final, TypedDict

from perdure.actors.code.schema import Shape
from perdure.actors.code.signatures import exposed_call, gives_bit_by_bit
from perdure.actors.life.life import Life
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


# At most one value is under way.
class _Open:
    def __init__(
        self, life: Life, generator: AsyncGenerator[object, None] | Generator[object, None, None], given: Shape
    ) -> None:
        self._life, self._generator, self._given = life, generator, given
        self._upcoming: asyncio.Task[bytes | None] | None = None  # None: it is over
        self._is_closed = False
        self._asked = asyncio.Event()

    async def page(self) -> Values:
        # What has no room in this page, which is an answer of a call, begins the next one.
        self._asked.set()
        found: list[bytes] = []
        room = self._life.limits.output_bytes_max - PAGE_BYTES
        while len(found) < PAGE_MAX and not self._is_closed:
            if self._upcoming is None:
                self._upcoming = self._life.spawn_awaited(self._next())
            done, _ = await asyncio.wait({self._upcoming}, timeout=GATHER_S if found else HOLD_S)
            if not done or (found and (self._upcoming.exception() or len(self._upcoming.result() or b"") > room)):
                break
            upcoming, self._upcoming = self._upcoming, None
            if upcoming.exception() is not None:
                await self.close()
            value = upcoming.result()
            if value is None:
                await self.close()
            else:
                found.append(value)
                room -= len(value)
        return {"values": found, "is_over": self._is_closed}

    async def _next(self) -> bytes | None:
        generator = self._generator
        if isinstance(generator, Generator):
            async with self._life.threads.turn(self._life) as turn:
                value = await self._life.threads.run(lambda: next(generator, _OVER), turn)
        else:
            value = await anext(generator, _OVER)
        if value is _OVER:
            return None
        return self._given.encode("yield", value, self._life.limits.output_bytes_max - PAGE_BYTES)

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
        if self._upcoming is not None:
            self._upcoming.cancel()
            await asyncio.wait({self._upcoming})
        generator = self._generator
        with suppress(ValueError):  # a thread is in the midst of it, and leaves it there
            if isinstance(generator, Generator):
                async with self._life.threads.turn(self._life) as turn:
                    await self._life.threads.run(generator.close, turn)
            else:
                await generator.aclose()


_OVER: Final = object()
