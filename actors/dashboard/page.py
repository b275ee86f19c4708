"""Serves the dashboard's page. Its files hold no data, so they are given to everybody; what they ask for asks for a principal."""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from perdure.actors.code.naming import type_name
from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.security import Scope

PAGE: Final = "index.html"
HEADERS: Final = {
    "cache-control": "no-cache",  # asked for again each time, and answered by 304 while it is the same
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Asset(NamedTuple):
    content: bytes
    media_type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    folder = files("perdure.actors.dashboard") / "assets"
    found = {each.name: each.read_bytes() for each in folder.iterdir()}
    return {
        name: Asset(
            content, mimetypes.guess_type(name)[0] or "text/plain", f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        )
        for name, content in found.items()
    }


def routes(backend: Backend) -> list[BaseRoute]:
    """The page at the root, its files under `/dashboard`, and what it must know of this gateway."""

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", PAGE)
        found = assets().get(name)
        if found is None:
            raise NoSuchAgent(f"the page has no file {name!r:.80}")
        headers = HEADERS | {"etag": found.tag}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        return Response(found.content, media_type=found.media_type, headers=headers)

    async def served(request: Request) -> Response:
        """What this gateway serves: the chat agents that have an address, whether a process may be killed, and whether whoever answers
        questions is to say who that is, because the token does not."""
        who = backend.principal(request, Scope.READ)
        client = await backend.client()
        chat = [
            {"class": name, "type": type_name(each, client.code_dir)}
            for name, each in backend.registry.chat_roots().items()
        ]
        may_kill = backend.striker is not None and Scope.ADMIN in who.scopes
        return JSONResponse({"chat": chat, "may_kill": may_kill, "person": who.name if who.is_person else None})

    return [Route("/", asset), Route("/dashboard/served", served), Route("/dashboard/{name}", asset)]
