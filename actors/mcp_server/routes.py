"""MCP over HTTP: `/mcp`, for both eras of the protocol. The SDK is imported with the first request.

A session of the handshake era lives in one process. A call of a session that this process does not know, because the process is new or
another one has the session, is served without it: each call names all that it needs, and the runs behind it are in the ledger. So is the
stream of no call. To end a session ends it in all processes. Only the rest of a stream that was cut can be had in the session's own process
alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.problems import refusal as plain_refusal
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.mcp_server.ended_sessions import EndedSessions
from perdure.actors.mcp_server.offers import Choice, offers_of
from perdure.ledger import BadRequest

if TYPE_CHECKING:
    from perdure.actors.mcp_server.transports import McpOverHttp

SERVING = "perdure.actors.mcp_server.transports"  # brings the SDK, which is not installed everywhere
PATH: Final = "/mcp"
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603


def routes(backend: Backend, choices: Iterable[Choice]) -> list[BaseRoute]:
    # Raises `BadRequest` for a choice that can be no tool, and for a method of an agent without an address.
    chosen = tuple(choices)
    for offer in offers_of(chosen).values() if chosen else ():
        if offer.method and offer.agent_class not in backend.registry.roots.values():
            raise BadRequest("mcp_tools", f"{offer.agent_class.__name__} has no address: name it among the agents")
    return [Route(PATH, _Mcp(backend, chosen), methods=None)]


def refusal(problem: Exception) -> JSONResponse:
    # The request failed before the SDK had it. The answer is an error of JSON-RPC, since clients show no other words.
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
        self._ended = EndedSessions(backend.neighbours)
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
                # In a thread, since the loop serves others meanwhile.
                serving = await asyncio.to_thread(import_module, SERVING)
                served: McpOverHttp = serving.McpOverHttp(self._backend, self._choices, self._ended)
                await served.start()
                self._backend.at_end.append(served.stop)
                self._served = served
        return self._served
