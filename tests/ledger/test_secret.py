"""Secrets: found by name, stored by name, and struck out of all that is encoded, said to a database, or printed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from pydantic import BaseModel, TypeAdapter

from perdure.ledger import BadRequest, RedactedStream, Secret, pack, plain_without_secrets, provide_secrets, unpack
from perdure.ledger import secret as secrets_
from perdure.ledger.codec import encode
from perdure.ledger.facts import RunErrored

NAME, VALUE = "PERDURE_TEST_KEY", "sk-péter/7:2"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets_, "_sources", [])
    monkeypatch.setattr(secrets_, "_struck", {})
    monkeypatch.setenv(NAME, VALUE)


class Door(BaseModel):
    key: Secret


def test_a_secret_is_its_name_wherever_it_is_kept_or_shown() -> None:
    key = Secret(NAME)
    assert unpack(pack({"key": [key]})) == {"key": [key]}
    assert unpack(encode(RunErrored("r", 1, key, released=False))[1])[2] == key  # type: ignore[arg-type]
    assert (repr(key), str(key), len({key, Secret(NAME)})) == (f"Secret('{NAME}')",) * 2 + (1,)
    assert key != NAME
    for name in ("", None):
        with pytest.raises(BadRequest, match="is not a name"):
            Secret(name)  # type: ignore[arg-type]


def test_a_typed_field_takes_a_secret_or_its_name_and_is_its_name_on_the_wire() -> None:
    door = Door(key=Secret(NAME))
    assert door.model_dump(mode="json") == json.loads(door.model_dump_json()) == {"key": NAME}
    assert Door.model_validate({"key": NAME}) == Door.model_validate_json(door.model_dump_json()) == door
    assert door.model_dump() == {"key": Secret(NAME)}
    assert TypeAdapter(Door).json_schema()["properties"]["key"]["type"] == "string"


def test_the_newest_source_comes_first_and_the_environment_last(tmp_path: Path) -> None:
    assert Secret(NAME).reveal() == VALUE
    file = tmp_path / ".env"
    file.write_text(f"# keys\n\nexport {NAME}='from the file'\nOTHER = \"a = b\"\nno pair\n", encoding="utf-8")
    provide_secrets(file)
    assert [Secret(NAME).reveal(), Secret("OTHER").reveal()] == ["from the file", "a = b"]
    file.write_text(f"{NAME}=rotated-since", encoding="utf-8")
    assert Secret(NAME).reveal() == "rotated-since"
    provide_secrets({NAME: "from the vault"}.get)
    assert Secret(NAME).reveal() == "from the vault"
    with pytest.raises(
        BadRequest, match=r"^OTHER: is a secret that neither this process' environment nor a given source"
    ):
        Secret("OTHER").reveal()


def test_a_revealed_value_is_struck_out_of_all_that_is_encoded_without_changing_its_length() -> None:
    written = [VALUE, quote(VALUE), quote(VALUE, safe=""), json.dumps(VALUE), repr(VALUE)]
    told = {"said": written, "raw": VALUE.encode(), "inner": [f"Bearer {VALUE}!"], VALUE: 1}
    before = pack(told)
    assert unpack(before) == told, "what was not revealed here is not known"
    Secret(NAME).reveal()
    after = pack(told)
    assert len(after) == len(before)
    left = unpack(after)
    assert "péter" not in str(left)
    assert (left["inner"], left["raw"]) == ([f"Bearer {'*' * len(VALUE.encode())}!"], b"*" * len(VALUE.encode()))
    assert list(left)[-1] == "*" * len(VALUE.encode())


def test_what_a_database_or_a_reader_is_given_holds_no_revealed_value_either() -> None:
    given = [VALUE, VALUE.encode(), ({"a": VALUE},), 7, None, "other"]
    assert plain_without_secrets(given) is given
    Secret(NAME).reveal()
    stars = "*" * len(VALUE.encode())
    assert plain_without_secrets(given) == [stars, stars.encode(), ({"a": stars},), 7, None, "other"]
    page = io.StringIO()
    stream = RedactedStream.over(page)
    print("bad key", VALUE, file=stream)
    stream.writelines([VALUE, "\n"])
    assert stream.getvalue() == f"bad key {stars}\n{stars}\n"  # type: ignore[attr-defined]


def test_a_value_that_is_too_short_to_be_told_from_other_text_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "on")
    assert unpack(pack(Secret(NAME).reveal())) == "on"
