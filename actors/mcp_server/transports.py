"""The two ways to the MCP server: HTTP, for any number of clients, and the standard input and output of a process that its client has
started. They need the extra `mcp`.

Over HTTP there are sessions, with replay after a cut line, and calls without a session. A session that its client has ended is over in
all processes of the gateway, which tell each other. `routes` loads this module with the first request,
because a gateway that offers nothing over MCP does without the SDK.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from itertools import count
from math import isfinite
from typing import Any, Final, Self, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.auth.provider import AccessToken
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCResponse
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.security import STDIO, Principal
from perdure.actors.mcp_server.ended_sessions import EndedSessions
from perdure.actors.mcp_server.offers import Choice
from perdure.actors.mcp_server.server import McpServer
from perdure.actors.tasks import awaited

# ---------------------------------------------------------------- HTTP


BODY_BYTES_MAX: Final = sys.maxsize  # the guard has counted them
SESSIONS_MAX: Final = 1_000
STREAMS_MAX: Final = 1_000
EVENTS_MAX: Final = 1_000
RETRY_MS: Final = 500
_SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")  # as the SDK makes them
_ELSEWHERE: Final = (
    b"The rest of this stream is in another process of the gateway, or is gone. Ask again a few times.\n"
)


class McpOverHttp:
    """Two managers of the SDK over one server: with sessions, and without."""

    def __init__(self, backend: Backend, choices: Iterable[Choice], ended: EndedSessions) -> None:
        server = McpServer(backend, choices).server
        self._sessions = _Sessions(
            server,
            retry_interval=RETRY_MS,
            max_request_body_size=BODY_BYTES_MAX,
            max_sessions=None,  # `_make_room` ends one instead, so that nobody is refused
        )
        self._ended, ended.heard = ended, self._hear_end
        self._single = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=BODY_BYTES_MAX)
        logging.getLogger("mcp").setLevel(logging.WARNING)  # or strangers would fill the log
        self._stopped = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ready = asyncio.Event()
        self._serving = awaited(self._serve(ready))
        upcoming = awaited(ready.wait())
        try:
            await asyncio.wait({upcoming, self._serving}, return_when=asyncio.FIRST_COMPLETED)
            if self._serving.done():
                self._serving.result()
        finally:
            upcoming.cancel()

    async def stop(self) -> None:
        self._stopped.set()
        self._sessions.streams.end()
        if self._serving is not None:
            with suppress(asyncio.CancelledError):
                await self._serving

    async def _serve(self, ready: asyncio.Event) -> None:
        async with self._sessions.run(), self._single.run():
            ready.set()
            await self._stopped.wait()

    async def answer(self, who: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        # A session belongs to the principal who has opened it; for all others there is none.
        scope["user"] = _user(who.name)
        headers, method = Headers(scope=scope), scope["method"]
        session = headers.get("mcp-session-id")
        known = self._sessions._server_instances  # noqa: SLF001 - the SDK has no question for it
        if session is None:
            await self._make_room(known)
        elif session not in known and (session, who.name) not in self._ended:
            await self._answer_for_another(session, who, scope, receive, send)
            return
        ends = known.get(session or "") if method == "DELETE" else None
        await self._sessions.handle_request(scope, receive, send)  # to a session that is over it says so
        if ends is not None and ends.is_terminated:
            self._let_go(ends)
            self._ended.add(str(session), who.name)

    async def _answer_for_another(
        self, session: str, who: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # The session is in another process, or was in one that is gone.
        headers, method = Headers(scope=scope), scope["method"]
        if method == "DELETE" and _SESSION_ID.fullmatch(session):
            self._ended.add(session, who.name)
            await Response(status_code=200)(scope, receive, send)
        elif method == "GET" and "last-event-id" in headers:
            await Response(_ELSEWHERE, 503, {"retry-after": "1"}, "text/plain")(scope, receive, send)
        else:
            # A call names all that it needs, and nothing is told on the stream of no call.
            manager = self._sessions if method == "DELETE" else self._single
            await manager.handle_request(scope, receive, send)

    async def _hear_end(self, session: str, name: str) -> None:
        there = self._sessions._server_instances.get(session)  # noqa: SLF001 - as above
        owner = self._sessions._session_owners.get(session)  # noqa: SLF001 - as above
        if there is not None and owner == authorization_context(_user(name)):
            await there.terminate()
            self._let_go(there)

    def _let_go(self, session: StreamableHTTPServerTransport | None) -> None:
        if session is not None and session.is_terminated:
            self._sessions.streams.end(cast("RecentEvents", session._event_store))  # noqa: SLF001 - where it was given to

    async def _make_room(self, known: Mapping[str, StreamableHTTPServerTransport]) -> None:
        # The session that was opened first of those without a request ends. Its client's calls are served without it.
        if len(known) < SESSIONS_MAX:
            return
        idle = (each for each in known.values() if each.idle_scope is not None and isfinite(each.idle_scope.deadline))
        oldest = next(idle, None)
        if oldest is not None:
            await oldest.terminate()
            self._let_go(oldest)


def _user(name: str) -> AuthenticatedUser:
    return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[]))


class RecentStreams:
    """The newest messages of the newest streams of all sessions, for clients whose line was cut."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[RecentEvents, str], _Stream] = OrderedDict()
        self._numbers = count()

    def store(self, events: RecentEvents, stream_id: str, message: JSONRPCMessage | None) -> int:
        number = next(self._numbers)
        stream = self._streams.setdefault((events, stream_id), _Stream())
        stream.messages.append((number, message))
        if message is not None:
            stream.is_over = isinstance(message, JSONRPCResponse | JSONRPCError)
        stream.wake()
        self._streams.move_to_end((events, stream_id))
        while len(self._streams) > STREAMS_MAX:
            self._streams.popitem(last=False)[1].end()
        return number

    def find(self, events: RecentEvents, stream_id: str) -> _Stream | None:
        return self._streams.get((events, stream_id))

    def end(self, events: RecentEvents | None = None) -> None:
        """Forget a session, or all of them: who follows a stream of it is let go."""
        for key in [each for each in self._streams if events in (None, each[0])]:
            self._streams.pop(key).end()


