"""What a method takes and gives: the shapes of its parameters, of its result, and of each value that its generator gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from types import GenericAlias
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from perdure.actors.code.schema import Shape
from perdure.ledger import BadRequest, unpack


@cache
def signature_of(method: Callable[..., object]) -> inspect.Signature:
    """The parameters of a method. To read them takes longer than all the rest of a call's check."""
    return inspect.signature(method)


class Arguments(NamedTuple):
    """The arguments of a call, those by place without `self`."""

    args: list[Any]
    kwargs: dict[str, Any]


def bound(
    method: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    each: Callable[[Shape, str, object], object],
) -> Arguments:
    """The arguments of a method, each converted. Raises `TypeError` if they are not what it takes."""
    shapes, _ = shapes_of(method)
    if not kwargs and len(args) == _only_by_place(method):
        return Arguments([each(shapes[name], name, value) for name, value in zip(shapes, args, strict=True)], {})
    found = signature_of(method).bind(None, *args, **kwargs)
    for name in list(found.arguments)[1:]:
        found.arguments[name] = each(shapes[name], name, found.arguments[name])
    return Arguments(list(found.args[1:]), found.kwargs)


@cache
def _only_by_place(method: Callable[..., object]) -> int:
    """How many arguments a method takes that may all be given by their places; -1 if there is any other."""
    kinds = [each.kind for each in signature_of(method).parameters.values()][1:]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(kinds) if all(kind in by_place for kind in kinds) else -1


@cache
def shapes_of(method: Callable[..., object]) -> tuple[dict[str, Shape], Shape]:
    """The shapes of a method's parameters (without `self`) and of its return value, or of each value that its generator gives."""
    hints, parameters = _hints(method)
    kinds = {name: each.kind for name, each in signature_of(method).parameters.items()}
    found = {name: Shape(_of_kind(hints.get(name, Any), kinds[name])) for name in parameters}
    returned = hints.get("return", Any)
    return found, Shape(_given_by(returned) if gives_bit_by_bit(method) else returned)


def gives_bit_by_bit(method: Callable[..., object]) -> bool:
    """Whether a call of the method gives a generator."""
    return inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method)


def _given_by(generator: object) -> object:
    """The type of the values of a generator of this type."""
    return next(iter(get_args(generator)), Any)


def _of_kind(hint: object, kind: object) -> object:
    """The type of a parameter: a list for `*words: str`, and a dictionary for `**counts: int`."""
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return GenericAlias(list, (hint,))
    return GenericAlias(dict, (str, hint)) if kind is inspect.Parameter.VAR_KEYWORD else hint


def run_shapes(agent_class: type) -> tuple[Shape, Shape, int]:
    """The input and output shapes of an agent's `run`, and the number of its arguments: none, the input, or the input and the run."""
    return _run_shapes(cast("Hashable", agent_class))


@cache
def _run_shapes(agent_class: Any) -> tuple[Shape, Shape, int]:
    hints, parameters = _hints(agent_class.run)
    takes = Shape(hints.get(parameters[0], Any)) if parameters else Shape(Any)
    returned = hints.get("return", Any)
    gives = _solved(agent_class, returned) if isinstance(returned, TypeVar) else returned
    return takes, Shape(gives), min(len(parameters), 2)


def _solved(agent_class: type, variable: TypeVar) -> object:
    """What a subclass gives for a type variable of its generic base, such as `Plan` in `ChatAgent[Plan]`; else anything."""
    for each in agent_class.__mro__:
        for base in vars(each).get("__orig_bases__", ()):
            parameters = getattr(get_origin(base), "__parameters__", ())
            if variable in parameters:
                return get_args(base)[parameters.index(variable)]
    return Any


@cache
def fiber_shape(method: Callable[..., object]) -> tuple[int, Shape]:
    """The number of arguments of a fiber's body (none, the fiber, or the fiber and the input), and the shape of the input."""
    hints, parameters = _hints(method)
    return min(len(parameters), 2), Shape(hints.get(parameters[1], Any) if len(parameters) > 1 else Any)


def _hints(method: Callable[..., object]) -> tuple[dict[str, object], list[str]]:
    try:
        hints = get_type_hints(method)
    except (NameError, TypeError):
        hints = {}
    return hints, list(signature_of(method).parameters)[1:]


def exposed_call(agent_class: type, method_name: str, body: bytes) -> tuple[Arguments, Shape]:
    """The typed arguments of a call over a handle, and the shape of its answer. Only exposed methods can be called."""
    method: Any = getattr(agent_class, method_name, None)
    if not hasattr(method, "__perdure_exposed__"):
        raise BadRequest("method", f"{agent_class.__name__} has no exposed method {method_name!r}")
    args, kwargs = unpack(body)
    return bound(method, args, kwargs, Shape.typed), shapes_of(method)[1]
