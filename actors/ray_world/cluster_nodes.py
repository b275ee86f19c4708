"""The nodes of a cluster: which of them see the data directory, what they have left, whether more could come, and where hosts stand."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from perdure.actors.link.questions import LogsOf
from perdure.actors.log_files import WantedLogs, log_page
from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.deployment import LOGS, Deployment
from perdure.actors.ray_world.identity import unlike
from perdure.actors.ray_world.named_actors import (
    Remote,
    answer_of,
    remote,
    wait_for,
)
from perdure.actors.ray_world.ray_connection import cause_of
from perdure.actors.ray_world.ray_internals import (
    AUTOSCALER_MESSAGES,
    AUTOSCALING_STATUS,
    GCS_CLIENT,
    KV_GET,
    draining_nodes,
)
from perdure.actors.ray_world.spares import PLAIN
from perdure.ledger import begin_cache
from perdure.policies import (
    CPU,
    NODE_ID,
    NodeDrain,
    NodeLoad,
    NodeOffer,
    choose_node,
    has_labels,
    is_left,
    node_lack,
)

ANSWER_S: Final = 10.0  # for a node to answer: it may have to start a process
AGAIN_S: Final = 60.0  # until a node that sees the directory is asked again
SOON_S: Final = 10.0  # until one that does not is
GCS_ANSWER_S: Final = 5.0
DEAD: Final = 2  # of `NodeStatus`
IN: Final = 1  # of `LabelSelectorOperator`

Wish: TypeAlias = "tuple[frozenset[tuple[str, float]], frozenset[tuple[str, bool, frozenset[str]]]]"
"""Amounts, and labels with whether these values are meant or all others."""

# ---------------------------------------------------------------- which nodes see the directory
# Each is asked by a task of its own before hosts go there, and again from time to time.
#
# A Ray that was started for this directory is one machine, so no node is asked there. Neither is the supervisor's own node: it would not
# serve otherwise.


# As `ray.nodes` describes it.
class Node(TypedDict):
    NodeID: str
    NodeManagerHostname: str
    Resources: dict[str, float]
    Labels: dict[str, str]
    Alive: bool


# What a node had at the path instead of the directory (empty if it has the directory), and until when that counts.
class NodePath(NamedTuple):
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
        self._seen: dict[str, NodePath] = {}
        self._lock = threading.Lock()
        self.elsewhere: dict[str, str] = {}

    # Those that have to be asked now are asked.
    def seeing(self) -> list[Node]:
        with self._lock:
            nodes, now_s = {node["NodeID"]: node for node in self.alive()}, time.monotonic()
            kept = {each: seen for each, seen in self._seen.items() if each in nodes and seen.until_s > now_s}
            due = [each for each in nodes if each != self._own and each not in kept]
            told = self._ask(due) if due else {}
            now_s = time.monotonic()
            self._seen = kept | {
                each: NodePath(instead, now_s + (SOON_S if instead else AGAIN_S)) for each, instead in told.items()
            }
            strangers = {each: seen.instead for each, seen in self._seen.items() if seen.instead}
            self.elsewhere.clear()
            for each, instead in strangers.items():
                self.elsewhere[in_words(nodes[each])] = instead
            return [node for each, node in nodes.items() if each not in strangers]

    # A host has found no directory: all nodes are asked again.
    def doubt(self) -> None:
        with self._lock:
            self._seen.clear()


def lack(nodes: list[Node], spec: PoolSpec) -> str:
    """What none of these nodes has, in words; empty if one is large enough and has the labels."""
    return node_lack([NodeOffer(node["Resources"], node["Labels"]) for node in nodes], wanted_of(spec), spec.labels)


def wanted_of(spec: PoolSpec) -> dict[str, float]:
    return {**dict(spec.resources), **({CPU: spec.num_cpus} if spec.num_cpus else {})}


def in_words(node: Node) -> str:
    return f"{node['NodeManagerHostname']} (Ray's node {node['NodeID'][:8]})"


# Those with its labels: it may have asked for nodes by their ids itself.
def among(nodes: list[Node], spec: PoolSpec) -> dict[str, str]:
    chosen = [node["NodeID"] for node in nodes if has_labels(node["Labels"], spec.labels)]
    return {NODE_ID: f"in({','.join(chosen)})"}


def apart_from(seeing: list[Node], everywhere: list[Node]) -> dict[str, str]:
    here = {node["NodeID"] for node in seeing}
    strangers = [node["NodeID"] for node in everywhere if node["NodeID"] not in here]
    return {NODE_ID: f"!in({','.join(strangers)})"} if strangers else {}


def alive_nodes() -> list[Node]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


# Ray places nothing on a node that drains.
def serving_nodes() -> list[Node]:
    nodes, draining = alive_nodes(), draining_nodes()
    return [node for node in nodes if node["NodeID"] not in draining] or nodes


def seen_by(deployment: Deployment, node_ids: list[str]) -> dict[str, str]:
    told = dict.fromkeys(node_ids, f"what it did not tell within {ANSWER_S:.0f} s")
    for each, answer in on_nodes(node_ids, ANSWER_S, unlike, deployment.data, deployment.identity).items():
        if isinstance(answer, RayError):
            told[each] = f"what it could not be asked about ({cause_of(answer)})"
        else:
            told[each] = str(answer)
    return told


def on_nodes(node_ids: list[str], within_s: float, job: Callable[..., object], *arguments: object) -> dict[str, object]:
    """What a job gives in a process of each of these nodes, or Ray's error. Nodes that do not answer in time are left out."""
    asked: dict[str, Remote] = {}
    task = remote(job, num_cpus=0, max_retries=0, max_calls=1, enable_task_events=False)
    for each in node_ids:
        there = NodeAffinitySchedulingStrategy(each, soft=False)
        asked[each] = task.options(scheduling_strategy=there, runtime_env=PLAIN).remote(*arguments)
    ready = wait_for(asked, within_s)
    told: dict[str, object] = {}
    for each, answer in asked.items():
        if each not in ready:
            ray.cancel(answer, force=True)
            continue
        try:
            told[each] = answer_of(answer)
        except RayError as problem:
            told[each] = problem
    return told


