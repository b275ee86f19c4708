from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.actors.ports import PoolSpec, Pulse
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.fleet import MUTE_BUT_BUSY, ActorFleet, HostActorDead, HostSilent
from perdure.actors.ray_world.os_processes import (
    ProcessId,
    ProcessInfo,
    is_alive,
    machine,
    process_of,
    wait_until_gone,
)
from perdure.ledger import HostUnavailable, NoSuchNode
from perdure.policies import Limits, NodeDrain

NOBODY = ProcessId(2**22 + 1, 0)


class FakeActors:
    """Hosts whose answers the test decides: a queue for each, of what watching it brings."""

    def __init__(self) -> None:
        self.processes: dict[str, ProcessId] = {}
        self.watches: dict[str, asyncio.Queue[str | Exception]] = {}
        self.killed: list[str] = []
        self.mute: set[str] = set()
        self.silent: set[str] = set()
        self.spares = self.looks = self.asked = self.drained = 0
        self.elsewhere: dict[str, str] = {}
        self.where = machine()

    def create(self, host_id: str, spec: PoolSpec) -> str:
        if spec.num_cpus:
            raise HostUnavailable("no node has that")
        self.watches[host_id] = asyncio.Queue()
        return host_id

    def shortage(self, spec: PoolSpec) -> str:
        if dict(spec.resources).get("moon"):
            raise NoSuchNode("no node has that")
        return "it waits for one" if spec.resources else ""

    def is_in_vain(self, _spec: PoolSpec) -> bool:
        self.asked += 1
        if self.asked == 1:
            raise OSError("the cluster does not answer")
        return self.asked > 3

    def look_around(self) -> None:
        self.looks += 1
        self.elsewhere["far"] = "no such directory"
        if self.looks == 1:
            raise OSError("the cluster does not answer")

    def hosts(self) -> dict[str, PoolSpec]:
        return {host_id: PoolSpec(runtime_env=host_id) for host_id in [*self.watches, "just gone"]}

    def find(self, host_id: str, spec: PoolSpec) -> str | None:
        return host_id if host_id in self.watches else None

    def kill(self, handle: str) -> None:
        self.killed.append(handle)

    def drains(self) -> dict[str, NodeDrain]:
        self.drained += 1
        if self.drained == 1:
            raise OSError("the cluster does not answer")
        return {"far": NodeDrain(self.drained)}

    async def info(self, host_id: str, _spec: PoolSpec, handle: str) -> ProcessInfo:
        assert host_id == handle
        if handle in self.mute:
            raise HostSilent("it does not answer")
        return ProcessInfo(self.processes.get(handle, NOBODY), self.where)

    async def pulse(self, handle: str) -> Pulse:
        if handle in self.silent:
            raise HostSilent("it does not answer")
        return Pulse(3, "a@m:A", "A.run")

    async def watch(self, handle: str) -> str:
        said = await self.watches[handle].get()
        if isinstance(said, Exception):
            raise said
        return said

    def in_words(self, host_id: str, cause: str) -> str:
        return f"{cause}, as {host_id} said" if cause == "the worker died" else cause

    async def start_ahead(self) -> None:
        self.spares += 1


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEATH_S", "AGAIN_S", "SPARE_S", "SURVIVED_S"):
        monkeypatch.setattr(f"perdure.actors.ray_world.fleet.{name}", 0.02)


@pytest.fixture
def process() -> Iterator[ProcessId]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as sleeper:
        found = process_of(sleeper.pid)
        assert found is not None
        yield found
        sleeper.kill()


async def fleet_with(actors: FakeActors, *host_ids: str) -> ActorFleet:
    fleet = ActorFleet(actors)
    for host_id in host_ids:
        await fleet.spawn(host_id, PoolSpec())
    return fleet


def test_the_nodes_are_looked_at_again_and_again_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "DRAINS_S"):
        monkeypatch.setattr(f"perdure.actors.ray_world.fleet.{name}", 0.01)

    async def story() -> None:
        actors = FakeActors()
        fleet = await fleet_with(actors)
        assert await fleet.survivors() == {}
        while actors.looks < 3:
            await asyncio.sleep(0.01)
        assert fleet.elsewhere == {"far": "no such directory"}
        assert actors.spares, "the spare process is looked after too"
        seen = fleet.draining
        while actors.drained < 3:
            await asyncio.sleep(0.01)
        assert seen["far"].until_ms > 1, "whoever has it sees the next look"

    asyncio.run(story())


async def test_a_host_that_dies_says_why() -> None:
    actors = FakeActors()
    fleet = await fleet_with(actors, "a")
    actors.watches["a"].put_nowait(HostActorDead("the worker died"))
    assert await fleet.death("a") == "the worker died, as a said"
    assert await fleet.death("never heard of") == "it is unknown"


async def test_a_broken_connection_is_no_death_and_a_host_s_own_reason_is_the_cause_of_its_end() -> None:
    actors = FakeActors()
    fleet = await fleet_with(actors, "a")
    for said in (HostSilent("reset"), HostSilent("reset"), "retired"):
        actors.watches["a"].put_nowait(said)
    assert [await fleet.death("a"), await fleet.death("a")] == ["retired", "retired"]


@pytest.mark.parametrize("said", ["retired", HostActorDead("a timeout, they say")])
async def test_a_host_counts_as_dead_only_when_its_process_is_gone(said: str | Exception, process: ProcessId) -> None:
    actors = FakeActors()
    actors.processes["a"] = process
    fleet = await fleet_with(actors, "a")
    actors.watches["a"].put_nowait(said)
    await fleet.death("a")
    assert not is_alive(process)
    assert actors.killed == ["a"]


