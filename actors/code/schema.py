"""Checks and conversions between an author's annotations and plain data.

A method without annotations takes and returns plain data. With annotations, pydantic checks both ways: a wrong input is refused before the
run exists, and a child that returns a wrong type fails with an explanation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from types import GenericAlias
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from perdure.ledger import BadRequest, TooLarge, pack, unpack

_SHORT, _SHORT_BYTES = 255, 257  # characters of a text, and the bytes of one that is encoded
_INT_MAX = (1 << 63) - 1
_PLAIN = {None, type(None), bool, int, float, str, bytes, list, dict, Any}


class Shape:
    """The type of one value. `adapter` is None where plain data passes as it is."""

    def __init__(self, annotation: object) -> None:
        self.annotation = annotation
        self._plain = type(None) if annotation is None else annotation if isinstance(annotation, type) else object
        self.adapter = None if annotation in _PLAIN else _adapter(annotation)

    def encode(self, field: str, value: object, bytes_max: int) -> bytes:
        """Check and encode a value. An agent's `state` passes for a `dict`. Raises `BadRequest`, or `TooLarge` with the limit."""
        return _packed(field, self._checked(field, value), bytes_max)

    def plain(self, field: str, value: object, bytes_max: int) -> object:
        """The same as plain data: what whoever decodes it would read."""
        checked = self._checked(field, value)
        return checked if _travels_as_it_is(checked, bytes_max) else unpack(_packed(field, checked, bytes_max))

    def _checked(self, field: str, value: object) -> object:
        if type(value) is self._plain and self.adapter is None:
            return value
        if isinstance(value, Mapping) and self.adapter is None:
            value = dict(value)
        if self.adapter is not None:
            try:
                value = self.adapter.dump_python(self.adapter.validate_python(value), mode="json")
            except (ValidationError, ValueError, TypeError) as problem:
                raise BadRequest(field, _words(problem)) from problem
        elif self.annotation is not Any and not isinstance(
            value, (int, float) if self._plain is float else self._plain
        ):
            raise BadRequest(field, f"{value!r:.200} is {type(value).__name__}, not {self._plain.__name__}")
        return value

    def decode(self, field: str, body: bytes) -> object:
        """Decode a value of the annotated type."""
        return self.typed(field, unpack(body))

    def typed(self, field: str, plain: object) -> object:
        """A value of the annotated type, of plain data."""
        if self.adapter is None:
            return plain
        try:
            return self.adapter.validate_python(plain)
        except ValidationError as problem:
            raise BadRequest(field, _words(problem)) from problem


def _travels_as_it_is(value: object, bytes_max: int) -> bool:
    """Whether a checked value is small, and would be read as it is written."""
    if bytes_max < _SHORT_BYTES:
        return False
    if type(value) is str:
        return len(value) <= _SHORT and value.isascii()
    return value is None or type(value) is bool or (type(value) is int and abs(value) <= _INT_MAX)


def _packed(field: str, value: object, bytes_max: int) -> bytes:
    try:
        body = pack(value)
    except (TypeError, ValueError, OverflowError) as problem:
        raise BadRequest(field, f"cannot be encoded as plain data: {problem}") from problem
    if len(body) > bytes_max:
        raise TooLarge(field, f"has {len(body)} bytes encoded; the limit is {bytes_max}")
    return body


def _adapter(annotation: Any) -> TypeAdapter[object]:
    """Keeps infinity, which pydantic would make null. A model keeps its own configuration."""
    try:
        return TypeAdapter(annotation, config=ConfigDict(ser_json_inf_nan="constants"))
    except PydanticUserError:
        return TypeAdapter(annotation)


def _words(problem: Exception) -> str:
    """A validation problem in one line."""
    if isinstance(problem, ValidationError):
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place + ': ' if place else ''}{first['msg']}" + (
            f" (and {problem.error_count() - 1} more)" if problem.error_count() > 1 else ""
        )
    return str(problem)


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
