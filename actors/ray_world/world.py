"""The world in which processes truly die: the supervisor and the hosts are actors of Ray, and this is a driver's view of them.

Names stand for actors: `supervisor-<directory>` and `host-<directory>-<id>`, detached, in one namespace.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self, TypeVar

from ray.exceptions import RayError

from perdure.actors.code.naming import refuse_while_loading
from perdure.actors.ray_world.cluster_record import is_started_here
from perdure.actors.ray_world.deployment import Deployment, Implementations
from perdure.actors.ray_world.driver import DRIVER, OpenDirectory, RayLife
from perdure.actors.ray_world.lifetime import on_own_thread
from perdure.actors.ray_world.named_actors import (
    SUPERVISOR,
    EndedProcess,
    call,
    gateways_of,
    infos,
    kill,
    names,
    processes_of,
    strike_processes,
    wait_for,
)
from perdure.actors.ray_world.os_processes import ProcessId, ProcessInfo, wait_until_gone, with_command
from perdure.actors.ray_world.os_processes import kill as kill_processes
from perdure.actors.ray_world.process_telemetry import traced_program
from perdure.actors.ray_world.ray_connection import cause_of
from perdure.actors.ray_world.ray_internals import GCS, RAYLET
from perdure.actors.ray_world.ray_transport import RayTransport, find_supervisor
from perdure.actors.ray_world.supervisors import Opening, find_again, find_served, no_longer_served
from perdure.ledger import BadRequest, Claim, ReplicaSettings, SupervisorUnreachable, bring_up_to_date, bucket_of
from perdure.policies import Limits

STRIKE_S: Final = 60.0  # for all that are struck at once
ANSWER_S: Final = 1.5  # for processes to say who they are
STOP_S: Final = 5.0  # for a process to put everything away
DEATH_S: Final = 2.0  # for a killed process to be gone

T = TypeVar("T")


class RayCluster:
    """What a driver has of one data directory."""

    def __init__(self, deployment: Deployment, member: OpenDirectory) -> None:
        self._deployment, self._member = deployment, member
        self._closed = False

    @property
    def own(self) -> bool:
        """Whether this process started its Ray, which ends with this process. Another Ray may take its place."""
        return DRIVER.owns

    @property
    def deployment(self) -> Deployment:
        return self._deployment._replace(own=self.own)

    # This program, or the one whose Ray it has joined, has started that Ray for this directory, on this machine.
    @property
    def is_local(self) -> bool:
        return self.own or is_started_here(self.deployment.data, self.address)

    @classmethod
    def start(
        cls,
        data: Path,
        *,
        address: str | None = None,
        limits: Limits | None = None,
        num_cpus: int | None = None,
        implementations: Implementations | None = None,
        replica: ReplicaSettings | None = None,
        take_over: bool = False,
    ) -> Self:
        """Join the Ray that is named or that serves the directory already, else start one; see that its supervisor exists.

        Raises `LedgerUnwritable`, `LedgerLost`, `DirectoryElsewhere`, `BadRequest` for an address that is none or that this process cannot
        join now, and `SupervisorUnreachable` if nobody answers there.
        """
        refuse_while_loading()
        deployment = Deployment(
            data.resolve(),
            limits or Limits(),
            implementations=implementations or Implementations(),
            telemetry=traced_program(),
            bucket=bucket_of(data),
            claim=Claim(take_over=take_over),
        )
        if not deployment.bucket:
            bring_up_to_date(deployment.data)
        deployment.check_ledger()
        opening = Opening(deployment, replica)
        member = OpenDirectory(deployment.data, opening.ensure)
        DRIVER.enter(member, address or os.environ.get("RAY_ADDRESS"), num_cpus)
        return cls(opening.deployment, member)

    @classmethod
    def found(cls, data: Path, address: str | None = None) -> Self | None:
        """Join what serves the directory, if anything does, and create nothing. Raises `SupervisorUnreachable` if that is refused."""
        deployment = Deployment(data.resolve(), Limits(), bucket=bucket_of(data))
        member = OpenDirectory(deployment.data, lambda _own: find_supervisor(deployment), may_start=False)
        with contextlib.suppress(ValueError):
            DRIVER.enter(member, address)
            return cls(deployment, member)
        return None

    @property
    def address(self) -> str:
        """Where its Ray is. Raises `SupervisorUnreachable` while it has none."""
        return DRIVER.living().address

    @property
    def session(self) -> str:
        return DRIVER.living().session

    # For one event loop of this driver.
    def transport(self) -> RayTransport:
        if self._member.may_start:
            return RayTransport(lambda: find_again(self.deployment), self._life_served, replaces=True)
        return RayTransport(lambda: find_served(self.deployment), self._life_served)

    def _life_served(self) -> RayLife:
        try:
            return DRIVER.living()
        except SupervisorUnreachable as problem:
            if self._member.may_start and not DRIVER.is_over:
                raise
            raise no_longer_served(self.deployment, str(problem) if DRIVER.is_over else "") from problem

    def processes(self, timeout_s: float = 1.0) -> dict[str, ProcessInfo]:
        return _within_life(lambda: infos(processes_of(self.deployment), timeout_s))

    def gateways(self, timeout_s: float = 1.0) -> list[tuple[str, ProcessInfo]]:
        return _within_life(lambda: gateways_of(self.deployment, timeout_s))

    def pids(self) -> list[int]:
        return [info.pid for info in self.processes().values()]

    def strike(self, victims: Mapping[str, int]) -> list[EndedProcess]:
        """Kill processes by `supervisor` or id of host, if they still have these numbers; 0 stands for whichever it has.

        Returns those that were there. Ray restarts the supervisor, and the supervisor replaces hosts. Raises `SupervisorUnreachable` if
        that Ray does not answer.
        """
        try:
            return _within_life(lambda: strike_processes(self.deployment, victims), STRIKE_S)
        except (RayError, TimeoutError) as problem:
            raise SupervisorUnreachable(f"the Ray at {self.address} does not answer: {cause_of(problem)}") from problem

    def vital(self) -> dict[str, ProcessId]:
        """The GCS and the raylet of a Ray that a program of this machine has started for this directory alone.

        Raises `BadRequest` for any other Ray: its processes are not ours to kill.
        """
        if not self.is_local:
            raise BadRequest(
                "ray", f"no program of this machine has started the Ray at {self.address} for this directory"
            )
        if others := self.neighbours():
            raise BadRequest("ray", f"the Ray at {self.address} also serves other directories ({len(others)} actors)")
        of_ray = set(with_command(self.session))
        found = {name: of_ray & set(with_command(mark)) for name, mark in (("gcs", GCS), ("raylet", RAYLET))}
        return {name: min(processes) for name, processes in found.items() if processes}

    @property
    def ends_with_this(self) -> bool:
        """Whether its Ray ends when this is closed."""
        return not self._closed and self.own and DRIVER.is_last(self._member)

    # Leave. In a Ray of our own the supervisor and the hosts put everything away first, and the last one to leave ends it.
    def close(self) -> None:
        if self._closed:
            return
        ends, self._closed = self.ends_with_this, True
        if ends:
            with contextlib.suppress(SupervisorUnreachable, TimeoutError):  # then no actor is left to be stopped
                self.stop_actors()
        DRIVER.leave(self._member)

    def kill_everything(self) -> None:
        if not self.own or self._closed:
            raise BadRequest("cluster", "only a Ray that this process has started can be killed by it")
        self._closed = True
        DRIVER.kill(self._member)

    def stop_actors(self) -> dict[str, ProcessInfo | None]:
        """Stop the supervisor and the hosts. Returns who they were by `supervisor` or id of host; None for one that did not answer.

        Raises `TimeoutError`, and `SupervisorUnreachable` if that Ray ends meanwhile.
        """
        return _within_life(self._stop_actors, 4 * STOP_S)

    def _stop_actors(self) -> dict[str, ProcessInfo | None]:
        """The supervisor first, or it would replace the hosts. Returns when their processes here are gone. A host that does not say
        who it is has nothing to put away: it is being started, or fails to."""
        handles = processes_of(self.deployment)
        known = infos(handles, ANSWER_S)
        for group in (handles.keys() & {SUPERVISOR}, handles.keys() - {SUPERVISOR}):
            wait_for({key: call(handles[key], "stop") for key in group if key in known or key == SUPERVISOR}, STOP_S)
            for key in group:
                kill(handles[key])
        left = wait_until_gone([process for info in known.values() for process in info.here], DEATH_S)
        kill_processes(left)
        wait_until_gone(left, DEATH_S)
        return {key: known.get(key) for key in handles}

    # The names of actors in this Ray that serve other directories.
    def neighbours(self) -> list[str]:
        known, ours = _within_life(names, STOP_S), self.deployment
        own = {ours.supervisor, *ours.gateways_among(known)}
        return [name for name in known if name not in own and not ours.hosts_among([name])]


# What asks Ray for something would block for ever if that Ray ended meanwhile.
def _within_life(work: Callable[[], T], timeout_s: float | None = None) -> T:
    return DRIVER.living().bound(on_own_thread(work)).result(timeout_s)
