"""Which node of a cluster takes the next host, and how a node that drains is left.

A death of one node should not take together what can stand apart. So the second host of a pool goes to another node than the first, where
one has room; the others go to where the least is at work for each core. The supervisor's node counts as busier than it is by `RESERVED`
hosts, so it takes fewer while others have room, and keeps a process spare: beyond one process for each core Ray ends idle ones.

From a node that drains the hosts are taken in peace: nothing new goes there, idle agents leave at once, and the others as soon as they are
idle. What is still at work shortly before the node's end is cut off, so that it goes on elsewhere. Where no node is left that could take
the hosts, they stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from perdure.policies.numbers import INFINITY

RESERVED: Final = 2  # the supervisor, and the process that is kept for its next life
MOVE_MS: Final = 15_000  # before its end a node has no host any more


class NodeLoad(NamedTuple):
    """What is known of a node that could take a host.

    Args:
        cores: the CPUs that Ray counts there; 0 where nothing is to be placed.
        used: how many of these Ray has given away, to us or to others.
        hosts: ours.
        alike: those of them in the pool of the host that is to be placed.
        is_supervisors: whether the supervisor stands there.
    """

    node_id: str
    cores: float
    used: float = 0.0
    hosts: int = 0
    alike: int = 0
    is_supervisors: bool = False

    @property
    def busy(self) -> float:
        return max(self.hosts, self.used) + (RESERVED if self.is_supervisors else 0)

    @property
    def has_room(self) -> bool:
        return self.busy < self.cores


def choose_node(nodes: Sequence[NodeLoad]) -> str:
    """The id of the node that takes the next host; empty if there is none."""
    apart = [node for node in nodes if not node.alike and node.has_room]
    is_second = sum(node.alike > 0 for node in nodes) == 1
    free = (apart if is_second else []) or [node for node in nodes if node.has_room] or nodes
    best = min(free, key=_load, default=None)
    return best.node_id if best is not None else ""


def _load(node: NodeLoad) -> tuple[float, bool, str]:
    load = (node.busy + 1) / node.cores if node.cores else INFINITY
    return load, node.is_supervisors, node.node_id


def is_left(nodes: Collection[str], draining: Collection[str]) -> bool:
    """Whether the draining ones of these nodes are left: one of them has to stay."""
    return any(node not in draining for node in nodes)


class NodeDrain(NamedTuple):
    """A node that is being drained.

    Args:
        until_ms: when it ends, by the wall clock; 0 if that is not said.
        hosts: those of ours there that are to leave.
        is_here: whether the supervisor stands there, and is to leave too.
    """

    until_ms: int = 0
    hosts: tuple[str, ...] = ()
    is_here: bool = False


class DrainStep(StrEnum):
    """What is done with a host on a node that drains."""

    LEAVE = "leave"  # it gets nothing new, and agents leave it when they are idle
    RETIRE = "retire"  # it is empty, and ends
    MOVE = "move"  # it ends, and what is at work there goes on elsewhere
    WAIT = "wait"


def moves_at_ms(seen_at_ms: int, until_ms: int) -> float:
    """When what is at work on a node is cut off, whose drain was seen then: a while before its end, after half of a time that is short.
    Infinity if it has no end (`until_ms` is 0)."""
    return until_ms - min(MOVE_MS, max(0, until_ms - seen_at_ms) / 2) if until_ms else INFINITY


def drain_step(*, is_up: bool, is_told: bool, has_tenants: bool, is_late: bool) -> DrainStep:
    """The next step with a host. `is_told`: it leaves already. `is_late`: the node is about to end. One that comes up gets no agents, so it
    ends then."""
    if is_up and not has_tenants:
        return DrainStep.RETIRE
    if is_up and is_late:
        return DrainStep.MOVE
    return DrainStep.WAIT if is_told else DrainStep.LEAVE
