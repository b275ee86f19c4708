"""Our actors in a Ray: each is detached and has a name in one namespace. They are made, found, asked and killed. Everything here blocks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util import list_named_actors

from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.os_processes import ProcessInfo, strike
from perdure.actors.ray_world.processes import RayProcess
from perdure.actors.ray_world.ray_connection import NAMESPACE

Remote = Any  # what `ray.remote` makes, and the answers of its calls: no type of Ray's fits them
Handle = ActorHandle[Remote]
K = TypeVar("K")

CALLS_MAX: Final = 100_000  # calls that one actor holds open
SUPERVISOR: Final = "supervisor"  # its key among the ids of hosts
ANSWER_S: Final = 5.0  # for a process to say who it is, before it is struck
DEATH_S: Final = 5.0  # for a process elsewhere to have killed itself


# Ray repeats no call of ours: what is to be done again is for the ledger to say.
def create(cls: Callable[..., RayProcess], *arguments: object, **options: object) -> Handle:
    usual = {"namespace": NAMESPACE, "lifetime": "detached", "max_concurrency": CALLS_MAX}
    found: Handle = _actor_class(cls).options(**usual | options).remote(*arguments)
    return found


@functools.cache
def _actor_class(cls: Callable[..., RayProcess]) -> Remote:
    options = {"concurrency_groups": {"control": 2}, "max_task_retries": 0, "enable_task_events": False}
    return cast("Remote", ray).remote(**options)(cls)


@functools.cache  # what is made anew is sent to Ray anew
def remote(thing: Callable[..., object], **options: object) -> Remote:
    return cast("Remote", ray).remote(**options)(thing)


def call(handle: Handle, method: str, *arguments: object) -> Remote:
    return getattr(handle, method).remote(*arguments)


def control(handle: Handle, method: str, *arguments: object) -> Remote:
    """Call `info`, `home`, `node`, `pulse`, `start_ahead` or `die` of an actor, on an event loop of its own, even while it is busy."""
    return getattr(handle, method).options(concurrency_group="control").remote(*arguments)


def answer_of(reference: Remote, timeout_s: float | None = None) -> Any:
    """What an actor has answered. Raises its error, or `TimeoutError`."""
    # Of `ray.get` Ray warns in the process of an async actor, also on a thread beside its loop, where this is done.
    return reference.future().result(timeout_s)


def find(name: str) -> Handle | None:
    with contextlib.suppress(ValueError):
        return ray.get_actor(name, NAMESPACE)
    return None


def kill(handle: Handle, *, for_good: bool = True) -> None:
    """End an actor. Idempotent. If it is not meant for good, Ray restarts one that it would restart after any other death."""
    with contextlib.suppress(RayError, ValueError):
        ray.kill(handle, no_restart=for_good)


# Of all our actors, whatever directory they serve.
def names() -> list[str]:
    return [each["name"] for each in list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]


def infos(handles: Mapping[K, Handle], timeout_s: float) -> dict[K, ProcessInfo]:
    """Who these actors are. Those that fail, or do not answer in time, are left out."""
    return {key: info for key, info in answers(handles, timeout_s).items() if info is not None}


def answers(handles: Mapping[K, Handle], timeout_s: float) -> dict[K, ProcessInfo | None]:
    """Who these actors are, with None for those that do not answer in time. Those that fail are dead, or on their way to another life."""
    asked = {key: control(handle, "info") for key, handle in handles.items()}
    ready = wait_for(asked, timeout_s)
    found: dict[K, ProcessInfo | None] = {key: None for key in asked if key not in ready}
    for key in ready:
        with contextlib.suppress(RayError):
            found[key] = ProcessInfo(*answer_of(asked[key]))
    return found


def wait_for(calls: Mapping[K, Remote], timeout_s: float) -> list[K]:
    waiting = list(calls.values())
    ready = ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s)[0] if waiting else []
    return [key for key, reference in calls.items() if reference in ready]


# ---------------------------------------------------------------- killing one process on purpose
# Wherever it runs: for drills, and for a process that has to go. It is told apart by its number *and* its start time, so another process
# that has the number since is never struck.
#
#     on this machine             `SIGKILL`
#     elsewhere, or not ours      it is asked through Ray to send `SIGKILL` to itself, if it is the one that is meant
#     it answers nothing          Ray is asked to end its actor


class StrikeKind(StrEnum):
    SIGNAL = "SIGKILL"
    ITSELF = "SIGKILL by itself, asked through Ray"
    RAY = "the end of its actor by Ray"


class EndedProcess(NamedTuple):
    """A process that was ended.

    Args:
        name: `supervisor`, or the id of a host.
        process: which one; None if it did not say who it is.
        way: how.
    """

    name: str
    process: ProcessInfo | None
    way: StrikeKind


# By `supervisor` or id of host.
def processes_of(deployment: Deployment) -> dict[str, Handle]:
    hosts = deployment.hosts_among(names())
    named = {SUPERVISOR: deployment.supervisor, **{key: deployment.host(key, hosts[key]) for key in hosts}}
    return {key: handle for key, name in named.items() if (handle := find(name)) is not None}


def gateways_of(deployment: Deployment, timeout_s: float) -> list[tuple[str, ProcessInfo]]:
    ports = deployment.gateways_among(names())
    found = {name: handle for name in ports if (handle := find(name)) is not None}
    return [(ports[name], info) for name, info in sorted(infos(found, timeout_s).items())]


def strike_processes(deployment: Deployment, victims: Mapping[str, int]) -> list[EndedProcess]:
    """End processes by `supervisor` or id of host, if they still have these numbers; 0 stands for whichever it has. Blocks.

    Returns those that were there.
    """
    handles = {name: handle for name, handle in processes_of(deployment).items() if name in victims}
    known = answers(handles, ANSWER_S)
    meant = [name for name, info in known.items() if info is None or victims[name] in (0, info.pid)]
    struck = [strike_actor(name, handles[name], known[name]) for name in meant]
    return [each for each in struck if each is not None]


def strike_actor(name: str, handle: Handle, process: ProcessInfo | None) -> EndedProcess | None:
    """End the process of an actor. Returns None if that process has ended before. Blocks."""
    way = _by_itself(handle, process) if process is not None else StrikeKind.RAY
    if way is StrikeKind.RAY:
        kill(handle, for_good=False)
    return EndedProcess(name, process, way) if way is not None else None


def _by_itself(handle: Handle, process: ProcessInfo) -> StrikeKind | None:
    for here in process.here:
        try:
            return StrikeKind.SIGNAL if strike(here) else None
        except PermissionError:
            break
    asked = control(handle, "die", process.process)
    if not wait_for({process: asked}, DEATH_S):
        return StrikeKind.RAY
    try:
        return StrikeKind.ITSELF if answer_of(asked) else None
    except RayError:  # what a caller sees of a death
        return StrikeKind.ITSELF
