"""Which process is killed next, in a drill.

The same dice and the same agents give the same victims: the ids of hosts are drawn anew in each life, so hosts are told apart by whom they
carry. A kind of victim of which there is none gives way to the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

K = TypeVar("K")


class StrikeTarget(StrEnum):
    HOST = "host"  # a host, or a share of all
    AGENT = "agent"  # the host of an agent
    SUPERVISOR = "supervisor"
    RAY = "ray"  # the GCS, or the raylet


class Carrier(NamedTuple):
    host_id: str
    agents: tuple[str, ...] = ()


def carriers(hosts: Iterable[str], homes: Iterable[tuple[str, str]]) -> list[Carrier]:
    """The hosts in an order that does not follow from their ids, those that carry nobody last. `homes` are agents with their hosts."""
    living: dict[str, list[str]] = {host: [] for host in hosts}
    for agent, host in homes:
        if host in living:
            living[host].append(agent)
    found = [Carrier(host, tuple(sorted(agents))) for host, agents in living.items()]
    return sorted(found, key=lambda each: (not each.agents, each.agents, each.host_id))


def in_turns(kinds: Sequence[K], shuffled: Callable[[Sequence[K]], Sequence[K]]) -> Iterator[K]:
    while True:
        yield from shuffled(kinds)


def from_here(kinds: Sequence[K], first: K) -> list[K]:
    place = kinds.index(first)  # the next one is taken if this one finds nobody
    return [*kinds[place:], *kinds[:place]]


def victims(
    target: StrikeTarget, hosts: Sequence[Carrier], fraction: float | None, roll: Callable[[], float]
) -> list[str]:
    """The hosts that a strike hits: one, or this share of them, rounded up; for an agent, the host of one that is drawn. Empty if there is
    none. `roll` is in [0, 1)."""
    if target is StrikeTarget.HOST and fraction is not None:
        left = list(hosts)
        # Rounded first, because 0.55 of 100 is a little more than 55 in floats.
        count = min(len(left), math.ceil(round(fraction * len(left), 9)))
        return [left.pop(int(roll() * len(left))).host_id for _ in range(count)]
    found = [host.host_id for host in hosts for _ in (host.agents if target is StrikeTarget.AGENT else [host])]
    return [found[int(roll() * len(found))]] if found else []
