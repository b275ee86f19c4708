"""Stands before every route: checks what is asked for against the limits, names the principal, and tells errors in one way."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from perdure.actors.gateway.problems import NOT_NOW, close_code, refusal, status_of, warn_once
from perdure.actors.gateway.rate_limits import GatewayLimits, Rates
from perdure.actors.gateway.refusals import GatewayStopped, TooManyRequests, TooSlow, Unauthenticated
from perdure.actors.gateway.security import NOBODY, Principal, Security, path_within, without_token
from perdure.ledger import TooLarge

logger = logging.getLogger("perdure.gateway")

HEADERS: Final = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""What every answer has, unless its route says something else: it is no page, and nobody else's to frame, to guess about or to keep."""
STREAM: Final = b"text/event-stream"
Refusal = Callable[[Exception], Response]
DIGITS: Final = 20  # of a length that is looked at
IS_STREAM: Final = "perdure_is_stream"


class Guard:
    """Middleware. A request that fails gets a JSON error, and a connection that fails is closed by a code. One that is refused is accepted
    first, because clients take a failed upgrade for a failed network (client protocols A.3).

    Args:
        refusals: what makes the answer to a request that failed, for paths where clients expect it in another form.
    """

    def __init__(
        self,
        app: ASGIApp,
        security: Security,
        limits: GatewayLimits,
        refusals: Mapping[str, Refusal] = MappingProxyType({}),
    ) -> None:
        self._app, self._security, self._limits, self._refusals = app, security, limits, refusals
        self._rates = Rates(limits.requests_per_s, limits.requests_burst)
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refused = self._refusals.get(path_within(scope), refusal)
        line = _Line(scope, receive, send, self._limits, refused)
        try:
            who = await self._principal(scope)
            # Where no principal is asked for, everybody has the same name, and is told apart by the address.
            name = who.name if who not in (Principal(), NOBODY) else f"{who.name}@{_client(scope)}"
            with self._admitted(name):
                line.throttle = lambda: self._rates.take(name, _now_s())
                await self._app(scope, line.hear, line.say)
        except (WebSocketDisconnect, ClientDisconnect):
            return
        except asyncio.CancelledError:  # by a server whose drain is over
            if not line.can_be_refused:
                raise
            await line.refuse_request(GatewayStopped(scope["path"], scope["method"]))
        except Exception as problem:
            if scope["type"] == "http":
                await line.refuse_request(problem)
            else:
                await line.close(problem)

    async def _principal(self, scope: Scope) -> Principal:
        # The requests of nobody are counted by where they come from.
        state = scope.setdefault("state", {})
        asked = HTTPConnection(dict(scope))
        # A WebSocket lasts, and its token may be withdrawn meanwhile: `agents_client` asks again from time to time.
        state["principal_again"] = partial(self._security.named, asked)
        try:
            who = await self._security.principal(asked)
        except Unauthenticated:
            with self._admitted(f"{NOBODY.name}@{_client(scope)}"):
                raise
        finally:
            scope["query_string"] = without_token(scope.get("query_string", b""))  # in place: servers log what is here
        state["principal"] = who
        return who

    @contextmanager
    def _admitted(self, name: str) -> Iterator[None]:
        wait_s = self._rates.take(name, _now_s())
        if wait_s > 0:
            self._rates.give_back(name)
            raise TooManyRequests(f"more than {self._limits.requests_per_s:g} requests a second came from here", wait_s)
        if self._open[name] >= self._limits.open_max:
            raise TooManyRequests(f"{self._limits.open_max} requests and connections are open from here")
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


class _Line:
    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: GatewayLimits, refused: Refusal) -> None:
        self._scope, self._receive, self._send, self._limits, self._refused = scope, receive, send, limits, refused
        self._until_s = _now_s() + limits.body_s
        self._heard: str = ""  # the type of the newest message
        self._said: list[str] = []
        self._bytes, self._is_whole = 0, False  # of the body
        self.throttle: Callable[[], float] = lambda: 0.0

    async def hear(self) -> Message:
        # Behind a whole body nothing comes but that the client leaves, for which there is no time.
        message = await (self._receive() if self._is_whole else self._in_time())
        self._heard = message["type"]
        if self._heard == "http.request":
            self._bytes += len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
            self._check("body", self._bytes, self._limits.body_bytes_max)
        elif self._heard == "websocket.receive":
            size = len(message.get("bytes") or b"") or len((message.get("text") or "").encode(errors="surrogatepass"))
            self._check("frame", size, self._limits.frame_bytes_max)
            if (wait_s := self.throttle()) > 0:
                await asyncio.sleep(wait_s)  # nothing more is read meanwhile, so the client has to wait, too
        return message

    async def _in_time(self) -> Message:
        if self._scope["type"] != "http":
            return await self._receive()
        length = Headers(scope=self._scope).get("content-length", "")[:DIGITS]
        self._check("body", int(length) if length.isdecimal() else 0, self._limits.body_bytes_max)
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.0, self._until_s - _now_s())):
                return await self._receive()
        except TimeoutError:
            raise TooSlow(f"the body did not arrive within {self._limits.body_s:g} s") from None

    @staticmethod
    def _check(what: str, size: int, most: int) -> None:
        if size > most:
            raise TooLarge(what, f"it has {size} bytes; {most} are the most that is taken")

    async def say(self, message: Message) -> None:
        self._said.append(message["type"])
        del self._said[1:-1]  # the first and the last count, and a stream says many
        if message["type"] == "http.response.start":
            headers = message.setdefault("headers", [])
            known = {bytes(name).lower(): value for name, value in headers}
            message = {**message, "headers": [*headers, *((n, v) for n, v in HEADERS.items() if n not in known)]}
            self._scope["state"][IS_STREAM] = known.get(b"content-type", b"").startswith(STREAM)
        await self._send(message)
        if message.get("more_body") or message["type"] == "websocket.send":
            # Servers let who sends without a pause go on even after the client has left, and nobody else.
            await asyncio.sleep(0)

    @property
    def can_be_refused(self) -> bool:
        return self._scope["type"] == "http" and not self._said

    async def refuse_request(self, problem: Exception) -> None:
        if not self._said:
            await self._refused(problem)(self._scope, self._receive, self.say)
            return
        if isinstance(problem, NOT_NOW):
            warn_once(problem)
        elif status_of(problem) >= 500:  # noqa: PLR2004 - ours
            logger.error("an answer broke off", exc_info=problem)
        raise problem  # the server cuts the line, so that nobody takes the answer for whole

    async def close(self, problem: Exception) -> None:
        code, reason = close_code(problem)
        if "websocket.close" in self._said:
            return
        if not self._said:
            if not self._heard:
                await self._receive()  # the client's wish to connect
            await self._send({"type": "websocket.accept"})
        await self._send({"type": "websocket.close", "code": code, "reason": reason})


def _client(scope: Scope) -> str:
    return str((scope.get("client") or ["?"])[0])


def _now_s() -> float:
    return asyncio.get_running_loop().time()
