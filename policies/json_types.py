"""The types of plain data, for type checkers. At run time they are `Any`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
    JsonObject: TypeAlias = "dict[str, Json]"
else:
    Json = Any
    """Any JSON value. `isinstance` with `Mapping` narrows it to an object. A text is a `Sequence` too, so test for it first."""

    JsonObject = dict[str, Any]
    """A JSON object that can be changed."""
