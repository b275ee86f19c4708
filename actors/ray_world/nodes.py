"""Which nodes of a cluster see the data directory: each is asked by a task of its own before hosts go there, and again from time to time.

A Ray that was started for this directory is one machine, so nobody is asked there. Neither is the supervisor's own node: it would not serve
otherwise.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.actors.ray_world.connection import cause_of
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.identity import unlike
from perdure.actors.ray_world.named_actors import Remote, remote, wait_for

ANSWER_S: Final = 10.0  # for a node to answer: it may have to start a process
AGAIN_S: Final = 60.0  # until a node that sees the directory is asked again
SOON_S: Final = 10.0  # until one that does not is
ID: Final = "ray.io/node-id"  # a label that Ray gives to each node

Node = dict[str, Any]


class Seen(NamedTuple):
    """What a node had at the path instead of the directory (empty if it has the directory), and until when that counts."""

    instead: str
    until_s: float


class Nodes:
    """The nodes of the cluster of one supervisor. Its methods block, and may be called from any thread.

    Args:
        alive: the nodes that live, as `ray.nodes` describes them.
        ask: asks nodes, by their ids, what they have at the path instead of the directory.
        own: the id of the supervisor's node.

    Attributes:
        elsewhere: the nodes that do not see the directory, and what each has instead.
    """

    def __init__(self, alive: Callable[[], list[Node]], ask: Callable[[list[str]], dict[str, str]], own: str) -> None:
        self.alive, self._ask, self._own = alive, ask, own
        self._seen: dict[str, Seen] = {}
        self._lock = threading.Lock()
        self.elsewhere: dict[str, str] = {}

    def seeing(self) -> list[Node]:
        """The nodes that see the directory. Those that have to be asked now are asked."""
        with self._lock:
            nodes, now_s = {node["NodeID"]: node for node in self.alive()}, time.monotonic()
            kept = {each: seen for each, seen in self._seen.items() if each in nodes and seen.until_s > now_s}
            due = [each for each in nodes if each != self._own and each not in kept]
            told = self._ask(due) if due else {}
            now_s = time.monotonic()
            self._seen = kept | {
                each: Seen(instead, now_s + (SOON_S if instead else AGAIN_S)) for each, instead in told.items()
            }
            strangers = {each: seen.instead for each, seen in self._seen.items() if seen.instead}
            self.elsewhere.clear()
            self.elsewhere.update({in_words(nodes[each]): instead for each, instead in strangers.items()})
            return [node for each, node in nodes.items() if each not in strangers]

    def doubt(self) -> None:
        """A host has found no directory: all nodes are asked again."""
        with self._lock:
            self._seen.clear()


def in_words(node: Node) -> str:
    """A node, for people."""
    return f"{node['NodeManagerHostname']} (Ray's node {node['NodeID'][:8]})"


def lack(nodes: list[Node], wanted: Mapping[str, float]) -> str:
    """What none of these nodes has, in words; empty if one is large enough."""
    there = [node["Resources"] for node in nodes]
    if not wanted or any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in there):
        return ""
    most = {name: max((node.get(name, 0) for node in there), default=0) for name in wanted}
    asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
    found = ", ".join(f"{amount:g} {name}" for name, amount in most.items())
    return f"no node has {asked} (the most that one has: {found})"


def among(nodes: list[Node]) -> dict[str, str]:
    """The label selector of an actor that is to live on one of these."""
    return {ID: f"in({','.join(node['NodeID'] for node in nodes)})"}


def nodes_of(deployment: Deployment) -> Nodes:
    """The nodes of the Ray of this process, which is the supervisor's."""
    return Nodes(alive_nodes, functools.partial(_ask, deployment), ray.get_runtime_context().get_node_id())


def alive_nodes() -> list[Node]:
    """The nodes of the Ray of this process that live."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _ask(deployment: Deployment, node_ids: list[str]) -> dict[str, str]:
    asked: dict[str, Remote] = {}
    for each in node_ids:
        there = NodeAffinitySchedulingStrategy(each, soft=False)
        asked[each] = _errand().options(scheduling_strategy=there).remote(deployment.data, deployment.identity)
    ready = wait_for(asked, ANSWER_S)
    told = dict.fromkeys(node_ids, f"what it did not tell within {ANSWER_S:.0f} s")
    for each, answer in asked.items():
        if each not in ready:
            ray.cancel(answer, force=True)
            continue
        try:
            told[each] = str(ray.get(answer))
        except RayError as problem:
            told[each] = f"what it could not be asked about ({cause_of(problem)})"
    return told


@functools.cache
def _errand() -> Remote:
    return remote(unlike, num_cpus=0, max_retries=0, enable_task_events=False)
