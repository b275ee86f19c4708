"""Where an agent goes: spread, then pack.

While the pool has room, every agent has a host to itself. When more agents want a place than the pool may have hosts, they are packed:
up to `pack_max` that are at work on one host. A worn host is a last resort, so that it empties and can be retired. An exclusive agent,
and a run or an agent whose host died under it too often, always gets a host to itself. Each of the two kinds may have up to `hosts_max`
hosts, so neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

from perdure.policies.limits import Limits


class Candidate(Protocol):
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


S = TypeVar("S", bound=Candidate)


def choose(hosts: Sequence[S], demand: int, limits: Limits, *, alone: bool) -> S | None:
    """The host for one more agent, or None if it should wait for a host to come up or to become free.

    Args:
        hosts: the hosts of its pool, including those that are still coming up.
        demand: how many agents wait for a place in this pool, including this one.
        alone: whether it must have a host to itself.
    """
    full = _taken(hosts, alone=alone) >= limits.hosts_max  # then the empty hosts are for the other kind
    ready = [host for host in hosts if host.up and not (host.draining or host.exclusive or (full and not host.tenants))]
    ready = [host for host in ready if not host.worn and host.load < limits.pack_max] or ready
    for host in ready:
        if not host.tenants:
            return host
    if alone or (len(hosts) < limits.hosts_max and demand <= limits.hosts_max - len(hosts)):
        return None
    if demand <= len(hosts) and demand <= sum(not host.up for host in hosts):
        return None
    best = min(ready, key=attrgetter("load"), default=None)
    return best if best is not None and best.load < limits.pack_max else None


def wanted_hosts(hosts: Sequence[Candidate], demand: int, alone_demand: int, limits: Limits) -> int:
    """How many more hosts the pool should start now, to serve what waits and to keep `hosts_warm` ready."""
    idle = sum(not host.draining and not host.tenants for host in hosts)
    room = max(0, limits.hosts_max - _taken(hosts, alone=False))
    ordinary = min(room, max(demand - alone_demand, limits.hosts_warm))
    extra = min(limits.hosts_max - _taken(hosts, alone=True), alone_demand)
    return max(0, ordinary + max(0, extra) - idle)


def blamed_from(losses: Iterable[int], limits: Limits) -> int:
    """After how many losses a run or an agent must be alone: `alone_after_losses`, or more while too many have as many losses.

    When many lost their hosts, the machine was probably at fault, and there is no room to keep each alone. If one of them is at fault, it
    loses its next hosts too. The others, spread anew, are not all with it, so it soon has the most losses.

    Args:
        losses: for each run and agent that waits in this pool, how often its host died under it.
    """
    first_without_room = sorted(losses, reverse=True)[limits.hosts_max : limits.hosts_max + 1]
    return max(limits.alone_after_losses, *(count + 1 for count in first_without_room), 0)


def has_room_alone(hosts: Sequence[Candidate], limits: Limits) -> bool:
    """Whether the pool may have one more host for an agent that must be alone."""
    return _taken(hosts, alone=True) < limits.hosts_max


def _taken(hosts: Sequence[Candidate], *, alone: bool) -> int:
    """How many hosts one of the two kinds has. An agent that is alone and merely waits for its children counts as none: they might wait
    for its host."""
    if alone:
        return len([host for host in hosts if host.exclusive and host.load > 0])
    return len([host for host in hosts if host.tenants and not (host.exclusive or host.draining)])
