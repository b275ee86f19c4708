"""Event streams over HTTP (`text/event-stream`).

The server takes more from a stream only when the client has taken what was sent, so a slow client costs no memory. While nothing happens
a comment is sent from time to time, so that proxies keep the line open and a client that is gone is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import suppress
from typing import Final, cast

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.actors.tasks import awaited

KEEP_ALIVE_S: Final = 15.0
HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


def event(data: bytes, *, number: int | str | None = None, name: str = "") -> bytes:
    """One event as it stands on the wire, with lines that end in LF. Pure. `data` is one line."""
    head = (b"event: %s\n" % name.encode() if name else b"") + (
        b"id: %s\n" % str(number).encode() if number is not None else b""
    )
    return head + b"data: " + data + b"\n\n"


def event_stream(pieces: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None) -> StreamingResponse:
    """The answer that sends these pieces as they come, and closes the generator when the client leaves."""
    return _EventStream(kept_alive(pieces), media_type="text/event-stream", headers={**HEADERS, **(headers or {})})


class _EventStream(StreamingResponse):
    """Closes its generator at the end. A client that leaves while it is sent something would leave it to the garbage collector."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await cast("AsyncGenerator[bytes, None]", self.body_iterator).aclose()


async def kept_alive(pieces: AsyncGenerator[bytes, None], every_s: float = KEEP_ALIVE_S) -> AsyncGenerator[bytes, None]:
    """The pieces, and a comment whenever none came for a while."""
    upcoming = awaited(anext(pieces, None))
    try:
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=every_s)
            if not done:
                yield b": still here\n\n"
                continue
            piece = upcoming.result()
            if piece is None:
                return
            yield piece
            upcoming = awaited(anext(pieces, None))
    finally:
        upcoming.cancel()
        with suppress(asyncio.CancelledError, Exception):  # whoever would hear of it has left
            await upcoming
        await pieces.aclose()


async def joined(batches: AsyncIterable[list[bytes]]) -> AsyncGenerator[bytes, None]:
    """Batches as single pieces."""
    async for batch in batches:
        yield b"".join(batch)
