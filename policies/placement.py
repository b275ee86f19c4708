"""Where an agent goes: spread, then pack.

While the pool has room every agent has a host to itself. When more wants a place than the pool may have hosts, agents are packed,
up to `pack_max` that are at work on one host. A worn host is a last resort, so that it empties and can be retired. An exclusive agent,
and a run or an agent whose host died under it too often, gets a host to itself always. There are up to `hosts_max` hosts of either kind, so
neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

from perdure.policies.limits import Limits


class Seat(Protocol):
    """What placement needs to know of a host."""

    host_id: str
    load: int
    exclusive: bool
    draining: bool
    worn: bool
    up: bool

    @property
    def tenants(self) -> dict[str, None]:
        """Who lives there."""


S = TypeVar("S", bound=Seat)


def choose(seats: Sequence[S], demand: int, limits: Limits, *, alone: bool) -> S | None:
    """The host for one more agent, or None when it should wait for a host that is coming up, or for one that is given back.

    Args:
        seats: the hosts of the right pool, those that are still coming up included.
        demand: how many agents are waiting for a place in this pool, this one included.
        alone: whether it must have a host to itself.
    """
    full = _taken(seats, alone=alone) >= limits.hosts_max  # then what is empty is for the other kind
    ready = [seat for seat in seats if seat.up and not (seat.draining or seat.exclusive or (full and not seat.tenants))]
    ready = [seat for seat in ready if not seat.worn and seat.load < limits.pack_max] or ready
    for seat in ready:
        if not seat.tenants:
            return seat
    if alone or (len(seats) < limits.hosts_max and demand <= limits.hosts_max - len(seats)):
        return None
    if demand <= len(seats) and demand <= sum(not seat.up for seat in seats):
        return None
    best = min(ready, key=attrgetter("load"), default=None)
    return best if best is not None and best.load < limits.pack_max else None


def wanted_hosts(seats: Sequence[Seat], demand: int, alone_demand: int, limits: Limits) -> int:
    """How many more hosts the pool should start now, to serve what waits and to keep `hosts_warm` ready."""
    idle = sum(not seat.draining and not seat.tenants for seat in seats)
    room = max(0, limits.hosts_max - _taken(seats, alone=False))
    ordinary = min(room, max(demand - alone_demand, limits.hosts_warm))
    extra = min(limits.hosts_max - _taken(seats, alone=True), alone_demand)
    return max(0, ordinary + max(0, extra) - idle)


def blamed_from(losses: Iterable[int], limits: Limits) -> int:
    """After how many losses a run, or an agent, must be alone: `alone_after_losses`, or more while too many share that fate.

    When a crowd lost its host, none of them is likely to be at fault (the machine was), and there is no room to keep each alone. If
    one of them is, it will lose its next hosts too, and the others, spread anew, will not all be with it: so it is found.

    Args:
        losses: for each run and agent that waits in this pool, how often its host died under it.
    """
    first_without_room = sorted(losses, reverse=True)[limits.hosts_max : limits.hosts_max + 1]
    return max(limits.alone_after_losses, *(count + 1 for count in first_without_room), 0)


def has_room_alone(seats: Sequence[Seat], limits: Limits) -> bool:
    """Whether the pool may have one more host for somebody who must be alone."""
    return _taken(seats, alone=True) < limits.hosts_max


def _taken(seats: Sequence[Seat], *, alone: bool) -> int:
    """How many hosts one of the two kinds has. Who is alone and merely waits for children holds none, lest they wait for it."""
    if alone:
        return len([seat for seat in seats if seat.exclusive and seat.load > 0])
    return len([seat for seat in seats if seat.tenants and not (seat.exclusive or seat.draining)])
