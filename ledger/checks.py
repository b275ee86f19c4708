"""Arguments of requests, checked by the rules of `policies`: what is refused there is a `BadRequest` here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from perdure.ledger.errors import BadRequest
from perdure.policies import INFINITY, InvalidValue, number, whole

T = TypeVar("T")


def checked(check: Callable[[], T]) -> T:
    """Return what the check returns. Raises `BadRequest` for an `InvalidValue`."""
    try:
        return check()
    except InvalidValue as problem:
        raise BadRequest(problem.field, problem.why) from None


def check_whole(field: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return the value if it is an int from `least` to `most`. Raises `BadRequest`."""
    return checked(lambda: whole(field, value, least, most))


def check_number(
    field: str,
    value: object,
    least: float = 0,
    most: float = INFINITY,
    *,
    unit: str = "",
    is_finite: bool = False,
    above: bool = False,
) -> float:
    """Return the value if it is a number from `least` to `most`; see `policies.number`. Raises `BadRequest`."""
    return checked(lambda: number(field, value, least, most, unit=unit, is_finite=is_finite, above=above))


def check_ms(field: str, value: object) -> float:
    """Return the value if it is a duration in milliseconds: at least 0, infinity allowed. Raises `BadRequest`."""
    return check_number(field, value, unit="milliseconds")
