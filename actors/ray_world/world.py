"""The world in which processes truly die: the supervisor and the hosts are actors of Ray.

Names stand for actors: `supervisor-<directory>` and `host-<directory>-<id>`, detached, in one namespace. Ray restarts the
supervisor and nothing else, and repeats no call (`max_task_retries=0`): what is to be done again is for the ledger to say. A call
for which Ray has no answer, whatever it raises, has an unknown outcome: `SupervisorUnreachable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util import list_named_actors, metrics
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.actors.code.naming import prefer_sent, refuse_while_loading
from perdure.actors.code.packages import package_uris
from perdure.actors.events.observability import Tags
from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.cluster_record import refuse_if_stopped
from perdure.actors.ray_world.connection import NAMESPACE, cause_of, exit_on_sigterm
from perdure.actors.ray_world.driver import DRIVER, Member
from perdure.actors.ray_world.fleet import ActorFleet, HostGone, HostSilent
from perdure.actors.ray_world.lifetime import Lifetime, aside
from perdure.actors.ray_world.plan import About, Parts, Plan
from perdure.actors.ray_world.processes import HostProcess, Process, SupervisorProcess
from perdure.actors.ray_world.system import (
    descendants,
    die_with_parent,
    machine,
    own_pid,
    strike,
    system_world,
    wait_for_death,
)
from perdure.ledger import BadRequest, HostUnavailable, PerdureError, SupervisorUnreachable
from perdure.policies import Limits

CALLS_MAX: Final = 100_000  # calls that one actor holds open
STOP_S: Final = 5.0  # for a process to put everything away
DEATH_S: Final = 2.0  # for a killed process to be gone
SUPERVISOR: Final = "supervisor"  # its key among the ids of hosts

T = TypeVar("T")
Handle = Any  # Ray's handles and actor classes are untyped


class RayCourier:
    """The way to the supervisor, from a host or from a driver. `find` looks it up by its name, and blocks meanwhile.

    A host has one Ray for life. A driver may live to see several; `living` tells the present one.
    """

    def __init__(self, find: Callable[[], Handle], living: Callable[[], Lifetime] | None = None) -> None:
        self._find, self._life = find, Lifetime()
        self._living = living or (lambda: self._life)
        self._handle: Handle = None

    async def exchange(self, frame: bytes) -> bytes:
        """Hand over a frame and wait for the answer. Raises `SupervisorUnreachable`, or what the supervisor itself raised."""
        life = self._living()
        if life is not self._life:
            self._life, self._handle = life, None
        try:
            if self._handle is None:
                self._handle = await asyncio.wrap_future(life.bound(aside(self._find)))
            reference = self._handle.exchange.remote(frame)
            answer: bytes = await asyncio.wrap_future(life.bound(reference.future()))
        except RayTaskError as error:
            raise _carried(error) from None
        except (RayError, ValueError, OSError, RuntimeError) as error:
            if isinstance(error, ActorDiedError):
                self._handle = None
            raise SupervisorUnreachable(cause_of(error)) from error
        return answer


def _carried(error: RayTaskError) -> PerdureError:
    """The error that the method raised, if it is meant for the caller. Any other is our bug, and then the outcome is unknown."""
    if isinstance(error.cause, PerdureError):
        return error.cause
    return SupervisorUnreachable(f"the supervisor failed: {cause_of(error)}")


def _find_supervisor(plan: Plan) -> Handle:
    if not ray.is_initialized():  # or Ray would start a cluster in order to look there
        raise SupervisorUnreachable("Ray is not running")
    return ray.get_actor(plan.supervisor, NAMESPACE)


def _ensure_supervisor(plan: Plan) -> Handle:
    """Find the supervisor or create it. Several may try at once, and a name may be on its way out."""
    for pause_s in (0.0, 0.05, 0.2, 1.0):
        time.sleep(pause_s)
        with contextlib.suppress(ValueError):
            return _find_supervisor(plan)
        with contextlib.suppress(ValueError):
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            options = {"name": plan.supervisor, "max_restarts": -1, "num_cpus": 0, "scheduling_strategy": here}
            return _actor(RaySupervisor, **options).remote(plan)
    raise SupervisorUnreachable(f"the name {plan.supervisor} is neither free nor taken")


def _find_again(plan: Plan) -> Handle:
    """Find the supervisor, or create it if Ray has lost it. One that somebody has stopped is not created by who was connected then."""
    with contextlib.suppress(ValueError):
        return _find_supervisor(plan)
    refuse_if_stopped(plan.data, ray.get_runtime_context().gcs_address)
    return _ensure_supervisor(plan)


class RaySupervisor(SupervisorProcess):
    """The supervisor's actor."""

    def __init__(self, plan: Plan) -> None:
        die_with_parent()  # or it would hold the ledger for a while after its raylet has died
        super().__init__(plan, system_world(RayMetrics()), ActorFleet(RayActors(plan)))


