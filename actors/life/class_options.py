"""What classes of agents say by their attributes: about their runs, as plain data, which travels with every request; and what is wrong
with a class, said before its agents are at work: by each run, call or turn it would be said too late.

When the class is made, its bounds and the parameters of its `run` are looked at (`check_made`). What its annotations name may come later in
the module; so these are resolved when the class is handed over, served, or loaded by a host (`check_class`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol, cast, get_origin

from perdure.actors.code.annotations import is_of_perdure
from perdure.actors.code.author_call import is_hook, overrides
from perdure.actors.code.signatures import check_run, run_shapes, shapes_of
from perdure.actors.life.host_options import PLACEMENT, Checks, Placed, pool_spec
from perdure.ledger import BadRequest, check_bool, check_ms, check_whole
from perdure.policies import InvalidValue, JsonObject, Retries


class Runs(Placed, Protocol):
    attempts_max: ClassVar[int | None]
    _perdure_relays: ClassVar[bool]
    _perdure_apart: ClassVar[bool]
    _perdure_held: ClassVar[bool]


class AsksForRuns(Placed, Protocol):
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
        options["attempts_max"] = _count("attempts_max", agent_class.attempts_max)
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
        options["limit"] = _count("max_concurrent_agent_tools", limit)
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


def _count(field: str, value: object) -> int:
    # 4.0 is a whole number: infinity is allowed where this is asked for, so authors write floats.
    return check_whole(field, int(value) if isinstance(value, float) and value.is_integer() else value)


# ---------------------------------------------------------------- what is wrong with a class


def pass_on(made: Callable[..., None], more: dict[str, object]) -> None:
    # What a class statement says, to the next class that takes any of it.
    try:
        made(**more)
    except TypeError as problem:
        if not more or not str(problem).endswith("takes no keyword arguments"):  # Python's, when nobody has taken it
            raise
        written = " and ".join(f"`{name} = {value!r:.200}`" for name, value in more.items())
        words = "a class of agents takes `name` and `version`; whatever none of its bases takes is an attribute"
        raise BadRequest(", ".join(more), f"{words}: write {written} in its body") from None


def check_made(agent_class: Any) -> None:
    for attribute, check in agent_class._perdure_bounds.items():  # noqa: SLF001 - the runtime's part of the class
        value = getattr(agent_class, attribute, None)
        if inspect.isroutine(value):
            raise _is_method(agent_class, attribute)
        if not hasattr(type(value), "__get__"):
            if value is not None:
                check(attribute, value)
        elif attribute in _OF_CLASSES:  # elsewhere a property is of the objects
            words = "is read of the class, where a property has no value; assign the value itself"
            raise BadRequest(attribute, words)
    _check_methods(agent_class)
    check_run(agent_class)


def _check_methods(agent_class: Any) -> None:
    # What Perdure calls, and an author has given as a value.
    hooks = {
        name: base for base in agent_class.__mro__ if is_of_perdure(base) for name in vars(base) if is_hook(base, name)
    }
    for name in (*hooks, "run"):
        value = getattr(agent_class, name, None)
        if callable(value) or (name == "run" and value is None):
            continue
        takes = "self, input, run"
        if name in hooks:
            asked = getattr(hooks[name], name)
            takes = ", ".join([*(["cls"] if inspect.ismethod(asked) else []), *inspect.signature(asked).parameters])
        attribute = name.removeprefix("get_")
        instead = (
            f", or assign the value to `{attribute}`" if attribute != name and hasattr(agent_class, attribute) else ""
        )
        raise BadRequest(name, f"{value!r:.200} cannot be called, and this is; write `def {name}({takes})`{instead}")


def _is_method(agent_class: type, attribute: str) -> BadRequest:
    hook = f"get_{attribute}"
    instead = f"a method that gives it is called `{hook}`" if hasattr(agent_class, hook) else "assign the value itself"
    return BadRequest(attribute, f"is a method, and would never be called; {instead}")


def check_class(agent_class: object) -> None:
    """Raise `BadRequest` for whatever can be told to be wrong with a class of agents: its bounds, its annotations, its tools."""
    if isinstance(agent_class, type) and hasattr(agent_class, "_perdure_bounds"):
        _check(agent_class)
    elif hasattr(get_origin(agent_class), "_perdure_bounds"):  # the values of its origin would not be checked
        shown = repr(agent_class).removeprefix(f"{get_origin(agent_class).__module__}.")
        raise BadRequest(
            "agent_class",
            f"{shown} is no class: its brackets are kept nowhere. Give it one, `class Mine({shown}): ...`, and hand that over",
        )


def check_asked(agent_class: object) -> None:
    # What stands in the way of a request, here and now; a class that is none is refused elsewhere.
    check = getattr(agent_class, "_perdure_check_asked", None)
    if check is not None:
        check()


@lru_cache(maxsize=4096)
def _check(agent_class: Any) -> None:
    if inspect.isabstract(agent_class):
        missing = ", ".join(sorted(agent_class.__abstractmethods__))
        raise BadRequest(
            "agent_class", f"{agent_class.__name__} is abstract, so nothing can be one: it has no {missing}"
        )
    _check_constructor(agent_class)
    check_made(agent_class)
    pool_spec(agent_class)  # what it asks for in two ways
    if callable(getattr(agent_class, "run", None)):
        run_shapes(agent_class)
    for each in agent_class.__mro__:
        for name in vars(each) if not is_of_perdure(each) else ():
            method: Any = getattr(agent_class, name, None)
            if hasattr(method, "__perdure_exposed__"):
                shapes_of(method, agent_class, name)
    check_more = getattr(agent_class, "_perdure_check", None)  # of a kind of agents
    if check_more is not None:
        check_more()


def _check_constructor(agent_class: type) -> None:
    try:
        inspect.signature(agent_class).bind()
    except TypeError as problem:
        words = (
            f"{agent_class.__name__} is made without arguments wherever an agent of it wakes, and cannot be: {problem}"
        )
        raise BadRequest("agent_class", f"{words}; make what it works with in `on_start`") from None
    except ValueError:  # nobody can tell
        return


def as_retries(given: object) -> Retries:
    if given is None or isinstance(given, Retries):
        return given or Retries()
    if not isinstance(given, dict):
        raise BadRequest("retry", f"{given!r:.200} is neither a Retries nor a dictionary of its fields")
    unknown = given.keys() - {"attempts_max", "first_ms", "most_ms"}
    if unknown:
        raise BadRequest("retry", f"{min(map(str, unknown))!r:.200} is none of attempts_max, first_ms, most_ms")
    return Retries(**given)


def _check_retries(field: str, value: object) -> None:
    try:
        asked = as_retries(value)
        asked.over(Retries(attempts_max=1, first_ms=asked.most_ms or 1, most_ms=asked.first_ms or 1))
    except (InvalidValue, BadRequest) as problem:
        raise BadRequest(field, str(problem)) from None


BOUNDS: Final[Checks] = {
    "attempts_max": _count,
    "max_concurrent_agent_tools": lambda field, value: None if value == math.inf else _count(field, value),
    "agent_tool_reattach_no_progress_timeout_ms": check_ms,
    "agent_tool_reattach_max_window_ms": check_ms,
    "detached_max_budget_ms": check_ms,
    "detached_no_progress_budget_ms": check_ms,
    "stands_alone": check_bool,
    **PLACEMENT,
    "callback_retry": _check_retries,
}
_OF_CLASSES: Final = {
    "attempts_max",
    "agent_tool_reattach_no_progress_timeout_ms",
    "agent_tool_reattach_max_window_ms",
    "stands_alone",
    "toolsets",
    "agent",
    *PLACEMENT,
}
