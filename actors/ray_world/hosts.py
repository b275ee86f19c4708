"""The hosts of one data directory as actors of Ray."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayError

from perdure.actors.code.naming import prefer_pinned, prefer_sent
from perdure.actors.code.packages import package_file, package_uris, packed_in
from perdure.actors.ports import PoolSpec, Pulse
from perdure.actors.ray_world.cluster_nodes import (
    Node,
    Nodes,
    Places,
    alive_nodes,
    among,
    apart_from,
    in_words,
    lack,
    logs_there,
    on_nodes,
    outlook,
    seen_by,
    serving_nodes,
    wanted_of,
)
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.exit_report import UNSAID, killed_for_memory, take_exit_report
from perdure.actors.ray_world.fleet import HostActorDead, HostSilent
from perdure.actors.ray_world.identity import refuse_elsewhere
from perdure.actors.ray_world.named_actors import (
    Handle,
    call,
    control,
    create,
    find,
    kill,
    names,
)
from perdure.actors.ray_world.os_processes import ProcessInfo, die_with_parent
from perdure.actors.ray_world.process_telemetry import begin_telemetry
from perdure.actors.ray_world.processes import HostProcess
from perdure.actors.ray_world.ray_connection import cause_of
from perdure.actors.ray_world.ray_internals import LOST, draining_nodes, free_cpus, upload_package
from perdure.actors.ray_world.ray_transport import RayTransport, find_supervisor
from perdure.actors.ray_world.spares import Spare
from perdure.actors.ray_world.system import system_world
from perdure.ledger import DirectoryElsewhere, HostUnavailable, NoSuchNode, blind
from perdure.policies import GPU, MEMORY, NODE_ID, NodeDrain, node_lack

LOGS_S: Final = 20.0  # for a node to read its logs: it starts a process each time

T = TypeVar("T")
RuntimeEnv = dict[str, Any]


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

    async def start_ahead(self, environment: str) -> None:
        await self._spare.keep(environment)

    async def stop(self) -> None:
        await asyncio.gather(super().stop(), self._spare.end())


class RayActors:
    """The hosts of one data directory, for the fleet.

    Attributes:
        elsewhere: the nodes that do not see the directory, and what each has instead.
    """

    def __init__(self, deployment: Deployment, spare: Spare) -> None:
        self._deployment, self._spare = deployment, spare
        self._nodes: Nodes | None = None
        self.elsewhere: dict[str, str] = {}
        if (deployment.identity or deployment.bucket) and not deployment.own:
            own_node = self._own_node = ray.get_runtime_context().get_node_id()
            ask = functools.partial(seen_by, deployment) if deployment.identity else lambda ids: dict.fromkeys(ids, "")
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
        if not (wanted_of(spec) or spec.labels):
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
        busy = node_lack(now.free, wanted_of(spec), spec.labels, " left")
        return f"{busy}; it waits until something ends there" if busy else ""

    def is_in_vain(self, spec: PoolSpec) -> bool:
        return bool(lack(self._there(), spec)) and outlook().is_in_vain(spec)

    def bare_nodes(self, hosts: Sequence[str]) -> dict[str, str]:
        if self._nodes is None:
            return {}
        taken = {self._own_node, *map(self._places.node_of, hosts)}
        return {node["NodeID"]: node["NodeManagerHostname"] for node in alive_nodes() if node["NodeID"] not in taken}

    def read_logs(self, place: str, asked: Sequence[object]) -> bytes | None:
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
    def _prefer(self, host_id: str, spec: PoolSpec, selector: Mapping[str, object]) -> dict[str, object]:
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

    # Ray often knows only that the host's connection broke.
    def in_words(self, host_id: str, cause: str) -> str:
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
        return UNSAID

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

    async def start_ahead(self) -> None:
        environment = ray.get_runtime_context().get_runtime_env_string()  # type: ignore[no-untyped-call]
        await self._spare.keep(environment)
        apart = await asyncio.to_thread(self._places.apart) if self._nodes is not None else None
        handle = await asyncio.to_thread(self.find, *apart) if apart is not None else None
        if handle is not None:
            await _translated(control(handle, "start_ahead", environment))


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
