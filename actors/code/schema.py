"""One boundary for values: what is handed over is checked and encoded where it is handed over. Where a class has a say in how its
objects are made again, it is also decoded and compared there.

What has no annotation is plain data and Python's own types of values (`ledger.values`). With an annotation, pydantic checks what is handed
over, once: whoever gets it is given that very value, objects of the classes that the annotation names included. What would arrive otherwise
is a `BadRequest` that names the field, before anything is durable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from perdure.actors.code.objects import Admitted
from perdure.ledger import BadRequest, Kept, checked_value, pack_value, preview_of, unchecked, unpack_value

_SHORT, _SHORT_BYTES = 255, 257  # characters of a text, and the bytes of one that is encoded
_INT_MAX = (1 << 63) - 1
_EXACT: Final[dict[object, Callable[[Any], object]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    list: list,
}
_PLAIN = (None, type(None), bool, int, float, str, bytes, list, dict, Any)


class Shape:
    """The type of one value. `adapter` is None where plain data passes as it is."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._plain = type(None) if annotation is None else annotation if isinstance(annotation, type) else object
        self.adapter = None if any(annotation is each for each in _PLAIN) else TypeAdapter[object](annotation)

    @cached_property
    def _admitted(self) -> Admitted:
        assert self.adapter is not None
        return Admitted(self.annotation, self.adapter.core_schema)

    def encode(self, field: str, value: object, bytes_max: int) -> bytes:
        """Check and encode a value. An agent's `state` passes for a `dict`. Raises `BadRequest`, or `TooLarge` with the limit."""
        if self.adapter is None:
            plain = value if type(value) is self._plain else self._plainly(field, value)
            return pack_value(field, plain, bytes_max)
        admitted = self._admitted
        body = pack_value(field, self._checked(field, value), bytes_max, admitted)
        if admitted.is_unsure and pack_value(field, _read(field, body, admitted), bytes_max, admitted) != body:
            raise BadRequest(field, f"would arrive otherwise: {value!r:.200} is not what is made of it again")
        return checked_value(admitted.fingerprint, body)

    def kept(self, field: str, value: object, bytes_max: int) -> object:
        """The same within a message: a short plain value as it is, any other one encoded."""
        if self.adapter is None and _travels_as_it_is(value, bytes_max):
            return self._plainly(field, value)
        return Kept(self.encode(field, value, bytes_max))

    def _plainly(self, field: str, value: object) -> object:
        if self.annotation is Any:
            return dict(value) if isinstance(value, Mapping) and not isinstance(value, dict) else value
        if isinstance(value, Mapping) and self._plain is dict:
            return dict(value)
        if not isinstance(value, (int, float) if self._plain is float else self._plain):
            raise BadRequest(field, f"{value!r:.200} is {type(value).__name__}, not {self._plain.__name__}")
        exactly = _EXACT.get(self._plain)
        return value if exactly is None or type(value) in (bool, int) else exactly(value)

    def _checked(self, field: str, value: object) -> object:
        assert self.adapter is not None
        try:
            return self.adapter.validate_python(value, by_alias=True, by_name=True)
        except (ValidationError, ValueError, TypeError) as problem:
            return self._checked_as_json(field, value, problem)

    def _checked_as_json(self, field: str, value: object, problem: Exception) -> object:
        """JSON writes a date as text, and a strict model takes it only where it knows that this is JSON."""
        assert self.adapter is not None
        try:
            return self.adapter.validate_json(json.dumps(value), by_alias=True, by_name=True)
        except (ValueError, TypeError, RecursionError) as closer:
            if isinstance(closer, ValidationError) and isinstance(problem, ValidationError):
                problem = min(problem, closer, key=ValidationError.error_count)
            raise BadRequest(field, _words(problem)) from problem

    def decode(self, field: str, body: bytes) -> object:
        """Decode a value of the annotated type. What was encoded for other annotations, or for none, is checked now."""
        if self.adapter is None:
            return _read(field, body)
        fingerprint, plain = unchecked(body)
        if fingerprint == self._admitted.fingerprint:
            return _read(field, plain, self._admitted)
        return self._checked(field, _read(field, plain))

    def typed(self, field: str, given: object) -> object:
        """A value of the annotated type, of what stood within a message."""
        if isinstance(given, Kept):
            return self.decode(field, given.body)
        return given if self.adapter is None else self._checked(field, given)


def _read(field: str, body: bytes, admitted: Admitted | None = None) -> object:
    try:
        return unpack_value(body, admitted)
    except (ValueError, TypeError, AttributeError, LookupError) as problem:
        raise BadRequest(field, f"what is kept of it cannot be read: {problem}") from problem


def _travels_as_it_is(value: object, bytes_max: int) -> bool:
    """Whether a value is small, and would be read as it is written."""
    if bytes_max < _SHORT_BYTES:
        return False
    if type(value) is str:
        return len(value) <= _SHORT and value.isascii()
    return value is None or type(value) is bool or (type(value) is int and abs(value) <= _INT_MAX)


def in_short(value: object) -> str:
    """A value as a short text: JSON, where it has any."""
    if type(value) is int or value is None:
        return preview_of(value) or ""
    try:
        return preview_of(to_jsonable_python(value, by_alias=True, fallback=str)) or ""
    except (ValueError, TypeError, RecursionError):  # bytes that are no text, or keys that JSON does not know
        return preview_of(value) or ""


def _words(problem: Exception) -> str:
    """A validation problem in one line."""
    if isinstance(problem, ValidationError):
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place + ': ' if place else ''}{first['msg']}" + (
            f" (and {problem.error_count() - 1} more)" if problem.error_count() > 1 else ""
        )
    return str(problem)
