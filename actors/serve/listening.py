"""A server of one gateway's application on one socket: uvicorn, as `perdure serve` has it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from perdure.actors.gateway.limits import GatewayLimits
from perdure.actors.serve.lines import HttpLine, lines
from perdure.actors.serve.plan import ServePlan
from perdure.ledger import BadRequest

BACKLOG: Final = 2048
TICK_S: Final = 1.0
"""Between two looks at the date, which stands in each answer."""


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
        """Begin."""
        await super().startup(sockets)
        self.is_up.set()

    @property
    def should_exit(self) -> bool:
        """Whether it ends. Any thread may say so, and a handler of signals."""
        return self._exits

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._exits = value
        if value and self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_over.set)

    async def main_loop(self) -> None:
        """Serve until it is to end. uvicorn itself would look for that ten times a second."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._is_over.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain."""
        for each in self.servers:
            each.close()
        for line in list(self.server_state.connections):
            if isinstance(line, HttpLine):
                line.end_stream()
        await super().shutdown(sockets)


def check_certificate(certfile: str, keyfile: str) -> None:
    """Raises `BadRequest` if these are no certificate and its key."""
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
    """What OpenSSL would ask a person for. Later there is none: other processes serve, and they are started again by themselves."""
    raise BadRequest("keyfile", "the key is encrypted; give one that is not, in a file that nobody else can read")


def bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """A socket that is bound to this address. Raises `BadRequest` if it cannot be.

    Args:
        host: a name or an address.
        port: its port; 0 for a free one.
        shared: other processes may be bound to it, too.
    """
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = known[0]
        # Only to connections of a socket that names its protocol does asyncio give TCP_NODELAY; without, each answer waits 40 ms.
        found = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as problem:
        raise BadRequest("host", f"{host} cannot be listened on: {problem.strerror or problem}") from problem
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(address)
    except OSError as problem:
        found.close()
        raise BadRequest("port", f"{host}:{port} cannot be listened on: {problem.strerror}") from problem
    return found
