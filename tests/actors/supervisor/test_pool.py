"""The pool: how often it asks for hosts that do not come up."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, ClassVar

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.system import system_world
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.actors.supervisor.pool import Pool
from perdure.actors.tasks import Tasks
from perdure.ledger import HostLost, Unhosted, View
from perdure.policies import Limits, NodeDrain

MINUTE_S = 60


class Desert:
    """A fleet whose hosts die at once; those of the first so many come up before."""

    def __init__(self, view: View, coming_up: int = 0) -> None:
        self.view, self.left = view, coming_up
        self.spawned: list[float] = []
        self.elsewhere: dict[str, str] = {}
        self.draining: dict[str, NodeDrain] = {}

    async def spawn(self, _host_id: str, _spec: PoolSpec) -> str:
        self.spawned.append(asyncio.get_running_loop().time())
        return ""

    async def pulse(self, _host_id: str) -> None:
        """Nobody asks."""

    async def death(self, host_id: str) -> str:
        self.view.hosts[host_id].up = self.left > 0
        self.left -= 1
        return "its environment cannot be made"


class Nobody:
    """The sessions and the publisher, of which this asks nothing."""

    are_attended = True
    waiters: ClassVar[dict[str, dict[str, None]]] = {}
    arrived = asyncio.Event()

    def now_ms(self) -> int:
        return 0

    def drop(self, _host_id: str) -> None:
        """There is no conversation."""

    def happened(self, *_told: Any) -> None:
        """Nobody listens."""


def spawned_in_a_minute(coming_up: int) -> list[float]:
    view = View()
    fleet, nobody = Desert(view, coming_up), Nobody()

    def report(said: Any) -> None:
        if isinstance(said, HostLost):
            view.hosts.pop(said.host_id)
        else:
            assert said == Unhosted("")

    async def story() -> None:
        limits = Limits(hosts_warm=1, hosts_max=4)
        pool = Pool(system_world(), Tasks("a test"), fleet, view, nobody, limits, report, nobody)  # type: ignore[arg-type]
        for _ in range(MINUTE_S * 20):
            pool.ensure()
            await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
    return fleet.spawned


def test_hosts_that_do_not_come_up_are_asked_for_ever_more_seldom() -> None:
    spawned = spawned_in_a_minute(coming_up=0)
    assert 5 < len(spawned) < 12
    gaps = [later - earlier for earlier, later in itertools.pairwise(spawned)]
    assert gaps == sorted(gaps)


def test_hosts_that_had_come_up_are_replaced_at_once() -> None:
    assert len(spawned_in_a_minute(coming_up=10_000)) > 500
