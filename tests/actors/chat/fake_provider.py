"""A provider on a real socket that says, byte for byte, what a test scripts: OpenAI's chat completions and responses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from perdure.actors.chat.answer_stream import Finished
from perdure.actors.chat.model import close_models, stream_model
from perdure.policies import Event, Message

HANG, RESET, STOP = "hang", "reset", "stop"
Script = Sequence[bytes | str]


def sse(*events: dict[str, Any] | str) -> bytes:
    """Events of a stream."""
    return b"".join(b"data: %s\n\n" % (each if isinstance(each, str) else json.dumps(each)).encode() for each in events)


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat completion."""
    choice = {"index": 0, "delta": fields, "finish_reason": reason}
    return {"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def call(index: int, args: str | None = None, call_id: str | None = None, name: str | None = None) -> dict[str, Any]:
    """A chunk about a tool call."""
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    about = {"index": index, "function": function, **({"id": call_id, "type": "function"} if call_id else {})}
    return delta(tool_calls=[about])


USAGE = {"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
         "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}  # fmt: skip


def refusal(status: int, body: dict[str, Any], **headers: str) -> bytes:
    """A whole answer with an HTTP status."""
    text = json.dumps(body).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close\r\n"
    return f"{head}{more}\r\n".encode() + text


BEGIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class FakeProvider:
    """Answers one request after the other by its scripts, the last one for ever."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts, self.requests = list(scripts), list[dict[str, Any]]()
        self.closed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = next(
                int(line.partition(":")[2]) for line in head.lower().split("\r\n") if line.startswith("content-length")
            )
            self.requests.append(json.loads(await reader.readexactly(size)))
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            for step in script:
                await self._step(step, reader, writer)
            writer.close()

    async def _step(self, step: bytes | str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif step == HANG:
            await reader.read()
            self.closed.set()
        elif step == RESET:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve, and give the address."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                yield f"http://127.0.0.1:{port}/v1"
            finally:
                await close_models()


def asked(provider: FakeProvider, setenv: Callable[[str, str], None], **options: Any) -> list[Event | Finished]:
    """Everything that `stream_model` yields, in a loop of its own."""

    async def ask() -> list[Event | Finished]:
        async with provider.running() as url:
            setenv("OPENAI_BASE_URL", url)
            setenv("OPENAI_API_KEY", "k")
            return [each async for each in stream_model(**{"model": "openai-chat:m", "messages": HELLO, **options})]

    return asyncio.run(asyncio.wait_for(ask(), 20))


HELLO: list[Message] = [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}]
