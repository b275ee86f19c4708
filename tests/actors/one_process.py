"""The real thing on one real event loop: a supervisor, its hosts and a client, with true threads, and nothing between them.

In the simulated world one thread runs at a time, and Ray's is slow to come up. What is about threads is told here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from perdure.actors import Client, Host, PoolSpec, Supervisor, World
from perdure.actors.ports import Pulse
from perdure.actors.ray_world.system import system_world
from perdure.ledger.storage.agent_storages import AgentStorages, MemoryDisk
from perdure.ledger.store.memory_store import MemoryStore
from perdure.policies import Limits, NodeDrain

T = TypeVar("T")

SMALL = Limits(
    hosts_max=1, hosts_warm=1, threads_max=2, sweep_ms=50, heartbeat_ms=50, idle_ms=50, heartbeat_misses_max=200
)
PATIENCE_S = 60.0


class OneProcess:
    """A transport and a fleet for everybody in this process."""

    route = ""

    def __init__(self, limits: Limits, store: Any = None, disk: Any = None) -> None:
        self.limits = limits
        self.disk = disk or MemoryDisk()
        self.hosts: dict[str, Host] = {}
        self.ended: list[str] = []
        self.elsewhere: dict[str, str] = {}
        self.draining: dict[str, NodeDrain] = {}
        self._lives: dict[str, asyncio.Task[str]] = {}
        self.supervisor = Supervisor(system_world(), self, store or MemoryStore(), AgentStorages(self.disk), limits)
        self.client = Client(system_world(), self, limits)

    @property
    def worlds(self) -> list[World]:
        return [host.world for host in self.hosts.values()]

    async def exchange(self, frame: bytes) -> bytes:
        return await self.supervisor.exchange(frame)

    async def spawn(self, host_id: str, spec: PoolSpec) -> None:
        world = system_world(threads_max=self.limits.threads_max)
        host = self.hosts[host_id] = Host(world, self, AgentStorages(self.disk), host_id, self.limits)
        self._lives[host_id] = asyncio.create_task(host.serve())

    async def survivors(self) -> dict[str, PoolSpec]:
        return {}

    async def death(self, host_id: str) -> str:
        why = await asyncio.shield(self._lives[host_id])
        self.ended.append(why)
        del self.hosts[host_id]
        return why

    async def pulse(self, host_id: str) -> Pulse:
        return Pulse()

    async def kill(self, host_id: str) -> None:
        self._lives[host_id].cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)

    async def play(self, story: Callable[[OneProcess], Awaitable[T]], patience_s: float | None = PATIENCE_S) -> T:
        serving = [asyncio.create_task(each.serve()) for each in (self.supervisor, self.client)]
        try:
            async with asyncio.timeout(patience_s):
                return await story(self)
        finally:
            ending = [*serving, *self._lives.values()]
            for task in ending:
                task.cancel()
            await asyncio.wait(ending)
            self.disk.close()


def play(story: Callable[[OneProcess], Awaitable[T]], limits: Limits = SMALL, **changes: float) -> T:
    """Play a story on a loop and threads of its own."""

    async def main() -> T:
        return await OneProcess(replace(limits, **changes)).play(story)

    return asyncio.run(main())
