"""What the command line can do, over HTTP, with JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.security import Scope
from perdure.actors.gateway.streaming import event, event_stream
from perdure.ledger import BadRequest, UnknownRun


def routes(backend: Backend) -> list[BaseRoute]:
    """The routes under `/api`."""
    rest = _Rest(backend)
    return [
        Route("/api/runs/{run_id}", rest.run, methods=["GET"]),
        Route("/api/runs/{run_id}/events", rest.events, methods=["GET"]),
    ]


class _Rest:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self, request: Request) -> Response:
        """What is known of a run."""
        self._backend.principal(request, Scope.READ)
        client = await self._backend.client()
        run_id = request.path_params["run_id"]
        found = await client.ask("inspect", run_id)
        if found is None:
            raise UnknownRun("run_id", f"no run is known as {run_id!r}")
        return JSONResponse(found)

    async def events(self, request: Request) -> Response:
        """The events of a run as an event stream, from `Last-Event-ID` or `?after=` on, until its end."""
        self._backend.principal(request, Scope.READ)
        batches = self._backend.watch(request.path_params["run_id"], _after(request))
        first = await anext(batches, None)  # an unknown run is refused before the stream begins

        async def pieces() -> AsyncGenerator[bytes, None]:
            batch = first
            while batch is not None:
                yield b"".join(event(each.text, number=each.sequence) for each in batch)
                batch = await anext(batches, None)
            yield event(b"{}", name="end")

        return event_stream(pieces())


def _after(request: Request) -> int:
    said = request.headers.get("last-event-id") or request.query_params.get("after") or "-1"
    try:
        return int(said)
    except ValueError:
        raise BadRequest("after", f"{said!r:.40} is no number of an event") from None
