"""The gateway as a server: uvicorn, with what a server that strangers can reach needs beside it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import uvicorn

from perdure.actors.gateway.connection import served
from perdure.actors.ports import Courier
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.system import system_world
from perdure.actors.runtime.client import Client
from perdure.actors.runtime.packing import Packer
from perdure.actors.serve.plan import ServePlan
from perdure.ledger import BadRequest

BACKLOG: Final = 2048
DRAIN_S: Final = 5  # for answers that are under way to end


class GatewayServer:
    """One process of a gateway. Several may share a port: the kernel spreads the connections over them.

    Args:
        deployment: the data directory.
        plan: what was asked for.
        courier: the way to its supervisor.
        is_local: whether the hosts find the code of agents where this process does.
    """

    def __init__(self, deployment: Deployment, plan: ServePlan, courier: Courier, is_local: bool) -> None:
        self._plan, self._deployment, self._courier, self._is_local = plan, deployment, courier, is_local
        self._app = plan.application(opener=self._opened)
        self._server = _Server(
            uvicorn.Config(
                self._app,
                ws="websockets-sansio",
                ws_per_message_deflate=False,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Client, None]:
        deployment = self._deployment
        packer = Packer(deployment.code_dir, sources_only=self._is_local)
        client = Client(system_world(), self._courier, deployment.limits, deployment.code_dir, packer)
        with suppress(BadRequest):  # then whoever asks for such an agent is told
            client.offer_code()
        async with served(client):
            yield client

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._app.backend.client()  # so that whoever comes first waits for nothing
        await self._server.serve([bound(self._plan.host, self._plan.port)])

    async def started(self) -> None:
        """Wait until connections are accepted."""
        await self._server.is_up.wait()

    def stop(self) -> None:
        """Accept nothing more, and let `serve` end."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """A socket that is bound to this address. Raises `BadRequest` if it cannot be.

    Args:
        host: a name or an address.
        port: its port; 0 for a free one.
        shared: other processes may be bound to it, too.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        found = socket.socket(family, kind)
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