@pytest.mark.parametrize(("older_ms", "where", "killed"), [(10, machine(), []), (0, "another machine", ["a"])])
async def test_who_has_the_number_of_a_host_that_is_gone_or_is_elsewhere_is_left_alone(
    older_ms: int, where: str, killed: list[str], process: ProcessId
) -> None:
    actors = FakeActors()
    actors.processes["a"], actors.where = process._replace(started_ms=process.started_ms - older_ms), where
    fleet = await fleet_with(actors, "a")
    actors.watches["a"].put_nowait("retired")
    assert await fleet.death("a") == "retired"
    await fleet.kill("a")
    assert is_alive(process)
    assert actors.killed == killed


async def test_killing_does_not_need_the_host_s_help(process: ProcessId) -> None:
    actors = FakeActors()
    actors.processes["a"] = process
    fleet = await fleet_with(actors, "a")
    await asyncio.sleep(0)
    await fleet.kill("a")
    assert wait_until_gone([process], 5.0) == []
    await fleet.kill("unknown")


async def test_a_host_that_cannot_be_created_is_refused() -> None:
    fleet = await fleet_with(FakeActors())
    with pytest.raises(HostUnavailable):
        await fleet.spawn("a", PoolSpec(num_cpus=64))


def test_a_host_says_what_it_waits_for_and_ends_when_that_will_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.ray_world.fleet.VERDICT_S", 0.01)

    async def story() -> None:
        actors = FakeActors()
        fleet = await fleet_with(actors)
        with pytest.raises(NoSuchNode):
            await fleet.spawn("nowhere", PoolSpec(resources=(("moon", 1.0),)))
        assert not actors.watches
        actors.mute.add("a")
        assert await fleet.spawn("a", PoolSpec(resources=(("GPU", 1.0),))) == "it waits for one"
        while "a" not in actors.killed:
            await asyncio.sleep(0.01)
        assert actors.asked == 4, "the first answer failed, and two were no"
        actors.mute.clear()
        actors.watches["a"].put_nowait("killed")
        with pytest.raises(NoSuchNode, match="it waits for one, and has none to bring"):
            await fleet.death("a")
        actors.asked = 0
        assert await fleet.spawn("b", PoolSpec(resources=(("GPU", 1.0),)))
        await asyncio.sleep(0.1)
        assert actors.asked <= 1, "it has begun"
        assert "b" not in actors.killed

    asyncio.run(story())


async def test_survivors_are_watched_like_any_host_though_they_may_be_silent_for_now() -> None:
    actors = FakeActors()
    await fleet_with(actors, "a", "b")
    actors.mute.add("b")
    second = await fleet_with(actors)
    assert await second.survivors() == {"a": PoolSpec(runtime_env="a"), "b": PoolSpec(runtime_env="b")}
    for _ in range(2):  # the first life watches too
        actors.watches["a"].put_nowait("retired")
    assert await second.death("a") == "retired"
    actors.mute.clear()
    for _ in range(2):
        actors.watches["b"].put_nowait("retired")
    assert await second.death("b") == "retired"


def test_a_host_s_name_says_its_pool() -> None:
    deployment = Deployment(Path("here"), Limits())
    pools = [PoolSpec(), PoolSpec(0.5), PoolSpec(1, (("disk", 2.0), ("gpu", 1)), '{"env_vars": {"A B": "-"}}')]
    pools += [PoolSpec(labels=(("zone", "in(a, b)"), ("spot", "!true")))]
    names = [deployment.host(f"host{at}", spec) for at, spec in enumerate(pools)]
    strangers = [deployment.supervisor, "host-", Deployment(Path("there"), Limits()).host("a", PoolSpec())]
    assert deployment.hosts_among([*names, *strangers]) == {f"host{at}": spec for at, spec in enumerate(pools)}


async def test_what_was_used_up_is_replaced_once_the_rush_is_over() -> None:
    actors = FakeActors()
    await fleet_with(actors, "a", "b", "c")
    assert actors.spares == 0
    await asyncio.sleep(0.05)
    assert actors.spares == 1
    second = await fleet_with(actors)
    await second.survivors()
    await asyncio.sleep(0.01)
    assert actors.spares == 1
    await asyncio.sleep(0.05)
    assert actors.spares == 2, "a life that took over has used the last one's"


def test_where_hosts_have_survived_the_first_answers_come_before_the_nodes_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.actors.ray_world.fleet.QUIET_S", 60.0)

    async def story() -> None:
        actors = FakeActors()
        first = await fleet_with(actors, "a")
        assert await first.survivors()
        assert await (await fleet_with(actors)).survivors()
        await asyncio.sleep(0.05)
        assert actors.looks == 0
        fresh = FakeActors()
        await (await fleet_with(fresh)).survivors()
        while not fresh.looks:
            await asyncio.sleep(0.01)

    asyncio.run(story())


def test_a_process_that_does_not_answer_is_asked_whether_it_computes(
    process: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_s = iter([1.0, 1.5, 1.5])
    monkeypatch.setattr("perdure.actors.ray_world.fleet.cpu_s", lambda _pids: next(computed_s))

    async def story() -> None:
        actors = FakeActors()
        fleet = await fleet_with(actors, "a")
        assert await fleet.pulse("a") == Pulse(3, "a@m:A", "A.run"), "what it says itself comes first"
        actors.silent.add("a")
        assert await fleet.pulse("a") is None, "nothing to compare with yet"
        assert await fleet.pulse("a") == MUTE_BUT_BUSY
        assert await fleet.pulse("a") is None
        assert await fleet.pulse("never heard of") is None

    asyncio.run(story())
