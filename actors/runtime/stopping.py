"""Stopping what serves a data directory (`perdure stop`), whichever program started it.

In an existing Ray, the supervisor and the hosts outlive every script. They are stopped so:

    1. agents come to rest (`wind_down`)
    2. the directory is marked as stopped, so that connected clients start no supervisor
    3. the supervisor is stopped, then the hosts
    4. their processes are awaited

A stop that dies half-way loses nothing durable. A Ray is ended only if Perdure started it for this directory and the starting process is
dead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from perdure.actors.link.messages import Fields
from perdure.actors.ray_world.cluster_record import ADDRESS, LOCK, mark_stopped, ray_of, read_record, startup_lock
from perdure.actors.ray_world.named_actors import SUPERVISOR
from perdure.actors.ray_world.os_processes import ProcessInfo, children, kill, process_of, wait_until_gone, with_command
from perdure.actors.ray_world.ray_internals import RAYLET, workers_of
from perdure.actors.ray_world.ray_transport import RayTransport
from perdure.actors.ray_world.system import system_world
from perdure.actors.ray_world.world import RayCluster
from perdure.actors.runtime.client import Client
from perdure.actors.tasks import awaited
from perdure.ledger import PerdureError, SupervisorUnreachable
from perdure.policies import Limits

ANSWER_S: Final = 5.0  # for a supervisor to answer
REST_S: Final = 0.5  # for idle agents to leave, even with a shorter `patience_s`
BRIEF_S: Final = 0.01  # between two looks of a program that leaves
LOOK_S: Final = 0.2  # between two looks at what is still at work
DEATH_S: Final = 5.0  # for killed processes to be gone

Fate = Literal["goes on", "belongs to its script", "was ended"]


class Stopped(NamedTuple):
    """What was stopped.

    Args:
        address: where that Ray is.
        supervisor: its process; None if it did not answer.
        hosts: their processes by id; None for one that did not answer.
        at_work: how many agents were interrupted at work or while they waited for runs; None if the supervisor did not answer.
        ray: what became of the Ray.
        owner: the number of the process that this Ray belongs to; 0 if there is none.
    """

    address: str
    supervisor: ProcessInfo | None
    hosts: dict[str, ProcessInfo | None]
    at_work: int | None
    ray: Fate
    owner: int = 0


def stop_serving(data: Path, patience_s: float, on_wait: Callable[[int], None]) -> Stopped | None:
    """Stop the supervisor of this directory and its hosts. Returns None if nothing serves the directory. Blocks.

    Args:
        patience_s: how long agents at work may go on before they are interrupted. Nothing new begins meanwhile.
        on_wait: called once with the number of agents at work, if they have to be waited for.

    Raises `SupervisorUnreachable` if its Ray cannot be joined, or does not answer.
    """
    with startup_lock(data) if (data / LOCK).exists() else nullcontext():  # another process may be starting it
        record = read_record(data)
        known = record or ray_of(data)
    elsewhere = os.environ.get(ADDRESS) if known is None else None
    if known is None and elsewhere is None:
        return None
    cluster = RayCluster.found(data, elsewhere)
    if cluster is None:
        return None
    address, session = cluster.address, cluster.session
    starter = record.starter if record is not None else 0
    owner = starter if (found := process_of(starter)) is not None and children(found, session) else 0
    try:
        at_work = asyncio.run(_come_to_rest(cluster.transport(), patience_s, on_wait))
        with startup_lock(data):
            mark_stopped(data, address)
            who = cluster.stop_actors()
        is_abandoned = starter > 0 and not owner and not cluster.neighbours()
    except TimeoutError:
        raise SupervisorUnreachable(f"the Ray at {address} does not answer") from None
    finally:
        cluster.close()
    fate: Fate = "belongs to its script" if owner else "goes on"
    if is_abandoned:
        _end(session)
        fate = "was ended"
    return Stopped(address, who.pop(SUPERVISOR, None), who, at_work, fate, owner)


async def _come_to_rest(transport: RayTransport, patience_s: float, on_wait: Callable[[int], None]) -> int | None:
    client = Client(system_world(), transport, Limits())
    serving = awaited(client.serve())
    left: int | None = None
    with suppress(TimeoutError, PerdureError):
        left = await _wait_for_rest(client, patience_s, on_wait)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return left


async def _wait_for_rest(client: Client, patience_s: float, on_wait: Callable[[int], None]) -> int:
    clock = asyncio.get_running_loop().time
    settled_s, end_s = clock() + REST_S, clock() + max(patience_s, REST_S)
    told = await _ask(client)
    while told["at_work"] and clock() < end_s:
        await asyncio.sleep(LOOK_S)
        told = await _ask(client)
        if told["at_work"] and settled_s <= clock() < end_s:
            on_wait(told["at_work"])
            settled_s = end_s  # once is enough
    while told.get("replica_behind") and clock() < end_s:
        await asyncio.sleep(LOOK_S)
        told = await _ask(client)
    return int(told["at_work"] + told["waiting"])


async def let_idle_agents_leave(client: Client) -> None:
    """Let what has nothing to do leave, for a moment, and wait until it has."""
    with suppress(TimeoutError, PerdureError):
        async with asyncio.timeout(REST_S):
            told = await _ask(client)
            while told["at_work"]:
                await asyncio.sleep(BRIEF_S)
                told = await _ask(client)


async def _ask(client: Client) -> Fields:
    async with asyncio.timeout(ANSWER_S):
        told: Fields = await client.ask("wind_down")
    return told


def _end(session: str) -> None:
    of_ray = with_command(session)
    raylets = set(of_ray) & set(with_command(RAYLET))
    left = {*of_ray, *(worker for raylet in raylets for worker in workers_of(raylet))}
    kill(left)
    wait_until_gone(left, DEATH_S)
