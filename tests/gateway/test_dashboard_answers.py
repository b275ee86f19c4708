"""What the page makes of the schema of a question, and what it sends of that which was said in a form."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter

from tests.gateway.cast import Shipping
from tests.gateway.npm import play
from tests.gateway.real import ROOT


class Colour(Enum):
    """A named choice."""

    RED = "red"
    BLUE = "blue"


class Paint(BaseModel):
    """Has a reference to a choice, which may be left out."""

    colour: Colour
    other: Colour | None = None
    coats: int | None


class Nested(BaseModel):
    """More than a form is made of."""

    paint: Paint


def schema(kind: Any) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema()


BIG = str(2**53)
FORMS: list[tuple[Any, Any, list[Any]]] = [
    (schema(bool), None, [["Yes", "No"], None]),
    (schema(bool | None), None, [["Yes", "No", "Nothing"], None]),
    (schema(Colour), None, [["red", "blue"], None]),
    (schema(Literal["<b>", 2]), None, [["<b>", "2"], None]),
    ({"enum": ["", {"a": 1}]}, None, [["(an empty text)", '{"a":1}'], None]),
    ({"const": "ok"}, None, [["ok"], None]),
    (schema(str), "two\nlines", ["string", "two\nlines"]),
    (schema(str), "", ["string", ""]),
    (schema(int), " 12 ", ["integer", 12]),
    (schema(int), "1.5", ["integer", {"field": "value", "words": "the answer: 1.5 is no whole number"}]),
    (schema(int), "", ["integer", {"field": "value", "words": "the answer is missing"}]),
    (schema(float), "1e3", ["number", 1000]),
    (schema(float), "much", ["number", {"field": "value", "words": 'the answer: "much" is no number'}]),
    (schema(Nested), None, ["json", None]),
    (schema(list[int]), None, ["json", None]),
    (schema(dict[str, int]), None, ["json", None]),
    (schema(Any), None, ["json", None]),
    (schema(str | None), None, ["json", None]),
    (schema(str | int), None, ["json", None]),
    ({"$ref": "#/$defs/none"}, None, ["json", None]),
    ({"$ref": "#"}, None, ["json", None]),
    ({"type": "object", "properties": {}, "required": ["a"]}, None, ["json", None]),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, None, ["json", None]),
    (
        schema(Paint),
        {"colour": "1", "other": "", "coats": ""},
        [
            [["colour", "choice", True], ["other", "choice", False], ["coats", "integer", True]],
            {"colour": "blue", "coats": None},
        ],
    ),
    (
        schema(Shipping),
        {"carrier": "0", "boxes": "3", "weight": "", "insured": "0", "label": ""},
        [
            [
                ["carrier", "choice", True],
                ["boxes", "integer", True],
                ["weight", "number", False],
                ["insured", "choice", False],
                ["label", "string", False],
            ],
            {"carrier": "post", "boxes": 3, "insured": True},
        ],
    ),
]
EDITS = [
    ({"a": 1, "b": [1, {"c": None}]}, '{"b": [1, {"c": null}], "a": 1}', None),
    ({"a": 1, "b": 2}, '{"a": 1, "b": 3}', {"b": 3}),
    ({"a": [1, 2]}, '{"a": [2, 1]}', {"a": [2, 1]}),
    ({"a": {"b": 1}}, '{"a": {"b": 1, "c": 2}}', {"a": {"b": 1, "c": 2}}),
    ({"a": []}, '{"a": {}}', {"a": {}}),
    ({"a": 1}, '{"a": 1, "new": 2}', {"new": 2}),
    ({"a": None}, '{"a": false}', {"a": False}),
]
REFUSED = [
    ({"a": 1, "b": 2}, '{"a": 1}', "“b” is missing"),
    ({"a": 1}, "[1]", "an object"),
    ({"a": 1}, "null", "an object"),
    ({"a": 1}, "{", "no JSON"),
    ({"a": 1}, "", "no JSON"),
]


def played(tmp_path: Path, cases: list[dict[str, Any]]) -> list[Any]:
    written = tmp_path / "cases.json"
    written.write_text(json.dumps(cases))
    script, module = ROOT / "tests/gateway/dashboard_answers.mjs", ROOT / "actors/dashboard/assets/answers.js"
    return play(script, module.as_uri(), str(written), which="none")


def test_a_schema_is_asked_for_by_buttons_a_form_or_json_and_says_what_was_meant(tmp_path: Path) -> None:
    cases = [{"schema": each, **({} if said is None else {"said": said})} for each, said, _ in FORMS]
    assert played(tmp_path, cases) == [expected for _, _, expected in FORMS]


@pytest.mark.parametrize("text", [BIG, f"-{BIG}"])
def test_a_number_that_a_browser_would_change_is_not_sent(tmp_path: Path, text: str) -> None:
    [[_, told]] = played(tmp_path, [{"schema": schema(int), "said": text}])
    assert "more digits than a browser can send" in told["words"]


def test_of_edited_arguments_those_are_sent_that_differ(tmp_path: Path) -> None:
    cases = [{"proposed": proposed, "edited": edited} for proposed, edited, _ in EDITS]
    assert played(tmp_path, cases) == [expected for _, _, expected in EDITS]


def test_arguments_that_cannot_be_sent_are_told_so(tmp_path: Path) -> None:
    cases = [{"proposed": proposed, "edited": edited} for proposed, edited, _ in REFUSED]
    for told, (_, _, words) in zip(played(tmp_path, cases), REFUSED, strict=True):
        assert told["field"] == "args"
        assert words in told["words"]
