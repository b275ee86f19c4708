"""Where a request stands in a trace: what it asks for is below whoever made it, by the header `traceparent` of the W3C."""

from __future__ import annotations

import os

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.actors.telemetry.settings import TelemetrySettings
from perdure.actors.telemetry.telemetry import TRACE
from perdure.policies import context_of


class Traced:
    """Middleware. A header that is none changes nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in the place that it names."""
        headers = dict(scope.get("headers", ()))
        place = context_of(headers.get(b"traceparent", b"").decode("latin-1"))
        token = TRACE.set(place)
        try:
            await self._app(scope, receive, send)
        finally:
            TRACE.reset(token)


def traced() -> list[Middleware]:
    """The middleware, if telemetry is on in this process."""
    return [Middleware(Traced)] if TelemetrySettings.of(os.environ).is_on else []
