"""Facts to rows and back: every kind survives, a broken one is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ledger import Fact, LedgerDamaged, decode, pack, unpack
from perdure.ledger.codec import encode

KINDS: list[type[Fact]] = list(get_args(Fact))

TEXT = st.text(max_size=20)
PLAIN: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
BY_HINT: dict[Any, Any] = {
    str: TEXT,
    int: st.integers(0, 2**60),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=30),
    bytes | None: st.none() | st.binary(max_size=30),
    bool | None: st.none() | st.booleans(),
    str | None: st.none() | TEXT,
    int | None: st.none() | st.integers(0, 2**60),
    dict[str, Any]: st.dictionaries(TEXT, PLAIN, max_size=4),
    dict[str, float]: st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=4),
    dict[str, str]: st.dictionaries(TEXT, TEXT, max_size=4),
    dict[str, bytes]: st.dictionaries(TEXT, st.binary(max_size=8), max_size=4),
    list[int]: st.lists(st.integers(0, 2**60), max_size=4),
    list[str]: st.lists(TEXT, max_size=4),
    list[Any] | None: st.none() | st.lists(PLAIN, max_size=4),
    list[Any]: st.lists(PLAIN, max_size=4),
}


def facts_of(kind: type[Fact]) -> Any:
    hints = get_type_hints(kind)
    return st.tuples(*(BY_HINT[hints[name]] for name in kind._fields)).map(lambda fields: kind(*fields))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_fact_survives_its_row(kind: type[Fact]) -> None:
    @settings(max_examples=20)  # of each kind; any plain data is tried below
    @given(facts_of(kind))
    def survives(fact: Fact) -> None:
        assert decode(*encode(fact)) == fact

    survives()


@given(PLAIN)
def test_plain_data_survives(value: object) -> None:
    assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("NeverHeardOf", pack(["r"])),
        ("RunStarted", pack(["r"])),
        ("RunStarted", pack(["r", 1, 2, 3])),
        ("RunStarted", b"\xc1"),
        ("RunStarted", b""),
        ("RunStarted", pack(["r", 1])[:-1]),
        ("RunStarted", pack(7)),
    ],
)
def test_a_row_that_cannot_be_read_is_damage_named_by_its_kind(kind: str, body: bytes) -> None:
    with pytest.raises(LedgerDamaged, match=f"{kind!r} cannot be read.*doctor"):
        decode(kind, body)


def test_nothing_but_plain_data_is_ever_stored() -> None:
    for value in (object(), lambda: None, ValueError("no"), type):
        with pytest.raises(TypeError):
            pack(value)


def test_a_value_that_cannot_be_packed_leaves_nothing_behind() -> None:
    for _ in range(3):
        with pytest.raises(TypeError, match="is no plain data"):
            pack([1, object()])
        assert unpack(pack([1, 2])) == [1, 2]


def test_what_is_packed_while_something_is_packed_is_a_value_of_its_own() -> None:
    class Outer(dict[str, object]):
        def items(self) -> Any:
            assert unpack(pack(["inner"])) == ["inner"]
            return super().items()

    assert unpack(pack([Outer(a=1), "after"])) == [{"a": 1}, "after"]


def test_threads_pack_each_its_own() -> None:
    def packs(number: int) -> bool:
        value = [f"{number}"] * 50
        return all(unpack(pack(value)) == value for _ in range(500))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(packs, range(8)))