class RayHost(HostProcess):
    """A host's actor."""

    def __init__(self, plan: Plan, host_id: str) -> None:
        die_with_parent()
        if plan.package:
            prefer_sent(Path(os.environ["PYTHONPATH"].partition(os.pathsep)[0]))
        world = system_world(threads_max=plan.limits.threads_max)
        super().__init__(plan, world, RayCourier(functools.partial(_find_supervisor, plan)), host_id)


def _actor(cls: Callable[..., Process], **options: object) -> Handle:
    return _wrapped(cls).options(namespace=NAMESPACE, lifetime="detached", max_concurrency=CALLS_MAX, **options)


@functools.cache
def _wrapped(cls: Callable[..., Process]) -> Handle:
    return cast("Any", ray).remote(concurrency_groups={"control": 2}, max_task_retries=0, enable_task_events=False)(cls)


def _about(handle: Handle) -> Any:
    return handle.about.options(concurrency_group="control").remote()


def _named(name: str) -> Handle | None:
    with contextlib.suppress(ValueError):
        return ray.get_actor(name, NAMESPACE)
    return None


def _answers(asked: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
    """What was answered in time, and not by an error."""
    waiting, found = list(asked.values()), dict[str, Any]()
    ready = ray.wait(waiting, num_returns=len(waiting), timeout=patience_s)[0] if waiting else []
    for key, reference in asked.items():
        with contextlib.suppress(RayError):
            found.update({key: ray.get(reference)} if reference in ready else {})
    return found


def _kill(handle: Handle) -> None:
    with contextlib.suppress(RayError, ValueError):
        ray.kill(handle)


def _names() -> list[str]:
    """Of all our actors, whatever their directory."""
    return [each["name"] for each in list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]


class RayActors:
    """The hosts of one data directory, for the fleet."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def create(self, host_id: str, spec: PoolSpec) -> Handle:
        """Ask Ray for a host."""
        try:
            name = self._plan.host(host_id, spec)
            options = {"name": name, "num_cpus": spec.num_cpus, "resources": dict(spec.resources)}
            if self._plan.own:
                _check_room(spec)
            environment = json.loads(spec.runtime_env or "{}")
            plan = self._plan._replace(package=environment.pop("package", ""))
            if spec.runtime_env:
                options["runtime_env"] = _with_code(environment, plan)
            actor = _actor(RayHost, max_restarts=0, scheduling_strategy="SPREAD", **options)
            return actor.remote(plan, host_id)
        except (RayError, ValueError, TypeError, OSError) as error:
            raise HostUnavailable(f"host {host_id} cannot be created: {cause_of(error)}") from error

    def hosts(self) -> dict[str, PoolSpec]:
        """The hosts that have a name."""
        return self._plan.hosts_among(_names())

    def find(self, host_id: str, spec: PoolSpec) -> Handle | None:
        """A host by its name."""
        return _named(self._plan.host(host_id, spec))

    def kill(self, handle: Handle) -> None:
        """End a host."""
        _kill(handle)

    async def about(self, handle: Handle) -> About:
        """Ask a host who it is."""
        return About(*await _translated(_about(handle)))

    async def watch(self, handle: Handle) -> str:
        """Wait until a host ends."""
        return str(await _translated(handle.watch.remote()))

    async def start_ahead(self) -> None:
        """Have Ray start a process that nobody uses yet: an actor is made of it in 0.1 s, otherwise in 0.6 s.

        Ray starts one for a task that waits, and keeps it if the task is cancelled meanwhile. After a task it could be no actor.
        """
        if not self._plan.own or descendants(os.getppid(), "ray::IDLE"):
            return
        waiting = _errand().remote()
        await asyncio.sleep(0.1)
        ray.cancel(waiting)
        with contextlib.suppress(RayError):
            strike([await waiting])


async def _translated(answer: Any) -> Any:
    try:
        return await answer
    except ActorUnavailableError as error:
        raise HostSilent(cause_of(error)) from error
    except RayError as error:
        raise HostGone(cause_of(error)) from error


def _check_room(spec: PoolSpec) -> None:
    """Ray would wait forever for a node that can never come; a cluster that grows by itself is not ours to judge."""
    wanted = {**dict(spec.resources), **({"CPU": spec.num_cpus} if spec.num_cpus else {})}
    nodes = [node["Resources"] for node in cast("Any", ray).nodes() if node["Alive"]] if wanted else [{}]
    if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
        raise ValueError(f"no node has {wanted}")


def _with_code(environment: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """A host's own environment replaces its supervisor's, so our code goes along if it was sent, after what its agents come in."""
    theirs = [*package_uris(plan.package, plan.code_dir), *environment.get("py_modules", [])]
    modules = [*theirs, *ray.get_runtime_context().runtime_env.get("py_modules", [])]
    return {**environment, "py_modules": modules} if modules else environment  # Ray stumbles over an empty list


@functools.cache
def _errand() -> Handle:
    return cast("Any", ray).remote(num_cpus=0, max_retries=0, enable_task_events=False)(own_pid)


class RayCluster:
    """What a driver has of one data directory. `own` says that this process started its Ray, so it ends with this process."""

    def __init__(self, plan: Plan, member: Member) -> None:
        self.plan, self.own, self._member = plan, plan.own, member
        self._closed = False

    @classmethod
    def start(
        cls,
        data: Path,
        *,
        address: str | None = None,
        limits: Limits | None = None,
        num_cpus: int | None = None,
        parts: Parts | None = None,
    ) -> Self:
        """Join the Ray that is named or that serves the directory already, else start one; see that its supervisor exists.

        Raises `LedgerUnwritable`, `BadRequest` for an address that is none or that this process cannot join now, and
        `SupervisorUnreachable` if nobody answers there.
        """
        refuse_while_loading()
        plan = Plan(data.resolve(), limits or Limits(), False, parts or Parts())
        member = Member(plan.data, lambda own: _ensure_supervisor(plan._replace(own=own)))
        exit_on_sigterm()
        life = DRIVER.enter(member, address or os.environ.get("RAY_ADDRESS"), num_cpus)
        return cls(plan._replace(own=life.own), member)

    @classmethod
    def found(cls, data: Path, address: str | None = None) -> Self | None:
        """Join what serves the directory, if anything does, and create nothing. Raises `SupervisorUnreachable` if that is refused."""
        plan = Plan(data.resolve(), Limits())
        member = Member(plan.data, lambda _own: _find_supervisor(plan))
        with contextlib.suppress(ValueError):
            life = DRIVER.enter(member, address, may_start=False)
            return cls(plan._replace(own=life.own), member)
        return None

    @property
    def address(self) -> str:
        """Where its Ray is. Raises `SupervisorUnreachable` while it has none."""
        return DRIVER.living().address

    @property
    def session(self) -> str:
        """Ray's name for that cluster."""
        return DRIVER.living().session

    def courier(self) -> RayCourier:
        """A way to the supervisor for one event loop of this driver."""
        return RayCourier(functools.partial(_find_again, self.plan), DRIVER.living)

    def pids(self, patience_s: float = 1.0) -> dict[str, int]:
        """The processes by `supervisor` or id of host. Those that do not answer, or are not up yet, are left out."""

        def ask() -> dict[str, About]:
            return _answers({key: _about(handle) for key, handle in self._handles().items()}, patience_s)

        return {key: About(*about).pid for key, about in _within_life(ask).items()}

    def close(self) -> None:
        """Leave. In a Ray of our own the supervisor and the hosts put everything away first, and the last one to leave ends it."""
        if self._closed:
            return
        self._closed = True
        if self.own and DRIVER.is_last(self._member):
            with contextlib.suppress(SupervisorUnreachable, TimeoutError):  # then there is nobody left to be stopped
                self.stop_actors()
        DRIVER.leave(self._member)

    def kill_everything(self) -> None:
        """`SIGKILL` everything of a Ray of our own at once, as a power cut would; then let go of it."""
        if not self.own or self._closed:
            raise BadRequest("cluster", "only a Ray that this process has started can be killed by it")
        self._closed = True
        DRIVER.kill(self._member)

    def _handles(self) -> dict[str, Handle]:
        hosts = self.plan.hosts_among(_names())
        names = {SUPERVISOR: self.plan.supervisor, **{key: self.plan.host(key, spec) for key, spec in hosts.items()}}
        return {key: handle for key, name in names.items() if (handle := _named(name)) is not None}

    def stop_actors(self) -> dict[str, About | None]:
        """Stop the supervisor and the hosts. Returns who they were by `supervisor` or id of host, with None for who did not say.

        Raises `TimeoutError`, and `SupervisorUnreachable` if that Ray ends meanwhile.
        """
        return _within_life(self._stop_actors, patience_s=4 * STOP_S)

    def _stop_actors(self) -> dict[str, About | None]:
        """First the supervisor, lest it replaces the hosts. Back when those of their processes are gone that are on this machine."""
        handles = self._handles()
        answers = _answers({key: _about(handle) for key, handle in handles.items()}, STOP_S)
        abouts = {key: About(*about) for key, about in answers.items()}
        for group in (handles.keys() & {SUPERVISOR}, handles.keys() - {SUPERVISOR}):
            _answers({key: handles[key].stop.remote() for key in group}, STOP_S)
            for key in group:
                _kill(handles[key])
        near = [about.pid for about in abouts.values() if about.machine == machine()]
        left = wait_for_death(near, DEATH_S)
        strike(left)
        wait_for_death(left, DEATH_S)
        return {key: abouts.get(key) for key in handles}

    def neighbours(self) -> list[str]:
        """The names of actors in this Ray that belong to other directories."""
        names = _within_life(_names, STOP_S)
        return [name for name in names if name != self.plan.supervisor and not self.plan.hosts_among([name])]


def _within_life(work: Callable[[], T], patience_s: float | None = None) -> T:
    """Do what asks Ray for something, and blocks for ever if that Ray ends meanwhile."""
    return DRIVER.living().bound(aside(work)).result(patience_s)


class RayMetrics:
    """Ray's metrics behind three words. A metric comes into being when it is first used, with the tags it has then."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        """Add to a counter."""
        self._metric(metrics.Counter, name, tags).inc(value, dict(tags or {}))

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Set a gauge."""
        self._metric(metrics.Gauge, name, tags).set(value, dict(tags or {}))

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        """Add to a histogram of durations."""
        decades = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]
        self._metric(metrics.Histogram, name, tags, boundaries=decades).observe(value, dict(tags or {}))

    def _metric(self, kind: Callable[..., Any], name: str, tags: Tags | None, **options: object) -> Any:
        if name not in self._known:
            self._known[name] = kind(f"perdure_{name}", tag_keys=tuple(tags or ()), **options)
        return self._known[name]
