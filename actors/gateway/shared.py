"""Things of one loop that several connections share: made for the first, and put away after the last."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar


class Watched(Protocol):
    """What is begun once and stopped once."""

    async def begin(self) -> None:
        """Begin, or wait until it has begun. Raises what keeps it from beginning."""

    async def stop(self) -> None: ...


T = TypeVar("T", bound=Watched)


class Shared(Generic[T]):
    """Watched things by their keys."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[T, list[object]]] = {}

    @asynccontextmanager
    async def watched(self, key: str, make: Callable[[], T]) -> AsyncGenerator[T, None]:
        """The thing of this key, while the block lasts."""
        if key not in self._known:
            self._known[key] = make(), []
        found, users = self._known[key]
        user = object()
        users.append(user)
        try:
            await found.begin()
            yield found
        finally:
            users.remove(user)
            if not users:
                del self._known[key]  # who comes while it is stopped gets another one
                await found.stop()
