"""The processes of a supervisor and of a host: what surrounds the plain `Supervisor` and `Host`.

A process begins to serve as soon as it is created. Its life is one task, and the process exits when that task ends.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Callable
from typing import ClassVar, Final

from perdure.actors.ports import Courier, Fleet, Pulse, World
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.identity import refuse_elsewhere, unlike
from perdure.actors.ray_world.last_words import EXIT, end_on_sigterm, keep_last_words
from perdure.actors.ray_world.loop_watch import LoopWatch
from perdure.actors.ray_world.os_processes import ProcessId, ProcessInfo, strike, this_process, this_process_info
from perdure.actors.ray_world.process_log import ProcessLog, listen
from perdure.actors.ray_world.turnstile import Turnstile
from perdure.actors.tasks import awaited
from perdure.actors.telemetry.telemetry import OFF, Telemetry
from perdure.actors.threads import inherit_contexts
from perdure.ledger import DirectoryElsewhere, LedgerError, SupervisorUnreachable

BREATH_S: Final = 1.0  # the least time between two lives, of which the second would fail like the first
SUPERVISOR: Final = "supervisor"  # the name of its log
FAREWELL_S: Final = 0.2  # for the reason to be sent before the process exits
log = logging.getLogger("perdure.process")


class Process:
    """What supervisors and hosts have in common."""

    # Small ones, because turns wait while the collector runs: 50 ms with 40,000, for the supervisor.
    GENERATIONS: ClassVar = (5_000, 5, 4_000)

    _life: asyncio.Task[object]

    def __init__(self, deployment: Deployment, name: str, telemetry: Telemetry = OFF) -> None:
        end_on_sigterm()
        self._telemetry = telemetry
        inherit_contexts()
        self._deployment, self._name = deployment, name
        self._finish_log: Callable[[], None] | None = None
        if not unlike(deployment.data, deployment.identity):
            self._begin_log()
        gc.freeze()  # imported modules are never collected; searching them for cycles took a quarter of a busy process's time
        gc.set_threshold(*self.GENERATIONS)

    def _begin_log(self) -> None:
        deployment = self._deployment
        self._finish_log = listen(ProcessLog(deployment.logs_dir, self._name, deployment.limits.logs_bytes_max))
        here = this_process_info()
        log.info("process %d on %s begins", here.pid, here.node)

    async def info(self) -> ProcessInfo:
        """Which process this is. It is answered on an event loop of its own, even while the life is busy."""
        return this_process_info()

    async def die(self, process: ProcessId) -> bool:
        """End by `SIGKILL`, if this is the process that is meant. Returns False if it is another one."""
        return strike(this_process()) if this_process() == ProcessId(*process) else False

    async def stop(self) -> None:
        """Cancel the life and wait until it has closed everything."""
        self._life.cancel()
        await asyncio.wait({self._life})
        await self._close_telemetry()

    async def _close_telemetry(self) -> None:
        """Send what waits for the collector, for a moment at most."""
        if self._telemetry.is_on:
            await asyncio.to_thread(self._telemetry.close)


def _error_of(life: asyncio.Task[object]) -> BaseException | None:
    return None if life.cancelled() else life.exception()


def _leave(delay_s: float, code: int) -> None:
    asyncio.get_running_loop().call_later(max(0.0, delay_s), EXIT, code)


class SupervisorProcess(Process):
    """A supervisor with its store. Ray restarts the process when it dies.

    Every error ends the process, except for a ledger that cannot be opened: callers get that error, and at most once a second their
    calls begin another life.
    """

    def __init__(self, deployment: Deployment, world: World, fleet: Fleet) -> None:
        super().__init__(deployment, SUPERVISOR, world.telemetry)
        self._world, self._fleet = world, fleet
        self._proven = False
        self._begin()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._began_s = loop.time()
        self._made: asyncio.Future[None] = loop.create_future()
        self._life = awaited(self._live())
        self._life.add_done_callback(self._ended)

    async def _live(self) -> None:
        deployment, threads = self._deployment, self._world.threads
        await threads.commit(lambda: refuse_elsewhere(deployment.data, deployment.identity))
        if self._finish_log is None:
            self._begin_log()
        await threads.commit(deployment.check_ledger)
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

    def _ended(self, life: asyncio.Task[object]) -> None:
        error = _error_of(life)
        if error is None:
            return
        traceback.print_exception(error)
        if self._proven or not isinstance(error, LedgerError):
            _leave(self._began_s + BREATH_S - asyncio.get_running_loop().time(), 1)

    async def home(self) -> tuple[str, bool]:
        """Which directory it serves, and whether it could not begin because its machine does not see that."""
        has_failed = self._life.done() and isinstance(_error_of(self._life), DirectoryElsewhere)
        return self._deployment.identity, has_failed

    async def exchange(self, frame: bytes) -> bytes:
        """Pass a frame on. Until this life has answered its first call, its end is an answer too."""
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
    """A host. The process exits with it."""

    # The children of a crowd are gone before so many objects are made, so they are not searched: that took a tenth of a host's time.
    GENERATIONS: ClassVar = (40_000, 2, 4_000)  # and 25 ms at most

    def __init__(self, deployment: Deployment, world: World, courier: Courier, host_id: str) -> None:
        super().__init__(deployment, host_id, world.telemetry)
        self._watch = LoopWatch()
        keep_last_words(deployment.last_words(host_id))
        self._life = awaited(self._live(deployment, world._replace(turns=Turnstile()), courier, host_id))
        self._life.add_done_callback(self._ended)

    async def _live(self, deployment: Deployment, world: World, courier: Courier, host_id: str) -> str:
        place = (deployment.code_dir, deployment.package)
        self._host = deployment.part("host", world, courier, deployment.cabinet(), host_id, deployment.limits, *place)
        return str(await self._host.serve())

    async def look(self, frame: bytes) -> bytes:
        """Pass a question for an agent on. Nobody knows of this host before it serves."""
        answer: bytes = await self._host.look(frame)
        return answer

    def _ended(self, life: asyncio.Task[object]) -> None:
        error = _error_of(life)
        if error is not None:
            traceback.print_exception(error)
        if self._finish_log is not None:
            self._finish_log()
        code = 0 if error is None else 1
        if self._telemetry.is_on:
            awaited(self._close_telemetry()).add_done_callback(lambda _: _leave(FAREWELL_S, code))
        else:
            _leave(FAREWELL_S, code)

    async def pulse(self) -> Pulse:
        """How the event loop is. It is answered on another one."""
        return await self._watch.pulse()

    async def watch(self) -> str:
        """Wait until the host ends, and return why."""
        return str(await asyncio.shield(self._life))
