"""The types of plain data: what JSON can write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""Any JSON value, to be read. `isinstance` with `Mapping` narrows it to an object; a text is a `Sequence` too, so test for it first."""

JsonObject: TypeAlias = "dict[str, Json]"
"""A JSON object that may be written to."""
