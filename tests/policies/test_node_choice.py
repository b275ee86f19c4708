from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import INFINITY, DrainStep, NodeLoad, choose_node, drain_step, is_left, moves_at_ms
from perdure.policies.nodes import MOVE_MS

OURS = NodeLoad("ours", 8, is_supervisors=True)
FAR = NodeLoad("far", 8)
THIRD = NodeLoad("third", 8)


def placed(nodes: list[NodeLoad], count: int) -> dict[str, int]:
    """How many of so many hosts of one pool each node gets."""
    for _ in range(count):
        chosen = choose_node(nodes)
        nodes = [
            node._replace(hosts=node.hosts + 1, alike=node.alike + 1) if node.node_id == chosen else node
            for node in nodes
        ]
    return {node.node_id: node.hosts for node in nodes}


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([], ""),
        ([OURS], "ours"),
        ([OURS, FAR], "far"),
        ([OURS, FAR._replace(hosts=3)], "ours"),
        ([FAR._replace(hosts=2), THIRD._replace(hosts=1)], "third"),
        ([FAR._replace(used=7), THIRD._replace(hosts=6)], "third"),
        ([FAR._replace(cores=2, hosts=1), THIRD._replace(hosts=6)], "third"),  # 2 of 2 cores would be taken, or 7 of 8
        ([FAR, THIRD], "far"),  # always the same one, whatever the order
        ([THIRD, FAR], "far"),
    ],
)
def test_a_host_goes_where_the_least_is_at_work_for_each_core(nodes: list[NodeLoad], chosen: str) -> None:
    assert choose_node(nodes) == chosen


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([FAR._replace(hosts=1, alike=1), THIRD._replace(hosts=5)], "third"),
        ([FAR._replace(hosts=1, alike=1), OURS], "ours"),
        ([FAR._replace(hosts=1, alike=1), THIRD._replace(hosts=8)], "far"),  # there is no room elsewhere
        ([FAR._replace(hosts=1, alike=1), OURS._replace(cores=0)], "far"),
        ([FAR._replace(hosts=1, alike=1), THIRD._replace(hosts=4, alike=1)], "far"),  # the third goes by load
    ],
)
def test_the_second_host_of_a_pool_goes_to_another_node_than_the_first(nodes: list[NodeLoad], chosen: str) -> None:
    assert choose_node(nodes) == chosen


def test_the_supervisor_s_node_takes_fewer_hosts_while_others_have_room() -> None:
    assert placed([OURS, FAR], 8) == {"ours": 3, "far": 5}
    assert placed([OURS, FAR], 14) == {"ours": 6, "far": 8}, "it keeps a process spare"
    assert placed([OURS, FAR, THIRD], 8) == {"ours": 1, "far": 4, "third": 3}
    assert placed([OURS._replace(cores=0), FAR], 8) == {"ours": 0, "far": 8}
    assert placed([OURS._replace(cores=2), FAR._replace(cores=1)], 3) == {"ours": 1, "far": 2}, "no node has room"


loads = st.builds(
    NodeLoad, st.sampled_from("abcdef"), st.integers(0, 64), st.integers(0, 64), st.integers(0, 9), st.integers(0, 3)
)


@given(st.lists(loads, max_size=6, unique_by=lambda node: node.node_id))
def test_some_node_is_chosen_if_there_is_one_and_never_a_full_one_while_another_has_room(nodes: list[NodeLoad]) -> None:
    chosen = [node for node in nodes if node.node_id == choose_node(nodes)]
    assert len(chosen) == min(1, len(nodes))
    assert all(node.has_room for node in chosen) or not any(node.has_room for node in nodes)


@pytest.mark.parametrize(
    ("nodes", "draining", "left"),
    [("ab", "", True), ("ab", "a", True), ("ab", "ab", False), ("a", "a", False), ("", "a", False)],
)
def test_a_node_that_drains_is_left_if_another_one_stays(nodes: str, draining: str, left: bool) -> None:
    assert is_left(nodes, draining) == left


@pytest.mark.parametrize(
    ("seen_at_ms", "until_ms", "moves"),
    [
        (1_000, 0, INFINITY),  # it has no end
        (0, 120_000, 120_000 - MOVE_MS),
        (0, 30_000, 15_000),
        (10_000, 30_000, 20_000),
        (30_000, 30_000, 30_000),
        (31_000, 30_000, 30_000),
    ],
)
def test_what_is_at_work_is_moved_a_while_before_the_end(seen_at_ms: int, until_ms: int, moves: float) -> None:
    assert moves_at_ms(seen_at_ms, until_ms) == moves


def test_the_steps_with_a_host_cell_by_cell() -> None:
    told = {
        (up, said, tenants, late): drain_step(is_up=up, is_told=said, has_tenants=tenants, is_late=late)
        for up, said, tenants, late in product((False, True), repeat=4)
    }
    for (up, said, tenants, late), step in told.items():
        if not up:
            assert step == (DrainStep.WAIT if said else DrainStep.LEAVE), "it may have to come up first"
        elif not tenants:
            assert step == DrainStep.RETIRE
        elif late:
            assert step == DrainStep.MOVE
        else:
            assert step == (DrainStep.WAIT if said else DrainStep.LEAVE)
