"""Stands before every route: names the principal, and tells errors in one way."""

from __future__ import annotations

import logging

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from perdure.actors.gateway.problems import close_code, refusal, status_of
from perdure.actors.gateway.security import Security

logger = logging.getLogger("perdure.gateway")


class Guard:
    """Middleware. A request that fails gets a JSON error, and a connection that fails is closed by a code. One that is refused is accepted
    first, because clients take a failed upgrade for a failed network (client protocols A.3)."""

    def __init__(self, app: ASGIApp, security: Security) -> None:
        self._app, self._security = app, security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, and hand on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        said: list[str] = []
        heard: list[str] = []

        async def hearing() -> Message:
            message = await receive()
            heard[:] = [message["type"]]
            return message

        async def noted(message: Message) -> None:
            said.append(message["type"])
            del said[1:-1]
            await send(message)

        try:
            scope.setdefault("state", {})["principal"] = await self._security.principal(HTTPConnection(scope))
            await self._app(scope, hearing, noted)
        except WebSocketDisconnect:
            return
        except Exception as problem:
            if scope["type"] == "http":
                await _refuse_request(problem, said, scope, receive, send)
            else:
                await _close(problem, said, heard, receive, send)


async def _refuse_request(problem: Exception, said: list[str], scope: Scope, receive: Receive, send: Send) -> None:
    if not said:
        await refusal(problem)(scope, receive, send)
        return
    if status_of(problem) >= 500:  # noqa: PLR2004 - ours
        logger.error("an answer broke off", exc_info=problem)
    raise problem  # the server cuts the line, so that nobody takes the answer for whole


async def _close(problem: Exception, said: list[str], heard: list[str], receive: Receive, send: Send) -> None:
    code, reason = close_code(problem)
    if "websocket.close" in said:
        return
    if not said:
        if not heard:
            await receive()  # the client's wish to connect
        await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": code, "reason": reason})
