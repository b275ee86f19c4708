"""Values as JSON for anybody: what JSON does not know is told in the nearest way."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from typing import Final

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

_TEXT: Final = frozenset({str})
_NESTED: Final = (dict, list, tuple)


def json_text(told: object) -> str:
    """Standard JSON in one line. Infinity and NaN are null, bytes are base64, times are ISO 8601, the rest lists or strings; keys are
    strings, and of those that are alike as text the later ones say their type too: `{1: "a", "1": "b"}` is `{"1": "a", "1 (str)": "b"}`.
    Pure."""
    try:
        if not _has_other_keys(told):
            return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_nearest)
    except (ValueError, TypeError):
        pass
    return json.dumps(finite(told), ensure_ascii=False, separators=(",", ":"), default=_nearest)


def _has_other_keys(told: object) -> bool:
    # The standard library takes those that are alike as text, and writes them twice.
    if isinstance(told, dict) and not _TEXT.issuperset(map(type, told)):
        return True
    within = told.values() if isinstance(told, dict) else told if isinstance(told, list | tuple) else ()
    return any([_has_other_keys(each) for each in within if isinstance(each, _NESTED)])  # noqa: C419 - twice as fast


def json_bytes(told: object) -> bytes:
    # Half of a surrogate pair, which UTF-8 does not know, becomes a question mark.
    return json_text(told).encode(errors="replace")


def finite(told: object) -> object:
    """The same data, with null for infinity and NaN, and strings for the keys of dictionaries. Of keys that are alike as text, the later
    ones say their type too. Pure."""
    if isinstance(told, dict):
        named: dict[str, object] = {}
        for key, value in told.items():
            name = _named(key)
            named[name if name not in named else f"{name} ({type(key).__name__})"] = finite(value)
        return named
    if isinstance(told, list | tuple | AbstractSet | deque | range):
        return [finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _named(key: object) -> str:
    if isinstance(key, str):
        return key
    told = json.dumps(key) if key is None or isinstance(key, bool) else _nearest(key)
    return told if isinstance(told, str) else str(key)


def _nearest(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if isinstance(value, AbstractSet | deque):
        return finite(value)  # in which each value is told by this rule
    try:
        return finite(to_jsonable_python(value, fallback=str, bytes_mode="base64"))
    except (ValueError, TypeError):  # keys that JSON does not know, or bytes of a model that are no text
        return finite(_parts(value))


def _parts(value: object) -> object:
    has_parts = isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))
    return TypeAdapter(type(value)).dump_python(value, by_alias=True) if has_parts else str(value)
