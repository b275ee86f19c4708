"""Whatever waits and whatever hosts there are: while nothing changes, the pool soon asks for no host more and gives none back."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.system import system_world
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.actors.supervisor.pool import Pool
from perdure.actors.tasks import Tasks
from perdure.ledger import HostLost, HostView, Tick, arm, assign_hosts
from perdure.ledger.facts import AgentActivated, AgentLost, AttemptLost, Fact
from perdure.policies import Limits, NodeDrain
from tests.kit import Ledger, asked, placed

SPECS: list[list[Any] | None] = [
    None,
    [0.0, [], "", True],
    [0.0, [["far", 1.0]], "", False],
    [0.0, [["far", 1.0]], "", True],
    [0.0, [], "", False, [["zone", "a"]]],
]
LOOKS, SETTLED = 40, 20


class Nodes:
    """A fleet whose hosts come up at once, or wait for ever where nodes have no room. They end when they are killed, or told to."""

    def __init__(self, *, has_room: bool) -> None:
        self.has_room = has_room
        self.spawned = self.killed = 0
        self.ends: dict[str, asyncio.Future[str]] = {}
        self.elsewhere: dict[str, str] = {}
        self.draining: dict[str, NodeDrain] = {}

    async def spawn(self, host_id: str, _spec: PoolSpec) -> str:
        self.spawned += 1
        self.ends[host_id] = asyncio.get_running_loop().create_future()
        return "" if self.has_room else "no node has room"

    async def death(self, host_id: str) -> str:
        return await self.ends[host_id]

    async def kill(self, host_id: str) -> None:
        self.killed += 1
        self.ends[host_id].set_result("killed")


class Hosts:
    """The sessions of these hosts, and the publisher, of which nothing is asked."""

    are_attended = True
    waiters: ClassVar[dict[str, dict[str, None]]] = {}

    def __init__(self, ledger: Ledger) -> None:
        self.arrived = asyncio.Event()
        self.retired = 0
        self.by_peer = {host_id: Host(self, ledger, host_id) for host_id in ledger.view.hosts}

    def now_ms(self) -> int:
        return 0

    def drop(self, _host_id: str) -> None:
        """There is no conversation."""

    def happened(self, *_told: Any) -> None:
        """Nobody listens."""


class Host:
    def __init__(self, hosts: Hosts, ledger: Ledger, host_id: str) -> None:
        self.hosts, self.ledger, self.host_id = hosts, ledger, host_id

    def say(self, _message: Any) -> None:
        self.hosts.retired += 1
        asyncio.get_running_loop().call_soon(self.ledger.view.hosts.pop, self.host_id)


def facts(runs: list[tuple[int, int, int]], agents: list[tuple[int, int]]) -> list[Fact]:
    """Runs of a pool that were lost so many times, and may have a host, and agents that were lost so many times."""
    made: list[Fact] = []
    life = 0
    for number, (spec, losses, host) in enumerate(runs):
        run_id = f"r{number}"
        made.append(asked(run_id, pool=SPECS[spec]) if SPECS[spec] else asked(run_id))
        for attempt in range(1, losses + 1):
            life += 1
            made += [placed(run_id, attempt, life, "h1"), AttemptLost(run_id, attempt, "gone", 0)]
        if host and spec == 0:
            life += 1
            made.append(placed(run_id, losses + 1, life, f"h{host}"))
    for number, (spec, losses) in enumerate(agents):
        for _ in range(losses):
            life += 1
            made += [AgentActivated(f"a{number}@T", life, "h1", SPECS[spec]), AgentLost(f"a{number}@T", life, 0)]
    return made


async def changes_after_a_while(ledger: Ledger, *, has_room: bool) -> int:
    """How many hosts were asked for, given back or retired when there was time to settle."""
    fleet, hosts = Nodes(has_room=has_room), Hosts(ledger)

    def report(said: Any) -> None:
        if isinstance(said, HostLost):
            ledger.view.hosts.pop(said.host_id, None)

    pool = Pool(system_world(), Tasks("a test"), fleet, ledger.view, hosts, ledger.limits, report, hosts)  # type: ignore[arg-type]
    before = 0
    for look in range(LOOKS):
        ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))
        pool.ensure()
        await asyncio.sleep(0)
        for host_id in fleet.ends if has_room else ():
            if host_id in ledger.view.hosts and host_id not in hosts.by_peer:
                ledger.view.hosts[host_id].up = True
                hosts.by_peer[host_id] = Host(hosts, ledger, host_id)
        pool.retire_worn()
        await asyncio.sleep(ledger.limits.host_idle_ms / 1000)
        if look == SETTLED:
            before = fleet.spawned + fleet.killed + hosts.retired
    return fleet.spawned + fleet.killed + hosts.retired - before


@settings(max_examples=60)
@given(
    runs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)), max_size=6),
    agents=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=4),
    ups=st.lists(st.integers(0, 4), max_size=4),
    hosts_max=st.integers(1, 3),
    hosts_warm=st.integers(0, 3),
    has_room=st.booleans(),
)
def test_while_nothing_changes_no_host_is_asked_for_given_back_or_retired_again(
    runs: list[tuple[int, int, int]],
    agents: list[tuple[int, int]],
    ups: list[int],
    hosts_max: int,
    hosts_warm: int,
    has_room: bool,
) -> None:
    ledger = Ledger(Limits(hosts_max=hosts_max, hosts_warm=hosts_warm, pack_max=2)).given(*facts(runs, agents))
    for number, spec in enumerate(ups):
        ledger.view.hosts[f"u{number}"] = HostView(f"u{number}", SPECS[spec], up=True)
    arm(ledger.view, ledger.view.runs, ledger.limits)
    ledger.later(100_000).when(Tick())
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(changes_after_a_while(ledger, has_room=has_room)) == 0