class _Stream:
    def __init__(self) -> None:
        self.messages: deque[tuple[int, JSONRPCMessage | None]] = deque(maxlen=EVENTS_MAX)
        self.is_over, self._changed = False, asyncio.Event()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        self.is_over = True
        self.wake()

    async def after(self, number: int) -> AsyncGenerator[tuple[int, JSONRPCMessage], None]:
        """The messages after this one, as they come, to the answer of the request."""
        while True:
            changed, is_over = self._changed, self.is_over  # what comes while these are sent is sent next
            for at, message in [(at, each) for at, each in self.messages if at > number and each is not None]:
                yield at, message
                number = at
            if is_over:
                return
            await changed.wait()


class RecentEvents(EventStore):
    """Those of one session. The SDK names a stream by the request's id, which each client counts for itself.

    The SDK would replay what was there, and register the reader after that: what comes in between would reach nobody. So a stream is
    followed here to its end. That of no request has none, and is left to the SDK.
    """

    def __init__(self, streams: RecentStreams) -> None:
        self.streams = streams

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        return f"{self.streams.store(self, stream_id, message)}:{stream_id}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        number, _, stream_id = last_event_id.partition(":")
        stream = self.streams.find(self, stream_id)
        if stream is None or not number.isdecimal():
            return None
        if stream_id == GET_STREAM_KEY:
            for at, message in list(stream.messages):
                if at > int(number) and message is not None:
                    await send_callback(EventMessage(message, f"{at}:{stream_id}"))
            return stream_id
        async with aclosing(stream.after(int(number))) as messages:
            async for at, message in messages:
                await send_callback(EventMessage(message, f"{at}:{stream_id}"))
        return None


class _Sessions(StreamableHTTPSessionManager):
    """Gives each session events of its own: the SDK has one store for all, and would tell a client what another one was answered."""

    streams: RecentStreams

    @property
    def event_store(self) -> EventStore:
        return RecentEvents(self.streams)

    @event_store.setter
    def event_store(self, _none: EventStore | None) -> None:
        self.streams = RecentStreams()


# ---------------------------------------------------------------- standard input and output


LOCAL = Principal(STDIO)
STDIN: Final = 0
PIECE_BYTES: Final = 65_536
PIECES_MAX: Final = 16


async def serve_stdio(backend: Backend, choices: Iterable[Choice]) -> None:
    """Serve until standard input ends. Whatever else is printed meanwhile goes to standard error. The cluster is started, or joined, beside
    the first messages, so runs of an earlier process go on at once."""
    server = McpServer(backend, choices, LOCAL).server
    async with stdio_server(stdin=cast("Any", StdinLines())) as (heard, said):
        opening = awaited(backend.client())
        try:
            await server.run(heard, said, server.create_initialization_options())
        finally:
            await asyncio.wait({opening})  # if it failed, each call was told so
            await backend.close()


class StdinLines:
    """The lines of standard input, which from then on is empty for everybody else. A thread of its own reads them, and the process ends
    without it: nothing can interrupt it while the client is silent, so Ctrl-C would wait for the SDK's own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(PIECES_MAX)
        self._rest, self._is_over = bytearray(), False
        self._wire = os.dup(STDIN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, STDIN)
        os.close(nothing)
        threading.Thread(target=self._read, daemon=True, name="perdure-stdin").start()

    def _read(self) -> None:
        piece = b"?"
        with suppress(RuntimeError):  # the loop has ended
            while piece:
                piece = os.read(self._wire, PIECE_BYTES)
                asyncio.run_coroutine_threadsafe(self._pieces.put(piece), self._loop).result()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        # The last line may lack its end.
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0 and not self._is_over:
            searched = len(self._rest)
            piece = await self._pieces.get()
            self._is_over = not piece
            self._rest += piece
        if not self._rest:
            raise StopAsyncIteration
        taken = len(self._rest) if end < 0 else end + 1
        line = self._rest[:taken].decode(errors="replace")
        del self._rest[:taken]
        return line
