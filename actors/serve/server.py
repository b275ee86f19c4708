"""One process of a gateway: its application, a client of the runtime, and a server on the port that it shares with others.

It brings Ray, which `listening` does without.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial

from perdure.actors.gateway.backend import Stopper, Striker
from perdure.actors.gateway.joining import client_of
from perdure.actors.gateway_bus import GatewayBus
from perdure.actors.ports import Transport
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.serve.app import ServePlan
from perdure.actors.serve.listening import Server, bound
from perdure.ledger import LedgerError, SupervisorUnreachable


class GatewayServer:
    """Serves a plan. Several processes may do so on one port: the kernel spreads the connections over them.

    Args:
        deployment: the data directory.
        plan: what was asked for.
        transport: the way to its supervisor.
        is_local: whether the hosts find the code of agents where this process does.
        striker: ends processes of the directory.
        stopper: has the directory stopped.
        neighbours: the other processes on the port.
    """

    def __init__(
        self,
        deployment: Deployment,
        plan: ServePlan,
        transport: Transport,
        is_local: bool,
        striker: Striker | None = None,
        stopper: Stopper | None = None,
        neighbours: GatewayBus | None = None,
    ) -> None:
        self._plan = plan
        opener = partial(client_of, deployment, transport, deployment.limits, is_local=is_local)
        self._app = plan.application(
            opener=opener, striker=striker, stopper=stopper, data=deployment.data, neighbours=neighbours
        )
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # or strangers would fill the log
        self._server = Server(self._app, self._app.limits, plan)

    async def serve(self) -> None:
        with suppress(LedgerError, SupervisorUnreachable):  # then whoever asks is told, until it can be asked
            await self._app.backend.client()  # so that whoever comes first waits for nothing
        await self._server.serve([bound(self._plan.host, self._plan.port)])

    async def started(self) -> None:
        await self._server.is_up.wait()

    def stop(self) -> None:
        self._server.should_exit = True
