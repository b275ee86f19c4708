"""What is read out of the messages of Ray's two autoscalers. The messages are Ray's own; no Ray is started."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.cluster_nodes import outlook_of, wish_of
from perdure.actors.ray_world.ray_internals import AUTOSCALER_MESSAGES
from perdure.policies import NodeOffer

GPU = PoolSpec(
    resources=(("GPU", 1.0), ("accelerator_type:T4", 0.001)), labels=(("zone", "!in(a, b)"), ("kind", "spot"))
)
IN, NOT_IN, DEAD, IDLE = 1, 2, 2, 3


def message() -> Any:
    return AUTOSCALER_MESSAGES.find().GetClusterStatusReply()


def wish(into: Any, values: tuple[str, ...] = ("b", "a")) -> None:
    """What Ray makes of a host of that pool."""
    into.resources_bundle["GPU"] = 1.0
    into.resources_bundle["accelerator_type:T4"] = 0.001
    labels = into.label_selectors.add()
    labels.label_constraints.add(label_key="zone", operator=NOT_IN, label_values=values)
    labels.label_constraints.add(label_key="kind", operator=IN, label_values=["spot"])


def second(pending: int, in_vain: int) -> Any:
    """The second autoscaler knows of so many hosts of that pool that wait, and can never give so many of them."""
    told = message()
    told.autoscaling_state.autoscaler_state_version = 7
    asked = told.cluster_resource_state.pending_resource_requests.add(count=pending)
    wish(asked.request)
    for _ in range(in_vain):
        wish(told.autoscaling_state.infeasible_resource_requests.add())
    return told


@pytest.mark.parametrize(
    ("pending", "in_vain", "is_in_vain"),
    [(1, 1, True), (2, 2, True), (2, 1, False), (1, 0, False), (0, 1, False), (1, 2, True)],
)
def test_a_wish_is_in_vain_if_none_of_its_like_can_be_fulfilled(pending: int, in_vain: int, is_in_vain: bool) -> None:
    seen = outlook_of(second(pending, in_vain), None)
    assert seen.has_autoscaler
    assert seen.is_in_vain(GPU) is is_in_vain
    assert not seen.is_in_vain(PoolSpec(2.0))


def test_a_wish_with_other_labels_is_another_one() -> None:
    told = second(1, 0)
    wish(told.autoscaling_state.infeasible_resource_requests.add(), ("c",))
    assert not outlook_of(told, None).is_in_vain(GPU)


def test_a_wish_is_amounts_and_labels_and_processors_are_one_of_the_amounts() -> None:
    assert wish_of(PoolSpec()) == (frozenset(), frozenset())
    assert wish_of(PoolSpec(2, (("disk", 0.5),), "{}")) == (frozenset({("CPU", 2.0), ("disk", 0.5)}), frozenset())


def test_what_nodes_have_left_is_told_of_those_that_live() -> None:
    told = message()
    here = told.cluster_resource_state.node_states.add(status=IDLE)
    here.available_resources["GPU"], here.total_resources["GPU"] = 0.5, 2.0
    here.labels["zone"] = "a"
    told.cluster_resource_state.node_states.add(status=DEAD).available_resources["GPU"] = 8.0
    assert outlook_of(told, None).free == [NodeOffer({"GPU": 0.5}, {"zone": "a"})]


@pytest.mark.parametrize(
    ("status", "brings_nodes"),
    [
        (None, False),
        ({}, False),
        ({"autoscaler_report": None}, False),
        ({"autoscaler_report": {"node_type_mapping": None}}, False),
        ({"autoscaler_report": {"node_type_mapping": {"f00": "node_f00", "ba5": "node_ba5"}}}, False),
        ({"autoscaler_report": {"node_type_mapping": {"f00": "ray.head.default"}}}, True),
    ],
)
def test_the_first_autoscaler_has_types_of_nodes_only_where_it_can_bring_some(status: Any, brings_nodes: bool) -> None:
    seen = outlook_of(message(), None if status is None else json.dumps(status).encode())
    assert seen.has_autoscaler is brings_nodes
    assert not seen.is_in_vain(GPU)
