"""The hosts of one data directory as actors of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.actors.code.naming import prefer_pinned, prefer_sent
from perdure.actors.code.packages import package_file, package_uris, packed_in
from perdure.actors.ports import PoolSpec, Pulse
from perdure.actors.ray_world.autoscaler import outlook
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.exit_report import killed_for_memory, take_exit_report
from perdure.actors.ray_world.fleet import HostActorDead, HostSilent
from perdure.actors.ray_world.identity import refuse_elsewhere, unlike
from perdure.actors.ray_world.named_actors import (
    Handle,
    Remote,
    call,
    control,
    create,
    find,
    kill,
    names,
    remote,
    wait_for,
)
from perdure.actors.ray_world.os_processes import ProcessInfo, children, parent_process, this_process_info
from perdure.actors.ray_world.os_processes import kill as kill_processes
from perdure.actors.ray_world.parent_death import die_with_parent
from perdure.actors.ray_world.process_telemetry import begin_telemetry
from perdure.actors.ray_world.processes import HostProcess
from perdure.actors.ray_world.ray_connection import cause_of
from perdure.actors.ray_world.ray_internals import IDLE_WORKER, LOST, upload_package
from perdure.actors.ray_world.ray_transport import RayTransport, find_supervisor
from perdure.actors.ray_world.system import system_world
from perdure.ledger import DirectoryElsewhere, HostUnavailable, NoSuchNode, blind
from perdure.policies import CPU, GPU, MEMORY, NODE_ID, NodeOffer, has_labels, node_lack

T = TypeVar("T")
RuntimeEnv = dict[str, Any]

START_S = 0.1  # until Ray has begun to start a process


# ---------------------------------------------------------------- nodes
# Which nodes of a cluster see the data directory: each is asked by a task of its own before hosts go there, and again from time to time.
#
# A Ray that was started for this directory is one machine, so no node is asked there. Neither is the supervisor's own node: it would not
# serve otherwise.


ANSWER_S: Final = 10.0  # for a node to answer: it may have to start a process
AGAIN_S: Final = 60.0  # until a node that sees the directory is asked again
SOON_S: Final = 10.0  # until one that does not is


class Node(TypedDict):
    """A node, as `ray.nodes` describes it."""

    NodeID: str
    NodeManagerHostname: str
    Resources: dict[str, float]
    Labels: dict[str, str]
    Alive: bool


class NodePath(NamedTuple):
    """What a node had at the path instead of the directory (empty if it has the directory), and until when that counts."""

    instead: str
    until_s: float


class Nodes:
    """The nodes of the cluster of one supervisor. Its methods block, and may be called from any thread.

    Args:
        alive: the nodes that live, as `ray.nodes` describes them.
        ask: asks nodes, by their ids, what they have at the path instead of the directory.
        own: the id of the supervisor's node.

    Attributes:
        elsewhere: the nodes that do not see the directory, and what each has instead.
    """

    def __init__(self, alive: Callable[[], list[Node]], ask: Callable[[list[str]], dict[str, str]], own: str) -> None:
        self.alive, self._ask, self._own = alive, ask, own
        self._seen: dict[str, NodePath] = {}
        self._lock = threading.Lock()
        self.elsewhere: dict[str, str] = {}

    def seeing(self) -> list[Node]:
        """The nodes that see the directory. Those that have to be asked now are asked."""
        with self._lock:
            nodes, now_s = {node["NodeID"]: node for node in self.alive()}, time.monotonic()
            kept = {each: seen for each, seen in self._seen.items() if each in nodes and seen.until_s > now_s}
            due = [each for each in nodes if each != self._own and each not in kept]
            told = self._ask(due) if due else {}
            now_s = time.monotonic()
            self._seen = kept | {
                each: NodePath(instead, now_s + (SOON_S if instead else AGAIN_S)) for each, instead in told.items()
            }
            strangers = {each: seen.instead for each, seen in self._seen.items() if seen.instead}
            self.elsewhere.clear()
            for each, instead in strangers.items():
                self.elsewhere[f"{nodes[each]['NodeManagerHostname']} (Ray's node {each[:8]})"] = instead
            return [node for each, node in nodes.items() if each not in strangers]

    def doubt(self) -> None:
        """A host has found no directory: all nodes are asked again."""
        with self._lock:
            self._seen.clear()


def lack(nodes: list[Node], spec: PoolSpec) -> str:
    """What none of these nodes has, in words; empty if one is large enough and has the labels."""
    return node_lack([NodeOffer(node["Resources"], node["Labels"]) for node in nodes], _wanted(spec), spec.labels)


def _wanted(spec: PoolSpec) -> dict[str, float]:
    return {**dict(spec.resources), **({CPU: spec.num_cpus} if spec.num_cpus else {})}


# Those with its labels: it may have asked for nodes by their ids itself.
def among(nodes: list[Node], spec: PoolSpec) -> dict[str, str]:
    chosen = [node["NodeID"] for node in nodes if has_labels(node["Labels"], spec.labels)]
    return {NODE_ID: f"in({','.join(chosen)})"}


def apart_from(seeing: list[Node], everywhere: list[Node]) -> dict[str, str]:
    here = {node["NodeID"] for node in seeing}
    strangers = [node["NodeID"] for node in everywhere if node["NodeID"] not in here]
    return {NODE_ID: f"!in({','.join(strangers)})"} if strangers else {}


def alive_nodes() -> list[Node]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _ask(deployment: Deployment, node_ids: list[str]) -> dict[str, str]:
    asked: dict[str, Remote] = {}
    look = remote(unlike, num_cpus=0, max_retries=0, enable_task_events=False)
    for each in node_ids:
        there = NodeAffinitySchedulingStrategy(each, soft=False)
        asked[each] = look.options(scheduling_strategy=there).remote(deployment.data, deployment.identity)
    ready = wait_for(asked, ANSWER_S)
    told = dict.fromkeys(node_ids, f"what it did not tell within {ANSWER_S:.0f} s")
    for each, answer in asked.items():
        if each not in ready:
            ray.cancel(answer, force=True)
            continue
        try:
            told[each] = str(ray.get(answer))
        except RayError as problem:
            told[each] = f"what it could not be asked about ({cause_of(problem)})"
    return told


# ---------------------------------------------------------------- hosts


class RayHost(HostProcess):
    """A host's actor."""

    def __init__(self, deployment: Deployment, host_id: str) -> None:
        die_with_parent()
        deployment = deployment.here()
        refuse_elsewhere(deployment.data, deployment.identity)  # before anything is written at this path
        if deployment.package and deployment.own:
            prefer_pinned(deployment.package, deployment.code_dir)
        elif deployment.package:
            unpacked = Path(os.environ["PYTHONPATH"].partition(os.pathsep)[0])
            prefer_sent(unpacked, deployment.package, deployment.code_dir)
        telemetry, metrics = begin_telemetry(deployment, host_id)
        world = system_world(metrics, threads_max=deployment.limits.threads_max, telemetry=telemetry)
        route = ray.get_runtime_context().get_actor_name() or ""
        transport = RayTransport(functools.partial(find_supervisor, deployment), route=route)
        super().__init__(deployment, world, transport, host_id)


