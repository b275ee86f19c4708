"""What is handed over arrives as it was, or is refused where it is handed over, by field and in words."""

from __future__ import annotations

import asyncio
import collections
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, HttpUrl, SecretStr, create_model
from typing_extensions import TypedDict

from perdure.actors.code.schema import Shape
from perdure.ledger import BadRequest, Secret, pack, pack_value, shown, unpack, unpack_opened, unpack_value
from tests.actors.value_cast import (
    COUNTED,
    NOON,
    Animal,
    Box,
    Dog,
    Given,
    Grown,
    Hander,
    Hiding,
    Level,
    Login,
    Money,
    Noting,
    Numbers,
    Open,
    Order,
    Page,
    Point,
    Rights,
    Row,
    Share,
    Spot,
    Strict,
    Suit,
    Text,
    Tree,
    TwoNames,
    encoded,
    noting,
)
from tests.kit import Stage, play

LIMIT = 1_000_000
TODAY = date(2026, 11, 25)
ID = uuid.UUID(int=5)

ARRIVE: list[tuple[Any, Any]] = [
    (Order, Order(orderId=7)),
    (TwoNames, TwoNames(a=1, bee="q")),
    (Strict, Strict(when=NOON, who=ID, where=(1, 2), much=Decimal("1.10"))),
    (Text, Text(parsed='{"a": 1}')),  # type: ignore[arg-type]
    (Share, Share(percent=50)),
    (Hiding, Hiding(shown=1, hidden="h")),
    (Money, Money(amount=Decimal("1.5"))),
    (Noting, noting()),
    (Open, Open(a=2, more=(1, 2))),  # type: ignore[call-arg]
    (Numbers, Numbers([1, 2])),
    (Page[Point], Page[Point](items=[Point(1, 2)])),
    (Tree, Tree(n=1, below=[Tree(n=2)])),
    (Suit, Suit.HEARTS),
    (Suit, Suit.SPADES),
    (Level, Level.LOW),
    (Rights, Rights.READ | Rights.WRITE),
    (Literal[Suit.HEARTS], Suit.HEARTS),
    (Spot, Spot(1, "a")),
    (Grown, Grown(1, 2)),
    (Point, Point(1, 2)),
    (Row, {"day": TODAY, "at": Point(1, 1)}),
    (list[Animal | Dog], [Dog(name="Rex", breed="lab"), Animal(name="Tom")]),
    (Box, Box(v=math.inf)),
    (Box, Box(v=b"\xff")),
    (Box, Box(v={1: "a", "1": "b", (1, 2): TODAY, None: {1}})),
    (Order | None, None),
    (uuid.UUID | str, ID),
    (uuid.UUID | str, str(ID)),
    (datetime | str, NOON),
    (datetime | str, NOON.isoformat()),
    (bytes | str, b"abc"),
    (set | list, {1}),
    (set | list, [1]),
    (date | datetime, TODAY),
    (date | datetime, NOON),
    (dict[str | None, int], {None: 1, "None": 2}),
    (dict[tuple[int, int], str], {(0, 1): "x"}),
    (dict[Point, int], {Point(1, 2): 3}),
    (dict[Suit, int], {Suit.HEARTS: 1}),
    (set[Suit], {Suit.HEARTS, Suit.SPADES}),
    (frozenset[Point], frozenset({Point(1, 2), Point(0, 3)})),
    (set[frozenset[Point | Suit]], {frozenset({Suit.HEARTS}), frozenset({Point(1, 2)})}),
    (set[tuple[Suit, int] | None], {(Suit.HEARTS, 1), None}),
    (dict[frozenset[Suit], Point], {frozenset({Suit.HEARTS}): Point(1, 2)}),
    (collections.deque[Point], collections.deque([Point(1, 2)])),
    (collections.Counter[Suit], collections.Counter([Suit.HEARTS])),
    (dict[int, str], {1: "a"}),
    (HttpUrl, HttpUrl("http://a.b/c")),
    (ByteSize, ByteSize(5)),
    (re.Pattern, re.compile("a+")),
    (object, {1, 2}),
    (Iterable[int], [1, 2]),
    (Any, 10**30),
    (Any, -(1 << 63) - 1),
    (Any, "a\0b"),
    (Any, (1, [2, (3,)])),
    (Any, frozenset({(1, "a")})),
    (Any, datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)),
    (Any, time(1, 2, 3, 4, tzinfo=UTC)),
    (Any, timedelta(days=-1, microseconds=3)),
    (Any, Fraction(1, 3)),
    (Any, 1 + 2j),
    (Any, Path("/a/ü")),
    (Any, collections.deque([1], 3)),
    (Any, collections.OrderedDict(b=1, a=2)),
    (Any, collections.Counter("aab")),
    (Any, COUNTED),
    (Any, range(1, 9, 2)),
    (Any, Secret("KEY")),
]


