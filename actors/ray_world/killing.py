"""Killing one process of a directory on purpose, wherever it runs: for drills, and for a process that has to go.

A process is told apart by its number *and* its start time, so another process that has the number since is never struck.

    on this machine             `SIGKILL`
    elsewhere, or not ours      it is asked through Ray to send `SIGKILL` to itself, if it is the one that is meant
    it answers nothing          Ray is asked to end its actor
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import ray
from ray.exceptions import RayError

from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.named_actors import Handle, answers, control, find, infos, kill, names, wait_for
from perdure.actors.ray_world.os_processes import ProcessInfo, strike

SUPERVISOR: Final = "supervisor"  # its key among the ids of hosts
ANSWER_S: Final = 5.0  # for a process to say who it is, before it is struck
DEATH_S: Final = 5.0  # for a process elsewhere to have killed itself


class StrikeKind(StrEnum):
    """How a process was ended."""

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


def processes_of(deployment: Deployment) -> dict[str, Handle]:
    """The actors of a directory by `supervisor` or id of host."""
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
        return StrikeKind.ITSELF if ray.get(asked) else None
    except RayError:  # what a caller sees of a death
        return StrikeKind.ITSELF
