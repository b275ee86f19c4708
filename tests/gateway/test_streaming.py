"""Event streams over HTTP, as a server has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from perdure.actors.gateway.streaming import event_stream

PATIENCE_S = 60


def test_a_stream_says_that_it_is_there_while_nothing_happens_and_notices_that_its_client_has_left() -> None:
    async def story() -> None:
        sent: asyncio.Queue[Message] = asyncio.Queue()
        happens, closed, is_gone = asyncio.Event(), asyncio.Event(), False

        async def pieces() -> AsyncGenerator[bytes, None]:
            try:
                await happens.wait()
                yield b"data: 1\n\n"
                await asyncio.Event().wait()
            finally:
                closed.set()

        async def send(message: Message) -> None:
            sent.put_nowait(message)
            if is_gone:
                raise OSError("nobody is there")

        async def receive() -> Message:
            raise AssertionError("a server of this kind is not asked")

        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        serving = asyncio.ensure_future(event_stream(pieces(), every_s=0.01)(scope, receive, send))
        assert (await sent.get())["type"] == "http.response.start"
        assert [(await sent.get())["body"] for _ in range(2)] == [b": still here\n\n"] * 2
        happens.set()
        while (piece := (await sent.get())["body"]) == b": still here\n\n":
            pass
        assert piece == b"data: 1\n\n"
        assert (await sent.get())["body"] == b": still here\n\n"
        is_gone = True
        with pytest.raises(ClientDisconnect):
            await serving
        assert closed.is_set()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