@pytest.mark.parametrize(("annotation", "value"), ARRIVE, ids=range(len(ARRIVE)))
def test_a_value_arrives_as_it_was(annotation: Any, value: Any) -> None:
    shape = Shape(annotation)
    body = shape.encode("input", value, LIMIT)
    arrived = shape.decode("input", body)
    assert type(arrived) is type(value)
    assert arrived == value
    assert shape.encode("input", arrived, LIMIT) == body
    assert shape.with_digest("input", arrived, LIMIT) == shape.with_digest("input", value, LIMIT)
    assert shape.typed("input", unpack(pack([shape.kept("input", value, LIMIT)]))[0]) == value


FEW: list[Any] = [
    create_model("Ask", sku=(str, ...)),
    make_dataclass("Ask", [("sku", str)]),
    NamedTuple("Ask", [("sku", str)]),
]
MORE: list[Any] = [
    create_model("Ask", sku=(str, ...), gift=(bool, False), notes=(list[str], [])),
    make_dataclass("Ask", [("sku", str), ("gift", bool, False), ("notes", list[str], field(default_factory=list))]),
    NamedTuple("Ask", [("sku", str), ("gift", bool), ("notes", str)]),
]
MORE[2].__new__.__defaults__ = (False, "")
MORE[2]._field_defaults = {"gift": False, "notes": ""}


@pytest.mark.parametrize(("few", "more"), list(zip(FEW, MORE, strict=True)), ids=["model", "dataclass", "named tuple"])
@pytest.mark.parametrize("hint", [lambda kind: kind, lambda kind: list[kind]], ids=["itself", "within"])
def test_a_request_is_the_same_when_its_class_was_given_fields_with_defaults(
    few: Any, more: Any, hint: Callable[[Any], Any]
) -> None:
    def digest(kind: Any, *args: object) -> str:
        made = kind(**dict(zip(("sku", "gift"), args, strict=False)))
        return Shape(hint(kind)).with_digest("input", made if hint(kind) is kind else [made], LIMIT)[1]

    assert digest(few, "a") == digest(more, "a")
    assert len({digest(few, "a"), digest(few, "b"), digest(more, "a", True), digest(more, "b", True)}) == 4


@pytest.mark.parametrize(("annotation", "value"), ARRIVE, ids=range(len(ARRIVE)))
def test_whoever_has_no_classes_sees_what_there_is(annotation: Any, value: Any) -> None:
    body = Shape(annotation).encode("input", value, LIMIT)
    told = unpack_opened(pack({"output": unpack(pack(shown(body)))}))
    assert "cannot be read" not in str(told)


def test_objects_are_shown_by_their_fields_without_those_that_they_hide() -> None:
    assert shown(Shape(Hiding).encode("input", Hiding(shown=1, hidden="h"), LIMIT)) == {"shown": 1}
    assert shown(Shape(Order).encode("input", Order(orderId=7), LIMIT)) == {"order_id": 7}
    assert shown(Shape(list[Point]).encode("input", [Point(1, 2)], LIMIT)) == [{"x": 1, "y": 2}]
    assert shown(Shape(Numbers).encode("input", Numbers([1]), LIMIT)) == [1]


