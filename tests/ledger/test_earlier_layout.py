"""Directories of layout 1, whose commits were in DuckDB's log, are brought forward with everything that was acknowledged."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.store.duckdb_file import DATABASE, EARLIER_JOURNAL, WAL, connect
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import examine, repair
from perdure.ledger.store.store import Boot
from tests.ledger.wrecks import LAST, commit, contents, fact, flipped, numbers, of_layout_1, run

EVERYTHING = list(range(4, LAST + 1))


def boot(directory: Path) -> Boot:
    with closing(DuckDBStore(directory, fsync=False)) as store:
        read = store.boot()
        assert store.payload("r1", "input") == b"P" * 50
        return read


def test_what_a_killed_process_left_is_brought_forward_once(tmp_path: Path) -> None:
    directory = of_layout_1(tmp_path / "ledger")
    lock, finding = examine(directory)
    assert "ledger.lock was missing" in lock.what  # the former version's files were kept without it
    assert (finding.severity, finding.what) == ("warning", "its layout has the older version 1")
    read = boot(directory)
    assert (read.rows, read.meta, read.findings) == ([fact(seq) for seq in EVERYTHING], b"meta", [])
    assert not (directory / EARLIER_JOURNAL).exists()
    assert boot(directory) == read
    with closing(DuckDBStore(directory)) as store:
        store.boot()
        store.append(*commit(LAST + 1, LAST + 1))
        store.checkpoint(b"m", LAST + 1, [run("r0", 3, 18), run("r2", 2, 17)], ["r1"])
    assert {finding.severity for finding in examine(directory)} == {"ok"}


def test_no_flipped_byte_of_the_log_loses_anything(tmp_path: Path) -> None:
    log = (of_layout_1(tmp_path / "whole") / WAL).read_bytes()
    for place in range(0, len(log), 151):
        directory = of_layout_1(tmp_path / "ledger", ledger_db_wal=flipped(log, place))
        assert numbers(boot(directory)) == EVERYTHING, f"byte {place}"


@pytest.mark.parametrize("keep", [0, 7, 200, -30])
def test_a_cut_log_is_completed_from_the_journal(tmp_path: Path, keep: int) -> None:
    log = (of_layout_1(tmp_path / "whole") / WAL).read_bytes()
    read = boot(of_layout_1(tmp_path / "ledger", ledger_db_wal=log[:keep]))
    assert numbers(read) == EVERYTHING
    assert any("appended from the journal" in finding for finding in read.findings)


@pytest.mark.parametrize("keep", [None, 0, 20, 300])
def test_a_journal_that_ends_early_or_is_gone_is_harmless(tmp_path: Path, keep: int | None) -> None:
    directory = of_layout_1(tmp_path / "ledger")
    journal = (directory / EARLIER_JOURNAL).read_bytes()
    (directory / EARLIER_JOURNAL).unlink()
    if keep is not None:
        (directory / EARLIER_JOURNAL).write_bytes(journal[:keep])
    assert numbers(boot(directory)) == EVERYTHING
    assert boot(directory).findings == []


def test_what_neither_has_is_refused_until_it_is_repaired(tmp_path: Path) -> None:
    directory = of_layout_1(tmp_path / "ledger")
    journal = (directory / EARLIER_JOURNAL).read_bytes()
    (directory / EARLIER_JOURNAL).write_bytes(flipped(journal, len(journal) // 2))
    (directory / WAL).write_bytes(flipped((directory / WAL).read_bytes(), 100))
    before = contents(directory)
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match=r"are missing.*perdure doctor"):
            boot(directory)
        assert contents(directory) == before
    assert examine(directory)[0].severity == "warning"
    words = "\n".join(finding.what for finding in repair(directory))
    assert "brings it up to date" not in words
    with closing(DuckDBStore(directory)) as store:
        assert numbers(store.boot()) == list(range(4, 11))


def test_the_very_first_layout_is_brought_forward(tmp_path: Path) -> None:
    directory = of_layout_1(tmp_path / "ledger")
    with closing(connect(directory, logged=True)) as con:
        for statement in (
            "DELETE FROM facts WHERE seq > 14",
            "DELETE FROM payloads",
            "DROP TABLE seals",
            "ALTER TABLE payloads DROP COLUMN seq",
            "INSERT INTO payloads VALUES ('r1', 'input', 'old')",
            "DELETE FROM meta",
            "CHECKPOINT",
        ):
            con.execute(statement)
    (directory / EARLIER_JOURNAL).unlink()
    with closing(DuckDBStore(directory)) as store:
        assert numbers(store.boot()) == list(range(1, 15))
        assert store.payload("r1", "input") == b"old"
        store.append(*commit(15, 15))
        store.checkpoint(b"m", 15, [run("r2", 2, 14)], ["r1"])
        assert store.payload("r1", "input") is None
    with closing(DuckDBStore(directory)) as store:
        assert store.boot().findings == []
        assert store.rows("SELECT count(*) FROM seals", []) == [(1,)]
    assert {finding.severity for finding in examine(directory)} == {"ok", "damage"}  # r0 has facts and no record


@pytest.mark.parametrize("stage", ["moved", "begun"])
def test_a_death_on_the_way_begins_again(tmp_path: Path, stage: str) -> None:
    directory = of_layout_1(tmp_path / "ledger")
    journal = (directory / EARLIER_JOURNAL).read_bytes()
    read = boot(directory)
    (directory / EARLIER_JOURNAL).write_bytes(journal)
    if stage == "moved":
        for path in directory.glob("ledger.[jm]*.*"):
            path.unlink()
    assert boot(directory) == read
    assert (directory / DATABASE).exists()
    assert not (directory / EARLIER_JOURNAL).exists()
