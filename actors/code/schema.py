"""Checks and conversions between values of an annotated type and plain data.

What has no annotation is plain data. With an annotation, pydantic checks both ways: a wrong input is refused before the run exists, and a
child that returns a wrong type fails with an explanation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
