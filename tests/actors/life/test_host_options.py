"""What classes ask of Ray reaches the hosts: a pool for each distinct set, the same after a restart of the supervisor, and in refusals."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, PoolSpec
from perdure.actors.life.host_options import pool_spec
from perdure.actors.sim_world.simulation import NOTHING_LACKS, NodeGrowth
from perdure.actors.supervisor.pool import plain_spec, spec_of
from perdure.ledger import NoSuchNode, pool_key, with_package
from perdure.policies import NodeOffer, node_lack
from tests.kit import ROOMY, Stage, play, staged


class Trainer(Agent):
    """Asks for everything."""

    num_cpus = 2
    num_gpus = 1
    memory = 4e9
    accelerator_type = "A100"
    label_selector = {"zone": "in(a, b)", "ray.io/market-type": "!spot"}  # noqa: RUF012 - as an author writes it
    resources = {"disk": 0.5}  # noqa: RUF012

    async def run(self, input: int) -> int:
        return input + 1


class Viewer(Trainer):
    """Asks for the same nodes, and no more of them."""

    num_gpus = 0.5


class Rendering(Agent):
    """Holds a GPU for a minute."""

    num_gpus = 1

    async def run(self, input: int) -> int:
        await asyncio.sleep(60)
        return input


class Labelled(Agent):
    """Asks for a label alone."""

    label_selector = {"zone": "a"}  # noqa: RUF012

    async def run(self, input: int) -> int:
        return input


TRAINER: list[Any] = [
    2,
    [["GPU", 1.0], ["accelerator_type:A100", 0.001], ["disk", 0.5], ["memory", 4_000_000_000]],
    "",
    False,
    [["ray.io/market-type", "!spot"], ["zone", "in(a, b)"]],
]


def test_what_a_class_asks_for_is_amounts_of_ray_s_resources_and_the_labels_stand_behind_if_there_are_any() -> None:
    assert pool_spec(Trainer) == TRAINER
    assert pool_spec(type("Plain", (Agent,), {"num_gpus": 1})) == [0.0, [["GPU", 1.0]], "", False]
    assert pool_spec(Labelled) == [0.0, [], "", False, [["zone", "a"]]]


def test_each_distinct_set_is_a_pool_and_how_a_number_is_written_makes_none() -> None:
    whole = type("Whole", (Agent,), {"num_gpus": 1, "memory": 10})
    real = type("Real", (Agent,), {"num_gpus": 1.0, "memory": 10.0})
    assert pool_key(pool_spec(whole)) == pool_key(pool_spec(real))
    kinds = [pool_key(pool_spec(kind)) for kind in (Agent, Trainer, Viewer, Labelled, whole)]
    assert len({*kinds}) == len(kinds)
    assert kinds[0] == ""


def test_a_package_leaves_the_labels_alone() -> None:
    packed = with_package(TRAINER, "abc")
    assert packed is not None
    assert packed[4] == TRAINER[4]
    assert with_package(packed, "") == TRAINER


@pytest.mark.parametrize("kind", [Agent, Trainer, Labelled])
def test_the_plain_form_of_a_pool_and_what_is_asked_of_ray_are_the_same(kind: type[Agent]) -> None:
    plain = pool_spec(kind)
    spec = spec_of(plain)
    assert plain_spec(spec) == plain
    assert spec == PoolSpec.of(*[list(map(list, each)) if isinstance(each, tuple) else each for each in spec])


async def test_hosts_of_these_pools_come_and_serve_and_are_the_same_pools_to_the_next_supervisor(stage: Stage) -> None:
    for kind in (Trainer, Labelled):
        await stage.client.run(kind, 1)
    asked = Counter(spec_of(host.spec) for host in stage.view.hosts.values())
    assert asked[spec_of(TRAINER)] == 1
    assert asked[PoolSpec(labels=(("zone", "a"),))] == 1
    before = {host_id: pool_key(host.spec) for host_id, host in stage.view.hosts.items()}
    stage.simulation.kill("supervisor")
    assert (await stage.client.run(Trainer, 2)).output == 3
    after = {host_id: pool_key(host.spec) for host_id, host in stage.view.hosts.items()}
    assert before.items() <= after.items()
    assert len(after) == len(before), "no pool got another host"


def test_what_no_node_has_is_refused_with_what_there_is_and_the_run_goes_on_when_a_node_has_it() -> None:
    nodes = [NodeOffer({"CPU": 4.0, "GPU": 1.0, "memory": 8e9}, {"zone": "c"})]

    def lack(spec: PoolSpec) -> str:
        return node_lack(nodes, dict(spec.resources), spec.labels)

    async def story(stage: Stage) -> None:
        stage.simulation.cluster.lack = lack
        with pytest.raises(NoSuchNode) as refused:
            await stage.client.run(Trainer, 1, run_id="r")
        told = str(refused.value)
        assert "no host (num_cpus=2, 1 GPU, accelerator_type A100, 0.5 disk, 4 GB of memory, label" in told
        assert "types of accelerators: none; labels: zone=c" in told
        assert "zone=in(a, b)" in " ".join(await stage.client.ask("explain", "r"))
        nodes.append(NodeOffer({"GPU": 8.0, "accelerator_type:A100": 1.0, "disk": 1.0, "memory": 8e9}, {"zone": "a"}))
        assert (await stage.client.run(Trainer, 1, run_id="r")).output == 2

    play(story)


@staged(limits=replace(ROOMY, hosts_max=6))
async def test_hosts_that_wait_for_nodes_are_asked_for_all_at_once_visibly_and_nothing_is_refused(stage: Stage) -> None:
    """An autoscaler sees what waits. Were it two hosts at a time, as many as may be starting, ten nodes would take five times as long."""
    coming = NodeGrowth("no node has 1 GPU (the most that one has: 0 GPU); the autoscaler is asked for one", 200_000)
    stage.simulation.cluster.growth = lambda spec: coming if spec.resources else NOTHING_LACKS
    asked = [asyncio.ensure_future(stage.client.run(Rendering, number, run_id=f"r{number}")) for number in range(6)]
    await asyncio.sleep(20)
    waiting = [host for host in stage.view.hosts.values() if pool_key(host.spec) and not host.up]
    assert len(waiting) == 6
    (trouble,) = (await stage.client.ask("ps", 0))["unstartable"]
    assert trouble["told"] == f"no host (1 GPU) can be had: {coming.waits_for}"
    assert "the autoscaler is asked for one" in " ".join(await stage.client.ask("explain", "r5"))
    assert (await stage.client.run(Labelled, 1)).output == 1, "other hosts come meanwhile"
    assert [(await each).output for each in asked] == list(range(6))
    assert not (await stage.client.ask("ps", 0))["unstartable"]
    await asyncio.sleep(ROOMY.host_idle_ms / 1000 + 20)
    assert not [host for host in stage.view.hosts.values() if pool_key(host.spec)], "the nodes may go"


@staged(limits=replace(ROOMY, hosts_max=6))
async def test_hosts_that_wait_end_when_nothing_waits_for_them_any_more_so_that_no_node_comes_for_nothing(
    stage: Stage,
) -> None:
    coming = NodeGrowth("no node has 1 GPU (the most that one has: 0 GPU); the autoscaler is asked for one", 200_000)
    stage.simulation.cluster.growth = lambda spec: coming if spec.resources else NOTHING_LACKS
    handles = [await stage.client.start(Rendering, number, run_id=f"r{number}") for number in range(4)]
    await asyncio.sleep(10)

    def waiting() -> int:
        return sum(bool(pool_key(host.spec)) and not host.up for host in stage.view.hosts.values())

    assert waiting() == 4
    for handle in handles[:3]:
        await stage.client.ask("cancel", handle.run_id, None, "enough")
    await asyncio.sleep(5)
    assert waiting() == 1
    await stage.client.ask("cancel", handles[3].run_id, None, "enough")
    await asyncio.sleep(5)
    assert waiting() == 0
    assert not (await stage.client.ask("ps", 0))["unstartable"]
    again = await stage.client.start(Rendering, 9)
    assert (await again.result()).output == 9


@staged(limits=replace(ROOMY, hosts_max=4))
async def test_a_queue_on_few_gpus_goes_on_on_the_hosts_that_are_there_while_others_wait(stage: Stage) -> None:
    first = await stage.client.start(Rendering, 0)
    await asyncio.sleep(10)
    stage.simulation.cluster.growth = lambda spec: (
        NodeGrowth("no node has 1 GPU left", 3_000_000) if spec.resources else NOTHING_LACKS
    )
    asked = [asyncio.ensure_future(stage.client.run(Rendering, number)) for number in range(1, 4)]
    assert (await first.result()).output == 0
    async with asyncio.timeout(300):
        assert [(await each).output for each in asked] == [1, 2, 3]