class RayActors:
    """The hosts of one data directory, for the fleet.

    Attributes:
        elsewhere: the nodes that do not see the directory, and what each has instead.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._nodes: Nodes | None = None
        self.elsewhere: dict[str, str] = {}
        if deployment.identity and not deployment.own:
            own_node = ray.get_runtime_context().get_node_id()
            self._nodes = Nodes(alive_nodes, functools.partial(_ask, deployment), own_node)
            self.elsewhere = self._nodes.elsewhere
        self._killed_for_memory = killed_for_memory()

    def create(self, host_id: str, spec: PoolSpec) -> Handle:
        """Ask Ray for a host."""
        try:
            name = self._deployment.host(host_id, spec)
            resources = dict(spec.resources)
            options: dict[str, object] = {
                "name": name,
                "num_cpus": spec.num_cpus,
                "num_gpus": resources.pop(GPU, 0),
                "memory": resources.pop(MEMORY, None),
                "resources": resources,
            }
            if selector := dict(spec.labels) | self._place(spec):
                options["label_selector"] = selector
            environment = json.loads(spec.runtime_env or "{}")
            deployment = self._deployment._replace(package=environment.pop("package", ""))
            uris = package_uris(deployment.package, deployment.code_dir)
            if uris and deployment.bucket and not deployment.own:
                uris = [
                    upload_package(deployment.package, packed_in(package_file(deployment.package, deployment.code_dir)))
                ]
            if environment or (uris and not deployment.own):
                options["runtime_env"] = _with_code(environment, [] if deployment.own else uris)
            # Ray restarts no host: the supervisor starts another one, by another name.
            return create(RayHost, deployment, host_id, max_restarts=0, scheduling_strategy="SPREAD", **options)
        except (RayError, ValueError, TypeError, OSError) as error:
            raise HostUnavailable(f"it cannot be created: {cause_of(error)}") from error

    def shortage(self, spec: PoolSpec) -> str:
        """What such a host has to wait for, in words. Raises `NoSuchNode` if nothing will come, for which Ray would wait for ever."""
        if not (_wanted(spec) or spec.labels):
            return ""
        try:
            missing, now = lack(alive_nodes(), spec), outlook()
        except RayError as error:
            raise HostUnavailable(f"what nodes have is not known: {cause_of(error)}") from error
        if missing and self._deployment.own:
            raise NoSuchNode(f"{missing}, and this Ray has no other nodes to come")
        if missing and not now.has_autoscaler:
            raise NoSuchNode(f"{missing}, and no autoscaler brings nodes to this cluster")
        if missing:
            return f"{missing}; the autoscaler is asked for one"
        busy = node_lack(now.free, _wanted(spec), spec.labels, " left")
        return f"{busy}; it waits until something ends there" if busy else ""

    def is_in_vain(self, spec: PoolSpec) -> bool:
        return bool(lack(alive_nodes(), spec)) and outlook().is_in_vain(spec)

    def look_around(self) -> None:
        if self._nodes is not None:
            self._nodes.seeing()

    # Only nodes that see the directory, as a label selector. Raises `NoSuchNode` if only others have what the host asks for.
    def _place(self, spec: PoolSpec) -> dict[str, str]:
        if self._nodes is None:
            return {}
        seeing, everywhere = self._nodes.seeing(), self._nodes.alive()
        if len(everywhere) == 1 or lack(everywhere, spec):  # then such a node may be on its way
            return {}
        if missing := lack(seeing, spec):
            raise NoSuchNode(f"{missing} among those that see the directory; {blind(self.elsewhere)}")
        if NODE_ID in dict(spec.labels) or not outlook().has_autoscaler:
            return among(seeing, spec)
        # A node that an autoscaler brings sees the directory too, most likely; or else the host refuses to begin there.
        return apart_from(seeing, everywhere)

    # What hosts without a name have left to say is of no use any more.
    def hosts(self) -> dict[str, PoolSpec]:
        found = self._deployment.hosts_among(names())
        for left in self._deployment.last_words("").glob("*"):
            if left.name not in found:
                left.unlink(missing_ok=True)
        return found

    def in_words(self, host_id: str, cause: str) -> str:
        """What is known of a host's death, where Ray knows only that its connection broke."""
        if self._nodes is not None and DirectoryElsewhere.__name__ in cause:
            self._nodes.doubt()
        said = take_exit_report(self._deployment.last_words(host_id))
        if said or LOST not in cause:
            return said or cause
        before, self._killed_for_memory = self._killed_for_memory, killed_for_memory()
        if self._killed_for_memory > before:
            return "its process was killed, and the kernel of this machine has killed for want of memory meanwhile"
        return "its process was killed by a signal, most likely SIGKILL"

    def find(self, host_id: str, spec: PoolSpec) -> Handle | None:
        return find(self._deployment.host(host_id, spec))

    def kill(self, handle: Handle) -> None:
        kill(handle)

    async def info(self, handle: Handle) -> ProcessInfo:
        return ProcessInfo(*await _translated(control(handle, "info")))

    async def pulse(self, handle: Handle) -> Pulse:
        return Pulse(*await _translated(control(handle, "pulse")))

    async def watch(self, handle: Handle) -> str:
        return str(await _translated(call(handle, "watch")))

    async def start_ahead(self) -> None:
        """Have Ray start an idle process: it becomes an actor in 0.1 s, a new one takes 0.6 s.

        Ray starts one for a waiting task, and keeps it if the task is cancelled meanwhile. A process that has run a task cannot become
        an actor, so it is killed.
        """
        raylet = parent_process()
        if not self._deployment.own or raylet is None or children(raylet, IDLE_WORKER):
            return
        waiting = remote(this_process_info, num_cpus=0, max_retries=0, enable_task_events=False).remote()
        await asyncio.sleep(START_S)
        ray.cancel(waiting)
        with contextlib.suppress(RayError):
            kill_processes((await waiting).here)


async def _translated(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except ActorUnavailableError as error:
        raise HostSilent(cause_of(error)) from error
    except RayError as error:
        raise HostActorDead(cause_of(error)) from error


# A host's environment replaces its supervisor's, which has our own code if that was sent.
def _with_code(environment: RuntimeEnv, uris: list[str]) -> RuntimeEnv:
    theirs = [*uris, *environment.get("py_modules", [])]
    modules = [*theirs, *ray.get_runtime_context().runtime_env.get("py_modules", [])]
    return {**environment, "py_modules": modules} if modules else environment  # Ray fails on an empty list