INDIA = timedelta(hours=5, minutes=30)
ZONES = (
    UTC,
    timezone(INDIA),
    timezone(INDIA, "IST"),
    timezone(timedelta(0), "GMT"),
    timezone(timedelta(seconds=-1), ""),
)


@pytest.mark.parametrize("zone", ZONES, ids=repr)
def test_a_fixed_time_zone_keeps_its_name(zone: timezone) -> None:
    given = [zone, datetime(2026, 1, 1, 9, tzinfo=zone), time(9, tzinfo=zone)]
    arrived = unpack_value(pack_value("input", given))
    assert repr(arrived) == repr(given)
    assert f"{arrived[1]:%H:%M %Z}" == f"{given[1]:%H:%M %Z}"


def loop() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


class Mute:
    def __repr__(self) -> str:
        raise ValueError("no words")


class Name(str):
    __slots__ = ()


class Instant(datetime):
    """As `pandas.Timestamp`: pydantic knows no way to check one."""

    def to_pydatetime(self) -> datetime:
        return datetime.fromisoformat(self.isoformat())


class Scalar:
    """As `numpy.int64`; with another shape as an array."""

    dtype = "any"

    def __init__(self, value: object, shape: tuple[int, ...] = ()) -> None:
        self.value, self.shape = value, shape

    def item(self) -> object:
        return self.value

    def tolist(self) -> object:
        return [self.value]


class Attrs:
    """As a class of attrs."""

    __attrs_attrs__ = ()


class Struct:
    """As a class of msgspec."""

    __struct_fields__ = ()


# As `numpy.bool`, whose name is that of one of Python's own.
Truth = type("bool", (), {"__module__": "numpy", "__repr__": lambda _: "np.True_"})
Twin = type("Animal", (Animal,), {"__module__": "zoo"})


REFUSED: list[tuple[Any, Any, str]] = [
    (Login, Login(password=SecretStr("correct horse")), r"password: is SecretStr; .* pass `perdure.Secret\(name\)`"),
    (list[Animal], [Dog(name="Rex", breed="lab")], r"0: is Dog, a subclass of Animal; .* `Animal \| Dog`"),
    (list[Animal], [Twin(name="Rex")], r"0: is zoo.Animal, a subclass of .*value_cast.Animal; .*zoo.Animal`"),
    (
        datetime | int,
        Instant(2026, 1, 1),
        "is Instant, a subclass of datetime; .* cannot check .*; convert it to datetime",
    ),
    (Any, Truth(), "np.True_ is numpy.bool, which is no plain data"),
    (Any, [Scalar(3)], r"0: .* is Scalar, which is no plain data; say `int\(…\)`"),
    (Any, Scalar(True), r"say `bool\(…\)`"),
    (Any, Scalar(date(2026, 1, 1)), r"say `….item\(\)`"),
    (Any, Scalar(Mute()), "pass its parts"),
    (Any, Scalar(3, shape=(1,)), r"say `….tolist\(\)`"),
    (Any, type("NaTType", (Instant,), {})(2026, 1, 1), "say `None`"),
    (Any, Instant(2026, 1, 1), r"say `….to_pydatetime\(\)`"),
    (Any, Attrs(), r"say `attrs.asdict\(…\)`"),
    (Any, Struct(), r"say `msgspec.to_builtins\(…\)`"),
    (bool, Truth(), "np.True_ is numpy.bool, not bool"),
    (Box, Box(v=Animal(name="Tom")), "v: .* is Animal, which is no plain data"),
    (Any, {"a": [1, {"b": "\ud800"}]}, "a.1.b: contains half of a surrogate pair at position 0"),
    (Any, {"\udfff": 1}, "the key .*: contains half of a surrogate pair"),
    (Any, nested(2_000), "nested deeper than 100 levels"),
    (Any, nested(101), "nested deeper than 100 levels"),
    (Any, loop(), "or contains itself"),
    (Any, 10**5_000, "an integer of 16610 bits"),
    (Any, [Mute()], "0: .*is Mute, which is no plain data"),
    (Any, Name("a"), r"would arrive as str, so say `str\(…\)`"),
    (Any, Suit.HEARTS, "an input or an output names Suit, its objects travel; elsewhere say `….value`"),
    (Any, [Animal(name="Tom")], r"0: .* names Animal, its objects travel; elsewhere say `….model_dump\(\)`"),
    (Any, Spot(1, "a"), "is Spot, which is no plain data"),
    (Any, (each for each in [1]), "is generator, which is no plain data"),
    (Any, collections.defaultdict(lambda: 1), "its default_factory"),
    (re.Pattern, re.compile("a", re.IGNORECASE), "would arrive otherwise"),
    (Callable, print, "is builtin_function_or_method"),
    (int, "3", "'3' is str, not int"),
    (Order, {"id": 3}, "orderId: Field required"),
]


