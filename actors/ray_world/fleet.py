"""The supervisor's hosts as real processes: created in the background, watched until they are truly gone, adopted after a restart.

A host counts as dead only when its process can no longer write. So whatever ended it, or seemed to, its process is looked for, and
struck down if it is still there and within reach.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.plan import About
from perdure.actors.ray_world.system import is_alive, machine, strike, wait_for_death

Handle = Any  # whatever stands for an actor

DEATH_S: Final = 2.0  # for a killed process to be gone, before it is struck down
GONE_S: Final = 10.0  # for one that was struck down
AGAIN_S: Final = 0.2  # until a host that could not be reached is asked again
SPARE_S: Final = 1.0  # after a process was used up, until another one is started ahead: not during the rush


class HostGone(Exception):
    """The host's actor is dead, or will never live; the argument says why."""


class HostSilent(Exception):
    """The host could not be reached. It may well be alive."""


class Actors(Protocol):
    """What the fleet needs of the system that keeps the actors. The plain methods block."""

    def create(self, host_id: str, spec: PoolSpec) -> Handle:
        """Ask for a host. Raises `HostUnavailable`."""

    def hosts(self) -> dict[str, PoolSpec]:
        """All hosts of this data directory that live or are about to."""

    def find(self, host_id: str, spec: PoolSpec) -> Handle | None:
        """A host that an earlier life created."""

    def kill(self, handle: Handle) -> None:
        """End a host, or its creation. Idempotent."""

    async def about(self, handle: Handle) -> About:
        """Wait for the host to come up, and ask who it is. Raises `HostGone` or `HostSilent`."""

    async def watch(self, handle: Handle) -> str:
        """Wait until the host ends of itself. Raises `HostGone` or `HostSilent`."""

    async def start_ahead(self) -> None:
        """Start a process that the next host, or the next supervisor, will find ready. May do nothing."""


class _Watched:
    """One host. `end` is done when its process is gone, and says why."""

    def __init__(self, actors: Actors, handle: Handle) -> None:
        self._actors, self._handle = actors, handle
        self._about: About | None = None
        self.end = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> str:
        cause = ""
        while not cause:
            try:
                self._about = await self._actors.about(self._handle)
                cause = await self._actors.watch(self._handle) or "it ended"
            except HostSilent:
                await asyncio.sleep(AGAIN_S)
            except HostGone as gone:
                cause = str(gone) or "it died"
        if self._near_pid is None or is_alive(self._near_pid):
            await asyncio.to_thread(self._bury)
        return cause

    @property
    def _near_pid(self) -> int | None:
        """The process, if it runs on this machine."""
        return self._about.pid if self._about is not None and self._about.machine == machine() else None

    def _bury(self) -> None:
        self._actors.kill(self._handle)
        if self._near_pid is not None:
            strike(wait_for_death([self._near_pid], DEATH_S))
            wait_for_death([self._near_pid], GONE_S)

    def kill(self) -> None:
        """End the process at once, even one that hears nothing any more."""
        if self._near_pid is not None:
            strike([self._near_pid])
        self._actors.kill(self._handle)


class ActorFleet:
    """The port `Fleet`, on actors."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors
        self._hosts: dict[str, _Watched] = {}
        self._spare: asyncio.Task[None] | None = None
        self._replenish()

    def _replenish(self) -> None:
        """Have a spare process soon: what was there has been used."""
        if self._spare is None or self._spare.done():
            self._spare = asyncio.get_running_loop().create_task(self._start_ahead())

    async def _start_ahead(self) -> None:
        await asyncio.sleep(SPARE_S)
        await self._actors.start_ahead()

    async def spawn(self, host_id: str, spec: PoolSpec) -> None:
        """Ask for a host; that it could not come up, `death` tells later. Raises `HostUnavailable`."""
        handle = await asyncio.to_thread(self._actors.create, host_id, spec)
        self._hosts[host_id] = _Watched(self._actors, handle)
        self._replenish()

    async def survivors(self) -> dict[str, PoolSpec]:
        """The hosts of earlier lives, those included that are still coming up. Whether they answer shows later."""
        found = {}
        for host_id, spec in (await asyncio.to_thread(self._actors.hosts)).items():
            handle = await asyncio.to_thread(self._actors.find, host_id, spec)
            if handle is not None:
                self._hosts[host_id] = _Watched(self._actors, handle)
                found[host_id] = spec
        return found

    async def death(self, host_id: str) -> str:
        """Wait until the host's process is gone, and say why."""
        host = self._hosts.get(host_id)
        return await asyncio.shield(host.end) if host is not None else "it is unknown"

    async def kill(self, host_id: str) -> None:
        """End a host at once. Idempotent."""
        host = self._hosts.get(host_id)
        if host is not None and not host.end.done():
            await asyncio.to_thread(host.kill)
