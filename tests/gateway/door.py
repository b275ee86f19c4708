"""Asks a gateway in its own process, without a socket: as a server would, over ASGI. So it works on virtual time, too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

HOST = "127.0.0.1:8787"


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """A request that is under way: what the server sends, and what it is told."""

    def __init__(self, app: ASGIApp, scope: dict[str, Any], body: bytes = b"") -> None:
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self._told: asyncio.Queue[Message] = asyncio.Queue()
        self.reads = asyncio.Event()
        """Whether the client takes what it is sent. If not, whoever sends to it waits."""
        self.reads.set()
        if scope["type"] == "http":
            self._told.put_nowait({"type": "http.request", "body": body, "more_body": False})
        else:
            self._told.put_nowait({"type": "websocket.connect"})
        self._serving = asyncio.ensure_future(app(scope, self._told.get, self._send))

    async def _send(self, message: Message) -> None:
        await self.reads.wait()
        self._sent.put_nowait(message)

    async def next(self) -> Message:
        """What the server sends next. Raises what the application raised, if it has ended."""
        upcoming = asyncio.ensure_future(self._sent.get())
        await asyncio.wait({upcoming, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not upcoming.done() and self._sent.empty():
            upcoming.cancel()
            self._serving.result()
            raise EOFError("the application has ended and sent nothing more")
        return await upcoming

    def tell(self, message: Message) -> None:
        """Tell the server something."""
        self._told.put_nowait(message)

    async def leave(self, kind: str) -> None:
        """Be gone, as a closed socket is, and wait until the application has noticed."""
        self.reads.set()
        self.tell({"type": f"{kind}.disconnect", "code": 1005})
        _, slow = await asyncio.wait({self._serving}, timeout=60)
        assert not slow, "the application goes on for a client that has left"


class Socket:
    """The client's side of a WebSocket."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.closed: tuple[int, str] | None = None

    @property
    def reads(self) -> asyncio.Event:
        """Whether it takes what it is sent."""
        return self._line.reads

    def send(self, frame: object) -> None:
        """Send a frame: a text as it is, anything else as JSON."""
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._line.tell({"type": "websocket.receive", "text": text})

    async def receive(self) -> Any:
        """The next frame, from its JSON; None once the server has closed."""
        message = await self._line.next()
        if message["type"] == "websocket.close":
            self.closed = (message.get("code", 1000), message.get("reason") or "")
            return None
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def until(self, **wanted: Any) -> list[Any]:
        """The frames up to the first that has these fields."""
        frames: list[Any] = []
        while True:
            frame = await self.receive()
            assert frame is not None, f"closed by {self.closed} after {frames}"
            frames.append(frame)
            if all(frame.get(key) == value for key, value in wanted.items()):
                return frames


class Door:
    """A gateway's application as its clients see it."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str] | None = None) -> None:
        self.app, self._headers = app, {"host": HOST, **(headers or {})}

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json_body: object = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """A request and its whole answer."""
        async with self.stream(method, path, json_body=json_body, body=body, headers=headers) as (head, pieces):
            return Answer(head.status, head.headers, b"".join([piece async for piece in pieces]))

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, json_body: object = None, **options: Any) -> Answer:
        return await self.ask("POST", path, json_body=json_body, **options)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        json_body: object = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[tuple[Answer, AsyncGenerator[bytes, None]], None]:
        """A request whose answer is read piece by piece: its head, and the pieces of its body. Leaving closes the connection."""
        content = body if json_body is None else json.dumps(json_body).encode()
        given = {"content-type": "application/json"} if json_body is not None else {}
        line = Line(self.app, self._scope("http", method, path, {**given, **(headers or {})}), content)
        head = await line.next()
        assert head["type"] == "http.response.start", head

        async def pieces() -> AsyncGenerator[bytes, None]:
            more = True
            while more:
                message = await line.next()
                more = message.get("more_body", False)
                if message.get("body"):
                    yield message["body"]

        found = {name.decode(): value.decode() for name, value in head["headers"]}
        try:
            yield Answer(head["status"], found, b""), pieces()
        finally:
            await line.leave("http")

    @asynccontextmanager
    async def socket(self, path: str, headers: Mapping[str, str] | None = None) -> AsyncGenerator[Socket, None]:
        """A WebSocket that the server has accepted. Leaving closes it."""
        line = self.knock(path, headers)
        accepted = await line.next()
        assert accepted["type"] == "websocket.accept", accepted
        try:
            yield Socket(line)
        finally:
            await line.leave("websocket")

    def knock(self, path: str, headers: Mapping[str, str] | None = None) -> Line:
        """A WebSocket that the server has not accepted yet."""
        return Line(self.app, self._scope("websocket", "GET", path, headers or {}))

    def _scope(self, kind: str, method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        plain, _, query = path.partition("?")
        pairs = {**self._headers, **headers}.items()
        scope = {
            "type": kind,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http" if kind == "http" else "ws",
            "path": unquote(plain),
            "raw_path": plain.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8787),
        }
        return scope | ({"method": method} if kind == "http" else {"subprotocols": []})


def events(body: bytes) -> list[Any]:
    """The data of the events of an event stream, from their JSON; `[DONE]` as text."""
    found = []
    for block in body.decode().split("\n\n"):
        data = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
        if data:
            text = "\n".join(data)
            found.append(json.loads(text) if text != "[DONE]" else text)
    return found