@pytest.mark.parametrize(("annotation", "value", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_arrive_otherwise_is_refused_by_field(annotation: Any, value: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refusal:
        Shape(annotation).encode("input", value, LIMIT)
    assert refusal.value.field == "input"
    str(refusal.value).encode()


class Basket(TypedDict, total=False):
    sku: str
    quantity: int
    gifts: list[Basket]


class Noted(TypedDict, extra_items=str):
    sku: Required[str]
    quantity: NotRequired[int]


class Loose(TypedDict):
    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]
    sku: str


@dataclass
class Sale:
    basket: Basket


TYPO = {"sku": "A-1", "quantitiy": 5}


@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        (Basket, TYPO, "quantitiy"),
        (list[Basket], [{}, TYPO], "1.quantitiy"),
        (Basket, {"gifts": [TYPO]}, "gifts.0.quantitiy"),
        (dict[str, Basket | None], {"a": TYPO}, "a.Basket.quantitiy|a.quantitiy"),
        (Sale, {"basket": TYPO}, "basket.quantitiy"),
        (Noted, {"sku": "A-1", "note": 5}, "note"),
    ],
)
def test_a_key_that_a_typed_dict_does_not_declare_is_refused_by_its_name(
    annotation: Any, value: Any, place: str
) -> None:
    shape = Shape(annotation)
    with pytest.raises(BadRequest, match=f"input: ({place}): "):
        shape.encode("input", value, LIMIT)
    with pytest.raises(BadRequest, match=f"input: ({place}): "):  # it was handed over without an annotation
        shape.decode("input", Shape(Any).encode("input", value, LIMIT))


@pytest.mark.parametrize(
    ("annotation", "value", "arrived"),
    [
        (Basket, {"quantity": 5}, {"quantity": 5}),
        (Basket | dict[str, Any], TYPO, TYPO),
        (Noted, {"sku": "A-1", "note": "a gift"}, {"sku": "A-1", "note": "a gift"}),
        (Loose, TYPO, {"sku": "A-1"}),
        (Sale, Sale(basket=TYPO), Sale(basket=TYPO)),  # type: ignore[arg-type]
    ],
)
def test_a_typed_dict_arrives_with_all_that_it_may_have(annotation: Any, value: Any, arrived: Any) -> None:
    shape = Shape(annotation)
    assert shape.decode("input", shape.encode("input", value, LIMIT)) == arrived


def test_a_key_that_the_typed_dict_had_when_it_was_handed_over_is_left_out() -> None:
    before: Any = TypedDict("Basket", {"sku": str, "colour": str})  # type: ignore[name-match]
    assert Shape(Basket).decode("input", Shape(before).encode("input", {"sku": "a", "colour": "b"}, LIMIT)) == {
        "sku": "a"
    }


def test_buffers_arrive_as_bytes() -> None:
    for buffer in (bytearray(b"x"), memoryview(b"x")):
        arrived = unpack_value(pack_value("input", buffer))
        assert (type(arrived), arrived) == (bytes, b"x")


