"""Things of one loop that several connections share: made for the first, and put away after the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from perdure.actors.tasks import Pending, awaited


class Watched:
    """What is begun once, by the first who comes, and stopped once. A task follows it meanwhile, and wakes those who wait for a change."""

    def __init__(self) -> None:
        self.users = 0
        self._following: asyncio.Task[None] | None = None
        self._beginning, self._changed = asyncio.Lock(), asyncio.Event()

    async def begin(self) -> None:
        """Begin, or wait until it has begun. Raises what keeps it from beginning."""
        async with self._beginning:
            if self._following is None:
                self._following = awaited(await self._begun())

    async def _begun(self) -> Pending[None]:
        """Learn how it stands, and give what follows it from there."""
        raise NotImplementedError

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)  # its watchers were told

    async def _change(self, since: asyncio.Event | None = None) -> None:
        """Wait for a change, which may have come since that was the next one's event. Raises what has ended the following."""
        if self._following is not None and self._following.done():
            self._following.result()
        await (since or self._changed).wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


T = TypeVar("T", bound=Watched)


class Shared(Generic[T]):
    """Watched things by their keys."""

    def __init__(self) -> None:
        self._known: dict[str, T] = {}

    @asynccontextmanager
    async def watched(self, key: str, make: Callable[[], T]) -> AsyncGenerator[T, None]:
        """The thing of this key, while the block lasts."""
        if key not in self._known:
            self._known[key] = make()
        found = self._known[key]
        found.users += 1
        try:
            await found.begin()
            yield found
        finally:
            found.users -= 1
            if not found.users:
                del self._known[key]  # who comes while it is stopped gets another one
                await found.stop()
