"""The supervisor's hosts as real processes: created in the background, watched until they have ended, adopted after a restart.

A host counts as dead only when its process cannot write any more. So whatever reported its end, its process is looked for, and killed if it
still runs and is within reach.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from perdure.actors.code.author_call import tried
from perdure.actors.ports import PoolSpec, Pulse
from perdure.actors.ray_world.os_processes import ProcessId, ProcessInfo, cpu_s, is_alive, kill, wait_until_gone
from perdure.actors.tasks import Tasks, awaited
from perdure.ledger import NoSuchNode
from perdure.policies import NodeDrain

log = logging.getLogger("perdure.supervisor")
H = TypeVar("H")  # what stands for an actor

DEATH_S: Final = 2.0  # for a process that is said to have ended to be gone, before it is killed
PULSE_S: Final = 1.0  # for a process to say how it is
MUTE_BUT_BUSY: Final = Pulse(-1, method="code that lets no other thread run")
GONE_S: Final = 10.0  # for one that was killed
AGAIN_S: Final = 0.2  # until a host that did not answer is asked again
LOOK_S: Final = 10.0  # between two looks at the nodes
NONE_TO_BRING: Final = ", and has none to bring"
VERDICT_S: Final = (
    5.0  # between two looks at what the autoscaler says of a host that waits; it looks around itself as often
)
DRAINS_S: Final = 2.0  # between two looks at those that drain
SURVIVED_S: Final = (
    0.2  # after a life was taken over, until the next one's process is started: its first answers come before
)
QUIET_S: Final = (
    1.0  # as above, until the nodes are asked whether they see the directory: each begins a process for its answer
)
SPARE_S: Final = (
    1.0  # after a host has begun, until an idle process is started: not while more of them are being created
)


class HostActorDead(Exception):
    """The host's actor is dead, or will never live; the argument says why."""


class HostSilent(Exception):
    """The host did not answer. It may still be alive."""


class Actors(Protocol[H]):
    """What the fleet needs of the actor system. What is not `async` blocks. `create` raises `HostUnavailable`, and `shortage`
    `NoSuchNode`; `info`, `pulse` and `watch`
    raise `HostActorDead` or `HostSilent`."""

    elsewhere: dict[str, str]  # `Fleet.elsewhere`, which `look_around` keeps up to date

    def create(self, host_id: str, spec: PoolSpec) -> H: ...

    def look_around(self) -> None: ...

    def drains(self) -> dict[str, NodeDrain]: ...

    def shortage(self, spec: PoolSpec) -> str: ...  # what such a host has to wait for, in words

    def is_in_vain(self, spec: PoolSpec) -> bool: ...  # whether no autoscaler can give what such a host waits for

    def hosts(self) -> dict[str, PoolSpec]: ...  # those that live or are starting

    def find(self, host_id: str, spec: PoolSpec) -> H | None: ...

    def kill(self, handle: H) -> None:
        """End a host, or its creation. Idempotent."""

    def bare_nodes(self, hosts: Sequence[str]) -> dict[str, str]: ...

    def read_logs(self, place: str, asked: Sequence[object]) -> bytes | None: ...

    async def info(self, host_id: str, spec: PoolSpec, handle: H) -> ProcessInfo: ...

    async def pulse(self, handle: H) -> Pulse: ...

    async def watch(self, handle: H) -> str: ...

    def in_words(self, host_id: str, cause: str) -> str: ...  # why a host died, better than `cause` if possible

    async def start_ahead(self) -> None: ...  # an idle process for the next host or supervisor, if there is none


# One host. `end` is done when its process is gone, and says why.
class _Watched(Generic[H]):
    def __init__(
        self, actors: Actors[H], handle: H, host_id: str, spec: PoolSpec, begun: Callable[[], None] = lambda: None
    ) -> None:
        self._actors, self._handle, self._host_id, self._spec, self._begun = actors, handle, host_id, spec, begun
        self._near: list[ProcessId] = []  # its process, if that is on this machine
        self._computed_s = 0.0
        self._has_begun = False
        self.refusal = ""  # why it can never be had
        self.end = awaited(self._watch())

    @property
    def is_coming(self) -> bool:
        return not (self._has_begun or self.end.done())

    async def _watch(self) -> str:
        cause = ""
        while not cause:
            try:
                self._near = (await self._actors.info(self._host_id, self._spec, self._handle)).here
                if not self._has_begun:
                    self._has_begun = True
                    self._begun()
                cause = await self._actors.watch(self._handle) or "it ended"
            except HostSilent:
                await asyncio.sleep(AGAIN_S)
            except HostActorDead as gone:
                cause = str(gone) or "it died"
        # Ray may have lost sight of a process that still writes.
        if not self._near or is_alive(self._near[0]):
            await asyncio.to_thread(self._bury)
        return await asyncio.to_thread(self._actors.in_words, self._host_id, cause)

    # Code that keeps Python's lock lets no thread beside it answer. Then its processor time tells whether it is
    # at work.
    async def pulse(self) -> Pulse | None:
        try:
            async with asyncio.timeout(PULSE_S):
                return await self._actors.pulse(self._handle)
        except (TimeoutError, HostSilent, HostActorDead):
            before_s, self._computed_s = self._computed_s, cpu_s(process.pid for process in self._near)
            return MUTE_BUT_BUSY if 0 < before_s < self._computed_s else None

    def _bury(self) -> None:
        self._actors.kill(self._handle)
        left = wait_until_gone(self._near, DEATH_S)
        kill(left)
        wait_until_gone(left, GONE_S)

    def kill(self) -> None:
        kill(self._near)
        self._actors.kill(self._handle)


