"""Values as JSON for anybody: what JSON does not know is told in the nearest way."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections import deque
from collections.abc import Set as AbstractSet

from pydantic_core import to_jsonable_python


def json_text(told: object) -> str:
    """Standard JSON in one line. Infinity and NaN are null, bytes are base64, times are ISO 8601, the rest lists or strings. Pure."""
    try:
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_nearest)
    except (ValueError, TypeError):
        return json.dumps(finite(told), ensure_ascii=False, separators=(",", ":"), default=_nearest)


def json_bytes(told: object) -> bytes:
    # Half of a surrogate pair, which UTF-8 does not know, becomes a question mark.
    return json_text(told).encode(errors="replace")


def finite(told: object) -> object:
    """The same data, with null for infinity and NaN, and strings for the keys of dictionaries. Of keys that are alike as text, the later
    ones say their type too. Pure."""
    if isinstance(told, dict):
        named: dict[str, object] = {}
        for key, value in told.items():
            name = str(key)
            named[name if name not in named else f"{name} ({type(key).__name__})"] = finite(value)
        return named
    if isinstance(told, list | tuple | AbstractSet | deque | range):
        return [finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _nearest(value: object) -> object:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    try:
        return finite(to_jsonable_python(value, fallback=str, bytes_mode="base64"))
    except (ValueError, TypeError):  # keys that JSON does not know
        return str(value)
