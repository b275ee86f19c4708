"""The commands on a bucket that no supervisor serves, and what is said of URLs and of what a bucket does not do."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from perdure.actors import Runtime, data_directory
from perdure.ledger import BadRequest, SupervisorStarted, View, bucket_of, record_fact
from perdure.ledger.bucket_cache import cache_of
from perdure.ledger.storage.patches import Patch, whole
from perdure.ledger.store.bucket_store import open_bucket
from perdure.policies import Limits
from perdure.scenarios.cli import app


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def filled(url: str, tmp_path: Path) -> str:
    """A bucket with one fact and one storage, of which a root knows."""
    store = open_bucket(tmp_path / "writer" / "ledger", url)
    store.boot()
    store.root_s = 0
    fact = record_fact(View(), SupervisorStarted(1, asdict(Limits())), 1_000)
    store.append([fact], [], [Patch("n@m:Note", 1, 1, [whole("", b"content")])])
    store.close()
    return url


def said(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_it_is_looked_at_without_beginning_anything(filled: str, tmp_path: Path) -> None:
    before = sorted((tmp_path / "bucket").rglob("*"))
    assert filled in said("ps", "--data", filled).output, "as it was given, and not where its cache is"
    for command in ("audit", "ps", "show"):
        told = said(command, "--json", "--data", filled)
        assert told.exit_code == 0, told.output
    assert json.loads(said("audit", "--json", "--data", filled).stdout)["balanced"]
    assert sorted((tmp_path / "bucket").rglob("*")) == before


@pytest.mark.parametrize("deep", [True, False])
def test_doctor_verifies_it_and_names_what_is_damaged(filled: str, tmp_path: Path, *, deep: bool) -> None:
    options = ["doctor", "--data", filled, *(["--deep"] if deep else [])]
    whole_one = said(*options)
    assert whole_one.exit_code == 0, whole_one.output
    assert "1 storages" in whole_one.stdout
    (pack,) = [each for each in (tmp_path / "bucket" / "storage").rglob("*") if each.is_file()]
    pack.write_bytes(b"c0ntent")
    harmed = said(*options)
    assert (harmed.exit_code, "do not fit their digest" in harmed.stdout) == ((1, True) if deep else (0, False))


def test_what_a_bucket_does_not_do_is_said(filled: str, tmp_path: Path) -> None:
    for arguments in (
        ["doctor", "--repair", "--data", filled],
        ["backup", filled, str(tmp_path / "copies")],
        ["restore", str(tmp_path / "copies"), filled],
    ):
        told = said(*arguments)
        assert told.exit_code != 0
        assert "bucket" in told.output + str(told.exception), arguments


def test_what_changes_it_goes_through_its_supervisor_and_what_looks_at_storages_sees_those_of_this_machine(
    filled: str,
) -> None:
    changes = said("forget", "n@m:Note", "--yes", "--data", filled)
    assert "goes through its supervisor" in str(changes.exception)
    for command in ("fibers", "schedules", "turns"):
        assert "in 0 storages" in said(command, "--data", filled).stdout
    assert "it has no storage" in str(said("inspect", "n@m:Note", "--data", filled).exception)


def test_a_prefix_where_nothing_has_run_is_said_to_be_one(url: str) -> None:
    told = said("audit", "--data", url)
    assert told.exit_code != 0
    assert "nothing has run there" in told.output + str(told.exception)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ftp://host/x", "no bucket that Perdure knows"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://b/a/../b", "stores read differently"),
        ("s3://b/a\nb", "stores read differently"),
        ("s3://b/p?region=x", "has options"),
    ],
)
def test_a_url_that_no_bucket_has_is_refused_where_it_is_given(given: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        Runtime(given)


def test_a_url_stands_for_a_cache_on_this_machine(url: str) -> None:
    data = data_directory(url)
    assert (data, bucket_of(data)) == (cache_of(url), url)
    assert bucket_of(data.parent) == ""


def test_one_bucket_has_one_cache_however_its_url_is_written(url: str) -> None:
    assert data_directory(f"{url}/") == data_directory(url.replace("file", "FILE")) == data_directory(url)


def test_keys_in_a_url_are_refused_before_they_are_written_anywhere(url: str, tmp_path: Path) -> None:
    assert url
    with pytest.raises(BadRequest, match="keys in it") as refused:
        Runtime("s3://AKIA123:hidden@bucket/prefix")
    assert "hidden" not in str(refused.value)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_made_is_said_with_where_to_say_another_place(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadRequest, match="PERDURE_CACHE"):
        data_directory(url)
