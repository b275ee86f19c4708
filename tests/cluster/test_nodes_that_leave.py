"""Nodes of one machine: one drains while runs go on there, or the supervisor is killed, and a process that was kept is next."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.actors import Agent, RunContext, Runtime
from perdure.actors.ray_world.ray_internals import SETUP_HOOK, read_settings
from perdure.policies import Limits

pytestmark = pytest.mark.long

TOLD = "no host goes there, and what is there leaves"


class Worker(Agent):
    """Works for some seconds, but for a moment only if it has to begin again."""

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input if run.attempt == 1 else 0)
        return run.attempt


def soon(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "3")
        read_settings()  # or this Ray would ask for a token as an earlier one of this process did, and the other way round
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def added(cluster: Cluster, count: int) -> list[Any]:
    nodes = [cluster.add_node(num_cpus=2) for _ in range(count)]
    cluster.wait_for_nodes()
    return nodes


def drain(cluster: Cluster, node: Any, after_s: float) -> float:
    """Announce the end of a node, as `ray drain-node` and a provider's notice do. Returns when it comes."""
    client = ray._raylet.GcsClient(address=cluster.address)  # noqa: SLF001 - as the command does
    reason, end_s = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), time.time() + after_s
    accepted, why = client.drain_node(node.node_id, reason, "spot", round(end_s * 1000))
    assert accepted, why
    return end_s


def processes_on(node: Any) -> list[psutil.Process]:
    (raylet,) = [each.process.pid for each in node.all_processes["raylet"]]
    return psutil.Process(raylet).children() if psutil.pid_exists(raylet) else []


def ours_on(runtime: Runtime, node: Any) -> set[int]:
    ours = {info.pid for info in runtime.cluster.processes().values()}
    return ours & {process.pid for process in processes_on(node)}


def spares_on(node: Any) -> set[int]:
    found = set()
    for process in processes_on(node):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] == ["ray::IDLE"] and process.environ().get(SETUP_HOOK):
                found.add(process.pid)
    return found


# A node that has just come may be too busy to say at once what it sees.
def seen(runtime: Runtime) -> None:
    time.sleep(1)
    soon(lambda: not runtime.ps()["elsewhere"])


def begin(data: Path, address: str) -> None:
    """Have a directory served; its supervisor is on the node of whoever begins it."""
    with Runtime(data=data, address=address, limits=Limits(hosts_max=3, hosts_warm=0)):
        pass


def test_a_process_that_was_there_before_takes_over_from_a_supervisor_that_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    (second,) = added(cluster, 1)
    begin(tmp_path / "data", cluster.address)
    soon(lambda: bool(spares_on(cluster.head_node)))
    lasting = spares_on(cluster.head_node)
    with Runtime(data=tmp_path / "data", address=cluster.address) as runtime:
        assert lasting <= spares_on(cluster.head_node), "it does not end with the program that has begun the supervisor"
        run = runtime.start(Worker, 4)
        soon(lambda: bool(ours_on(runtime, second)))  # the host stands apart from its supervisor
        soon(lambda: bool(spares_on(second) - ours_on(runtime, second)))
        apart = spares_on(second)
        for _ in range(2):
            soon(lambda: bool(spares_on(cluster.head_node)))
            before = runtime.cluster.processes()["supervisor"]
            time.sleep(2)  # for Ray to end a process that it does not keep
            kept = spares_on(cluster.head_node)
            os.kill(before.pid, signal.SIGKILL)
            assert runtime.ps()["runs"]
            assert runtime.cluster.processes()["supervisor"].pid in kept
        assert spares_on(second) == apart, "Ray keeps it, also beyond one for each of the two processors there"
        assert run.result().output == 1
        assert runtime.audit()["balanced"]
        runtime.cluster.stop_actors()
    soon(lambda: not (spares_on(cluster.head_node) or spares_on(second)))
    cluster.remove_node(second, allow_graceful=False)


def test_a_node_that_drains_is_left_before_its_end_and_nothing_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    first, second = added(cluster, 2)
    with Runtime(data=tmp_path / "data", address=cluster.address, limits=Limits(hosts_max=2, hosts_warm=0)) as runtime:
        seen(runtime)
        runs = [runtime.start(Worker, seconds) for seconds in (6, 6, 6, 6, 90, 90)]
        soon(lambda: not runtime.ps()["runs"]["starting"])
        assert [len(ours_on(runtime, node)) for node in (first, second)] == [1, 1]
        end_s = drain(cluster, first, 30)
        soon(lambda: bool(runtime.ps()["draining"]))
        assert f"{TOLD} (1 host)" in runtime.ps()["draining"][0]["told"]
        later = runtime.start(Worker, 1)
        soon(lambda: not ours_on(runtime, first))
        assert time.time() < end_s
        cluster.remove_node(first, allow_graceful=False)
        assert [run.result().output for run in (*runs[:4], later)] == [1] * 5
        soon(lambda: runtime.ps()["runs"]["completed"] == 6)  # one of two long ones was moved, the other one left alone
        soon(lambda: not runtime.ps()["draining"])
        assert runtime.audit()["balanced"]
    cluster.remove_node(second, allow_graceful=False)


def test_a_supervisor_leaves_its_node_too(cluster: Cluster, tmp_path: Path) -> None:
    first, second = added(cluster, 2)
    data = tmp_path / "data"
    if not ray.is_initialized():
        ray.init(address=cluster.address)
    there = NodeAffinitySchedulingStrategy(first.node_id, soft=False)
    ray.get(ray.remote(begin).options(num_cpus=0, scheduling_strategy=there).remote(data, cluster.address))
    ray.shutdown()
    with Runtime(data=data, address=cluster.address, limits=Limits(hosts_max=3, hosts_warm=0)) as runtime:
        seen(runtime)
        before = runtime.cluster.processes()["supervisor"].pid
        assert before in ours_on(runtime, first)
        runs = [runtime.start(Worker, 15) for _ in range(6)]
        soon(lambda: not runtime.ps()["runs"]["starting"])
        end_s = drain(cluster, first, 60)
        soon(lambda: runtime.ps()["epoch"] == 2)
        soon(lambda: not ours_on(runtime, first))
        assert time.time() < end_s
        assert [run.result().output for run in runs] == [1] * 6
        cluster.remove_node(first, allow_graceful=False)
        assert runtime.ps()["epoch"] == 2
        assert runtime.audit()["balanced"]
    cluster.remove_node(second, allow_graceful=False)
