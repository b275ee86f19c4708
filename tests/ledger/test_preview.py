"""What is shown of a run's input: as its parent wants it, else a piece of it that says what it was."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ledger import frame_of, inspected, pack, preview_of, record_fact
from perdure.ledger.facts import RunRequested
from tests.kit import NOW_MS, TYPE, Ledger


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        ("HTTP/3", "HTTP/3"),
        ("x" * 501, "x" * 500),
        ({"topic": "Höhe", "pages": [1, 2]}, '{"topic":"Höhe","pages":[1,2]}'),
        (0, "0"),
        (["y" * 600], '["' + "y" * 495 + "..."),
        ([1] * 250, "[" + "1," * 248 + "..."),
        (b"raw", "b'raw'"),
        ({1: b"z" * 600}, ("{1: b'" + "z" * 600)[:500]),
    ],
)
def test_an_input_is_shown_as_text_of_at_most_500_characters(value: Any, shown: str | None) -> None:
    assert preview_of(value) == shown


def test_whoever_looks_at_a_run_sees_its_input_in_short() -> None:
    ledger = Ledger()
    fact = RunRequested("r", TYPE, "", "", "digest", pack({"topic": "QUIC"}), {})
    frame = frame_of(record_fact(ledger.view, fact, NOW_MS), ledger.run())
    assert frame is not None
    assert frame["event"]["input_preview"] == '{"topic":"QUIC"}'
    assert inspected(ledger.run())["input_preview"] == '{"topic":"QUIC"}'


def test_what_a_parent_wants_to_be_shown_is_shown_instead() -> None:
    ledger = Ledger()
    ledger.given(RunRequested("r", TYPE, "", "", "digest", pack("secret"), {"preview": "a letter"}))
    assert inspected(ledger.run())["input_preview"] == "a letter"


def test_a_run_without_input_shows_none() -> None:
    ledger = Ledger()
    row = record_fact(ledger.view, RunRequested("r", TYPE, "", "", "digest", pack(None), {}), NOW_MS)
    frame = frame_of(row, ledger.run())
    assert frame is not None
    assert "input_preview" not in frame["event"]
    assert inspected(ledger.run())["input_preview"] is None
