"""A client of the runtime, on the loop that serves the requests.

An application that is mounted in another one is never told that it begins, so the client is opened by the first request. All requests of
one loop share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from perdure.actors.runtime.client import Client
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest, SupervisorUnreachable
from perdure.policies import Limits

Opener = Callable[[], AbstractAsyncContextManager[Client]]
"""Opens a client on the running loop, and closes it."""


@asynccontextmanager
async def served(client: Client) -> AsyncGenerator[Client, None]:
    """Offer the code of this process, serve the conversation of a client, and take the limits that are in force at its supervisor."""
    with suppress(BadRequest):  # of an agent whose code cannot travel; whoever asks for it is told
        await client.ready()
    serving = awaited(client.serve())
    try:
        client.take(Limits.recorded(await client.ask("limits")))
        yield client
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError, BaseExceptionGroup):  # whoever asked was told, and it was logged
            await serving


class ClientConnection:
    """The client of one application. It is opened by whoever needs it first, and closed at the end of the application. If it fails
    meanwhile another one is opened by whoever needs it next."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._client: Client | None = None
        self._open: AbstractAsyncContextManager[Client] | None = None
        self._lock: asyncio.Lock | None = None
        self._is_closed = False

    async def client(self) -> Client:
        # Raises `SupervisorUnreachable` after the end, and whatever kept it from being opened.
        if self._client is not None and not self._client.is_over:
            return self._client
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._is_closed:
                raise SupervisorUnreachable("the gateway is being stopped; ask again in a moment")
            if self._client is None or self._client.is_over:
                await self._leave()
                opened = self._opener()
                self._client = await opened.__aenter__()
                self._open = opened
            return self._client

    async def close(self) -> None:
        self._is_closed = True
        await self._leave()

    async def _leave(self) -> None:
        opened, self._open, self._client = self._open, None, None
        if opened is not None:
            await opened.__aexit__(None, None, None)
