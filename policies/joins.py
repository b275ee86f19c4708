"""When may a run begin that waits for others?

A *condition* is a tree: its leaves are the completed end of a run (`EndOf`) and a milestone of one (`MilestoneOf`), and `Of` asks for so
many of its parts. What is known of a run decides about its leaves:

| what is known of the run | its end | a milestone of it |
|---|---|---|
| it was cleared, or never was | never | never |
| it has completed | met | met if it was reached, else never |
| it has failed or was cancelled, or it was given up and its child is gone | never | met if it was reached, else never |
| anything else: it is live, or its child may still bring a late result | not yet | met if it was reached, else not yet |

A part that can never come true is no harm as long as enough others can. With too few left, the whole can never come true, and the run
that waits for it has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

LEAVES_MAX: Final = 1_000
"""Leaves of one condition."""
DEPTH_MAX: Final = 16
"""How deep conditions may stand in each other."""
NAMED_MAX: Final = 3
"""Parts that are named in words; of the others the number is told."""


@dataclass(frozen=True)
class EndOf:
    """The run has completed."""

    run_id: str


@dataclass(frozen=True)
class MilestoneOf:
    """The run has reached this milestone. What becomes of it after that does not matter."""

    run_id: str
    name: str


@dataclass(frozen=True)
class Of:
    """So many of these parts have come true."""

    count: int
    parts: tuple[Condition, ...]


Leaf: TypeAlias = EndOf | MilestoneOf
Condition: TypeAlias = EndOf | MilestoneOf | Of


# `NEVER` and `MET` are for good, unless a person has a run tried again.
class JoinStanding(Enum):
    MET = "met"
    OPEN = "not yet"
    NEVER = "never"


# What is known of a run that others wait for. With `is_over` nothing comes of it any more; `end` says in words how it ended.
class Source(NamedTuple):
    has_completed: bool
    is_over: bool
    milestones: Collection[str]
    end: str


# Where a condition stands; which of its leaves are met, by their places; and of one that can never come true, why.
class JoinVerdict(NamedTuple):
    standing: JoinStanding
    met: tuple[int, ...] = ()
    why: str = ""


Look: TypeAlias = Callable[[str], Source | None]


def leaves_of(condition: Condition) -> list[Leaf]:
    # From left to right.
    if isinstance(condition, Of):
        return [leaf for part in condition.parts for leaf in leaves_of(part)]
    return [condition]


def depth_of(condition: Condition) -> int:
    return 1 + max(map(depth_of, condition.parts)) if isinstance(condition, Of) else 0


def runs_of(condition: Condition) -> list[str]:
    """The runs that it speaks of, each once."""
    return list(dict.fromkeys(leaf.run_id for leaf in leaves_of(condition)))


def standing_of(leaf: Leaf, source: Source | None) -> JoinStanding:
    """Where a leaf stands, given what is known of its run: None if that was cleared, or never was."""
    if source is None:
        return JoinStanding.NEVER
    is_met = leaf.name in source.milestones if isinstance(leaf, MilestoneOf) else source.has_completed
    if is_met:
        return JoinStanding.MET
    return JoinStanding.NEVER if source.is_over else JoinStanding.OPEN


def judge_condition(condition: Condition, look: Look) -> JoinVerdict:
    # `look` says what is known of a run.
    leaves = leaves_of(condition)
    sources = {run_id: look(run_id) for run_id in runs_of(condition)}
    standings = [standing_of(leaf, sources[leaf.run_id]) for leaf in leaves]
    met = tuple(place for place, standing in enumerate(standings) if standing is JoinStanding.MET)
    whole = _whole(condition, iter(standings))
    if whole is not JoinStanding.NEVER:
        return JoinVerdict(whole, met)
    lost = [leaf for leaf, standing in zip(leaves, standings, strict=True) if standing is JoinStanding.NEVER]
    reasons = dict.fromkeys(_why(leaf, sources[leaf.run_id]) for leaf in lost)
    return JoinVerdict(whole, met, "; ".join(_some(list(reasons))))


def _whole(condition: Condition, standings: Iterator[JoinStanding]) -> JoinStanding:
    if not isinstance(condition, Of):
        return next(standings)
    parts = [_whole(part, standings) for part in condition.parts]
    met, lost = parts.count(JoinStanding.MET), parts.count(JoinStanding.NEVER)
    if met >= condition.count:
        return JoinStanding.MET
    return JoinStanding.NEVER if len(parts) - lost < condition.count else JoinStanding.OPEN


def _why(leaf: Leaf, source: Source | None) -> str:
    if source is None:
        return f"run {leaf.run_id} was cleared"
    if isinstance(leaf, MilestoneOf):
        return f"run {leaf.run_id} {source.end} without milestone {leaf.name!r}"
    return f"run {leaf.run_id} {source.end}"


def condition_in_words(condition: Condition) -> str:
    """`2 of: the end of a, milestone 'sources' of b, the end of c`."""
    if isinstance(condition, EndOf):
        return f"the end of {condition.run_id}"
    if isinstance(condition, MilestoneOf):
        return f"milestone {condition.name!r} of {condition.run_id}"
    of = "all of" if condition.count == len(condition.parts) > 1 else f"{condition.count} of"
    parts = _some(
        [
            f"({condition_in_words(part)})" if isinstance(part, Of) else condition_in_words(part)
            for part in condition.parts
        ]
    )
    return f"{of}: {', '.join(parts)}"


def _some(words: Sequence[str]) -> list[str]:
    more = len(words) - NAMED_MAX
    return [*words[:NAMED_MAX], f"{more} more"] if more > 0 else list(words)


# ---------------------------------------------------------------- as plain data


def plain_condition(condition: Condition) -> list[Any]:
    """`["end", run]`, `["milestone", run, name]`, or `["of", count, parts]`."""
    if isinstance(condition, EndOf):
        return ["end", condition.run_id]
    if isinstance(condition, MilestoneOf):
        return ["milestone", condition.run_id, condition.name]
    return ["of", condition.count, [plain_condition(part) for part in condition.parts]]


def condition_from(plain: Sequence[Any]) -> Condition:
    kind, first, *rest = plain
    if kind == "of":
        return Of(first, tuple(condition_from(part) for part in rest[0]))
    return EndOf(first) if kind == "end" else MilestoneOf(first, rest[0])
