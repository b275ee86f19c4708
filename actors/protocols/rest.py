"""What the command line can do, over HTTP, with JSON: `/api`, described by `/api/openapi.json`."""

from __future__ import annotations

from starlette.routing import BaseRoute

from perdure.actors.gateway.backend import Backend
from perdure.actors.protocols.rest_kill import killing
from perdure.actors.protocols.rest_reading import reading
from perdure.actors.protocols.rest_table import routes_of


def routes(backend: Backend) -> list[BaseRoute]:
    """The routes under `/api`."""
    return routes_of([*reading(backend), *killing(backend)], backend)
