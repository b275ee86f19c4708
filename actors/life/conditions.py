"""What a run may wait for before it begins: conditions, as an author writes them, checked where they are handed over."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from perdure.actors.life.results import RunHandle
from perdure.ledger import BadRequest, check_id, check_whole, check_word
from perdure.policies import (
    DEPTH_MAX,
    LEAVES_MAX,
    Condition,
    EndOf,
    Json,
    JsonObject,
    MilestoneOf,
    Of,
    condition_in_words,
    depth_of,
    leaves_of,
    plain_condition,
)

LOSERS = ("leave", "cancel")
After: TypeAlias = Condition | RunHandle | str
"""What `after` takes. A handle, and the id of a run, stand for its end."""


def all_of(*parts: After) -> Of:
    """All of these have come true: `all_of(a.milestone("sources"), b.end, "run-3")`. The id of a run, or its handle, stands for its end."""
    return of_parts("all_of", len(parts), parts)


def any_of(*parts: After) -> Of:
    """One of these has come true, or more."""
    return of_parts("any_of", 1, parts)


def n_of(n: int, *parts: After) -> Of:
    """So many of these have come true, or more: `n_of(2, a.end, b.end, c.end)`."""
    return of_parts("n_of", n, parts)


def of_parts(verb: str, count: int, parts: Sequence[After], n: str = "n") -> Of:
    """So many of these. Errors name the field `verb`, or `n` if it is the number."""
    if not parts:
        raise BadRequest(
            verb, "nothing was named; give it ends and milestones of runs: `handle.end`, `handle.milestone(name)`"
        )
    check_whole(n, count, least=1)
    if count > len(parts):
        raise BadRequest(n, f"{count} of {len(parts)} can never come true")
    whole = Of(count, tuple(_condition(verb, part) for part in parts))
    doubled = next((part for part, times in Counter(whole.parts).items() if times > 1), None)
    if doubled is not None and count < len(parts):
        raise BadRequest(verb, f"{condition_in_words(doubled)} is named twice, and would count twice")
    leaves, depth = len(leaves_of(whole)), depth_of(whole)
    if leaves > LEAVES_MAX:
        raise BadRequest(verb, f"it has {leaves} leaves; the limit is {LEAVES_MAX}")
    if depth > DEPTH_MAX:
        raise BadRequest(verb, f"conditions stand {depth} deep in each other; the limit is {DEPTH_MAX}")
    return whole


def _condition(field: str, given: object) -> Condition:
    if isinstance(given, str):
        return EndOf(_id(field, given))
    if isinstance(given, RunHandle):
        return given.end
    if isinstance(given, EndOf):
        return EndOf(_id(field, given.run_id))
    if isinstance(given, MilestoneOf):
        return MilestoneOf(_id(field, given.run_id), _id("milestone", given.name))
    if isinstance(given, Of):
        return given
    is_several = isinstance(given, list | tuple | set | frozenset | Mapping)
    several = " Name several by all_of(*parts), any_of(*parts) or n_of(n, *parts)." if is_several else ""
    raise BadRequest(
        field,
        f"{given!r:.200} is no condition: that is `handle.end`, `handle.milestone(name)`, the id of a run, or some of them"
        f" in all_of, any_of or n_of.{several}",
    )


def _id(field: str, given: object, most: int = sys.maxsize) -> str:
    return check_id(field, given, most)


def condition_options(after: object, losers: str, run_id: str | None, id_max: int) -> JsonObject:
    # Raises `BadRequest`.
    whole = checked_condition(after, losers, run_id, id_max)
    if whole is None:
        return {}
    return {"after": plain_condition(whole), **({"losers": losers} if losers != "leave" else {})}


def checked_condition(after: object, losers: str, run_id: str | None, id_max: int = sys.maxsize) -> Condition | None:
    """What a run is to wait for, checked; None if for nothing. Raises `BadRequest`."""
    check_word("losers", losers, LOSERS)
    if after is None:
        if losers != "leave":
            raise BadRequest("losers", "there are none without `after`")
        return None
    # One that was made by hand is checked as `all_of` does it.
    whole = _condition("after", after)
    whole = of_parts("after", whole.count, whole.parts) if isinstance(whole, Of) else whole
    for leaf in leaves_of(whole):
        _id("after", leaf.run_id, id_max)
        if isinstance(leaf, MilestoneOf):
            _id("milestone", leaf.name, id_max)
        if leaf.run_id == run_id:
            raise BadRequest("after", f"run {run_id!r} would wait for itself")
    return whole


def condition_as_json(condition: Condition) -> JsonObject:
    """A condition as gateways take it: `{"end": run}`, `{"milestone": [run, name]}`, or parts in `all_of`, `any_of` or `n_of`."""
    if isinstance(condition, EndOf):
        return {"end": condition.run_id}
    if isinstance(condition, MilestoneOf):
        return {"milestone": [condition.run_id, condition.name]}
    parts: list[Json] = [condition_as_json(part) for part in condition.parts]
    if condition.count == len(parts):
        return {"all_of": parts}
    return {"any_of": parts} if condition.count == 1 else {"n_of": [condition.count, parts]}
