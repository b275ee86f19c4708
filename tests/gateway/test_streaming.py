"""Event streams over HTTP, as a server has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from perdure.actors.gateway.streaming import COMMENT, event, event_stream
from perdure.actors.sim_world.virtual_loop import VirtualLoop

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


def test_a_comment_is_sent_after_each_silence_and_none_while_a_client_is_slow_to_take_a_piece() -> None:
    sent: list[tuple[float, bytes]] = []

    async def story() -> None:
        now_s = asyncio.get_running_loop().time

        async def pieces() -> AsyncGenerator[bytes, None]:
            for pause_s, text in ((0, b"a"), (10, b"b"), (23, b"slow"), (14, b"c"), (31, b"d")):
                await asyncio.sleep(pause_s)
                yield text

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                sent.append((round(now_s()), message["body"]))
            if message.get("body") == b"slow":
                await asyncio.sleep(40)

        async def receive() -> Message:
            raise AssertionError("a server of this kind is not asked")

        await event_stream(pieces(), every_s=15)({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    assert sent == [
        (0, b"a"), (10, b"b"), (25, COMMENT), (33, b"slow"), (87, b"c"), (102, COMMENT), (117, COMMENT), (118, b"d"), (118, b""),
    ]  # fmt: skip


def test_an_event_stands_on_the_wire_with_its_name_and_number_if_it_has_them() -> None:
    assert event(b"{}") == b"data: {}\n\n"
    assert event(b"{}", number=0) == b"id: 0\ndata: {}\n\n"
    assert event(b"{}", number="a-1", name="run") == b"event: run\nid: a-1\ndata: {}\n\n"
