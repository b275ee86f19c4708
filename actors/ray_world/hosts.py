"""The hosts of one data directory as actors of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayError

from perdure.actors.code.naming import prefer_pinned, prefer_sent
from perdure.actors.code.packages import package_uris
from perdure.actors.ports import PoolSpec, Pulse
from perdure.actors.ray_world.connection import cause_of
from perdure.actors.ray_world.courier import RayCourier, find_supervisor
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.fleet import HostGone, HostSilent
from perdure.actors.ray_world.identity import refuse_elsewhere
from perdure.actors.ray_world.last_words import killed_for_memory, take_last_words
from perdure.actors.ray_world.named_actors import (
    Handle,
    Remote,
    ask_info,
    ask_pulse,
    call,
    create,
    find,
    kill,
    names,
    remote,
)
from perdure.actors.ray_world.nodes import alive_nodes, among, lack, nodes_of
from perdure.actors.ray_world.os_processes import ProcessInfo, children, parent_process, this_process_info
from perdure.actors.ray_world.os_processes import kill as kill_processes
from perdure.actors.ray_world.parent_death import die_with_parent
from perdure.actors.ray_world.process_telemetry import begin_telemetry
from perdure.actors.ray_world.processes import HostProcess
from perdure.actors.ray_world.ray_internals import IDLE_WORKER, LOST
from perdure.actors.ray_world.system import system_world
from perdure.ledger import DirectoryElsewhere, HostUnavailable, NoSuchNode, blind

T = TypeVar("T")
RuntimeEnv = dict[str, Any]

GPU = "GPU"  # what Ray wants by an option of its own
START_S = 0.1  # until Ray has begun to start a process


class RayHost(HostProcess):
    """A host's actor."""

    def __init__(self, deployment: Deployment, host_id: str) -> None:
        die_with_parent()
        refuse_elsewhere(deployment.data, deployment.identity)
        if deployment.package and deployment.own:
            prefer_pinned(deployment.package, deployment.code_dir)
        elif deployment.package:
            unpacked = Path(os.environ["PYTHONPATH"].partition(os.pathsep)[0])
            prefer_sent(unpacked, deployment.package, deployment.code_dir)
        telemetry, metrics = begin_telemetry(deployment, host_id)
        world = system_world(metrics, threads_max=deployment.limits.threads_max, telemetry=telemetry)
        door = ray.get_runtime_context().get_actor_name() or ""
        courier = RayCourier(functools.partial(find_supervisor, deployment), door=door)
        super().__init__(deployment, world, courier, host_id)


