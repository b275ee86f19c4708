"""Test your own agents in the simulated world: kills at every durable write, lost mail, slow disks, and one seed that replays it.

    from scenarios.simulation import Laboratory, Weather

    async def story(client):
        result = await client.run(MyAgent, {"topic": "HTTP/3"}, run_id="one")
        assert result.ok

    with Laboratory(seed=7, weather=Weather.drawn(random.Random(7))) as laboratory:
        laboratory.run(story)
        laboratory.heal()
        laboratory.settle()

While it runs, the invariants of the design are checked; a broken one raises `Violation` out of `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from actors import Client, Courier, Fleet, Host, KillPoint, Supervisor, World
from actors.sim_world import Simulation, Weather, on_death
from ledger.storage import Cabinet, MemoryDisk
from policies import Limits
from scenarios.checks import (
    Ledger,
    Violation,
    Wiretap,
    demand,
    left_behind,
    out_of_step,
    strangers,
    unbalanced,
    unfinished,
    unlike_the_diaries,
    unlike_the_shadow,
    unlike_the_snapshot,
)

__all__ = ["QUICK", "Laboratory", "Violation", "Weather"]

T = TypeVar("T")

QUICK = Limits(hosts_max=3, hosts_warm=1, idle_ms=2_000, orphan_ms=20_000)
LOOK_STRIDE = 7


class Laboratory:
    """A simulated cluster with Perdure on it. What is durable lies here, outside of every process, and outlives each kill.

    Invariants are looked at after every `step_stride` steps of the loop if a new fact has become durable since; with `checked=False` only
    what is free is checked.
    """

    def __init__(
        self,
        seed: int,
        weather: Weather | None = None,
        limits: Limits = QUICK,
        *,
        checked: bool = True,
        **simulation: Any,
    ) -> None:
        self.limits = limits
        self.store = Ledger()
        self.disk = MemoryDisk()
        self.supervisors: list[Supervisor] = []
        self.hosts: dict[str, Host] = {}
        self._seen = 0
        simulation.setdefault("after_step", self.look if checked else None)
        simulation.setdefault("step_stride", LOOK_STRIDE)
        self.simulation = Simulation(seed, weather or Weather.calm(), self._supervisor, self._host, **simulation)

    def _supervisor(self, world: World, fleet: Fleet) -> Wiretap:
        cabinet = Cabinet(self.disk)
        on_death(cabinet.crash)
        supervisor = Supervisor(world, fleet, self.store, cabinet, self.limits)
        self.supervisors.append(supervisor)
        on_death(lambda: self.supervisors.remove(supervisor))
        return Wiretap(supervisor, self.store)

    def _host(self, world: World, courier: Courier, host_id: str) -> Host:
        cabinet = Cabinet(self.disk, lambda when: world.faults.at(KillPoint.MID_STORAGE, when))
        on_death(cabinet.crash)
        host = self.hosts[host_id] = Host(world, courier, cabinet, host_id, self.limits)
        on_death(lambda: self.hosts.pop(host_id).relay.want(False))
        return host

    def look(self) -> None:
        """Check what must hold at any moment. Raises `Violation`."""
        if self.store.violations:
            raise Violation("; ".join(self.store.violations))
        if self._seen == self.store.facts_count or not self.supervisors:
            return
        view = self.supervisors[-1].view
        if view.seq != self.store.shadow.seq:
            return
        self._seen = self.store.facts_count
        demand(
            unlike_the_shadow(view, self.store.shadow),
            out_of_step(view),
            unbalanced(view),
            strangers(self.hosts.values(), self.store.shadow),
        )

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

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to do, and a supervisor knows that."""
        view = self.supervisors[-1].view if self.supervisors else None
        return view is not None and view.seq == self.store.shadow.seq and not any(unfinished(view))

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.simulation.heal()

    def settle(self, timeout_ms: float = 600_000) -> None:
        """Let time pass until nothing is left to do, then check everything. Raises `Violation`, or `Overdue` if that takes too long."""

        async def quiet(_client: Client) -> None:
            while not self.is_quiet:  # noqa: ASYNC110 - nobody tells of quiet
                await asyncio.sleep(0.5)

        try:
            self.run(quiet, timeout_ms)
        except Exception as problem:
            left = list(unfinished(self.supervisors[-1].view)) if self.supervisors else ["there is no supervisor"]
            problem.add_note("left to do: " + "; ".join(left[:10]))
            raise
        self.verify()

    def verify(self) -> None:
        """Check what must hold when everything is quiet. Ends the simulation."""
        view = self.supervisors[-1].view
        self.look()
        self.simulation.close()
        shadow = self.store.shadow
        parents = dict.fromkeys(run.parent for run in shadow.runs.values() if run.parent)
        demand(
            self.store.violations,
            unlike_the_shadow(view, shadow),
            unlike_the_snapshot(self.store, shadow),
            unfinished(view),
            unlike_the_diaries(self.disk, shadow, parents),
            left_behind(self.disk, shadow, self.store.cleared),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()
        self.disk.close()
