"""What classes of agents say about their runs, as plain data: it travels with every request."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import ClassVar, Protocol, cast

from perdure.actors.code.author_call import overrides
from perdure.actors.life.host_options import Placed, pool_spec
from perdure.ledger import check_ms, check_whole
from perdure.policies import JsonObject


class Runs(Placed, Protocol):
    """A class whose objects carry runs; see `Agent`."""

    attempts_max: ClassVar[int | None]
    _perdure_relays: ClassVar[bool]
    _perdure_apart: ClassVar[bool]
    _perdure_held: ClassVar[bool]


class AsksForRuns(Placed, Protocol):
    """An agent that asks for runs; see `Agent`."""

    max_concurrent_agent_tools: float


def class_options(agent_class: type[Runs], parent: AsksForRuns | None, package: str = "") -> JsonObject:
    """What the child's class and the parent's object say about the run; only what differs from the defaults.

    `package` is what their code comes in, if it is not installed (`packing`).
    """
    if parent is None:
        return dict(_class_options(cast("Hashable", agent_class), None, math.inf, package))
    kind = cast("Hashable", type(parent))
    return dict(_class_options(cast("Hashable", agent_class), kind, parent.max_concurrent_agent_tools, package))


# Every request, alarm and call asks for them, and of a class they are always the same.
@lru_cache(maxsize=1024)
def _class_options(agent_class: type[Runs], kind: type[Placed] | None, limit: float, package: str) -> JsonObject:
    options: JsonObject = {}
    if agent_class.attempts_max is not None:
        options["attempts_max"] = count("attempts_max", agent_class.attempts_max)
    if agent_class._perdure_relays:  # noqa: SLF001 - the runtime's part of the class
        options["relays"] = True
    pool = pool_spec(agent_class, package)
    if pool is not None:
        options["pool"] = pool
    if kind is None:
        return options
    if agent_class._perdure_apart:
        options["apart"] = True
    if limit != math.inf and agent_class._perdure_held:  # noqa: SLF001 - as above
        options["limit"] = count("max_concurrent_agent_tools", limit)
    for option, attribute in (
        ("reattach_no_progress_ms", "agent_tool_reattach_no_progress_timeout_ms"),
        ("reattach_window_ms", "agent_tool_reattach_max_window_ms"),
    ):
        value = getattr(kind, attribute)
        if value is not None:
            options[option] = check_ms(attribute, value)
    home = pool_spec(kind, package)
    if home is not None:
        options["home"] = home
    for option, hook in (("hook", "on_agent_tool_finish"), ("on_progress", "on_progress")):
        if overrides(kind, hook):
            options[option] = True
    return options


def count(field: str, value: object) -> int:
    # 4.0 is a whole number: infinity is allowed where this is asked for, so authors write floats.
    return check_whole(field, int(value) if isinstance(value, float) and value.is_integer() else value)
