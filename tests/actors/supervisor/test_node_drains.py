"""Nodes that drain, in the simulated world: what is at work there ends there if it can, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors import Agent, RunContext, exposed
from perdure.policies import Limits
from tests.kit import Stage, address, play, staged


class Worker(Agent):
    """Works for some seconds."""

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input)
        return run.attempt


class Counter(Agent):
    """Counts, and rests between."""

    @exposed
    async def count(self) -> int:
        self.state["count"] = self.state.get("count", 0) + 1
        return int(self.state["count"])


def drained(stage: Stage, after_ms: int, *, is_here: bool = False) -> list[str]:
    hosts = [host.host_id for host in stage.view.hosts.values() if host.up]
    stage.simulation.drain_node("n (Ray's node 12)", after_ms, hosts, is_here=is_here)
    return hosts


async def started(stage: Stage, *seconds: float) -> None:
    for number, each in enumerate(seconds):
        await stage.client.start(Worker, each, run_id=f"r{number}")
    await stage.until(lambda: all(stage.status(f"r{number}") == "running" for number in range(len(seconds))))


async def gone(stage: Stage, hosts: list[str]) -> float:
    """When these hosts are no more, in seconds from now."""
    began_s = asyncio.get_running_loop().time()
    await stage.until(lambda: not any(host in stage.view.hosts for host in hosts))
    return asyncio.get_running_loop().time() - began_s


@staged(limits=Limits(hosts_max=2))
async def test_what_ends_before_the_node_does_ends_there_and_the_rest_is_moved(stage: Stage) -> None:
    await started(stage, 20, 100)
    hosts = drained(stage, 60_000)
    assert 40 < await gone(stage, hosts) < 60
    attempts = [(await stage.ended(run_id, "completed")).attempt for run_id in ("r0", "r1")]
    assert attempts == [1, 2]
    assert stage.run("r1").idle_attempts == 1, "the end of a node costs no attempt"


@staged(limits=Limits(hosts_max=2, idle_ms=60000))
async def test_nothing_new_goes_to_a_node_that_drains_and_what_rests_there_wakes_elsewhere(stage: Stage) -> None:
    for number in range(3):
        await stage.call(Counter, "count", name=f"c{number}")
    await started(stage, 30)
    before = [stage.host_of(address(Counter, f"c{number}")) for number in range(3)]
    hosts = drained(stage, 0)
    assert set(before) <= set(hosts)
    await asyncio.sleep(10)
    assert [await stage.call(Counter, "count", name=f"c{number}") for number in range(3)] == [2, 2, 2]
    assert not {stage.host_of(address(Counter, f"c{number}")) for number in range(3)} & set(hosts)
    assert (await stage.ended("r0", "completed")).attempt == 1, "this node has no end"
    await gone(stage, hosts)


@pytest.mark.parametrize("seed", range(4))
def test_a_supervisor_leaves_its_node_too_and_its_next_life_goes_on_with_that(seed: int) -> None:
    async def story(stage: Stage) -> None:
        await started(stage, 20, 100)
        hosts = drained(stage, 60_000, is_here=True)
        await stage.until(lambda: stage.view.epoch == 2)
        told = (await stage.client.ask("ps", 0))["draining"]
        assert [each["node"] for each in told] == ["n (Ray's node 12)"]
        assert "no host goes there, and what is there leaves (2 hosts)" in told[0]["told"]
        assert await gone(stage, hosts) < 60
        attempts = [(await stage.ended(run_id, "completed")).attempt for run_id in ("r0", "r1")]
        assert (attempts, stage.view.epoch) == ([1, 2], 2)
        assert (await stage.client.ask("ps", 0))["draining"] == [], "the node has ended"

    play(story, seed=seed, limits=Limits(hosts_max=2))
