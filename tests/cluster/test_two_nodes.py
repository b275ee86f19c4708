"""A cluster of two nodes on one machine: one of them dies in the middle of a fan-out; what serves a directory there is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from ray.cluster_utils import Cluster
from typer.testing import CliRunner

from perdure.actors import Agent, ChatAgent, RunContext, Runtime, tool
from perdure.actors.ray_world.cluster_record import answers
from perdure.actors.ray_world.os_processes import is_alive
from perdure.actors.ray_world.ray_internals import read_settings
from perdure.ledger import NoLongerServed, NoSuchNode
from perdure.policies import Limits
from perdure.scenarios.cli import app

pytestmark = pytest.mark.long


class Rester(Agent):
    """Rests on the second node in its first attempt, and says that it is there."""

    resources: ClassVar[dict[str, float]] = {"second": 0.001}

    async def run(self, input: int, run: RunContext) -> list[int]:
        await run.report_progress(0.1)
        await asyncio.sleep(60 if run.attempt == 1 else 0)
        return [input, run.attempt]


class Apart(Agent):
    """Fails on a node of its own, and says so."""

    resources: ClassVar[dict[str, float]] = {"apart": 0.001}

    async def run(self, input: str) -> None:
        logging.getLogger("far").info("begins with %s", input)
        raise ValueError(f"cannot do {input}")


class Sender(Agent):
    """Sends resters out and waits for them."""

    async def run(self, input: int) -> list[list[int]]:
        results = await self.run_agent_tools([(Rester, number) for number in range(input)])
        return [result.output for result in results]


class Patient(Agent):
    """Works for a minute, but for a moment only if it has to begin again."""

    async def run(self, input: None, run: RunContext) -> int:
        await asyncio.sleep(60 if run.attempt == 1 else 0)
        return run.attempt


class Seeing(Agent):
    """Tells which GPUs it may use, and where it is."""

    num_gpus = 1
    memory = 1e6
    accelerator_type = "T4"
    label_selector: ClassVar[dict[str, str]] = {"zone": "in(b, c)"}

    async def run(self, input: None) -> list[str]:
        return [os.environ.get("CUDA_VISIBLE_DEVICES", ""), ray.get_runtime_context().get_node_id()]


class Elsewhere(Agent):
    """Asks for what no node has."""

    accelerator_type = "A100"
    label_selector: ClassVar[dict[str, str]] = {"zone": "moon"}

    async def run(self, input: None) -> None: ...


@tool(effect="pure", num_gpus=1, label_selector={"zone": "b"})
async def look() -> str:
    """Tell where this is."""
    return f"{os.environ.get('CUDA_VISIBLE_DEVICES')} on {ray.get_runtime_context().get_node_id()}"


async def answer(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
    """Look, and tell what came of it."""
    found = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
    yield str(found[0].content) if found else {0: DeltaToolCall(name="look", json_args="{}", tool_call_id="c")}


class Looker(ChatAgent):
    """Needs no GPU, but its tool does."""

    model: ClassVar[Any] = FunctionModel(stream_function=answer)

    def tools(self) -> list[Any]:
        return [look]


PATIENCE_S = 240.0  # of a test, on a busy machine


def perdure(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def soon(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Any]]:
    cache = {"PERDURE_CACHE": str(tmp_path_factory.mktemp("head"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "3")
        read_settings()  # or this Ray would ask for a token as an earlier one of this process did, and the other way round
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "env_vars": cache})
    second = cluster.add_node(num_cpus=1, resources={"second": 1.0})
    cluster.wait_for_nodes()
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def test_a_fan_out_outlives_the_node_on_which_its_children_live(two_nodes: tuple[Cluster, Any], tmp_path: Path) -> None:
    cluster, second = two_nodes
    with Runtime(data=tmp_path / "data", address=cluster.address, limits=Limits(hosts_max=2)) as runtime:
        run = runtime.start(Sender, 6, run_id="sent")
        until = time.monotonic() + PATIENCE_S
        while sum(each["status"] == "running" for each in runtime.list()) < 7:
            assert time.monotonic() < until, runtime.ps()
            time.sleep(0.2)
        cluster.remove_node(second, allow_graceful=False)
        cluster.add_node(num_cpus=1, resources={"second": 1.0})
        result = runtime.run(Sender, 6, run_id=run.run_id)
        assert sorted(number for number, _ in result.output) == list(range(6))
        assert {attempt for _, attempt in result.output} == {2}, "every child was on the node that died"
        assert runtime.audit()["balanced"]


def test_logs_are_shown_of_nodes_that_share_no_directory_whether_they_have_hosts_or_not(
    two_nodes: tuple[Cluster, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = two_nodes
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "here"))
    there = {"PERDURE_CACHE": str(tmp_path / "there")}
    apart = cluster.add_node(num_cpus=1, resources={"apart": 1.0}, env_vars=there)
    url, limits = f"file://{tmp_path}/bucket", Limits(hosts_max=2, hosts_warm=0, host_idle_ms=2_000)

    def logs() -> list[dict[str, Any]]:
        lines = perdure("logs", "failed", "--json", "--data", url).splitlines()
        return [each for line in lines if (each := json.loads(line))["logger"] != "perdure.logs"]

    with Runtime(url, address=cluster.address, limits=limits) as runtime:
        assert not runtime.run(Apart, "this", run_id="failed").ok
        told = logs()
        assert told[0]["text"] == "begins with this"
        assert "ValueError: cannot do this" in told[1]["text"]
        assert {each["machine"] for each in told} == {platform.node()}
        soon(lambda: not runtime.ps()["hosts"])
        soon(lambda: logs() == told)  # no host is there any more, and the node may take long to start a process
        cluster.remove_node(apart)
        monkeypatch.setenv("PERDURE_CACHE", there["PERDURE_CACHE"])
        there_alone = [{name: value for name, value in each.items() if name != "machine"} for each in told]
        assert logs() == there_alone, "of the node's own disk"


def test_agents_and_tools_run_where_the_gpus_are_and_what_is_nowhere_is_refused_with_what_there_is(
    two_nodes: tuple[Cluster, Any], tmp_path: Path
) -> None:
    cluster, _ = two_nodes
    with Runtime(data=tmp_path / "data", address=cluster.address, limits=Limits(hosts_max=2)) as runtime:
        third = cluster.add_node(num_cpus=1, num_gpus=2, resources={"accelerator_type:T4": 1}, labels={"zone": "b"})
        devices, node = runtime.run(Seeing).output
        assert devices in {"0", "1"}
        assert node == third.node_id
        devices, _, node = runtime.agent(Looker, "looker").chat("Where?").text.partition(" on ")
        assert devices in {"0", "1"}
        assert node == third.node_id
        with pytest.raises(NoSuchNode) as refused:
            runtime.run(Elsewhere, run_id="nowhere")
        told = str(refused.value)
        assert "no node has accelerator_type A100, label zone=moon (types of accelerators: T4; labels: " in told
        assert "zone=b" in told
        assert "no autoscaler brings nodes to this cluster" in told
        assert any(each["told"] in told for each in runtime.ps()["unstartable"])
        cluster.remove_node(third)


def test_what_serves_a_directory_is_stopped_for_all_and_the_cluster_and_the_work_stay(
    two_nodes: tuple[Cluster, Any], tmp_path: Path
) -> None:
    cluster, _ = two_nodes
    limits = Limits(hosts_max=1)
    with Runtime(data=tmp_path, address=cluster.address, limits=limits) as runtime:
        runtime.start(Patient, run_id="long")
        soon(lambda: runtime.ps()["runs"]["running"] == 1)
        processes = runtime.cluster.processes()
        told = json.loads(perdure("stop", "--data", tmp_path, "--timeout", "0s", "--json"))
        assert {told["supervisor"]["pid"], *(host["pid"] for host in told["hosts"])} == {
            info.pid for info in processes.values()
        }
        assert (told["cut_off"], told["ray"]) == (1, "goes on")
        assert [info for info in processes.values() if is_alive(info.process)] == []
        with pytest.raises(NoLongerServed, match="open it anew"):
            runtime.ps()
    assert perdure("stop", "--data", tmp_path) == f"Nothing serves {tmp_path}.\n"
    assert "1 running" in perdure("ps", "--data", tmp_path)
    assert answers(cluster.address)
    with Runtime(data=tmp_path, address=cluster.address, limits=limits) as runtime:
        assert runtime.run(Patient, run_id="long").output == 2
        assert runtime.audit()["balanced"]
