"""The client of a gateway that starts or joins a cluster. It brings Ray, which a gateway with an opener of its own does without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.actors.gateway.client_connection import Opener, served
from perdure.actors.ports import Transport
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.system import system_world
from perdure.actors.ray_world.world import RayCluster
from perdure.actors.runtime.client import Client
from perdure.actors.runtime.packing import Packer
from perdure.policies import Limits


@asynccontextmanager
async def client_of(
    deployment: Deployment, transport: Transport, limits: Limits, *, is_local: bool
) -> AsyncGenerator[Client, None]:
    # `is_local`: the hosts find the code of agents where this process does.
    packer = Packer(deployment.code_dir, sources_only=is_local)
    async with served(Client(system_world(), transport, limits, deployment.code_dir, packer)) as client:
        yield client


def joining(data: str | Path, *, address: str | None, take_over: bool = False) -> Opener:
    # Raises what `Runtime.open` raises.
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Client, None]:
        cluster = await asyncio.to_thread(RayCluster.start, Path(data), address=address, take_over=take_over)
        try:
            async with client_of(
                cluster.deployment, cluster.transport(), Limits(), is_local=cluster.is_local
            ) as client:
                yield client
        finally:
            await asyncio.to_thread(cluster.close)

    return opened
