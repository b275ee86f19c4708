"""Configuration as authors may write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def authored(kind: type[T], name: str, switch: str, value: object) -> T:
    """Read what an author wrote under `name`: a `kind`, a mapping of its fields, None or True for the defaults, or False, by `switch`.

    Raises `TypeError` for anything else. `kind` is a dataclass.
    """
    if isinstance(value, kind):
        return value
    if value is None or isinstance(value, bool):
        return kind(**{switch: value is not False})
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: {value!r:.200} is neither a {kind.__name__} nor a mapping of its fields")
    known: Any = kind
    unknown = sorted(map(str, set(value) - {each.name for each in fields(known)}))
    if unknown:
        raise TypeError(f"{name}: {unknown[0]!r} is none of its fields")
    return kind(**value)
