"""The processes of a gateway as actors of Ray. They share one port, and the process that started them keeps them alive.

The actors belong to the process that asked for them (`perdure serve`) and end with it, whatever ends it. When one of them dies, the others
go on, and another takes its place at once. A Ray that dies and begins anew gets all of them again.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.actors.gateway_bus import Announcement, GatewayBus
from perdure.actors.ray_world.cluster_record import refuse_if_stopped
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.driver import DRIVER
from perdure.actors.ray_world.identity import refuse_elsewhere
from perdure.actors.ray_world.lifetime import on_own_thread
from perdure.actors.ray_world.named_actors import Handle, Remote, call, create, kill, strike_processes
from perdure.actors.ray_world.os_processes import die_with_parent
from perdure.actors.ray_world.process_telemetry import take_variables
from perdure.actors.ray_world.processes import RayProcess
from perdure.actors.ray_world.ray_connection import cause_of
from perdure.actors.ray_world.ray_internals import LOST
from perdure.actors.ray_world.ray_transport import RayTransport
from perdure.actors.ray_world.supervisors import find_again
from perdure.actors.ray_world.world import RayCluster
from perdure.actors.tasks import awaited
from perdure.ledger import HostUnavailable, NoLongerServed, PerdureError, SupervisorUnreachable
from perdure.policies import backoff_ms

BRIEF_S: Final = 10.0  # a process that dies sooner would likely die again
STOP_S: Final = 15.0  # for one to drain
LINES_MAX: Final = 100  # that wait to be said
LINE_CHARS_MAX: Final = 500
AGAIN_S: Final = 60.0  # until the same is said again
LOOK_S: Final = 1.0  # between two looks at whether the directory was stopped
Say = Callable[[str], None]


class Aloud(logging.Handler):
    """Warnings and errors of a process, each in one line, for the terminal of who started it. The log has them with their tracebacks.
    A line is repeated once a minute at most."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(logging.WARNING)
        self._loop, self._some = loop, asyncio.Event()
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._said_s: dict[str, float] = {}

    # Called on any thread.
    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        line = record.getMessage() + (f": {type(problem).__name__}: {problem}" if problem is not None else "")
        line = " ".join(line.split())[:LINE_CHARS_MAX]
        if record.created - self._said_s.get(line, 0.0) < AGAIN_S:
            return
        if len(self._said_s) >= LINES_MAX:
            self._said_s.clear()
        self._said_s[line] = record.created
        self._lines.append(line)
        self._loop.call_soon_threadsafe(self._some.set)

    async def taken(self) -> list[str]:
        await self._some.wait()
        self._some.clear()
        lines = list(self._lines)
        self._lines.clear()
        return lines


