"""What the command line can do, over HTTP, with JSON: `/api`, described by `/api/openapi.json`."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.actors.code.author_call import tried
from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.problems import AGAIN_S, public
from perdure.actors.gateway.security import Scope
from perdure.actors.rest.agents import AgentHandlers
from perdure.actors.rest.operations import JSON, Operation, described, routes_of
from perdure.actors.rest.reading import LiveHandlers, LogHandlers, QuestionHandlers, ReadingHandlers
from perdure.actors.rest.steering import KeepingHandlers, SteeringHandlers
from perdure.ledger import PerdureError

HANDLERS: Final = (
    SteeringHandlers, ReadingHandlers, QuestionHandlers, LiveHandlers, AgentHandlers, KeepingHandlers, LogHandlers
)  # fmt: skip
READY_S: Final = 2.0  # for the supervisor to answer


def table_of(backend: Backend) -> list[Operation]:
    # The first whose path fits is taken, so those with more words stand before.
    table = [each for handlers in HANDLERS for each in handlers(backend).table()]
    return sorted(table, key=lambda each: -sum(not word.startswith("{") for word in each.path.split("/")))


def routes(backend: Backend) -> list[BaseRoute]:
    table = table_of(backend)
    description = described(table)

    async def openapi(request: Request) -> Response:
        backend.principal(request, Scope.READ)
        servers = [{"url": request.scope.get("root_path") or "/"}]  # the gateway may be mounted below a path
        return Response(json_bytes({**description, "servers": servers}), media_type=JSON)

    return [
        Route("/api/openapi.json", openapi, methods=["GET"]),
        Route("/healthz", _alive, methods=["GET"]),
        Route("/readyz", partial(_ready, backend), methods=["GET"]),
        *routes_of(table, backend),
    ]


async def _alive(_request: Request) -> Response:
    # What is behind this process is another question: to start it again would change nothing there.
    return Response(json_bytes({"alive": True}), media_type=JSON)


async def _ready(backend: Backend, request: Request) -> Response:
    why = await _hindrance(backend)
    if not why:
        return Response(json_bytes({"ready": True}), media_type=JSON)
    # The hook that names people may be what is out of order.
    who, _ = await tried(asyncio.wait_for(request.state.principal_again(), READY_S))
    may_know = who is not None and Scope.READ in who.scopes
    told = {"ready": False, "why": why if may_know else "it cannot do its work now"}
    return Response(json_bytes(told), HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": str(AGAIN_S)}, JSON)


async def _hindrance(backend: Backend) -> str:
    try:
        async with asyncio.timeout(READY_S):
            told = await backend.ask("ps", 0)
    except TimeoutError:
        return "the supervisor does not answer"
    except PerdureError as problem:
        return str(public(problem))
    if any(host["up"] for host in told["hosts"]):
        return ""
    return "; ".join(each["told"] for each in told["unstartable"])
