"""The hosts of one data directory as actors of Ray."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.actors.code.naming import prefer_pinned, prefer_sent
from perdure.actors.code.packages import package_file, package_uris, packed_in
from perdure.actors.link.questions import LogsOf
from perdure.actors.log_files import WantedLogs, log_page
from perdure.actors.ports import PoolSpec, Pulse
from perdure.actors.ray_world.autoscaler import outlook
from perdure.actors.ray_world.deployment import LOGS, Deployment
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
from perdure.actors.ray_world.node_places import Places
from perdure.actors.ray_world.os_processes import ProcessInfo
from perdure.actors.ray_world.parent_death import die_with_parent
from perdure.actors.ray_world.process_telemetry import begin_telemetry
from perdure.actors.ray_world.processes import HostProcess
from perdure.actors.ray_world.ray_connection import cause_of
from perdure.actors.ray_world.ray_internals import LOST, draining_nodes, free_cpus, upload_package
from perdure.actors.ray_world.ray_transport import RayTransport, find_supervisor
from perdure.actors.ray_world.spares import PLAIN, Spare
from perdure.actors.ray_world.system import system_world
from perdure.ledger import DirectoryElsewhere, HostUnavailable, NoSuchNode, begin_cache, blind
from perdure.policies import CPU, GPU, MEMORY, NODE_ID, NodeDrain, NodeOffer, has_labels, node_lack

T = TypeVar("T")
RuntimeEnv = dict[str, Any]


# ---------------------------------------------------------------- nodes
# Which nodes of a cluster see the data directory: each is asked by a task of its own before hosts go there, and again from time to time.
#
# A Ray that was started for this directory is one machine, so no node is asked there. Neither is the supervisor's own node: it would not
# serve otherwise.


ANSWER_S: Final = 10.0  # for a node to answer: it may have to start a process
AGAIN_S: Final = 60.0  # until a node that sees the directory is asked again
SOON_S: Final = 10.0  # until one that does not is
LOGS_S: Final = 20.0  # for a node to read its logs: it starts a process each time


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
                self.elsewhere[in_words(nodes[each])] = instead
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


def in_words(node: Node) -> str:
    return f"{node['NodeManagerHostname']} (Ray's node {node['NodeID'][:8]})"


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


# Ray places nothing on a node that drains.
def serving_nodes() -> list[Node]:
    nodes, draining = alive_nodes(), draining_nodes()
    return [node for node in nodes if node["NodeID"] not in draining] or nodes


def _ask(deployment: Deployment, node_ids: list[str]) -> dict[str, str]:
    told = dict.fromkeys(node_ids, f"what it did not tell within {ANSWER_S:.0f} s")
    for each, answer in on_nodes(node_ids, ANSWER_S, unlike, deployment.data, deployment.identity).items():
        is_problem = isinstance(answer, RayError)
        told[each] = f"what it could not be asked about ({cause_of(answer)})" if is_problem else str(answer)
    return told


def on_nodes(node_ids: list[str], within_s: float, job: Callable[..., object], *arguments: object) -> dict[str, Any]:
    """What a job gives in a process of each of these nodes, or Ray's error. Nodes that do not answer in time are left out."""
    asked: dict[str, Remote] = {}
    task = remote(job, num_cpus=0, max_retries=0, max_calls=1, enable_task_events=False)
    for each in node_ids:
        there = NodeAffinitySchedulingStrategy(each, soft=False)
        asked[each] = task.options(scheduling_strategy=there, runtime_env=PLAIN).remote(*arguments)
    ready = wait_for(asked, within_s)
    told: dict[str, object] = {}
    for each, answer in asked.items():
        if each not in ready:
            ray.cancel(answer, force=True)
            continue
        try:
            told[each] = ray.get(answer)
        except RayError as problem:
            told[each] = problem
    return told


def logs_there(url: str, asked: Sequence[Any]) -> bytes:
    wanted = LogsOf(*asked)
    return log_page(begin_cache(url) / LOGS, WantedLogs(*wanted.wanted), wanted.most, wanted.position).packed()


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
        world = world._replace(logs=deployment.own_logs)
        route = ray.get_runtime_context().get_actor_name() or ""
        transport = RayTransport(functools.partial(find_supervisor, deployment), route=route)
        self._spare = Spare(own=deployment.own)
        super().__init__(deployment, world, transport, host_id)

    async def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    async def start_ahead(self, again: bool) -> None:
        await self._spare.keep(again=again)


