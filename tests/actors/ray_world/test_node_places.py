"""Where hosts stand in a cluster, and which of them are on a node that drains."""

from __future__ import annotations

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.cluster_nodes import Places
from perdure.policies import NodeDrain

PLAIN, LARGE = PoolSpec(), PoolSpec(num_cpus=2)
CORES = {"own": 4.0, "far": 4.0, "third": 4.0}
NAMES = {node: f"host (Ray's node {node})" for node in CORES}


class Nodes:
    """The nodes, of which some CPUs are taken and some drain."""

    def __init__(self) -> None:
        self.free: dict[str, float] = {}
        self.ends: dict[str, int] = {}
        self.places = Places("own", lambda: self.free, lambda: self.ends)

    def chosen(self, *host_ids: str, spec: PoolSpec = PLAIN) -> list[str]:
        return [self.places.choose(host_id, spec, CORES) for host_id in host_ids]

    def drains(self, *, may_move: bool = True) -> dict[str, NodeDrain]:
        return self.places.drains(NAMES, may_move=may_move)


def test_each_host_is_counted_from_when_its_node_was_chosen() -> None:
    nodes = Nodes()
    assert nodes.chosen("a", "b", "c", "d") == ["far", "third", "far", "third"]
    nodes.places.forget("a")
    nodes.places.forget("c")
    assert nodes.chosen("e") == ["far"]


def test_the_second_host_is_another_pool_s_first() -> None:
    nodes = Nodes()
    nodes.places.stands("a", PLAIN, "far")
    nodes.places.stands("b", LARGE, "third")
    nodes.places.stands("c", LARGE, "third")
    assert nodes.chosen("d", spec=PLAIN) == ["third"], "the other one of this pool is far"
    nodes.places.forget("d")
    assert nodes.chosen("d", spec=LARGE) == ["far"]


def test_what_other_programs_have_taken_of_a_node_counts() -> None:
    nodes = Nodes()
    nodes.free = {"far": 1.0, "third": 4.0}
    assert nodes.chosen("a") == ["third"]


def test_a_host_counts_where_ray_has_put_it() -> None:
    nodes = Nodes()
    nodes.chosen("a")
    nodes.places.stands("a", PLAIN, "third")
    nodes.ends["third"] = 5
    assert nodes.drains()[NAMES["third"]].hosts == ("a",)


def test_hosts_on_nodes_that_drain_leave_them_and_so_does_the_supervisor_where_it_may() -> None:
    nodes = Nodes()
    for host_id, node in (("a", "own"), ("b", "far"), ("c", "own"), ("d", "third")):
        nodes.places.stands(host_id, PLAIN, node)
    assert nodes.drains() == {}
    nodes.ends = {"own": 5, "far": 0, "stranger": 7}
    assert nodes.drains() == {NAMES["own"]: NodeDrain(5, ("a", "c"), is_here=True), NAMES["far"]: NodeDrain(0, ("b",))}
    assert nodes.drains(may_move=False)[NAMES["own"]] == NodeDrain(5, ("a", "c"))
    nodes.ends = dict.fromkeys(CORES, 5)
    assert nodes.drains() == {name: NodeDrain(5) for name in NAMES.values()}, "none is left that could take them"


def test_the_other_spare_process_is_kept_beside_a_host_on_another_node_that_stays() -> None:
    nodes = Nodes()
    nodes.places.stands("a", PLAIN, "own")
    assert nodes.places.apart() is None
    nodes.chosen("b")
    nodes.places.stands("b", LARGE, "third")
    assert nodes.places.apart() == ("b", LARGE)
    nodes.places.stands("c", PLAIN, "far")
    assert nodes.places.apart() == ("c", PLAIN), "always the same node"
    nodes.ends["far"] = 0
    assert nodes.places.apart() == ("b", LARGE)
