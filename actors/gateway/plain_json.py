"""Plain data as JSON for anybody: what JSON does not know is told in the nearest way."""

from __future__ import annotations

import json
import math
from base64 import b64encode


def json_text(told: object) -> str:
    """Standard JSON in one line. Infinity and NaN are null, bytes are base64, other types are strings. Pure."""
    try:
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_nearest)
    except ValueError:
        return json.dumps(finite(told), ensure_ascii=False, separators=(",", ":"), default=_nearest)


def json_bytes(told: object) -> bytes:
    """The same in UTF-8. Half of a surrogate pair, which UTF-8 does not know, becomes a question mark."""
    return json_text(told).encode(errors="replace")


def finite(told: object) -> object:
    """The same data, with null for infinity and NaN, and strings for the keys of dictionaries. Pure."""
    if isinstance(told, dict):
        return {str(key): finite(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _nearest(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
