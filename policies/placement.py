"""Where an agent goes: spread, then pack.

While the pool has room every agent has a host to itself. When more wants a place than the pool may have hosts, agents are packed,
up to `pack_max` that are at work on one host. A worn host is a last resort, so that it empties and can be retired. An exclusive agent,
and a run whose host died under it too often, gets a host to itself always, for which the pool may grow to twice its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from policies.limits import Limits


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
    """The host for one more agent, or None when it should wait for a host that is coming up.

    Args:
        seats: the hosts of the right pool, those that are still coming up included.
        demand: how many agents are waiting for a place in this pool, this one included.
        alone: whether it must have a host to itself.
    """
    ready = [seat for seat in seats if seat.up and not seat.draining and not seat.exclusive]
    ready = [seat for seat in ready if not seat.worn and seat.load < limits.pack_max] or ready
    for seat in ready:
        if not seat.tenants:
            return seat
    if alone or (len(seats) < limits.hosts_max and demand <= limits.hosts_max - len(seats)):
        return None
    coming = sum(not seat.up for seat in seats)
    if demand <= coming:
        return None
    best = min(ready, key=lambda seat: seat.load, default=None)
    return best if best is not None and best.load < limits.pack_max else None


def wanted_hosts(seats: Sequence[Seat], demand: int, alone_demand: int, limits: Limits) -> int:
    """How many more hosts the pool should start now, to serve what waits and to keep `hosts_warm` ready."""
    alive = [seat for seat in seats if not seat.draining]
    idle = sum(not seat.tenants for seat in alive)
    shared = sum(not seat.exclusive for seat in alive)
    busy = sum(bool(seat.load) or not seat.tenants for seat in alive)  # who merely waits for children holds no slot
    ordinary = min(limits.hosts_max - shared, max(demand - idle, limits.hosts_warm - idle))
    extra = min(2 * limits.hosts_max - busy, alone_demand - idle)
    return max(0, ordinary, extra)
