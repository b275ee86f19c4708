"""A server of one gateway's application on one socket: uvicorn, as `perdure serve` has it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from perdure.actors.gateway.problems import AGAIN
from perdure.actors.gateway.rate_limits import GatewayLimits
from perdure.actors.gateway.security import resolved
from perdure.actors.serve.app import ServePlan
from perdure.actors.serve.guard import IS_STREAM
from perdure.ledger import BadRequest

BACKLOG: Final = 2048
TICK_S: Final = 1.0
"""Between two looks at the date, which stands in each answer."""


# ---------------------------------------------------------------- lines
# Connections as the server has them: uvicorn's, with patience that ends.
#
# uvicorn waits for ever for a client that says nothing, that sends its headers a byte at a time, or that takes nothing of what it is sent.


CLOSE_S: Final = 20.0  # for a client that took nothing to take its leave


class HttpLine(H11Protocol):
    """A connection that speaks HTTP."""

    limits: GatewayLimits

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections_max:
            transport.abort()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        # The rest of its request, if there is any, gets as long as a head.
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._await_head()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # The connection is that of another protocol from now on.
        self._stop_timers()
        super().handle_websocket_upgrade(event)

    def _await_head(self) -> None:
        # While a request is answered none is awaited. Bytes of a head that is awaited give it no more time.
        is_at_work = self.cycle is not None and not self.cycle.response_complete
        if is_at_work or self.conn.our_state is h11.SWITCHED_PROTOCOL or self.transport.get_protocol() is not self:
            self._cancel("_head_timer")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_s, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel("_stall_timer")

    def end_stream(self) -> None:
        # Its client connects again by itself. Other answers get a moment to end.
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and cycle.scope.get("state", {}).get(IS_STREAM):
            self.transport.close()

    def _stop_timers(self) -> None:
        self._cancel("_head_timer")
        self._cancel("_stall_timer")

    def _cancel(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        setattr(self, name, None)
        if timer is not None:
            timer.cancel()


class SocketLine(WebSocketsSansIOProtocol):
    """A WebSocket. A client that takes nothing is closed by a code after which it connects again."""

    limits: GatewayLimits
    _stall_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stall_s, self._stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forgive()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forgive()
        super().connection_lost(exc)

    def _stalled(self) -> None:
        if not self.close_sent and self.handshake_complete:
            self.conn.send_close(AGAIN, "nothing was taken for a while")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": AGAIN})
        self.disconnected = True
        self.writable.set()  # whoever sends something has nobody left to send it to
        self.transport.close()
        self._stall_timer = self.loop.call_later(CLOSE_S, self.transport.abort)

    def _forgive(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def lines(limits: GatewayLimits) -> dict[str, Any]:
    return {
        "http": type("HttpLine", (HttpLine,), {"limits": limits}),
        "ws": type("SocketLine", (SocketLine,), {"limits": limits}),
        "h11_max_incomplete_event_size": limits.head_bytes_max,
        "ws_max_size": limits.frame_bytes_max,
        "ws_ping_interval": limits.ping_s,
        "ws_ping_timeout": limits.ping_s,
        "ws_per_message_deflate": False,  # it costs 300 KB for each connection
        "timeout_keep_alive": limits.idle_s,
        "timeout_graceful_shutdown": limits.drain_s,
    }


# ---------------------------------------------------------------- listening


class Server(uvicorn.Server):
    """Serves an application as a plan says. `is_up` is set once connections are accepted.

    At its end it accepts nothing more, breaks event streams off, closes WebSockets by 1012, and gives other answers a moment to end.
    """

    def __init__(self, app: ASGIApp, limits: GatewayLimits, plan: ServePlan) -> None:
        self.is_up = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                proxy_headers=bool(plan.forwarded_allow_ips),
                forwarded_allow_ips=plan.forwarded_allow_ips or "127.0.0.1",
                ssl_certfile=plan.certfile or None,
                ssl_keyfile=plan.keyfile or None,
                **lines(limits),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @property
    def should_exit(self) -> bool:
        # A property, so that whoever sets it, in any thread or in a handler of signals, wakes `main_loop`.
        return self._exits

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._exits = value
        if value and self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_over.set)

    async def main_loop(self) -> None:
        # uvicorn itself would look ten times a second whether it is to end.
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._is_over.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self.servers:
            each.close()
        for line in list(self.server_state.connections):
            if isinstance(line, HttpLine):
                line.end_stream()
        await super().shutdown(sockets)


def check_certificate(certfile: str, keyfile: str) -> None:
    if keyfile and not certfile:
        raise BadRequest("certfile", "there is a key, and no certificate")
    if not certfile:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile or None, _pass_phrase)
    except (OSError, ssl.SSLError) as problem:
        told = problem.strerror if isinstance(problem, FileNotFoundError) else problem
        raise BadRequest("certfile", f"{certfile} is no certificate with its key: {told}") from problem


def _pass_phrase() -> str:
    # OpenSSL would ask a person. Later there is none: other processes serve, and they are started again by themselves.
    raise BadRequest("keyfile", "the key is encrypted; give one that is not, in a file that nobody else can read")


def bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """A socket that is bound to this address. Raises `BadRequest` if it cannot be.

    Args:
        host: a name or an address.
        port: its port; 0 for a free one.
        shared: other processes may be bound to it, too.
    """
    family, kind, _, _, address = resolved(host, port)[0]
    try:
        # Only to connections of a socket that names its protocol does asyncio give TCP_NODELAY; without, each answer waits 40 ms.
        found = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as problem:
        raise BadRequest("host", f"{host} cannot be listened on: {problem.strerror or problem}") from problem
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:  # by the kernel: no process hands connections on, so the death of one is no matter to the others
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(address)
    except OSError as problem:
        found.close()
        raise BadRequest("port", f"{host}:{port} cannot be listened on: {problem.strerror}") from problem
    return found
