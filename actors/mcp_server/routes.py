"""MCP over HTTP: `/mcp`, for both eras of the protocol. The SDK is imported with the first request.

A session of the handshake era lives in one process. A call of a session that this process does not know, because the process is new or
another one has the session, is served without it: each call names all that it needs, and the runs behind it are in the ledger. Only the
rest of a stream that was cut can be had in the session's own process alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from importlib import import_module
from itertools import count
from math import isfinite
from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import JSONRPCMessage
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.problems import refusal as plain_refusal
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.security import Principal
from perdure.actors.mcp_server.offers import Choice, offers_of
from perdure.actors.mcp_server.server import McpServer
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest

SERVING = "perdure.actors.mcp_server.routes"
PATH: Final = "/mcp"
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603


# ---------------------------------------------------------------- http
# The SDK's streamable HTTP around our server: sessions with replay after a cut line, and calls without a session.


BODY_BYTES_MAX: Final = sys.maxsize  # the guard has counted them
SESSIONS_MAX: Final = 1_000
STREAMS_MAX: Final = 1_000
EVENTS_MAX: Final = 1_000
RETRY_MS: Final = 500


class McpOverHttp:
    """Two managers of the SDK over one server: with sessions, and without."""

    def __init__(self, backend: Backend, choices: Iterable[Choice]) -> None:
        server = McpServer(backend, choices).server
        self._sessions = StreamableHTTPSessionManager(
            server,
            RecentEvents(),
            retry_interval=RETRY_MS,
            max_request_body_size=BODY_BYTES_MAX,
            max_sessions=None,
        )
        self._single = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=BODY_BYTES_MAX)
        logging.getLogger("mcp").setLevel(logging.WARNING)  # or strangers would fill the log
        self._stopped = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve from now on, until `stop`."""
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
        if self._serving is not None:
            with suppress(asyncio.CancelledError):
                await self._serving

    async def _serve(self, ready: asyncio.Event) -> None:
        async with self._sessions.run(), self._single.run():
            ready.set()
            await self._stopped.wait()

    async def answer(self, who: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. A session belongs to the principal who has opened it; for all others there is none."""
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=who.name, scopes=[]))
        session = Headers(scope=scope).get("mcp-session-id")
        known = self._sessions._server_instances  # noqa: SLF001 - the SDK has no question for it
        if session is None:
            await self._make_room(known)
        is_elsewhere = session is not None and session not in known
        manager = self._single if is_elsewhere and scope["method"] == "POST" else self._sessions
        await manager.handle_request(scope, receive, send)

    @staticmethod
    async def _make_room(known: Mapping[str, StreamableHTTPServerTransport]) -> None:
        # The session that was opened first of those without a request ends. Its client's calls are served without it.
        if len(known) < SESSIONS_MAX:
            return
        idle = (each for each in known.values() if each.idle_scope is not None and isfinite(each.idle_scope.deadline))
        oldest = next(idle, None)
        if oldest is not None:
            await oldest.terminate()


class RecentEvents(EventStore):
    """The newest messages of the newest streams, for clients whose line was cut."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, deque[tuple[int, JSONRPCMessage | None]]] = OrderedDict()
        self._numbers = count()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        number = next(self._numbers)
        self._streams.setdefault(stream_id, deque(maxlen=EVENTS_MAX)).append((number, message))
        self._streams.move_to_end(stream_id)
        while len(self._streams) > STREAMS_MAX:
            self._streams.popitem(last=False)
        return f"{number}:{stream_id}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        number, _, stream_id = last_event_id.partition(":")
        if not number.isdecimal() or stream_id not in self._streams:
            return None
        for each, message in list(self._streams[stream_id]):
            if each > int(number) and message is not None:
                await send_callback(EventMessage(message, f"{each}:{stream_id}"))
        return stream_id


# ---------------------------------------------------------------- routes


def routes(backend: Backend, choices: Iterable[Choice]) -> list[BaseRoute]:
    """The route `/mcp`. Raises `BadRequest` for a choice that can be no tool, and for a method of an agent without an address."""
    chosen = tuple(choices)
    for offer in offers_of(chosen).values() if chosen else ():
        if offer.method and offer.agent_class not in backend.registry.roots.values():
            raise BadRequest("mcp_tools", f"{offer.agent_class.__name__} has no address: name it among the agents")
    return [Route(PATH, _Mcp(backend, chosen), methods=None)]


def refusal(problem: Exception) -> JSONResponse:
    """The answer to a request that failed before the SDK had it, as an error of JSON-RPC: clients show no other words."""
    answer = plain_refusal(problem)
    code = INVALID_REQUEST if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else INTERNAL_ERROR
    error = json.loads(bytes(answer.body))["error"]
    message = error.pop("message")
    told = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": error}}
    headers = {name: value for name, value in answer.headers.items() if name not in ("content-length", "content-type")}
    return JSONResponse(told, answer.status_code, headers)


class _Mcp:
    # An ASGI application and no endpoint, so that the SDK answers by itself.

    def __init__(self, backend: Backend, choices: tuple[Choice, ...]) -> None:
        self._backend, self._choices = backend, choices
        self._served: McpOverHttp | None = None
        self._lock: asyncio.Lock | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._choices:
            raise NoSuchAgent("no agent is offered over MCP here; name them in `mcp_tools=` of the Gateway")
        who = Request(scope).state.principal
        await (await self._serving()).answer(who, scope, receive, send)

    async def _serving(self) -> McpOverHttp:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._served is None:
                serving = await asyncio.to_thread(import_module, SERVING)
                served: McpOverHttp = serving.McpOverHttp(self._backend, self._choices)
                await served.start()
                self._backend.at_end(served.stop)
                self._served = served
        return self._served