class RayGateway(RayProcess):
    """One process of a gateway."""

    def __init__(self, deployment: Deployment, name: str, plan: object, is_local: bool) -> None:
        die_with_parent()
        refuse_elsewhere(deployment.data, deployment.identity)
        take_variables(deployment)
        super().__init__(deployment, name)
        transport = RayTransport(functools.partial(find_again, deployment), replaces=True)
        self._neighbours = GatewayBus()
        self._server: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._wish: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._aloud = Aloud(asyncio.get_running_loop())
        logging.getLogger().addHandler(self._aloud)
        self._life = awaited(self._live(deployment, plan, transport, is_local))

    async def _live(self, deployment: Deployment, *given: object) -> None:
        strike = functools.partial(_strike, deployment)
        server = deployment.part("gateway", deployment, *given, strike, self._asked, self._neighbours)
        self._server.set_result(server)
        await server.serve()

    # Raises what keeps it from serving.
    async def started(self) -> None:
        started = awaited(self._started())
        await asyncio.wait({started, self._life}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._life.done():
            await self._life

    async def _started(self) -> None:
        await (await asyncio.shield(self._server)).started()

    async def watch(self) -> None:
        await asyncio.shield(self._life)

    def _asked(self, timeout_ms: int) -> None:
        if not self._wish.done():
            self._wish.set_result(timeout_ms)

    async def stop_wish(self) -> int:
        return await asyncio.shield(self._wish)

    async def complaints(self) -> list[str]:
        return await self._aloud.taken()

    async def news(self) -> list[Announcement]:
        return await self._neighbours.news()

    async def hear(self, news: list[Announcement]) -> None:
        await self._neighbours.hear(news)

    async def stop(self) -> None:
        if self._server.done():
            self._server.result().stop()
        await asyncio.wait({self._life})


class Gateways:
    """Keeps some processes of one gateway alive. Its methods are coroutines of one loop.

    Args:
        cluster: where they run.
        plan: what they serve; handed to each of them.
        port: where they serve it; it stands in their names.
        count: how many there are.
        say: is called with a sentence for each thing that happens to them.
    """

    def __init__(self, cluster: RayCluster, plan: object, port: int, count: int, say: Say) -> None:
        self._cluster, self._plan, self._port, self._count, self._say = cluster, plan, port, count, say
        self._handles: dict[int, Handle] = {}
        self._begun = itertools.count()
        self._keeping: list[asyncio.Task[None]] = []
        self._wish: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # Start them, and keep them from then on. Raises what keeps the first of them from serving.
    async def start(self) -> None:
        started = [awaited(self._begin(number)) for number in range(self._count)]
        try:
            for each in started:
                await each
        except BaseException:
            for each in started:
                each.cancel()
            await asyncio.gather(*started, return_exceptions=True)
            for handle in self._handles.values():
                kill(handle)
            raise
        self._keeping = [awaited(self._keep(number)) for number in range(self._count)]

    # Wait for ever; raises if keeping them fails.
    async def kept(self) -> None:
        await asyncio.gather(*self._keeping)

    # Wait until somebody asks one of them for the directory to be stopped, and tell how many ms work may go on before.
    async def stop_wish(self) -> int:
        return await asyncio.shield(self._wish)

    async def stop(self) -> None:
        for each in self._keeping:
            each.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*map(self._stop, list(self._handles)))

    async def _begin(self, number: int) -> None:
        # A call of Ray's blocks, and for ever if that Ray ends meanwhile.
        creating = on_own_thread(functools.partial(self._create, number))
        handle = self._handles[number] = await asyncio.wrap_future(DRIVER.living().bound(creating))
        try:
            await self._answer(call(handle, "started"))
        except RayError as problem:
            kill(handle)
            if isinstance(problem, RayTaskError) and isinstance(problem.cause, PerdureError):
                raise problem.cause from None
            raise HostUnavailable(f"gateway {number} cannot be started: {cause_of(problem)}") from problem

    async def _keep(self, number: int) -> None:
        clock, brief = asyncio.get_running_loop().time, 0
        while True:
            began_s = clock()
            why = await self._end_of(number)
            brief = brief + 1 if clock() - began_s < BRIEF_S else 0
            self._say(f"gateway {number} has ended: {why}")
            await asyncio.sleep(backoff_ms(brief - 1, 200, 5_000) / 1000 if brief > 1 else 0)
            try:
                await self._begin(number)
            except (PerdureError, ValueError) as problem:
                self._say(str(problem))

    async def _end_of(self, number: int) -> str:
        beside = [awaited(each(number)) for each in (self._await_wish, self._carry_news, self._repeat_complaints)]
        try:
            await self._answer(call(self._handles[number], "watch"))
        except (RayError, SupervisorUnreachable) as problem:
            said = cause_of(problem)
            return "its process ended without a word, as by SIGKILL" if LOST in said else said
        finally:
            for each in beside:
                each.cancel()
        return "it was stopped"

    # Waits until somebody else has stopped the directory (`perdure stop`), and returns that in words.
    async def stopped(self) -> str:
        cluster = self._cluster
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                refuse_if_stopped(cluster.deployment.data, cluster.address)
            except NoLongerServed as problem:
                return problem.problem
            except SupervisorUnreachable:
                continue  # its Ray begins anew

    async def _repeat_complaints(self, number: int) -> None:
        with suppress(RayError, SupervisorUnreachable):  # it has ended, which `_keep` says
            while True:
                for line in await self._answer(call(self._handles[number], "complaints")):
                    self._say(f"gateway {number}: {line}")

    async def _await_wish(self, number: int) -> None:
        with suppress(RayError, SupervisorUnreachable):  # the same
            timeout_ms = await self._answer(call(self._handles[number], "stop_wish"))
            if not self._wish.done():
                self._wish.set_result(timeout_ms)

    async def _carry_news(self, number: int) -> None:
        with suppress(RayError, SupervisorUnreachable):  # the same
            while True:
                news = await self._answer(call(self._handles[number], "news"))
                others = [handle for each, handle in self._handles.items() if each != number]
                heard = [self._answer(call(other, "hear", news)) for other in others]
                await asyncio.gather(*heard, return_exceptions=True)  # one that has ended had nothing to hear

    async def _stop(self, number: int) -> None:
        handle = self._handles.pop(number)
        try:
            async with asyncio.timeout(STOP_S):
                await self._answer(call(handle, "stop"))
        except (RayError, SupervisorUnreachable, TimeoutError) as problem:
            self._say(f"gateway {number} did not stop by itself: {cause_of(problem)}")
        kill(handle)

    def _create(self, number: int) -> Handle:
        deployment = self._cluster.deployment
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # Not detached: it ends with this process, whatever ends that. `_keep` begins it again, so Ray does not.
        options: dict[str, object] = {"lifetime": None, "max_restarts": 0, "num_cpus": 0, "scheduling_strategy": here}
        name = f"gateway-{self._port}-{number}"  # of its log
        options |= {"name": deployment.gateway(self._port, next(self._begun))}
        return create(RayGateway, deployment, name, self._plan, self._cluster.is_local, **options)

    @staticmethod
    async def _answer(reference: Remote) -> Remote:
        return await asyncio.wrap_future(DRIVER.living().bound(reference.future()))


async def _strike(deployment: Deployment, name: str, pid: int) -> str | None:
    struck = await asyncio.to_thread(strike_processes, deployment, {name: pid})
    return struck[0].way if struck else None
