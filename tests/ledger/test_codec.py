"""Facts to rows and back: every kind survives, an older row is read, a broken one is named."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.ledger import Fact, LedgerDamaged, decode, encode, pack, unpack
from perdure.ledger.facts import AttemptStarted, RunReattached, RunRequested

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
    bool: st.booleans(),
    bytes: st.binary(max_size=30),
    bytes | None: st.none() | st.binary(max_size=30),
    bool | None: st.none() | st.booleans(),
    str | None: st.none() | TEXT,
    int | None: st.none() | st.integers(0, 2**60),
    dict[str, Any]: st.dictionaries(TEXT, PLAIN, max_size=4),
    dict[str, float] | None: st.none() | st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=4),
    list[str]: st.lists(TEXT, max_size=4),
    list[Any] | None: st.none() | st.lists(PLAIN, max_size=4),
}


def facts_of(kind: type[Fact]) -> Any:
    hints = get_type_hints(kind)
    return st.tuples(*(BY_HINT[hints[name]] for name in kind._fields)).map(lambda fields: kind(*fields))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_fact_survives_its_row(kind: type[Fact]) -> None:
    @given(facts_of(kind))
    def survives(fact: Fact) -> None:
        assert decode(*encode(fact)) == fact

    survives()


@given(PLAIN)
def test_plain_data_survives(value: object) -> None:
    assert unpack(pack(value)) == value


def test_an_older_row_takes_the_defaults_of_fields_that_came_later() -> None:
    fields = ["r", "T", "p", "", "d", None, {}]
    assert decode("RunRequested", pack(fields)) == RunRequested("r", "T", "p", "", "d", None, {}, 0)
    assert decode("AttemptStarted", pack(["r", 1, 1, "h"])) == AttemptStarted("r", 1, 1, "h", collect=False)
    assert decode("RunReattached", pack(["r", 4])) == RunReattached("r", 4, 0)


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
    for value in (object(), {1, 2}, lambda: None, 2**70):
        with pytest.raises((TypeError, OverflowError)):
            pack(value)
