"""What the doctor finds when the ledger and the storages are compared, and what it leaves as it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perdure.ledger.maintenance.cold_view import cold_view
from perdure.ledger.maintenance.examination import examine_storages
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import Finding
from perdure.scenarios.commands.keep import diagnosis
from tests.ledger.directories import file_of, lived, recorded, written

ANNA, BERT = "anna@m:T", "bert@m:T"


@pytest.fixture(scope="module", params=["logs, journal", "logs, snapshot", "databases, journal", "databases, snapshot"])
def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A directory with two agents that have written and left; what they reported is in the journal, or in the snapshot."""
    data, (kind, place) = tmp_path_factory.mktemp("whole"), request.param.split(", ")
    anna = written(data, ANNA, 1, "a", "b", tables=kind == "databases")
    bert = written(data, BERT, 2, "c", tables=kind == "databases")
    recorded(data, *lived(ANNA, 1, anna), *lived(BERT, 2, bert), snapshot=place == "snapshot")
    return data


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path, dirs_exist_ok=True)


def wrong(data: Path, *, deep: bool = False) -> list[Finding]:
    return [each for each in diagnosis(data, deep=deep) if each.severity != "ok"]


def files(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_nothing_is_found_where_nothing_is_wrong_and_nothing_is_changed(data: Path) -> None:
    before = files(data)
    assert not wrong(data)
    assert any("2 storages have come as far as the ledger says" in each.what for each in diagnosis(data))
    assert files(data) == before


def test_of_a_ledger_that_is_missing_nothing_is_said_that_only_it_could_tell(data: Path) -> None:
    (data / "ledger" / "ledger.db").unlink()
    said = "\n".join(f"{each.what} {each.advice}" for each in diagnosis(data))
    assert "because the ledger cannot be read: ledger.db is missing beside its journal" in said
    assert "2 storages can be read" in said
    for untrue in ("cannot be written", "serves", "as far as the ledger says"):
        assert untrue not in said


def test_a_missing_storage_is_told_with_how_far_it_had_come(data: Path) -> None:
    file_of(data, ANNA).unlink()
    (found,) = wrong(data)
    assert found.severity == "damage"
    assert f"the storage of {ANNA} is missing: it had come to " in found.what
    assert "perdure forget" in found.advice


def test_a_storage_that_is_older_than_the_ledger_is_told_with_both_numbers(data: Path, tmp_path: Path) -> None:
    older = {name: body for name, body in files(data).items() if Path(name).is_relative_to(file_of(data, ANNA).parent)}
    sequence = written(data, ANNA, 3, "later", "still later")
    recorded(data, *lived(ANNA, 3, sequence))
    for name, body in older.items():
        Path(name).write_bytes(body)
    (found,) = wrong(data)
    assert found.severity == "damage"
    assert f"{ANNA} is older than the ledger" in found.what
    assert f"had reported {sequence}" in found.what


def test_a_ledger_that_is_older_than_its_storages_is_told(data: Path) -> None:
    written(data, ANNA, 9, "of a later ledger")
    (found,) = wrong(data)
    assert "has been taken by life 9; the ledger has begun 2 lives" in found.what


def test_a_storage_of_nobody_is_told_but_no_sub_agent_of_somebody(data: Path) -> None:
    written(data, "eve@m:T", 1, "x")
    written(data, f"{ANNA[:4]}@m:T>kid@m:T", 1, "x")
    (found,) = wrong(data)
    assert found.severity == "warning"
    assert str(file_of(data, "eve@m:T")) in found.what


def test_a_file_under_the_name_of_another_is_told(data: Path) -> None:
    shutil.copyfile(file_of(data, ANNA), file_of(data, BERT))
    if (log := file_of(data, ANNA).with_suffix(".db.wal")).exists():
        shutil.copyfile(log, f"{file_of(data, BERT)}.wal")
    (found,) = wrong(data)
    assert f"(of {BERT}) is the storage of {ANNA}" in found.what


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ("ledger.journal.*", "there is no journal that can be read|the journal ends"),
        ("ledger.db", "ledger.db is missing"),
        ("ledger.lock", "ledger.lock was missing"),
    ],
)
def test_a_deleted_file_of_the_ledger_is_a_finding(data: Path, taken: str, words: str) -> None:
    for name in (taken, taken.replace("journal", "mirror")):
        for file in (data / "ledger").glob(name):
            file.unlink()
    assert any(word in each.what for each in wrong(data) for word in words.split("|"))


def test_many_storages_are_not_opened_unless_asked(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.ledger.maintenance.examination.OPENED_MAX", 1)
    shutil.copyfile(file_of(data, ANNA), file_of(data, BERT))
    assert not wrong(data)
    assert any("2 storages have come was not looked at" in each.what for each in diagnosis(data))
    assert wrong(data, deep=True)


def test_many_findings_of_one_kind_are_counted(data: Path) -> None:
    recorded(data, *(fact for n in range(50) for fact in lived(f"gone {n}@m:T", 1, 7)))
    found = wrong(data)
    assert len(found) == 21
    assert found[-1].what == "there are 30 more like these"


@pytest.mark.parametrize(
    "harm", [lambda file: file.write_bytes(b"nonsense" * 4_096), lambda file: file.write_bytes(b"")]
)
def test_a_file_that_is_no_storage_any_more_is_told(data: Path, harm: Callable[[Path], None]) -> None:
    harm(file_of(data, ANNA))
    found = [each for each in wrong(data) if ANNA in each.what]
    assert [each.severity for each in found] == ["damage"], "it is told once"
    assert str(file_of(data, ANNA)) in found[0].what


def test_storages_can_be_examined_while_their_agents_are_at_work(data: Path) -> None:
    known = cold_view(data / "ledger")
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        store.boot()
        assert not [each for each in examine_storages(data / "agents", known) if each.severity != "ok"]
