"""A cluster of two nodes on one machine: one of them dies in the middle of a fan-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray
from ray.cluster_utils import Cluster

from actors import Agent, RunContext, Runtime
from policies import Limits


class Rester(Agent):
    """Rests on the second node, and says once that it is there."""

    resources: ClassVar[dict[str, float]] = {"second": 0.001}

    async def run(self, input: int, run: RunContext) -> list[int]:
        await run.report_progress(0.1)
        await asyncio.sleep(4)
        return [input, run.attempt]


class Sender(Agent):
    """Sends resters out and waits for them."""

    async def run(self, input: int) -> list[list[int]]:
        results = await self.run_agent_tools([(Rester, number) for number in range(input)])
        return [result.output for result in results]


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, Any]]:
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "3")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    second = cluster.add_node(num_cpus=1, resources={"second": 1.0})
    cluster.wait_for_nodes()
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def test_a_fan_out_outlives_the_node_on_which_its_children_live(two_nodes: tuple[Cluster, Any], tmp_path: Path) -> None:
    cluster, second = two_nodes
    with Runtime(data=tmp_path / "data", address=cluster.address, limits=Limits(hosts_max=2)) as runtime:
        run = runtime.start(Sender, 6, run_id="sent")
        until = time.monotonic() + 60
        while sum(each["status"] == "running" for each in runtime.list()) < 7:
            assert time.monotonic() < until, runtime.ps()
            time.sleep(0.2)
        cluster.remove_node(second, allow_graceful=False)
        cluster.add_node(num_cpus=1, resources={"second": 1.0})
        result = runtime.run(Sender, 6, run_id=run.run_id)
        assert sorted(number for number, _ in result.output) == list(range(6))
        assert {attempt for _, attempt in result.output} == {2}, "every child was on the node that died"
        assert runtime.audit()["balanced"]