@pytest.mark.parametrize("annotation", [Any, dict, dict[str, int], Mapping[str, int] | None])
def test_other_mappings_arrive_as_dictionaries(annotation: Any) -> None:
    for mapping in (MappingProxyType({"a": 1}), collections.ChainMap({"a": 1}), collections.UserDict(a=1)):
        arrived = Shape(annotation).decode("input", Shape(annotation).encode("input", mapping, LIMIT))
        assert (type(arrived), arrived) == (dict, {"a": 1})


def test_a_hundred_levels_arrive() -> None:
    assert unpack_value(pack_value("input", nested(98))) == nested(98)
    sets = frozenset[object]()
    for _ in range(99):
        sets = frozenset([sets])
    assert unpack_value(pack_value("input", sets)) == sets
    with pytest.raises(BadRequest, match="deeper than 100 levels"):
        pack_value("input", frozenset([sets]))


def test_a_validator_that_changes_its_value_runs_once() -> None:
    seen: list[float] = []

    def halved(value: float) -> float:
        seen.append(value)
        return value / 2

    shape = Shape(Annotated[float, AfterValidator(halved)])
    assert shape.decode("input", shape.encode("input", 8.0, LIMIT)) == 4.0
    assert shape.typed("input", shape.kept("input", 8.0, LIMIT)) == 4.0
    assert seen == [8.0, 8.0]


def test_a_strict_model_takes_what_json_can_say_of_it() -> None:
    given = {"when": NOON.isoformat(), "who": str(ID), "where": [1, 2], "much": "1.10"}
    shape = Shape(Strict)
    wanted = Strict(when=NOON, who=ID, where=(1, 2), much=Decimal("1.10"))
    assert shape.decode("input", shape.encode("input", given, LIMIT)) == wanted
    with pytest.raises(BadRequest, match="where"):
        shape.encode("input", {**given, "where": ["1", "2"]}, LIMIT)


def test_a_set_is_the_same_content_in_every_order() -> None:
    assert encoded({"a", "b", "c", "d"}) == encoded({"d", "c", "b", "a"})
    suits = [Shape(set[Suit]).encode("input", set(order), LIMIT) for order in (list(Suit), list(Suit)[::-1])]
    assert suits[0] == suits[1]


def test_a_value_of_a_class_that_has_changed_since_is_checked_again() -> None:
    body = Shape(create_model("Plan", title=(str, ...), days=(int, ...))).encode(
        "input", {"title": "a", "days": 2}, LIMIT
    )
    grown = create_model("Plan", title=(str, ...), days=(int, ...), done=(bool, False))
    assert Shape(grown).decode("input", body) == grown(title="a", days=2)
    with pytest.raises(BadRequest, match="words: Field required"):
        Shape(create_model("Plan", words=(str, ...))).decode("input", body)
    assert Shape(Any).decode("input", body) == {"title": "a", "days": 2}


def test_a_key_that_python_has_no_hash_for_hides_nothing_else() -> None:
    body = b"\x82\x92\x00\x01\xa1x\xa1a\x01"  # {[0, 1]: "x", "a": 1}
    assert unpack(body) == {"[0, 1]": "x", "a": 1}
    assert "cannot be read" in shown(b"\xc1")


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 80), 1 << 80)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.binary(max_size=8)
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.timezones())
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
)
KEYS = st.recursive(
    SCALARS.filter(lambda each: not (isinstance(each, float) and math.isnan(each))),
    lambda below: st.tuples(below, below) | st.frozensets(below, max_size=3),
    max_leaves=4,
)
VALUES = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=4)
        | st.tuples(below, below)
        | st.dictionaries(KEYS, below, max_size=4)
        | st.sets(KEYS, max_size=3)
    ),
    max_leaves=12,
)
FIELDS = {
    int: st.integers(-(1 << 80), 1 << 80),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    bytes: st.binary(max_size=6),
    uuid.UUID | str: st.uuids() | st.text("abc", max_size=3),
    datetime | date: st.datetimes() | st.dates(),
    set[int] | list[int]: st.sets(st.integers(), max_size=3) | st.lists(st.integers(), max_size=3),
    dict[tuple[int, str], float]: st.dictionaries(
        st.tuples(st.integers(), st.text("ab", max_size=2)), st.floats(allow_nan=False), max_size=3
    ),
    Decimal | None: st.none() | st.decimals(allow_nan=False, allow_infinity=False),
    Point | Order: st.builds(Point, st.integers(), st.integers())
    | st.builds(lambda n: Order(orderId=n), st.integers()),
    Suit: st.sampled_from(Suit),
    Any: VALUES,
}


