"""The world in which processes truly die: the supervisor and the hosts are actors of Ray, and only this file knows Ray.

Names stand for actors: `supervisor-<directory>` and `host-<directory>-<id>`, detached, in one namespace. Ray restarts the
supervisor and nothing else, and repeats no call (`max_task_retries=0`): what is to be done again is for the ledger to say. A call
for which Ray has no answer, whatever it raises, has an unknown outcome: `SupervisorUnreachable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self, cast

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util import list_named_actors, metrics
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster_record import OURS, answers, deciding, forget_record, read_record, surroundings, write_record
from actors.code import prefer_sent, refuse_while_loading
from actors.fleet import ActorFleet, HostGone, HostSilent
from actors.observability import Tags
from actors.packing import package_uris
from actors.plan import About, Parts, Plan
from actors.ports import PoolSpec
from actors.processes import HostProcess, Process, SupervisorProcess
from actors.system_world import descendants, own_pid, strike, system_world, wait_for_death
from ledger import BadRequest, HostUnavailable, PerdureError, SupervisorUnreachable
from policies import Limits

NAMESPACE: Final = "perdure"
STORE_BYTES: Final = 80 * 1024 * 1024  # what we send travels inside the calls; Ray accepts no less than 75 MB
CALLS_MAX: Final = 100_000  # calls that one actor holds open
STOP_S: Final = 5.0  # for a process to put everything away
DEATH_S: Final = 2.0  # for a killed process to be gone, before it is struck down
SUPERVISOR: Final = "supervisor"  # its key among the ids of hosts

Handle = Any  # Ray's handles and actor classes are untyped


class RayCourier:
    """The way to the supervisor, from a host or from a driver. `find` looks it up by its name, and blocks meanwhile."""

    def __init__(self, find: Callable[[], Handle]) -> None:
        self._find = find
        self._handle: Handle = None

    async def exchange(self, frame: bytes) -> bytes:
        """Hand over a frame and wait for the answer. Raises `SupervisorUnreachable`, or what the supervisor itself raised."""
        try:
            if self._handle is None:
                self._handle = await asyncio.to_thread(self._find)
            answer: bytes = await self._handle.exchange.remote(frame)
        except RayTaskError as error:
            raise _carried(error) from None
        except (RayError, ValueError, OSError, RuntimeError) as error:
            if isinstance(error, ActorDiedError):
                self._handle = None
            raise SupervisorUnreachable(_cause(error)) from error
        return answer


def _carried(error: RayTaskError) -> PerdureError:
    """The error that the method raised, if it is meant for the caller. Any other is our bug, and then the outcome is unknown."""
    if isinstance(error.cause, PerdureError):
        return error.cause
    return SupervisorUnreachable(f"the supervisor failed: {_cause(error)}")


def _cause(error: BaseException) -> str:
    """One line of what Ray tells in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    _, mark, detail = lines[-1].rpartition("Worker exit detail: ")
    return (detail.partition(" Some common causes")[0] if mark else lines[-1])[:300]


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


