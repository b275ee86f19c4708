"""Event streams over HTTP (`text/event-stream`).

The server takes more from a stream only when the client has taken what was sent, so a slow client costs no memory. While nothing happens
a comment is sent from time to time, so that proxies keep the line open and a client that is gone is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from perdure.actors.tasks import awaited

KEEP_ALIVE_S: Final = 15.0
HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
COMMENT: Final = b": still here\n\n"


def event(data: bytes, *, number: int | str | None = None, name: str = "") -> bytes:
    # `data` is one line.
    head = (b"event: %s\n" % name.encode() if name else b"") + (
        b"id: %s\n" % str(number).encode() if number is not None else b""
    )
    return head + b"data: " + data + b"\n\n"


def comment(words: str) -> bytes:
    return b": %s\n\n" % " ".join(words.split()).encode(errors="replace")


def event_stream(
    pieces: AsyncGenerator[bytes, None],
    headers: Mapping[str, str] | None = None,
    every_s: float = KEEP_ALIVE_S,
    silent: Callable[[], bytes] = lambda: COMMENT,
) -> StreamingResponse:
    """The answer that sends these pieces as they come, and closes the generator when the client leaves. Whenever no piece came for
    `every_s` seconds, what `silent` gives is sent: comments."""
    return _EventStream(pieces, {**HEADERS, **(headers or {})}, every_s, silent)


class _EventStream(StreamingResponse):
    # A client that leaves while it is sent something would leave the generator to the garbage collector, so it is closed here.

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        every_s: float,
        silent: Callable[[], bytes],
    ) -> None:
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._pieces, self._every_s, self._silent = pieces, every_s, silent
        self._sent_s = 0.0
        self._is_sending = True
        self._lost: OSError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pieces.aclose()

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        task = asyncio.current_task()
        assert task is not None
        keeping = awaited(self._keep_alive(send, task))
        try:
            await self._send_pieces(send)
        except asyncio.CancelledError:
            if self._lost is None:
                raise
            task.uncancel()  # `_keep_alive` has cancelled it, and nobody else
            raise self._lost from None
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pieces(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        self._sent_s, self._is_sending = clock(), False
        async for piece in self._pieces:
            self._is_sending = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            self._sent_s, self._is_sending = clock(), False

    async def _keep_alive(self, send: Send, task: asyncio.Task[object]) -> None:
        # One task for a stream is cheaper than a timer for each piece.
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._every_s if self._is_sending else self._sent_s + self._every_s - clock())
            if self._is_sending or clock() - self._sent_s < self._every_s:
                continue
            try:
                await send({"type": "http.response.body", "body": self._silent(), "more_body": True})
            except OSError as problem:  # so says a server that a client has left
                self._lost = problem
                task.cancel()
                return
            self._sent_s = clock()
