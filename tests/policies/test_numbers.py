"""What counts as a number, and how one out of its range is refused."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from perdure.ledger import BadRequest, check_ms, check_number, check_whole
from perdure.policies import InvalidValue, is_number, number, whole

NO_NUMBERS = [True, False, None, "3", b"3", [], 1j]


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_number_is_refused_in_every_range(value: object) -> None:
    assert not is_number(value)
    with pytest.raises(InvalidValue, match=r"^n: "):
        whole("n", value, -10)
    with pytest.raises(InvalidValue, match=r"^n: "):
        number("n", value, -math.inf)


@pytest.mark.parametrize("value", [0, 1.5, -2, math.inf, math.nan])
def test_ints_and_floats_are_numbers(value: float) -> None:
    assert is_number(value)


@pytest.mark.parametrize(("value", "least", "most"), [(1, 1, None), (0, 0, 0), (5, 1, 5), (2**80, 1, None)])
def test_a_whole_number_in_its_range_is_returned(value: int, least: int, most: int | None) -> None:
    assert whole("n", value, least, most) is value


@pytest.mark.parametrize(("value", "least", "most"), [(0, 1, None), (6, 1, 5), (1.0, 1, None), (math.nan, 0, None)])
def test_a_whole_number_out_of_its_range_is_refused(value: object, least: int, most: int | None) -> None:
    where = f"of at least {least}" if most is None else f"from {least} to {most}"
    with pytest.raises(InvalidValue) as refused:
        whole("n", value, least, most)
    assert (refused.value.field, refused.value.why) == ("n", f"{value!r} is not a whole number {where}")


def test_a_range_has_its_ends_unless_it_lies_above_one() -> None:
    assert number("n", 0) == 0
    assert number("n", math.inf) == math.inf
    assert number("n", 2.5, 0, 2.5) == 2.5
    assert number("n", -math.inf, -math.inf) == -math.inf
    for out_of_range in (
        lambda: number("n", 0, above=True),
        lambda: number("n", math.inf, is_finite=True),
        lambda: number("n", math.nan, -math.inf),
        lambda: number("n", 2.6, 0, 2.5),
        lambda: number("n", -0.1),
    ):
        with pytest.raises(InvalidValue):
            out_of_range()


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (lambda: number("n", -1), "-1 is not a number of at least 0"),
        (lambda: number("n", -1, unit="seconds"), "-1 is not a number of seconds of at least 0"),
        (lambda: number("n", 0, above=True, is_finite=True), "0 is not a finite number above 0"),
        (lambda: number("n", 9, 0.1, 2_592_000.5 - 2_592_000), "9 is not a number from 0.1 to 0.5"),
        (lambda: number("n", math.nan, -math.inf), "nan is not a number"),
    ],
)
def test_a_refusal_says_what_was_wanted(refused: object, why: str) -> None:
    with pytest.raises(InvalidValue) as problem:
        refused()  # type: ignore[operator]
    assert problem.value.why == why


def test_a_request_is_refused_by_the_same_rules() -> None:
    assert (check_whole("n", 3), check_number("n", 0.5, most=1), check_ms("n", math.inf)) == (3, 0.5, math.inf)
    for refused in (lambda: check_whole("n", 0), lambda: check_number("n", 2, most=1), lambda: check_ms("n", -1)):
        with pytest.raises(BadRequest, match=r"^n: "):
            refused()


class Int64:
    """As `numpy.int64`."""

    def __index__(self) -> int:
        return 2

    __float__ = __index__

    def __repr__(self) -> str:
        return "np.int64(2)"


Int64.__module__, Int64.__name__ = "numpy", "int64"


def test_a_number_of_another_library_is_refused_by_its_class_with_what_to_say() -> None:
    with pytest.raises(InvalidValue, match=r"np.int64\(2\) is numpy.int64, not a number of at least 0; say `int\(…\)`"):
        number("n", Int64())
    with pytest.raises(InvalidValue, match=r"is numpy.int64, not a whole number of at least 1; say `int\(…\)`"):
        whole("n", Int64())
    with pytest.raises(InvalidValue, match=r"is decimal.Decimal, not a number of at least 0; say `float\(…\)`"):
        number("n", Decimal(2))
