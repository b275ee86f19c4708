"""The arguments of calls: the short ways for what is small and given by its place come to what the long ways come to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from perdure.actors.code.schema import Shape
from perdure.actors.code.signatures import bound, shapes_of
from perdure.ledger import BadRequest, TooLarge, pack, unpack, unpack_value

LIMIT = 1_000


class Point(BaseModel):
    x: int


class Desk:
    def by_place(self, name: str, count: int, rest: Any) -> None: ...
    def with_default(self, name: str, count: int = 3) -> None: ...
    def by_name(self, name: str, *, count: int) -> None: ...
    def many(self, *names: str, **counts: int) -> None: ...
    def model(self, at: Point) -> None: ...


VALUES = (
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=300)
)


@given(
    VALUES | st.lists(VALUES, max_size=3) | st.tuples(VALUES) | st.dictionaries(st.text(max_size=5), VALUES, max_size=2)
)
@pytest.mark.parametrize("bytes_max", [10, 254, 255, 256, LIMIT])
def test_a_value_is_what_would_be_read_after_it_was_written(bytes_max: int, value: object) -> None:
    shape = Shape(Any)
    try:
        written = unpack_value(shape.encode("value", value, bytes_max))
    except (BadRequest, TooLarge) as problem:
        with pytest.raises(type(problem)):
            shape.kept("value", value, bytes_max)
        return
    read = shape.typed("value", unpack(pack([shape.kept("value", value, bytes_max)]))[0])
    assert read == written
    assert type(read) is type(written)


def test_a_value_of_a_subclass_travels_as_plain_data() -> None:
    class Name(str):
        __slots__ = ()

    assert type(Shape(str).typed("name", Shape(str).kept("name", Name("a"), LIMIT))) is str


def test_a_wrong_value_is_refused_as_when_it_is_encoded() -> None:
    with pytest.raises(BadRequest, match="is str, not int"):
        Shape(int).kept("count", "3", LIMIT)
    with pytest.raises(BadRequest, match="digits"):
        Shape(Any).kept("count", 1 << 20_000, LIMIT)
    with pytest.raises(BadRequest, match="surrogate"):
        Shape(str).kept("name", "\ud800", LIMIT)
    for size, bytes_max in ((LIMIT, LIMIT), (20, 10), (254, 255), (255, 255), (255, 256)):
        with pytest.raises(TooLarge):
            Shape(str).kept("name", "x" * size, bytes_max)
    with pytest.raises(TooLarge):
        Shape(int).kept("count", 1 << 40, 8)
    assert Shape(str).kept("name", "x" * 255, 257) == "x" * 255


def _named(_shape: Shape, name: str, value: object) -> object:
    return (name, value)


def test_arguments_that_are_all_given_by_place_are_bound_to_their_names() -> None:
    assert bound(Desk.by_place, ["a", 1, None], {}, _named) == ([("name", "a"), ("count", 1), ("rest", None)], {})


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "expected"),
    [
        (Desk.by_place, ["a"], {"rest": 2, "count": 1}, ([("name", "a"), ("count", 1), ("rest", 2)], {})),
        (Desk.with_default, ["a"], {}, ([("name", "a")], {})),
        (Desk.with_default, ["a", 4], {}, ([("name", "a"), ("count", 4)], {})),
        (Desk.by_name, ["a"], {"count": 1}, ([("name", "a")], {"count": ("count", 1)})),
    ],
)
def test_other_arguments_are_bound_as_python_binds_them(
    method: Any, args: list[object], kwargs: dict[str, object], expected: object
) -> None:
    assert bound(method, args, kwargs, _named) == expected


def test_many_arguments_are_converted_each() -> None:
    def plain(shape: Shape, name: str, value: object) -> object:
        return shape.kept(name, value, LIMIT)

    assert bound(Desk.many, ["a", "b"], {"c": 1}, plain) == (["a", "b"], {"c": 1})


@pytest.mark.parametrize(
    ("args", "kwargs"), [([], {}), (["a", 1], {}), (["a", 1, 2, 3], {}), (["a", 1, 2], {"more": 1})]
)
def test_arguments_that_do_not_fit_are_refused(args: list[object], kwargs: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        bound(Desk.by_place, args, kwargs, _named)


def test_a_model_is_made_of_plain_data_and_plain_data_of_a_model() -> None:
    shape = shapes_of(Desk.model)[0]["at"]
    assert shape.typed("at", shape.kept("at", Point(x=1), LIMIT)) == Point(x=1)
    assert shape.typed("at", {"x": 1}) == Point(x=1)
