"""What the command line can do, over HTTP, with JSON: `/api`, described by `/api/openapi.json`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.security import Scope
from perdure.actors.rest.agents import agents
from perdure.actors.rest.keeping import keeping
from perdure.actors.rest.kill import killing
from perdure.actors.rest.logs import logs
from perdure.actors.rest.openapi import described
from perdure.actors.rest.reading import reading
from perdure.actors.rest.steering import steering
from perdure.actors.rest.table import JSON, Operation, routes_of


def table_of(backend: Backend) -> list[Operation]:
    """All operations. The first whose path fits is taken, so those with more words stand before."""
    table = [*steering(backend), *reading(backend), *agents(backend), *killing(backend)]
    table += [*keeping(backend), *logs(backend)]
    return sorted(table, key=lambda each: -_words(each.path))


def _words(path: str) -> int:
    return sum(not each.startswith("{") for each in path.split("/"))


def routes(backend: Backend) -> list[BaseRoute]:
    """The routes under `/api`."""
    table = table_of(backend)
    text = json_bytes(described(table))

    async def openapi(request: Request) -> Response:
        backend.principal(request, Scope.READ)
        return Response(text, media_type=JSON)

    return [Route("/api/openapi.json", openapi, methods=["GET"]), *routes_of(table, backend)]