@st.composite
def models(draw: Any) -> tuple[type[BaseModel], BaseModel]:
    """A model made at random, and a value of it."""
    kinds = draw(st.lists(st.sampled_from(list(FIELDS)), min_size=1, max_size=4))
    made = create_model("Made", **{f"f{at}": (kind, ...) for at, kind in enumerate(kinds)})
    return made, made.model_construct(**{f"f{at}": draw(FIELDS[kind]) for at, kind in enumerate(kinds)})


@given(models())
@settings(max_examples=200)
def test_any_value_of_any_model_arrives(made: tuple[type[BaseModel], BaseModel]) -> None:
    kind, value = made
    shape = Shape(kind)
    body = shape.encode("input", value, LIMIT)
    arrived = shape.decode("input", body)
    assert isinstance(arrived, kind)
    assert shape.encode("input", arrived, LIMIT) == body
    assert list(map(type, vars(arrived).values())) == list(map(type, vars(value).values()))


@given(st.lists(VALUES, min_size=3, max_size=8))
@settings(max_examples=10, phases=[Phase.generate])
def test_any_value_goes_through_a_run_its_steps_its_state_its_events_and_its_handlers(value: Any) -> None:
    async def story(stage: Stage) -> None:
        wanted = encoded(value)
        assert encoded(await stage.call(Hander, "pass_on", value)) == wanted
        await stage.ended("child")
        told: dict[str, Any] = {}
        while not {"ended", "milestone"} <= told.keys():
            await asyncio.sleep(0.1)
            told = await stage.call(Hander, "told")
        came = [told["ended"], told["display"]["value"], told["milestone"]["value"]]
        came.append((await stage.client.run(Given, value)).output)
        came.append((await stage.client.ask("inspect", "child"))["output"])
        events = [frame["event"] for frame in await stage.client.ask("frames", "child", -1)]
        came += [event["body"] for event in events if event["kind"] == "chunk"]
        came += [event["output"] or value for event in events if event["kind"] == "finished"]  # a large one is left out
        came += [event["data"]["value"] for event in events if event["kind"] == "milestone"]
        assert [encoded(each) for each in came] == [wanted] * 8

    play(story)


DEFINED = """
from dataclasses import dataclass
from enum import Enum
from pydantic import BaseModel
class Model(BaseModel): x: int = 1
@dataclass
class Data: x: int = 1
class Kind(Enum):
    ONE = 1
"""


@pytest.mark.parametrize("name", ["Model", "Data", "Kind"])
def test_an_instance_of_a_class_that_was_defined_again_is_refused_with_what_to_do(name: str) -> None:
    before, now = dict[str, Any](__name__=__name__), dict[str, Any](__name__=__name__)
    exec(DEFINED, before)  # noqa: S102 - a cell that is run twice
    exec(DEFINED, now)  # noqa: S102
    value = now[name](1) if name == "Kind" else now[name]()
    words = f"It is an instance of another class {name}: if {name} was defined again, define again what takes it, too"
    for takes, handed in ((before[name], value), (list[before[name]], [value])):  # type: ignore[misc]
        with pytest.raises(BadRequest, match=words):
            Shape(takes).encode("input", handed, 1000)
    with pytest.raises(BadRequest, match=r"^input: .*(?<!too)$"):
        Shape(list[before[name]]).encode("input", [[1]], 1000)  # type: ignore[misc]