class RaySupervisor(SupervisorProcess):
    """The supervisor's actor."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, system_world(RayMetrics()), ActorFleet(RayActors(plan)))


class RayHost(HostProcess):
    """A host's actor."""

    def __init__(self, plan: Plan, host_id: str) -> None:
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
            raise HostUnavailable(f"host {host_id} cannot be created: {_cause(error)}") from error

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
        raise HostSilent(_cause(error)) from error
    except RayError as error:
        raise HostGone(_cause(error)) from error


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
    """A driver's connection to the Ray of one data directory. `own` says that this driver started it, and ends it."""

    def __init__(self, plan: Plan, *, borrowed: bool) -> None:
        self.plan, self.own = plan, plan.own
        self.address: str = ray.get_runtime_context().gcs_address
        self._session: str = ray.get_runtime_context().get_session_name()
        self._borrowed, self._closed = borrowed, False

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

        Raises `LedgerUnwritable`, `BadRequest` for an address that is none, and `SupervisorUnreachable` if nobody answers there.
        """
        refuse_while_loading()
        data = data.resolve()
        with deciding(data), surroundings():
            borrowed = ray.is_initialized()
            own = not borrowed and not _join(data, address or os.environ.get("RAY_ADDRESS"))
            if own:
                _init(address="local", num_cpus=num_cpus, object_store_memory=STORE_BYTES, include_dashboard=False)
            cluster = cls(Plan(data, limits or Limits(), own, parts or Parts()), borrowed=borrowed)
            known = read_record(data)
            if own or (not borrowed and (known is None or known.address != cluster.address)):
                write_record(data, cluster.address)  # who joins what is on record knows no more than the record does
            _ensure_supervisor(cluster.plan)
        return cluster

    def courier(self) -> RayCourier:
        """A way to the supervisor for one event loop of this driver."""
        return RayCourier(functools.partial(_ensure_supervisor, self.plan))

    def pids(self, patience_s: float = 1.0) -> dict[str, int]:
        """The processes by `supervisor` or id of host. Those that do not answer, or are not up yet, are left out."""
        asked = {key: _about(handle) for key, handle in self._handles().items()}
        return {key: About(*about).pid for key, about in _answers(asked, patience_s).items()}

    def close(self, *, stop_cluster: bool = True) -> None:
        """Leave. A Ray of our own ends with us, after its supervisor and hosts have put everything away (if `stop_cluster`)."""
        if self._closed:
            return
        self._closed = True
        family = self._family()
        if self.own and stop_cluster:
            self._stop_actors()
        self._disconnect(family)

    def kill_everything(self) -> None:
        """`SIGKILL` everything of a Ray of our own at once, as a power cut would; then let go of it."""
        if not self.own or self._closed:
            raise BadRequest("cluster", "only a Ray that this process has started can be killed by it")
        self._closed = True
        family = self._family()
        head = set(descendants(os.getpid(), "gcs_server"))  # without it, Ray's own farewell would take a minute
        strike(pid for pid in family if pid not in head)
        self._disconnect(family)

    def _family(self) -> list[int]:
        return descendants(os.getpid(), self._session) if self.own else []

    def _handles(self) -> dict[str, Handle]:
        hosts = self.plan.hosts_among(_names())
        names = {SUPERVISOR: self.plan.supervisor, **{key: self.plan.host(key, spec) for key, spec in hosts.items()}}
        return {key: handle for key, name in names.items() if (handle := _named(name)) is not None}

    def _stop_actors(self) -> None:
        """First the supervisor, lest it replaces the hosts."""
        handles = self._handles()
        for group in (handles.keys() & {SUPERVISOR}, handles.keys() - {SUPERVISOR}):
            _answers({key: handles[key].stop.remote() for key in group}, STOP_S)
            for key in group:
                _kill(handles[key])

    def _disconnect(self, family: list[int]) -> None:
        if not self._borrowed:
            ray.shutdown()
        if self.own:
            strike(wait_for_death(family, DEATH_S))
            wait_for_death(family, DEATH_S)
            forget_record(self.plan.data, self.address)


def _join(data: Path, address: str | None) -> bool:
    """Join the Ray at this address, or the one that serves the directory already; False if there is none."""
    if address not in (None, "local"):
        _join_named(str(address))
        return True
    known = read_record(data)
    if known is None or address == "local":
        return False
    with contextlib.suppress(ValueError), surroundings(known.auth):  # another Ray may have taken the address since
        vars(importlib.import_module("ray._raylet"))["Config"].initialize("")  # or Ray minds no RAY_AUTH_MODE
        _init(address=known.address)
        _find_supervisor(Plan(data, Limits()))
        return True
    ray.shutdown()
    return False


def _join_named(address: str) -> None:
    """Join a cluster, and send our code along if it is not installed there."""

    def has_us() -> bool:  # an inner function, because Ray sends those by value
        return all(importlib.util.find_spec(name) is not None for name in OURS)

    if address != "auto" and not answers(address):
        raise SupervisorUnreachable(f"no Ray answers at {address}")
    _init(address=address)
    if not ray.get(ray.remote(num_cpus=0)(has_us).remote()):
        ray.shutdown()
        _init(address=address, runtime_env={"py_modules": [str(folder) for folder in OURS.values()]})


def _init(**options: Any) -> None:
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise SupervisorUnreachable(f"Ray cannot be started or joined: {_cause(error)}") from error
    if "PERDURE_RAY_NOISE" not in os.environ:  # Ray writes each death of a worker to our stdout, `log_to_driver` or not
        vars(importlib.import_module("ray._private.worker"))["print_to_stdstream"] = lambda *_, **__: None


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
