"""Which node of a cluster could give what a host asks for, and what is said when none could.

Amounts go by Ray's own names of resources: `CPU`, `GPU`, `memory` in bytes, `accelerator_type:A100`, and those of the cluster's owner.

A label selector has an expression for each label that is asked for: a value (`spot`), some values (`in(A100, H100)`), or `!` and one of
those. A node without the label has none of the values, so `!spot` means it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

CPU: Final = "CPU"
GPU: Final = "GPU"
MEMORY: Final = "memory"
ACCELERATOR: Final = "accelerator_type:"
NODE_ID: Final = "ray.io/node-id"  # a label that Ray gives to each node, and that no one asks for by heart
TOLD_MAX: Final = 500

Selector: TypeAlias = "Iterable[tuple[str, str]]"
"""Labels and expressions."""

_WORD: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_LABEL: Final = re.compile(rf"(?:(?=.{{1,253}}/){_WORD}(?:\.{_WORD})*/)?{_WORD}")
_EXPRESSION: Final = re.compile(rf"!?(?:(?:{_WORD})?|in\({_WORD}(?:, ?{_WORD})*\))")


class NodeOffer(NamedTuple):
    """All that a node has, whether it is in use or not."""

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
