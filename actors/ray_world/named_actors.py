"""Our actors in a Ray: each is detached and has a name in one namespace. Everything here blocks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util import list_named_actors

from perdure.actors.ray_world.os_processes import ProcessInfo
from perdure.actors.ray_world.processes import RayProcess
from perdure.actors.ray_world.ray_connection import NAMESPACE

Remote = Any  # what `ray.remote` makes, and the answers of its calls: no type of Ray's fits them
Handle = ActorHandle[Remote]
K = TypeVar("K")

CALLS_MAX: Final = 100_000  # calls that one actor holds open


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
            found[key] = ProcessInfo(*ray.get(asked[key]))
    return found


def wait_for(calls: Mapping[K, Remote], timeout_s: float) -> list[K]:
    waiting = list(calls.values())
    ready = ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s)[0] if waiting else []
    return [key for key, reference in calls.items() if reference in ready]
