"""The supervisor of one data directory as an actor of Ray. Ray restarts it, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.metrics import Counter, Gauge, Histogram
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_chain, wait_fixed

from perdure.actors.events.observability import Tags
from perdure.actors.ports import World
from perdure.actors.ray_world.cluster_record import (
    AUTH,
    begin_directory,
    last_life_of,
    mark_stopped,
    refuse_if_stopped,
)
from perdure.actors.ray_world.deployment import Deployment, check_bucket
from perdure.actors.ray_world.fleet import ActorFleet
from perdure.actors.ray_world.hosts import RayActors
from perdure.actors.ray_world.identity import elsewhere, is_blank, note_mount, refuse_elsewhere, refuse_unmounted
from perdure.actors.ray_world.named_actors import Handle, answer_of, control, create, kill
from perdure.actors.ray_world.os_processes import die_with_parent, home, with_command
from perdure.actors.ray_world.process_telemetry import begin_telemetry, several
from perdure.actors.ray_world.processes import SUPERVISOR, SupervisorProcess
from perdure.actors.ray_world.ray_internals import GCS
from perdure.actors.ray_world.ray_transport import find_supervisor
from perdure.actors.ray_world.spares import Spare, prepared_environment
from perdure.actors.ray_world.system import system_world
from perdure.ledger import (
    NOBODY,
    BadRequest,
    Claim,
    LedgerDamaged,
    NoLongerServed,
    ReplicaSettings,
    SupervisorUnreachable,
    keep_replica,
    replica_of,
)
from perdure.policies import NODE_ID

PAUSES_S = (0.05, 0.2, 1.0)  # until the supervisor is looked for again
ANSWER_S = 2.0  # for it to say which directory it serves


# Ray's metrics behind the port `Metrics`.
BOUNDARIES_MS: Final[list[float]] = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]


# Each is created when it is first used, with the tags that it has then.
class RayMetrics:
    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def count(self, name: str, value: float = 1, tags: Tags | None = None) -> None:
        self._of(Counter, name, tags).inc(value, dict(tags or {}))

    def gauge(self, name: str, value: float, tags: Tags | None = None) -> None:
        self._of(Gauge, name, tags).set(value, dict(tags or {}))

    def observe(self, name: str, value: float, tags: Tags | None = None) -> None:
        self._of(Histogram, name, tags, boundaries=BOUNDARIES_MS).observe(value, dict(tags or {}))

    def _of(self, kind: Callable[..., object], name: str, tags: Tags | None, **options: object) -> Any:
        if name not in self._made:
            self._made[name] = kind(f"perdure_{name}", tag_keys=tuple(tags or ()), **options)
        return self._made[name]


class RaySupervisor(SupervisorProcess):
    def __init__(self, deployment: Deployment) -> None:
        die_with_parent()  # or it would hold the ledger for a while after its raylet has died
        deployment = deployment.here()
        telemetry, metrics = begin_telemetry(deployment, SUPERVISOR)
        world = system_world(several(RayMetrics(), metrics), telemetry=telemetry)
        world = world._replace(cores=int(ray.cluster_resources().get("CPU", 0)))  # type: ignore[no-untyped-call]
        world = world._replace(logs=deployment.own_logs)
        if deployment.bucket:
            deployment = deployment._replace(claim=_claim(deployment.claim, world))
        self._spare = Spare(own=deployment.own)
        super().__init__(deployment, world, ActorFleet(RayActors(deployment, self._spare)))

    async def stop(self) -> None:
        await asyncio.gather(super().stop(), self._spare.end())


def _claim(given: Claim, world: World) -> Claim:
    context = ray.get_runtime_context()
    session = context.get_session_name()
    return given._replace(
        session=session, machine=world.vitals.node(), since_ms=world.clock.now_ms(),
        is_restarted=bool(context.was_current_actor_reconstructed), address=context.gcs_address,
        auth=os.environ.get(AUTH, ""), home=home(), has_head=bool({*with_command(session)} & {*with_command(GCS)}),
    )  # fmt: skip


class Opening:
    """A directory that this process opens, and opens again when its Ray has begun anew. Which directory it is, is known from the first time
    on: what lies at its path later is no other one.

    Args:
        replica: where the directory is to be followed to; with no URL to nowhere, and None for wherever it says itself.

    Attributes:
        deployment: the directory's, with its identity as soon as that is known.
    """

    def __init__(self, deployment: Deployment, replica: ReplicaSettings | None = None) -> None:
        self.deployment, self._replica = deployment, replica

    def ensure(self, own: bool) -> Handle:
        """Find the supervisor or create it. The caller has the startup lock. Nothing is begun where Ray knows of a supervisor, and this
        machine of no directory."""
        data = self.deployment.data
        if not self.deployment.identity and not self.deployment.bucket:
            if is_blank(data) and _served(self.deployment):
                raise elsewhere(data, "no directory of Perdure, perhaps because it is not mounted")
            refuse_unmounted(data)
            self.deployment = self.deployment._replace(identity=begin_directory(data))
            note_mount(data)
        if self._replica is not None and self._replica != _followed_to(data):
            self._follow_to(self._replica)
        handle = ensure_supervisor(self.deployment._replace(own=own))
        self.deployment = self.deployment._replace(claim=NOBODY)  # to take over is asked for once
        return handle

    def _follow_to(self, replica: ReplicaSettings) -> None:
        data = self.deployment.data
        if _served(self.deployment):
            words = f"the supervisor of {data} is at work already, and follows it as it was told to; `perdure stop` it first"
            raise BadRequest("replica", words)
        if replica.url:
            check_bucket("replica", replica.url)
        keep_replica(data, replica)


# Where the directory says that it is followed to; None if that cannot be read.
def _followed_to(data: Path) -> ReplicaSettings | None:
    with contextlib.suppress(LedgerDamaged):
        return replica_of(data) or ReplicaSettings("")
    return None


def _served(deployment: Deployment) -> bool:
    with contextlib.suppress(ValueError):
        return bool(find_supervisor(deployment))
    return False


def ensure_supervisor(deployment: Deployment) -> Handle:
    """Find the supervisor or create it. Several may try at once, and a name may be on its way out.

    Raises `DirectoryElsewhere` if this machine does not see the directory, or the supervisor serves another one.
    """
    refuse_elsewhere(deployment.data, deployment.identity)
    again = Retrying(
        retry=retry_if_exception_type(ValueError),
        wait=wait_chain(*map(wait_fixed, PAUSES_S)),
        stop=stop_after_attempt(len(PAUSES_S) + 1),
        reraise=True,
    )
    try:
        return again(_find_or_create, deployment)
    except ValueError:
        raise SupervisorUnreachable(f"the name {deployment.supervisor} is neither free nor taken") from None


def _find_or_create(deployment: Deployment) -> Handle:
    with contextlib.suppress(ValueError):
        return _of_this_directory(find_supervisor(deployment), deployment)
    # This node sees the directory. If it is gone, or drains, Ray restarts the supervisor on another one.
    options: dict[str, object] = {
        "label_selector": {NODE_ID: ray.get_runtime_context().get_node_id()},
        "fallback_strategy": [{"label_selector": {}}],
    }
    if not deployment.own:
        options["runtime_env"] = prepared_environment()
    return create(RaySupervisor, deployment, name=deployment.supervisor, max_restarts=-1, num_cpus=0, **options)


def _of_this_directory(handle: Handle, deployment: Deployment) -> Handle:
    """A supervisor, unless it serves another directory. One that could not begin, because Ray has restarted it on a machine that does not
    see the directory, or because another Ray serves the bucket, is ended: another one is created here. One that does not answer soon is
    taken as it is."""
    try:
        identity, has_failed = answer_of(control(handle, "home"), ANSWER_S)
    except (RayError, TimeoutError):  # busy, or on its way to another life
        return handle
    if deployment.identity and identity not in ("", deployment.identity):
        raise elsewhere(deployment.data, "another directory than the one that this Ray serves")
    if has_failed:
        refuse_elsewhere(deployment.data, deployment.identity)
        kill(handle)
        raise ValueError(deployment.supervisor)
    return handle


# A program that was connected when the directory was stopped does not create another one.
def find_again(deployment: Deployment) -> Handle:
    with contextlib.suppress(ValueError):
        return _of_this_directory(find_supervisor(deployment), deployment)
    address = ray.get_runtime_context().gcs_address
    if deployment.bucket and last_life_of(deployment.data)[1]:  # from another machine, on which alone it is on record
        mark_stopped(deployment.data, address)
    refuse_if_stopped(deployment.data, address)
    return ensure_supervisor(deployment)


# Find the supervisor for one who only looks. Raises `NoLongerServed` if Ray has lost it.
def find_served(deployment: Deployment) -> Handle:
    try:
        return find_supervisor(deployment)
    except ValueError as problem:
        raise no_longer_served(deployment) from problem


# `why` is given where no other Ray takes the place of the one that this process was in.
def no_longer_served(deployment: Deployment, why: str = "") -> NoLongerServed:
    advice = "open it anew: what was under way goes on then" if why else "look again"
    return NoLongerServed(str(deployment.data), why or "what served it has ended", advice)
