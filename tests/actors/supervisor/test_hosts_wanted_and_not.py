"""Where nothing changes, no host is asked for and given back again: neither those that wait for nodes nor those that are up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar

import pytest

from perdure.actors import Agent
from perdure.actors.sim_world.simulation import NOTHING_LACKS, NodeGrowth
from tests.kit import ROOMY, Stage, staged

LONG_MS = 10_000_000
RUNS = 3


class Plain(Agent):
    """Wants nothing special."""

    async def run(self, input: int) -> int:
        return input


class Rich(Plain):
    """Wants what few nodes have."""

    resources: ClassVar[dict[str, float]] = {"far": 1.0}


class Labelled(Plain):
    """Wants nodes of some kind."""

    label_selector: ClassVar[dict[str, str]] = {"zone": "a"}


class Lone(Plain):
    """Wants a host of the default pool to itself."""

    exclusive = True


KINDS: list[tuple[type[Plain], int]] = [(Plain, 0), (Rich, 1), (Labelled, 1), (Lone, 1)]
each_kind = pytest.mark.parametrize(("kind", "beside_warm"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])


def asked_for(stage: Stage) -> int:
    return sum(each.what == "is asked for" for each in stage.simulation.trace)


async def without_nodes(stage: Stage, after_ms: float = LONG_MS) -> None:
    stage.simulation.cluster.growth = lambda _spec: NodeGrowth("no node has room", after_ms)
    await asyncio.sleep(10)
    assert asked_for(stage) == ROOMY.hosts_warm


@each_kind
async def test_hosts_that_wait_for_nodes_are_asked_for_once_while_nothing_changes(
    stage: Stage, kind: type[Plain], beside_warm: int
) -> None:
    await without_nodes(stage)
    for number in range(RUNS):
        await stage.client.start(kind, number, run_id=f"r{number}")
    await asyncio.sleep(200)
    assert asked_for(stage) == (ROOMY.hosts_warm + RUNS if beside_warm else max(ROOMY.hosts_warm, RUNS))
    assert "no node has room" in " ".join(await stage.client.ask("explain", "r0"))


@each_kind
async def test_where_runs_come_and_go_meanwhile_each_asks_for_no_more_than_its_host(
    stage: Stage, kind: type[Plain], beside_warm: int
) -> None:
    await without_nodes(stage)
    for number in range(10):
        await stage.client.start(kind, number, run_id=f"r{number}")
        await asyncio.sleep(3)
        assert "no node has room" in " ".join(await stage.client.ask("explain", f"r{number}"))
        await stage.client.ask("cancel", f"r{number}", None, "enough")
        await asyncio.sleep(3)
    assert asked_for(stage) == ROOMY.hosts_warm + 10 * beside_warm
    assert len(stage.view.hosts) == ROOMY.hosts_warm


@each_kind
async def test_when_nodes_come_those_that_waited_go_on_and_no_further_host_is_asked_for(
    stage: Stage, kind: type[Plain], beside_warm: int
) -> None:
    await without_nodes(stage, 60_000)
    runs = [asyncio.ensure_future(stage.client.run(kind, number)) for number in range(RUNS)]
    await asyncio.sleep(10)
    before = asked_for(stage)
    stage.simulation.cluster.growth = lambda _spec: NOTHING_LACKS
    assert [(await each).output for each in runs] == list(range(RUNS))
    await asyncio.sleep(10)
    assert asked_for(stage) <= before + ROOMY.hosts_warm
    assert not stage.view.troubles


async def test_hosts_that_still_wait_when_the_supervisor_has_died_keep_no_other_pool_from_its_hosts(
    stage: Stage,
) -> None:
    await without_nodes(stage)
    stage.simulation.kill("supervisor")
    stage.simulation.cluster.growth = lambda spec: (
        NOTHING_LACKS if spec.resources else NodeGrowth("no node has room", LONG_MS)
    )
    async with asyncio.timeout(20):
        assert (await stage.client.run(Rich, 1)).output == 1
    assert asked_for(stage) == ROOMY.hosts_warm + 1


class Slow(Agent):
    """Is at work for long, with a host of the default pool to itself."""

    exclusive = True

    async def run(self, input: int) -> int:
        await asyncio.sleep(input)
        return input


@staged(limits=replace(ROOMY, hosts_max=2))
async def test_hosts_that_are_kept_warm_beside_lonely_agents_are_not_ended_for_being_idle(stage: Stage) -> None:
    runs = [asyncio.ensure_future(stage.client.run(Slow, 2_000)) for _ in range(2)]
    await asyncio.sleep(30)
    before = asked_for(stage)
    assert before == 4
    await asyncio.sleep(20 * ROOMY.host_idle_ms / 1000)
    assert asked_for(stage) == before
    assert [(await each).output for each in runs] == [2_000] * 2
    await asyncio.sleep(2 * ROOMY.host_idle_ms / 1000)
    assert len(stage.view.hosts) == 2, "then they are"
    assert asked_for(stage) == before


@staged(limits=replace(ROOMY, rss_mb_max=0))
async def test_a_host_that_is_as_large_as_any_new_one_is_not_exchanged_for_one_before_it_has_served(
    stage: Stage,
) -> None:
    await asyncio.sleep(60)
    assert asked_for(stage) == ROOMY.hosts_warm
    assert (await stage.client.run(Plain, 1)).output == 1
    await asyncio.sleep(60)
    assert asked_for(stage) == ROOMY.hosts_warm + 1
    assert len(stage.view.hosts) == ROOMY.hosts_warm
    stage.simulation.kill("supervisor")
    await asyncio.sleep(120)
    assert asked_for(stage) == 2 * ROOMY.hosts_warm + 1, "what the next life finds may have served"
