"""What a cluster says of its nodes and of its autoscaler: what is free, whether a node could come, and which wishes are in vain.

A host that waits for a node is an actor of Ray that is pending, and as such asks the autoscaler for what it needs, with its labels. It is
not asked by `ray.autoscaler.sdk.request_resources`: there is one such request for a whole cluster, so that two directories, or another
program, would take each other's back, and it outlives whoever made it. A pending actor ends with its supervisor's wish, and a node whose
hosts have ended is idle, so that the autoscaler lets it go.

Ray has two autoscalers. Both run without a configuration too, as in a cluster whose nodes were started by hand, and bring nothing then. The
second one (of `ray up` and KubeRay) lists the wishes that it can never fulfil; the first one does not, but tells the types of its nodes,
which are the nodes themselves where it has no configuration.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple, TypeAlias

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.ray_internals import AUTOSCALER_MESSAGES, AUTOSCALING_STATUS, GCS_CLIENT, KV_GET
from perdure.policies import CPU, NodeOffer

ANSWER_S = 5.0
DEAD = 2  # of `NodeStatus`
IN = 1  # of `LabelSelectorOperator`

Wish: TypeAlias = "tuple[frozenset[tuple[str, float]], frozenset[tuple[str, bool, frozenset[str]]]]"
"""Amounts, and labels with whether these values are meant or all others."""


class Outlook(NamedTuple):
    """What the cluster has left, and may get.

    Args:
        free: what each node has that nothing uses.
        has_autoscaler: whether nodes could come by themselves.
        pending: what waits for a place.
        in_vain: the part of it that the autoscaler can never give.
    """

    free: list[NodeOffer]
    has_autoscaler: bool
    pending: Counter[Wish]
    in_vain: Counter[Wish]

    def is_in_vain(self, spec: PoolSpec) -> bool:
        # The autoscaler lists each wish alike, those of which it can fulfil some as well.
        wish = wish_of(spec)
        return bool(self.pending[wish]) and self.in_vain[wish] >= self.pending[wish]


def outlook() -> Outlook:
    """Ask the GCS. Blocks."""
    told = AUTOSCALER_MESSAGES.find().GetClusterStatusReply()
    told.ParseFromString(GCS_CLIENT.find()().get_cluster_status(timeout_s=ANSWER_S))
    status = None if told.autoscaling_state.autoscaler_state_version else KV_GET.find()(AUTOSCALING_STATUS)
    return outlook_of(told, status)


def outlook_of(told: Any, first_status: bytes | None) -> Outlook:
    """From what the GCS tells of the second autoscaler, and the text that the first one has left."""
    nodes, state = told.cluster_resource_state, told.autoscaling_state
    pending: Counter[Wish] = Counter()
    for each in nodes.pending_resource_requests:
        pending[_wish(each.request)] += each.count
    return Outlook(
        [
            NodeOffer(dict(node.available_resources), dict(node.labels))
            for node in nodes.node_states
            if node.status != DEAD
        ],
        bool(state.autoscaler_state_version) or _brings_nodes(first_status),
        pending,
        Counter(map(_wish, state.infeasible_resource_requests)),
    )


def _brings_nodes(status: bytes | None) -> bool:
    report = json.loads(status).get("autoscaler_report") if status else None
    types = (report or {}).get("node_type_mapping") or {}
    return any(kind != f"node_{node}" for node, kind in types.items())


def wish_of(spec: PoolSpec) -> Wish:
    amounts = [*spec.resources, *([(CPU, spec.num_cpus)] if spec.num_cpus else [])]
    labels = []
    for name, expression in spec.labels:
        plain = expression.removeprefix("!")
        values = plain[3:-1].replace(" ", "").split(",") if plain.startswith("in(") else [plain]
        labels.append((name, not expression.startswith("!"), frozenset(values)))
    return _amounts(amounts), frozenset(labels)


def _wish(request: Any) -> Wish:
    labels = [each for selector in request.label_selectors for each in selector.label_constraints]
    return _amounts(request.resources_bundle.items()), frozenset(
        (each.label_key, each.operator == IN, frozenset(each.label_values)) for each in labels
    )


def _amounts(given: Any) -> frozenset[tuple[str, float]]:
    return frozenset((name, round(float(amount), 4)) for name, amount in given)
