"""Which node of a cluster could give what a host asks for, which one takes the next host, and how a node that drains is left.

Amounts go by Ray's own names of resources: `CPU`, `GPU`, `memory` in bytes, `accelerator_type:A100`, and those of the cluster's owner.

A label selector has an expression for each label that is asked for: a value (`spot`), some values (`in(A100, H100)`), or `!` and one of
those. A node without the label has none of the values, so `!spot` means it too.

A death of one node should not take together what can stand apart. So the second host of a pool goes to another node than the first, where
one has room; the others go to where the least is at work for each core. The supervisor's node counts as busier than it is by `RESERVED`
hosts, so it takes fewer while others have room, and keeps a process spare: beyond one process for each core Ray ends idle ones.

From a node that drains the hosts are taken in peace: nothing new goes there, idle agents leave at once, and the others as soon as they are
idle. What is still at work shortly before the node's end is cut off, so that it goes on elsewhere. Where no node is left that could take
the hosts, they stay.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from perdure.policies.numbers import INFINITY

CPU: Final = "CPU"
GPU: Final = "GPU"
MEMORY: Final = "memory"
ACCELERATOR: Final = "accelerator_type:"
NODE_ID: Final = "ray.io/node-id"  # a label that Ray gives to each node, and that no one asks for by heart
TOLD_MAX: Final = 500
RESERVED: Final = 2  # the supervisor, and the process that is kept for its next life
MOVE_MS: Final = 15_000  # before its end a node has no host any more

Selector: TypeAlias = "Iterable[tuple[str, str]]"
"""Labels and expressions."""

_WORD: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_LABEL: Final = re.compile(rf"(?:(?=.{{1,253}}/){_WORD}(?:\.{_WORD})*/)?{_WORD}")
_EXPRESSION: Final = re.compile(rf"!?(?:(?:{_WORD})?|in\({_WORD}(?:, ?{_WORD})*\))")


# All that a node has, whether it is in use or not.
class NodeOffer(NamedTuple):
    resources: Mapping[str, float]
    labels: Mapping[str, str]


def is_label(name: object) -> bool:
    return isinstance(name, str) and _LABEL.fullmatch(name) is not None


def is_label_expression(text: object) -> bool:
    return isinstance(text, str) and _EXPRESSION.fullmatch(text) is not None


def has_labels(labels: Mapping[str, str], selector: Selector) -> bool:
    return all(_fits(labels.get(name), expression) for name, expression in selector)


def _fits(value: str | None, expression: str) -> bool:
    plain = expression.removeprefix("!")
    named = plain[3:-1].replace(" ", "").split(",") if plain.startswith("in(") else [plain]
    return (value in named) != expression.startswith("!")


def node_lack(nodes: Sequence[NodeOffer], wanted: Mapping[str, float], selector: Selector = (), left: str = "") -> str:
    """What none of these nodes has, in words; empty if one is large enough and has the labels. `left` is said of amounts if not all is
    meant that a node has."""
    labels = list(selector)
    chosen = [node.resources for node in nodes if has_labels(node.labels, labels)]
    if not (wanted or labels) or any(all(has.get(name, 0) >= wanted[name] for name in wanted) for has in chosen):
        return ""
    asked = ", ".join(
        [*(amount_in_words(name, amount) for name, amount in wanted.items()), *map(label_in_words, labels)]
    )
    there = [node.resources for node in nodes]
    amounts = [name for name in wanted if not name.startswith(ACCELERATOR)]
    most = ", ".join(amount_in_words(name, max((has.get(name, 0) for has in there), default=0)) for name in amounts)
    found = [f"the most that one has{left}: {most}"] if most else []
    if len(amounts) < len(wanted):
        kinds = {name.removeprefix(ACCELERATOR) for has in there for name in has if name.startswith(ACCELERATOR)}
        found.append(f"types of accelerators: {_listed(kinds)}")
    if labels:
        found.append(
            f"labels: {_listed({f'{k}={v}' for node in nodes for k, v in node.labels.items() if k != NODE_ID})}"
        )
    return f"no node has {asked}{left} ({'; '.join(found)})"


def amount_in_words(name: str, amount: float) -> str:
    if name == MEMORY:
        return f"{amount / 1e9:.4g} GB of memory"
    if name.startswith(ACCELERATOR):
        return f"accelerator_type {name.removeprefix(ACCELERATOR)}"
    return f"{amount:g} {name}"


def label_in_words(label: tuple[str, str]) -> str:
    return f"label {label[0]}={label[1]}"


def _listed(names: Iterable[str]) -> str:
    text = ", ".join(sorted(names)) or "none"
    return text if len(text) <= TOLD_MAX else f"{text[:TOLD_MAX]}…"


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
    # One of them has to stay.
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
