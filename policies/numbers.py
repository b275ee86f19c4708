"""Numbers that people give: what counts as one, and the range it has to be in.

`True` and `False` are not numbers, and NaN is in no range. Infinity is a number that an unbounded range contains.
"""

from __future__ import annotations

import math
from typing import TypeGuard

INFINITY = math.inf


class InvalidValue(ValueError):
    """A value that cannot be accepted. `field` names it, `why` says what is wrong with it."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(field, why)
        self.field = field
        self.why = why

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is an int or a float, and not a bool. NaN and infinity are floats."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(field: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return the value if it is an int from `least` to `most`. Raises `InvalidValue`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        where = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidValue(field, f"{value!r:.200} is not a whole number {where}")
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

    Args:
        unit: what the error calls the number's unit, such as `milliseconds`.
        is_finite: refuse infinity.
        above: refuse `least` itself; for ranges without a `most`.
    """
    is_inside = is_number(value) and least <= value <= most and not (above and value == least)
    if is_number(value) and is_inside and not (is_finite and math.isinf(value)):
        return value
    what = f"a {'finite ' if is_finite and most == INFINITY else ''}number{f' of {unit}' if unit else ''}"
    raise InvalidValue(field, f"{value!r:.200} is not {what}{_range(least, most, above=above)}")


def _range(least: float, most: float, *, above: bool) -> str:
    if most != INFINITY:
        return f" from {least:.15g} to {most:.15g}"
    if least == -INFINITY:
        return ""
    return f" above {least:.15g}" if above else f" of at least {least:.15g}"
