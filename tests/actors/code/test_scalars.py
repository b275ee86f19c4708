"""Booleans, numbers, text and bytes arrive as they were, or are refused, wherever in an annotation they stand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, BeforeValidator, Field, Strict
from typing_extensions import TypedDict

from perdure.actors.code.schema import Shape
from perdure.ledger import BadRequest

LIMIT = 10_000
VALUES: tuple[Any, ...] = (True, 1, 1.0, 1.5, "1", "yes", b"1", None)
TAKEN: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (bool, int),
    float: (bool, int, float),
    str: (str,),
    bytes: (bytes,),
}
"""What a plain annotation takes."""


PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "itself": (lambda kind: kind, lambda value: value),
    "optional": (lambda kind: kind | None, lambda value: value),
    "union": (lambda kind: kind | UUID, lambda value: value),
    "list": (lambda kind: list[kind], lambda value: [value]),
    "nested": (lambda kind: list[list[kind] | None], lambda value: [[value], None]),
    "set": (lambda kind: set[kind], lambda value: {value}),
    "tuple": (lambda kind: tuple[kind, ...], lambda value: (value,)),
    "deque": (lambda kind: deque[kind], lambda value: deque([value])),
    "sequence": (lambda kind: Sequence[kind], lambda value: [value]),
    "values": (lambda kind: dict[str, kind], lambda value: {"a": value}),
    "typed dict": (lambda kind: TypedDict("Row", {"type": kind}), lambda value: {"type": value}),  # type: ignore[operator]
}


def arrived(annotation: Any, value: Any) -> Any:
    shape = Shape(annotation)
    return shape.decode("input", shape.encode("input", value, LIMIT))


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("kind", TAKEN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_scalar_arrives_as_it_was_or_is_refused(place: str, kind: Any, value: Any) -> None:
    annotation, given = PLACES[place][0](kind), PLACES[place][1](value)
    if type(value) in TAKEN[kind] or (value is None and place == "optional"):
        assert repr(arrived(annotation, given)) == repr(given)
    else:
        with pytest.raises(BadRequest):
            arrived(annotation, given)


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (int | str, (True, 1, "1")),
        (int | float, (True, 1, 1.0)),
        (str | bytes, ("a", b"a")),
        (bool | int, (True, 1)),
        (bool | str, (True, "True", "yes")),
        (bytes | None, (bytearray(b"a"), memoryview(b"a"))),
    ],
)
def test_of_a_union_a_scalar_is_what_it_was(annotation: Any, values: tuple[Any, ...]) -> None:
    for value in values:
        given = bytes(value) if isinstance(value, bytearray | memoryview) else value
        assert repr(arrived(annotation, value)) == repr(given)


def test_bounds_hold_and_the_words_name_the_place() -> None:
    assert arrived(Annotated[int, Field(gt=0)] | None, 2) == 2
    for value in ("2", True, 0):
        with pytest.raises(BadRequest):
            arrived(Annotated[int, Field(gt=0)] | None, value)
    with pytest.raises(BadRequest, match=r"input: 1: Input should be a valid integer$"):
        arrived(list[int], [1, "2"])
    with pytest.raises(BadRequest, match=r"input: 0.int: Input should be a valid integer \(and 1 more\)"):
        arrived(list[int | float], ["2"])


class Order(BaseModel):
    count: int


@pytest.mark.parametrize(
    ("annotation", "value", "made"),
    [
        (Order, {"count": "2"}, Order(count=2)),
        (list[Order], [{"count": True}], [Order(count=1)]),
        (Annotated[int, BeforeValidator(lambda text: text.strip())] | None, " 2", 2),
        (Annotated[int, Strict(False)] | None, "2", 2),
        (dict[int, str], {"1": "a"}, {1: "a"}),  # JSON has no other keys
        (tuple[int, int], [1, 2], (1, 2)),  # nor tuples
        (Literal[1] | None, 1, 1),
    ],
)
def test_what_an_author_s_class_or_validator_makes_of_a_scalar_is_made(annotation: Any, value: Any, made: Any) -> None:
    assert repr(arrived(annotation, value)) == repr(made)