class RayActors:
    """The hosts of one data directory, for the fleet.

    Attributes:
        elsewhere: the nodes that do not see the directory, and what each has instead.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._nodes: Nodes | None = None
        self._spare = Spare(own=deployment.own)
        self.elsewhere: dict[str, str] = {}
        if (deployment.identity or deployment.bucket) and not deployment.own:
            own_node = self._own_node = ray.get_runtime_context().get_node_id()
            ask = functools.partial(_ask, deployment) if deployment.identity else lambda ids: dict.fromkeys(ids, "")
            self._nodes = Nodes(serving_nodes, ask, own_node)
            self._places = Places(own_node, free_cpus, draining_nodes)
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
            selector = dict(spec.labels) | self._place(spec)
            if selector:
                options["label_selector"] = selector
            options |= self._prefer(host_id, spec, selector)
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
            missing, now = lack(self._there(), spec), outlook()
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
        return bool(lack(self._there(), spec)) and outlook().is_in_vain(spec)

    def bare_nodes(self, hosts: Sequence[str]) -> dict[str, str]:
        if self._nodes is None:
            return {}
        taken = {self._own_node, *map(self._places.node_of, hosts)}
        return {node["NodeID"]: node["NodeManagerHostname"] for node in alive_nodes() if node["NodeID"] not in taken}

    def read_logs(self, place: str, asked: Sequence[Any]) -> bytes | None:
        where = "" if self._nodes is None else self._places.node_of(place) or place
        if all(node["NodeID"] != where for node in alive_nodes()):
            return None
        told = on_nodes([where], LOGS_S, logs_there, self._deployment.bucket, asked).get(where)
        return told if isinstance(told, bytes) else None

    def _there(self) -> list[Node]:
        return alive_nodes() if self._nodes is None else serving_nodes()

    def look_around(self) -> None:
        if self._nodes is not None:
            self._nodes.seeing()

    def drains(self) -> dict[str, NodeDrain]:
        if self._nodes is None or not (ends := draining_nodes()):
            return {}
        there = [*(node for node in alive_nodes() if node["NodeID"] in ends), *self._nodes.seeing()]
        # Ray may begin the supervisor's next life on any node, and it would not serve on one that does not see the directory.
        return self._places.drains({node["NodeID"]: in_words(node) for node in there}, may_move=not self.elsewhere)

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

    # One node of those that could take it; the others for the case that it cannot. Ray heeds no affinity to a node for an actor that takes
    # no CPU, but labels it does.
    def _prefer(self, host_id: str, spec: PoolSpec, selector: Any) -> dict[str, object]:
        if self._nodes is None or NODE_ID in dict(spec.labels):
            return {}
        able = [node for node in self._nodes.seeing() if not lack([node], spec)]
        chosen = self._places.choose(
            host_id, spec, {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in able}
        )
        if len(able) <= 1:
            return {}
        return {"label_selector": {**selector, NODE_ID: chosen}, "fallback_strategy": [{"label_selector": selector}]}

    # What hosts without a name have left to say is of no use any more.
    def hosts(self) -> dict[str, PoolSpec]:
        found = self._deployment.hosts_among(names())
        for left in self._deployment.last_words("").glob("*"):
            if left.name not in found:
                left.unlink(missing_ok=True)
        return found

    def in_words(self, host_id: str, cause: str) -> str:
        """What is known of a host's death, where Ray knows only that its connection broke."""
        if self._nodes is not None:
            self._places.forget(host_id)
            if DirectoryElsewhere.__name__ in cause:
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

    async def info(self, host_id: str, spec: PoolSpec, handle: Handle) -> ProcessInfo:
        info = ProcessInfo(*await _translated(control(handle, "info")))
        if self._nodes is not None:
            self._places.stands(host_id, spec, await _translated(control(handle, "node")))
        return info

    async def pulse(self, handle: Handle) -> Pulse:
        return Pulse(*await _translated(control(handle, "pulse")))

    async def watch(self, handle: Handle) -> str:
        return str(await _translated(call(handle, "watch")))

    async def start_ahead(self, *, again: bool) -> None:
        await self._spare.keep(again=again)
        apart = await asyncio.to_thread(self._places.apart) if self._nodes is not None else None
        handle = await asyncio.to_thread(self.find, *apart) if apart is not None else None
        if handle is not None:
            await _translated(control(handle, "start_ahead", again))


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
