"""A supervisor's and a host's process: what stands around the plain `Supervisor` and `Host` when they live in a real one.

A process begins to serve by itself when it is made, and its *life* is one task. When the life is over, so is the process: the
operating system cleans up more thoroughly than we could.
"""

from __future__ import annotations

import asyncio
import gc
import os
import traceback
from typing import Any, Final

from perdure.actors.ports import Courier, Fleet, World
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.os_processes import ProcessInfo, this_process_info
from perdure.actors.tasks import awaited
from perdure.ledger import LedgerError, SupervisorUnreachable

BREATH_S: Final = 1.0  # a life that ends sooner is not followed at once by the next, which would end the same way
FAREWELL_S: Final = 0.2  # for the reason to go out before the process does


class Process:
    """What both kinds have in common."""

    _life: asyncio.Task[Any]

    def __init__(self) -> None:
        gc.freeze()  # what was imported stays for ever; a busy process makes few cycles, and looking for them costs a quarter of its time
        # Small generations, for nobody is answered meanwhile: with large ones calls waited 0.4 s beside a crowd of tasks.
        gc.set_threshold(20_000, 5, 1_000)

    async def info(self) -> ProcessInfo:
        """Who this is. Ray answers it on a loop of its own, even while the life is busy."""
        return this_process_info()

    async def stop(self) -> None:
        """Cancel the life and wait until it has put everything away."""
        self._life.cancel()
        await asyncio.wait({self._life})


def _error_of(life: asyncio.Task[Any]) -> BaseException | None:
    return None if life.cancelled() else life.exception()


def _leave(delay_s: float, code: int) -> None:
    asyncio.get_running_loop().call_later(max(0.0, delay_s), os._exit, code)


class SupervisorProcess(Process):
    """A supervisor with its store. Ray makes the process anew after each death.

    Every error ends the process but one: a ledger that refuses to open. That is told to whoever asks, and tried again, once a second.
    """

    def __init__(self, deployment: Deployment, world: World, fleet: Fleet) -> None:
        super().__init__()
        self._deployment, self._world, self._fleet = deployment, world, fleet
        self._proven = False
        self._begin()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._began_s = loop.time()
        self._made: asyncio.Future[Any] = loop.create_future()
        self._life = awaited(self._live())
        self._life.add_done_callback(self._ended)

    async def _live(self) -> None:
        deployment, threads = self._deployment, self._world.threads
        store = await threads.commit(lambda: deployment.part("store", deployment.ledger_dir))
        try:
            self._supervisor = deployment.part(
                "supervisor", self._world, self._fleet, store, deployment.cabinet(), deployment.limits
            )
            self._made.set_result(None)
            await self._supervisor.serve()
        except (LedgerError, asyncio.CancelledError):
            await threads.commit(store.close)
            raise
        await threads.commit(store.close)

    def _ended(self, life: asyncio.Task[Any]) -> None:
        error = _error_of(life)
        if error is None:
            return
        traceback.print_exception(error)
        if self._proven or not isinstance(error, LedgerError):
            _leave(self._began_s + BREATH_S - asyncio.get_running_loop().time(), 1)

    async def exchange(self, frame: bytes) -> bytes:
        """Pass a frame on. Until this life has answered once, its end is an answer too."""
        if self._proven:
            answer: bytes = await self._supervisor.exchange(frame)
            return answer
        loop = asyncio.get_running_loop()
        if self._life.done() and _error_of(self._life) is not None and loop.time() > self._began_s + BREATH_S:
            self._begin()
        life, first = self._life, awaited(self._first_exchange(frame))
        await asyncio.wait({first, life}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            first.cancel()
            raise _error_of(life) or SupervisorUnreachable("the supervisor was stopped")
        self._proven = True
        return first.result()

    async def _first_exchange(self, frame: bytes) -> bytes:
        await asyncio.shield(self._made)
        answer: bytes = await self._supervisor.exchange(frame)
        return answer


class HostProcess(Process):
    """A host. Its process ends with it."""

    def __init__(self, deployment: Deployment, world: World, courier: Courier, host_id: str) -> None:
        super().__init__()
        self._life = awaited(self._live(deployment, world, courier, host_id))
        self._life.add_done_callback(self._ended)

    async def _live(self, deployment: Deployment, world: World, courier: Courier, host_id: str) -> str:
        place = (deployment.code_dir, deployment.package)
        host = deployment.part("host", world, courier, deployment.cabinet(), host_id, deployment.limits, *place)
        return str(await host.serve())

    def _ended(self, life: asyncio.Task[Any]) -> None:
        error = _error_of(life)
        if error is not None:
            traceback.print_exception(error)
        _leave(FAREWELL_S, 0 if error is None else 1)

    async def watch(self) -> str:
        """Wait until the host ends and say why."""
        return str(await asyncio.shield(self._life))