def logs_there(url: str, asked: Sequence[Any]) -> bytes:
    wanted = LogsOf(*asked)
    return log_page(begin_cache(url) / LOGS, WantedLogs(*wanted.wanted), wanted.most, wanted.position).packed()


# ---------------------------------------------------------------- what is free, and what could come
# A host that waits for a node is an actor of Ray that is pending, and as such asks the autoscaler for what it needs, with its labels. It is
# not asked by `ray.autoscaler.sdk.request_resources`: there is one such request for a whole cluster, so that two directories, or another
# program, would take each other's back, and it outlives whoever made it. A pending actor ends with its supervisor's wish, and a node whose
# hosts have ended is idle, so that the autoscaler lets it go.
#
# Ray has two autoscalers. Both run without a configuration too, as in a cluster whose nodes were started by hand, and bring nothing then.
# The second one (of `ray up` and KubeRay) lists the wishes that it can never fulfil; the first one does not, but tells the types of its
# nodes, which are the nodes themselves where it has no configuration.


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


# Asks the GCS, and blocks.
def outlook() -> Outlook:
    told = AUTOSCALER_MESSAGES.find().GetClusterStatusReply()
    told.ParseFromString(GCS_CLIENT.find()().get_cluster_status(timeout_s=GCS_ANSWER_S))
    status = None if told.autoscaling_state.autoscaler_state_version else KV_GET.find()(AUTOSCALING_STATUS)
    return outlook_of(told, status)


# From what the GCS tells of the second autoscaler, and the text that the first one has left.
def outlook_of(told: Any, first_status: bytes | None) -> Outlook:
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
    labels = []
    for name, expression in spec.labels:
        plain = expression.removeprefix("!")
        values = plain[3:-1].replace(" ", "").split(",") if plain.startswith("in(") else [plain]
        labels.append((name, not expression.startswith("!"), frozenset(values)))
    return _amounts(wanted_of(spec).items()), frozenset(labels)


def _wish(request: Any) -> Wish:
    labels = [each for selector in request.label_selectors for each in selector.label_constraints]
    return _amounts(request.resources_bundle.items()), frozenset(
        (each.label_key, each.operator == IN, frozenset(each.label_values)) for each in labels
    )


def _amounts(given: Iterable[tuple[str, float]]) -> frozenset[tuple[str, float]]:
    return frozenset((name, round(float(amount), 4)) for name, amount in given)


# ---------------------------------------------------------------- where hosts stand


class Place(NamedTuple):
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

    # Among those with so many cores.
    def choose(self, host_id: str, spec: PoolSpec, cores: Mapping[str, float]) -> str:
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

    # A host on another node than the supervisor's, and its pool.
    def apart(self) -> tuple[str, PoolSpec] | None:
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