class RayActors:
    """The hosts of one data directory, for the fleet.

    Attributes:
        elsewhere: the nodes that do not see the directory, and what each has instead.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._nodes = nodes_of(deployment) if deployment.identity and not deployment.own else None
        self.elsewhere = {} if self._nodes is None else self._nodes.elsewhere
        self._killed_for_memory = killed_for_memory()

    def create(self, host_id: str, spec: PoolSpec) -> Handle:
        """Ask Ray for a host."""
        try:
            name = self._deployment.host(host_id, spec)
            resources = dict(spec.resources)
            options: dict[str, Any] = {
                "name": name,
                "num_cpus": spec.num_cpus,
                "num_gpus": resources.pop(GPU, 0),
                "resources": resources,
            }
            if self._deployment.own and (lack := self.lack(spec)):
                raise NoSuchNode(f"{lack}, and this Ray has no other nodes to come")
            options |= self._place(spec)
            environment = json.loads(spec.runtime_env or "{}")
            deployment = self._deployment._replace(package=environment.pop("package", ""))
            uris = package_uris(deployment.package, deployment.code_dir)
            if environment or (uris and not deployment.own):
                options["runtime_env"] = _with_code(environment, [] if deployment.own else uris)
            return create(RayHost, deployment, host_id, max_restarts=0, scheduling_strategy="SPREAD", **options)
        except (RayError, ValueError, TypeError, OSError) as error:
            raise HostUnavailable(f"it cannot be created: {cause_of(error)}") from error

    def lack(self, spec: PoolSpec) -> str:
        """What no node has, in words; empty if one is large enough. Ray would wait for one for ever."""
        return lack(alive_nodes(), _wanted(spec))

    def look_around(self) -> None:
        """Ask the nodes that have to be asked now whether they see the directory."""
        if self._nodes is not None:
            self._nodes.seeing()

    def _place(self, spec: PoolSpec) -> dict[str, object]:
        """Where a host may live: on nodes that see the directory. Raises `NoSuchNode` if only others have what it asks for."""
        if self._nodes is None:
            return {}
        seeing, wanted = self._nodes.seeing(), _wanted(spec)
        everywhere = self._nodes.alive()
        if len(everywhere) == 1 or lack(everywhere, wanted):  # then such a node may be on its way
            return {}
        if missing := lack(seeing, wanted):
            raise NoSuchNode(f"{missing} among those that see the directory; {blind(self.elsewhere)}")
        return {"label_selector": among(seeing)}

    def hosts(self) -> dict[str, PoolSpec]:
        """The hosts that have a name. What others have left to say is of no use any more."""
        found = self._deployment.hosts_among(names())
        for left in self._deployment.last_words("").glob("*"):
            if left.name not in found:
                left.unlink(missing_ok=True)
        return found

    def in_words(self, host_id: str, cause: str) -> str:
        """What is known of a host's death, where Ray knows only that its connection broke."""
        if self._nodes is not None and DirectoryElsewhere.__name__ in cause:
            self._nodes.doubt()
        said = take_last_words(self._deployment.last_words(host_id))
        if said or LOST not in cause:
            return said or cause
        before, self._killed_for_memory = self._killed_for_memory, killed_for_memory()
        if self._killed_for_memory > before:
            return "its process was killed, and the kernel of this machine has killed for want of memory meanwhile"
        return "its process was killed by a signal, most likely SIGKILL"

    def find(self, host_id: str, spec: PoolSpec) -> Handle | None:
        """A host by its name."""
        return find(self._deployment.host(host_id, spec))

    def kill(self, handle: Handle) -> None:
        """End a host."""
        kill(handle)

    async def info(self, handle: Handle) -> ProcessInfo:
        """Ask a host who it is."""
        return ProcessInfo(*await _translated(ask_info(handle)))

    async def pulse(self, handle: Handle) -> Pulse:
        """Ask a host how its event loop is."""
        return Pulse(*await _translated(ask_pulse(handle)))

    async def watch(self, handle: Handle) -> str:
        """Wait until a host ends."""
        return str(await _translated(call(handle, "watch")))

    async def start_ahead(self) -> None:
        """Have Ray start an idle process: it becomes an actor in 0.1 s, a new one takes 0.6 s.

        Ray starts one for a waiting task, and keeps it if the task is cancelled meanwhile. A process that has run a task cannot become
        an actor, so it is killed.
        """
        raylet = parent_process()
        if not self._deployment.own or raylet is None or children(raylet, IDLE_WORKER):
            return
        waiting: Remote = _errand().remote()
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
        raise HostGone(cause_of(error)) from error


def _wanted(spec: PoolSpec) -> dict[str, float]:
    return {**dict(spec.resources), **({"CPU": spec.num_cpus} if spec.num_cpus else {})}


def _with_code(environment: RuntimeEnv, uris: list[str]) -> RuntimeEnv:
    """Add the agents' package, and our own code if it was sent, since a host's environment replaces its supervisor's."""
    theirs = [*uris, *environment.get("py_modules", [])]
    modules = [*theirs, *ray.get_runtime_context().runtime_env.get("py_modules", [])]
    return {**environment, "py_modules": modules} if modules else environment  # Ray fails on an empty list


@functools.cache
def _errand() -> Remote:
    return remote(this_process_info, num_cpus=0, max_retries=0, enable_task_events=False)
