"""A cluster of two nodes, of which the second has another disk at the directory's path, as machines do that share no storage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from typer.testing import CliRunner

from perdure.actors import Agent, Runtime, exposed
from perdure.actors.ray_world.hosts import RayHost
from perdure.actors.ray_world.named_actors import control, create, kill
from perdure.actors.ray_world.ray_internals import read_settings
from perdure.actors.ray_world.supervisors import RaySupervisor
from perdure.actors.runtime.directory_files import served_findings
from perdure.ledger import NoSuchNode
from perdure.policies import Limits
from perdure.scenarios.cli import app

UNSHARE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _can_unshare() -> bool:
    return (
        os.geteuid() == 0
        and shutil.which("unshare") is not None
        and not subprocess.run([*UNSHARE, "true"], check=False).returncode
    )


pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not _can_unshare(), reason="another disk at a path takes root, and `unshare`"),
]


class Where(Agent):
    """Says on which node it is."""

    async def run(self, input: int) -> str:
        return str(ray.get_runtime_context().get_node_id())


class Abroad(Agent):
    """Asks for the second node."""

    resources: ClassVar[dict[str, float]] = {"second": 0.001}

    @exposed
    async def hello(self) -> str:
        return "hello"


class Place(NamedTuple):
    """A cluster, the path that its nodes do not share, the disk of the second node, and that node's id."""

    cluster: Cluster
    data: Path
    disk: Path
    second: str


def soon(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    shared, disk = tmp_path / "shared", tmp_path / "disk"
    shared.mkdir()
    disk.mkdir()
    read_settings()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    start = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        f"--address={cluster.address}",
        "--num-cpus=2",
        "--block",
    ]
    words = f'mount --bind {disk} {shared} && exec "$@"'
    second = subprocess.Popen([*UNSHARE, "bash", "-c", words, "ray", *start, '--resources={"second": 1}'])
    try:
        ray.init(cluster.address)
        soon(lambda: len([node for node in ray.nodes() if node["Alive"]]) == 2)
        (node,) = (node for node in ray.nodes() if "second" in node["Resources"])
        ray.shutdown()
        yield Place(cluster, shared / "data", disk, node["NodeID"])
    finally:
        second.kill()
        second.wait()
        ray.shutdown()
        cluster.shutdown()


def test_nothing_begins_on_a_node_that_does_not_see_the_directory(place: Place) -> None:
    with Runtime(data=place.data, address=place.cluster.address, limits=Limits(hosts_max=4)) as runtime:
        homes = {result.output for result in [runtime.run(Where, number) for number in range(4)]}
        assert place.second not in homes
        (blind,) = runtime.ps()["elsewhere"]
        assert place.second[:8] in blind["node"]
        assert "no such directory" in blind["told"]
        assert any("no such directory" in each.what for each in served_findings(runtime.ask, place.data))
        with pytest.raises(NoSuchNode, match="among those that see the directory"):
            runtime.agent(Abroad, "a").hello()

        assert "no such directory" in CliRunner().invoke(app, ["ps", "--data", str(place.data)]).stdout

        there = NodeAffinitySchedulingStrategy(place.second, soft=False)
        deployment = runtime.cluster.deployment
        stray = create(RayHost, deployment, "stray", num_cpus=0, max_restarts=0, scheduling_strategy=there)
        with pytest.raises(RayActorError, match=r"DirectoryElsewhere.*no such directory"):
            ray.get(control(stray, "info"))
        kill(ray.get_actor(deployment.supervisor, "perdure"))
        options = {"name": deployment.supervisor, "max_restarts": -1, "num_cpus": 0, "scheduling_strategy": there}
        soon(lambda: _tried(lambda: create(RaySupervisor, deployment, **options)))
        assert runtime.run(Where, 9).output not in {"", place.second}, "another one was created here"
    assert list(place.disk.iterdir()) == []


def _tried(job: Callable[[], object]) -> object:
    try:
        return job()
    except ValueError:
        return None
