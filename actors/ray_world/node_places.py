"""Where the hosts of one directory stand in its cluster, and what else is known of its nodes (`policies.nodes` decides)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from perdure.actors.ports import PoolSpec
from perdure.policies import NodeDrain, NodeLoad, choose_node, is_left


class Place(NamedTuple):
    """A host's pool, and the node on which it stands, or is to stand."""

    spec: PoolSpec
    node_id: str


class Places:
    """The places of the hosts of one supervisor's life. Its methods may be called from any thread.

    Args:
        own: the id of the supervisor's node.
        free_cpus: how many CPUs of each node Ray has not given away.
        ends: when each node that drains ends.
    """

    def __init__(
        self, own: str, free_cpus: Callable[[], Mapping[str, float]], ends: Callable[[], Mapping[str, int]]
    ) -> None:
        self._own, self._free_cpus, self._ends = own, free_cpus, ends
        self._places: dict[str, Place] = {}
        self._lock = threading.Lock()

    def choose(self, host_id: str, spec: PoolSpec, cores: Mapping[str, float]) -> str:
        """The node for a host, among those with so many cores."""
        free = self._free_cpus()
        with self._lock:  # the next host must know of this one
            hosts = Counter(place.node_id for place in self._places.values())
            alike = Counter(place.node_id for place in self._places.values() if place.spec == spec)
            chosen = choose_node(
                [
                    NodeLoad(node, most, most - free.get(node, most), hosts[node], alike[node], node == self._own)
                    for node, most in cores.items()
                ]
            )
            self._places[host_id] = Place(spec, chosen)
            return chosen

    def stands(self, host_id: str, spec: PoolSpec, node_id: str) -> None:
        with self._lock:
            self._places[host_id] = Place(spec, node_id)

    def node_of(self, host_id: str) -> str:
        with self._lock:
            return self._places[host_id].node_id if host_id in self._places else ""

    def forget(self, host_id: str) -> None:
        with self._lock:
            self._places.pop(host_id, None)

    def apart(self) -> tuple[str, PoolSpec] | None:
        """A host on another node than the supervisor's, and its pool."""
        ends = self._ends()
        with self._lock:
            far = {host: place for host, place in self._places.items() if place.node_id not in ("", self._own, *ends)}
        host_id = min(far, key=lambda each: (far[each].node_id, each), default="")
        return (host_id, far[host_id].spec) if host_id else None

    def drains(self, names: Mapping[str, str], *, may_move: bool) -> dict[str, NodeDrain]:
        """The nodes that drain, by their names.

        Args:
            names: those of the nodes that could serve, by their ids.
            may_move: whether the supervisor may go to any other node.
        """
        ends = {node: until_ms for node, until_ms in self._ends().items() if node in names}
        left = is_left(names, ends)
        with self._lock:
            places = [(host_id, place.node_id) for host_id, place in self._places.items()]
        return {
            names[node]: NodeDrain(
                until_ms,
                tuple(sorted(host_id for host_id, at in places if at == node)) if left else (),
                left and may_move and node == self._own,
            )
            for node, until_ms in ends.items()
        }
