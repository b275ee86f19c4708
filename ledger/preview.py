"""The input of a run, shortened for display (`inputPreview` in the seeds)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from perdure.ledger.values import Kept, said, shown

CHARS_MAX: Final = 500
CUT: Final = "..."
_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def preview_of(value: Any) -> str | None:
    """A text as it is, anything else as JSON, None for no input; at most 500 characters of it."""
    if value is None:
        return None
    if isinstance(value, str):
        return value[:CHARS_MAX]
    if type(value) is int and abs(value) < 1 << 63:
        return str(value)[:CHARS_MAX]
    try:
        text = _as_json(value)
    except (TypeError, ValueError, RecursionError):  # bytes or a set, which JSON does not know
        return said(value, CHARS_MAX)
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - len(CUT)] + CUT


def shown_input(options: Mapping[str, Any], inline: bytes | None) -> Any:
    """What to display of a run's input: what its parent chose, or else a preview of the input."""
    # For an input that is too large for its fact, the parent has made the preview already, so the payload is not read.
    told = options.get("preview")
    if isinstance(told, Kept):
        return told
    return told if told is not None or inline is None else preview_of(shown(inline))
