"""Test your own agents in the simulated world: kills at every durable write, lost mail, slow disks, and one seed that replays it.

    from scenarios.simulation import Laboratory, Weather

    async def story(client):
        result = await client.run(MyAgent, {"topic": "HTTP/3"}, run_id="one")
        assert result.ok

    with Laboratory(seed=7, weather=Weather.drawn(random.Random(7))) as laboratory:
        laboratory.run(story)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from actors import Client, Courier, Fleet, Host, KillPoint, Supervisor, World
from actors.sim_world import Simulation, Weather, on_death
from ledger.memory_store import MemoryStore
from ledger.storage import Cabinet, MemoryDisk
from policies import Limits

T = TypeVar("T")

QUICK = Limits(hosts_max=3, hosts_warm=1, idle_ms=2_000, orphan_ms=20_000)


class Laboratory:
    """A simulated cluster with Perdure on it. What is durable lies here, outside of every process, and outlives each kill."""

    def __init__(self, seed: int, weather: Weather | None = None, limits: Limits = QUICK, **simulation: Any) -> None:  # noqa: ANN401
        self.limits = limits
        self.store = MemoryStore()
        self.disk = MemoryDisk()
        self.supervisors: list[Supervisor] = []
        simulation.setdefault("after_step", None)
        self.simulation = Simulation(seed, weather or Weather.calm(), self._supervisor, self._host, **simulation)

    def _supervisor(self, world: World, fleet: Fleet) -> Supervisor:
        cabinet = Cabinet(self.disk)
        on_death(cabinet.crash)
        supervisor = Supervisor(world, fleet, self.store, cabinet, self.limits)
        self.supervisors.append(supervisor)
        return supervisor

    def _host(self, world: World, courier: Courier, host_id: str) -> Host:
        cabinet = Cabinet(self.disk, lambda when: world.faults.at(KillPoint.MID_STORAGE, when))
        on_death(cabinet.crash)
        return Host(world, courier, cabinet, host_id, self.limits)

    def run(self, story: Callable[[Client], Awaitable[T]], timeout_ms: float = 600_000) -> T:
        """Play a story: a coroutine that is given a client."""

        async def main(world: World, courier: Courier) -> T:
            client = Client(world, courier, self.limits)
            serving = asyncio.get_running_loop().create_task(client.serve())
            try:
                return await story(client)
            finally:
                serving.cancel()

        return self.simulation.run(main, timeout_ms=timeout_ms)

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.simulation.heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()
