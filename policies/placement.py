"""Where an agent is placed: spread, then pack, as far as the hosts keep up.

While the pool has room, each agent has a host to itself. Above `hosts_max` agents are packed: up to `pack_max` that work on one host. A
host that is behind with its work has *room* for half of the agents that work there, and for twice as many after each report that it is
not. Runs wait for room. Woken agents do not: a call or a parent must not queue behind runs. A worn host is the last choice, so that it
empties and can be retired. An exclusive agent, and a run or agent that lost its host too often, always has a host to itself. Each of the
two kinds may have `hosts_max` hosts, so neither waits for the other.

A woken agent that has lost its host, and not too often, does not wait for a host that is coming while another one has room: somebody may
wait for its answer. It passes over a host that still imports the code of agents, which may take a second, if there is another. Runs that
have lost their host leave the hosts that are coming their share, lest the one that is up take them all.

A run that must outlive its parent is placed *apart* from it. If there is no other host it waits for one, and for its sake there are two.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final, Protocol, TypeVar

from perdure.policies.limits import Limits

HOSTS_APART: Final = 2
ROOM_MIN: Final = 100  # agents that do little are no burden, and the machine may be slow for reasons of its own


# A host, as far as placement must know it.
class Candidate(Protocol):
    host_id: str
    load: int
    exclusive: bool
    draining: bool
    worn: bool
    up: bool
    is_loading: bool
    room: float

    @property
    def tenants(self) -> dict[str, None]: ...


S = TypeVar("S", bound=Candidate)


def is_behind(late_ms: float, writes_waiting: int, limits: Limits) -> bool:
    return late_ms >= limits.late_ms_max or writes_waiting >= limits.writes_waiting_max


def room_after(room: float, load: int, *, behind: bool) -> float:
    return max(ROOM_MIN, load // 2 if behind else room * 2)


def choose(
    hosts: Sequence[S],
    demand: int,
    limits: Limits,
    *,
    alone: bool,
    urgent: bool = False,
    again: bool = False,
    lost: bool = False,
    apart_from: Container[str] = (),
    is_dry: bool = False,
) -> S | None:
    """The host for one more agent, or None if the agent should wait for one.

    Args:
        hosts: the hosts of its pool, starting ones included.
        demand: how many agents wait for a place in this pool, this one included.
        alone: whether it needs a host to itself.
        urgent: whether it may go to a host that is behind.
        again: whether it is a woken agent that has lost its host.
        lost: whether it is a run that has lost its host.
        apart_from: the hosts to which it may not go.
        is_dry: whether no further host comes up, so that it is of no use to wait for one.
    """
    hosts_max = _hosts_max(limits, is_apart=apart_from != ())

    def has_room(host: S) -> bool:
        return host.load < (limits.pack_max if urgent else min(limits.pack_max, host.room))

    full = _taken(hosts, alone=alone) >= hosts_max  # then the empty hosts are for the other kind
    ready = [host for host in hosts if host.up and not (host.draining or host.exclusive or (full and not host.tenants))]
    ready = [host for host in ready if host.host_id not in apart_from]
    ready = [host for host in ready if not host.worn and has_room(host)] or ready
    if again and not alone:
        ready = [host for host in ready if not host.is_loading] or ready
    for host in ready:
        if not host.tenants:
            return host
    # An agent may wait for a host that is coming, if it does not wait in vain.
    coming = 0 if is_dry else max(hosts_max - len(hosts), sum(not host.up for host in hosts))
    if alone or (demand <= coming and not again):
        return None
    best = min(ready, key=lambda host: (not host.room, host.load), default=None)
    if best is None or not has_room(best) or (lost and best.load >= _load_if_spread(ready, coming, demand)):
        return None
    return best


def shares(hosts: Sequence[S], demand: int, limits: Limits) -> list[tuple[S, int]]:
    """How many of those that wait each host takes at once, where `choose` would hand one after the other to the host with the least load.

    The last few are left to `choose`, because it keeps them for hosts that are coming, and so is all if only worn hosts are there.
    """
    full = _taken(hosts, alone=False) >= limits.hosts_max
    loads = [
        (host.load, place)
        for place, host in enumerate(hosts)
        if host.up and not (host.draining or host.exclusive or host.worn or (full and not host.tenants))
    ]
    heapify(loads)
    counts, left = [0] * len(hosts), demand - max(limits.hosts_max, len(hosts))
    while loads and left > 0:
        load, place = loads[0]
        if load < min(limits.pack_max, hosts[place].room):
            heapreplace(loads, (load + 1, place))
            counts[place] += 1
            left -= 1
        else:
            heappop(loads)
    return [(host, count) for host, count in zip(hosts, counts, strict=True) if count]


def _load_if_spread(ready: Sequence[Candidate], coming: int, demand: int) -> float:
    if coming <= 0 or not ready:
        return math.inf
    return math.ceil((sum(host.load for host in ready) + demand) / (len(ready) + coming))


def _hosts_max(limits: Limits, *, is_apart: bool) -> int:
    return max(limits.hosts_max, HOSTS_APART) if is_apart else limits.hosts_max


def wanted_hosts(
    hosts: Sequence[Candidate],
    demand: int,
    alone_demand: int,
    limits: Limits,
    *,
    is_apart: bool = False,
    is_warm: bool = True,
) -> int:
    """How many hosts the pool should start now, for those that wait, and for `hosts_warm` if it is kept warm. Below 0: so many
    of its empty ones it can do without. `is_apart`: one waits for another host than that of its parent."""
    idle = sum(not host.draining and not host.tenants for host in hosts)
    room = max(0, _hosts_max(limits, is_apart=is_apart) - _taken(hosts, alone=False))
    ordinary = min(room, max(demand - alone_demand, limits.hosts_warm if is_warm else 0))
    extra = min(limits.hosts_max - _taken(hosts, alone=True), alone_demand)
    return ordinary + max(0, extra) - idle


def spare_hosts(hosts: Sequence[S], limits: Limits) -> list[S]:
    """The empty hosts beyond `hosts_max`, which agents that had to be alone have left to a warm pool."""
    here = [host for host in hosts if not host.draining]
    surplus = max(0, len(here) - max(limits.hosts_max, HOSTS_APART))
    empty = [host for host in here if not host.tenants]
    return empty[max(0, len(empty) - surplus) :]


def blamed_from(losses: Iterable[int], limits: Limits) -> int:
    """The number of lost hosts after which a run or agent is placed alone: `alone_after_losses`, or more while too many reach that.

    `losses` has those of each run and agent that waits in this pool.
    """
    # When many lose their hosts, the machine is probably at fault, and there is no room to place each alone. If one of them is at fault, it
    # keeps losing hosts, and soon has the most losses.
    first_without_room = sorted(losses, reverse=True)[limits.hosts_max : limits.hosts_max + 1]
    return max(limits.alone_after_losses, *(count + 1 for count in first_without_room), 0)


def has_room_alone(hosts: Sequence[Candidate], limits: Limits) -> bool:
    return _taken(hosts, alone=True) < limits.hosts_max


def _taken(hosts: Sequence[Candidate], *, alone: bool) -> int:
    if alone:  # one that waits for its children does not count: they may wait for its host
        return len([host for host in hosts if host.exclusive and host.load > 0])
    return len([host for host in hosts if host.tenants and not (host.exclusive or host.draining)])