class ActorFleet(Generic[H]):
    """The port `Fleet`, on actors."""

    elsewhere: dict[str, str]
    draining: dict[str, NodeDrain]

    def __init__(self, actors: Actors[H]) -> None:
        self._actors = actors
        self._hosts: dict[str, _Watched[H]] = {}
        self._may_lack = False
        self._spare = Tasks("the spare process", lambda _problem: None)  # it only saves time: a failure is logged
        self.elsewhere, self.draining = actors.elsewhere, dict[str, NodeDrain]()
        self._in_vain: dict[PoolSpec, str] = {}  # told of the hosts that are tried next, too
        self._verdicts = Tasks("what an autoscaler says", lambda _problem: None)  # the host waits on
        self._looks = Tasks("the look at the nodes", lambda _problem: None)  # the next one comes in a while
        self._looks.start(self._look_for_drains())

    async def _look_around(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        while True:
            _, problem = await tried(asyncio.to_thread(self._actors.look_around))
            if problem is not None:
                log.warning("which nodes see the directory could not be looked at: %s", problem)
            await asyncio.sleep(LOOK_S)
            self._replenish(0.0)  # Ray may have ended it, or given it to another program

    async def _look_for_drains(self) -> None:
        while True:
            found, problem = await tried(asyncio.to_thread(self._actors.drains))
            if problem is not None:
                log.warning("which nodes drain could not be looked at: %s", problem)
            elif found is not None and found != self.draining:
                self.draining.clear()
                self.draining.update(found)
            await asyncio.sleep(DRAINS_S)

    def _replenish(self, pause_s: float) -> None:
        self._may_lack = True
        if not self._spare:
            self._spare.start(self._start_ahead(pause_s))

    async def _start_ahead(self, pause_s: float) -> None:
        while self._may_lack:
            await asyncio.sleep(pause_s)
            self._may_lack = False
            await self._actors.start_ahead()

    # What it waits for is told at once; that it waits in vain, by its death.
    async def spawn(self, host_id: str, spec: PoolSpec) -> str:
        waits_for = await asyncio.to_thread(self._actors.shortage, spec)
        handle = await asyncio.to_thread(self._actors.create, host_id, spec)
        self._hosts[host_id] = _Watched(self._actors, handle, host_id, spec, lambda: self._replenish(SPARE_S))
        if not waits_for:
            self._in_vain.pop(spec, None)
        else:
            waits_for = self._in_vain.get(spec, waits_for)
            self._verdicts.start(self._judge(host_id, spec, waits_for))
        return waits_for

    # What nothing will ever give is told as soon as it is known: by the autoscaler when it has looked around.
    async def _judge(self, host_id: str, spec: PoolSpec, waits_for: str) -> None:
        host = self._hosts[host_id]
        while host.is_coming:
            await asyncio.sleep(VERDICT_S)
            in_vain, problem = await tried(asyncio.to_thread(self._actors.is_in_vain, spec))
            if problem is not None:
                log.warning("the autoscaler could not be asked about a host: %s", problem)
            if in_vain and host.is_coming:
                host.refusal = self._in_vain[spec] = f"{waits_for.removesuffix(NONE_TO_BRING)}{NONE_TO_BRING}"
                await self.kill(host_id)

    async def survivors(self) -> dict[str, PoolSpec]:
        found = {}
        for host_id, spec in (await asyncio.to_thread(self._actors.hosts)).items():
            handle = await asyncio.to_thread(self._actors.find, host_id, spec)
            if handle is not None:
                self._hosts[host_id] = _Watched(self._actors, handle, host_id, spec)
                found[host_id] = spec
        self._replenish(SURVIVED_S if found else SPARE_S)
        self._looks.start(self._look_around(QUIET_S if found else 0.0))
        return found

    async def death(self, host_id: str) -> str:
        host = self._hosts.get(host_id)
        cause = await asyncio.shield(host.end) if host is not None else "it is unknown"
        if host is not None and host.refusal:
            raise NoSuchNode(host.refusal)
        return cause

    async def bare_nodes(self, hosts: Sequence[str]) -> dict[str, str]:
        return await asyncio.to_thread(self._actors.bare_nodes, hosts)

    async def read_logs(self, place: str, asked: Sequence[object]) -> bytes | None:
        return await asyncio.to_thread(self._actors.read_logs, place, asked)

    async def pulse(self, host_id: str) -> Pulse | None:
        host = self._hosts.get(host_id)
        return await host.pulse() if host is not None else None

    async def kill(self, host_id: str) -> None:
        host = self._hosts.get(host_id)
        if host is not None and not host.end.done():
            await asyncio.to_thread(host.kill)
