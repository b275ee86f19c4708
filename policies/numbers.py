"""Checks of numbers. `True` and `False` are not numbers. NaN is in no range. An unbounded range contains infinity."""

from __future__ import annotations

import math
from typing import TypeGuard

INFINITY = math.inf


# `field` names the value, and `why` says what is wrong.
class InvalidValue(ValueError):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(field, why)
        self.field = field
        self.why = why

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(field: str, value: object, least: int = 1, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        where = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise _unfit(field, value, f"a whole number {where}")
    return value


def number(
    field: str,
    value: object,
    least: float = 0,
    most: float = INFINITY,
    *,
    unit: str = "",
    is_finite: bool = False,
    above: bool = False,
) -> float:
    """Return the value if it is a number from `least` to `most`. Raises `InvalidValue`.

    The error names the `unit`. `is_finite` refuses infinity. `above` refuses `least` itself.
    """
    if (
        is_number(value)
        and least <= value <= most
        and not (above and value == least)
        and not (is_finite and math.isinf(value))
    ):
        return value
    what = f"a {'finite ' if is_finite and most == INFINITY else ''}number{f' of {unit}' if unit else ''}"
    raise _unfit(field, value, f"{what}{_range(least, most, above=above)}")


def _unfit(field: str, value: object, what: str) -> InvalidValue:
    # A number of another library looks like one of Python's.
    kind = type(value)
    if isinstance(value, int | float) or not hasattr(kind, "__float__"):
        return InvalidValue(field, f"{value!r:.200} is not {what}")
    ours = "int" if hasattr(kind, "__index__") else "float"
    return InvalidValue(field, f"{value!r:.200} is {kind.__module__}.{kind.__name__}, not {what}; say `{ours}(…)`")


def _range(least: float, most: float, *, above: bool) -> str:
    if most != INFINITY:
        return f" from {least:.15g} to {most:.15g}"
    if least == -INFINITY:
        return ""
    return f" above {least:.15g}" if above else f" of at least {least:.15g}"
