"""The types of plain data: what JSON can write. For type checkers alone; whoever evaluates annotations at run time finds `Any`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
    JsonObject: TypeAlias = "dict[str, Json]"
else:
    Json = Any
    """Any JSON value, to be read. `isinstance` with `Mapping` narrows it to an object; a text is a `Sequence` too, so test for it first."""

    JsonObject = dict[str, Any]
    """A JSON object that may be written to."""
