"""What the ledger on disk survives: deaths, damaged files, full disks, other processes, other versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from perdure.ledger.errors import BadRequest, LedgerDamaged, LedgerLocked, LedgerTooNew, LedgerUnwritable
from perdure.ledger.store.duckdb_file import DATABASE, JOURNAL, WAL
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.journal import Journal, scan
from perdure.ledger.store.seals import seal
from perdure.ledger.store.store import Boot
from tests.ledger.wrecks import (
    LAST,
    ROOT,
    commit,
    contents,
    copy,
    fact,
    flipped,
    live,
    numbers,
    run,
    small_life,
    tamper,
)


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed process left: a snapshot up to 3, a checkpoint after 4, six commits in the log."""
    return small_life(tmp_path_factory.mktemp("dead") / "ledger")


@pytest.fixture(scope="module")
def whole(dead: Path, tmp_path_factory: pytest.TempPathFactory) -> Boot:
    """What a start reads from it."""
    return boot(copy(dead, tmp_path_factory.mktemp("whole") / "ledger"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with closing(DuckDBStore(tmp_path / "ledger", fsync=False)) as made:
        made.boot()
        yield made


def boot(directory: Path) -> Boot:
    """Start, and check that the payload is there too."""
    with closing(DuckDBStore(directory, fsync=False)) as store:
        read = store.boot()
        assert store.payload("r1", "input") == b"P" * 50
        return read


# ------------------------------------------------------------------ deaths


def test_a_killed_process_leaves_everything_it_was_told_is_durable(whole: Boot) -> None:
    assert whole.findings == []
    assert whole.facts == [fact(seq) for seq in range(4, LAST + 1)]
    assert whole.meta == b"meta"
    assert [record.key for record in whole.records] == ["r1", "r2", "r0"]


@pytest.mark.parametrize("patience", [1, 10, 23, 300])
def test_no_acknowledged_fact_is_lost_to_kill_minus_nine(tmp_path: Path, patience: int) -> None:
    script = """
for seq in range(1, 100_000, 3):
    store.append(*commit(seq, seq + 2, payload=b"x" * seq if seq % 2 else None))
    print(seq + 2, flush=True)
    if seq % 30 == 1:
        store.checkpoint(b"%d" % seq, seq, [run("r0", 3, seq + 2), run("r1", 1, seq), run("r2", 2, seq + 1)], [])
"""
    process = live(tmp_path / "ledger", script)
    assert process.stdout is not None
    answers = [process.stdout.readline() for _ in range(patience)]
    process.kill()
    answers += process.stdout.read().splitlines()  # `communicate` would drop the lines that were read ahead
    process.communicate()
    answered = int(answers[-1])
    with closing(DuckDBStore(tmp_path / "ledger")) as store:
        read = store.boot()
        told = sorted(row.seq for key in ("r0", "r1", "r2") for row in store.facts(key))
        assert told == list(range(1, len(told) + 1))
        assert len(told) >= answered
        assert told[len(told) - len(read.facts) :] == numbers(read)
        assert store.payload("r0", "input") == (b"x" * max(range(1, len(told) - 1, 6)))
        assert all("appended from the journal" in finding for finding in read.findings)


def test_a_commit_that_only_reached_the_journal_is_appended_at_the_next_start(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    journal = Journal(directory / JOURNAL, fsync=False)
    journal.resume()
    journal.append(seal(scan(directory / JOURNAL).entries[-1].after, *commit(LAST + 1, LAST + 2)))
    journal.close()
    read = boot(directory)
    assert numbers(read) == list(range(4, LAST + 3))
    (finding,) = read.findings
    assert finding.startswith("the last commit was appended from the journal: facts 18 to 19; either the process ended")
    assert boot(directory)._replace(findings=[]) == read._replace(findings=[])


def test_a_death_between_checkpoint_and_new_journal_is_harmless(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    old = (directory / JOURNAL).read_bytes()
    with closing(DuckDBStore(directory)) as store:
        store.boot()
        store.checkpoint(b"later", LAST, [], [])
    (directory / JOURNAL).write_bytes(old)
    read = boot(directory)
    assert (read.meta, read.facts, read.findings) == (b"later", [], [])


def test_a_death_between_the_parts_of_a_checkpoint_is_harmless(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    script = """
class Mortal(DuckDBStore):
    def _fold_log(self, con):
        if self.log_max == 1:
            os._exit(9)
        super()._fold_log(con)

store.close()
store = Mortal(directory)
store.boot()
store.log_max = 1
store.checkpoint(b"later", 10, [run("r0", 3, 9), run("r2", 2, 8)], ["r1"])
"""
    process = live(directory, script)
    process.communicate()
    assert process.returncode == 9
    with closing(DuckDBStore(directory)) as store:
        read = store.boot()
        assert (read.meta, numbers(read), read.findings) == (b"later", list(range(11, LAST + 1)), [])
        assert [row.seq for row in store.facts("r1")] == [13, 16]


def test_a_life_after_a_crash_goes_on_and_dies_again(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger", ledger_db_wal=(dead / WAL).read_bytes() + b"\x55" * 64)
    for life in range(2):
        process = live(directory, f"store.append(*commit({LAST + 1 + life}, {LAST + 1 + life}))\nos._exit(9)")
        process.communicate()
    read = boot(directory)
    assert numbers(read) == list(range(4, LAST + 3))
    assert read.findings == []


# ------------------------------------------------------------------ a damaged log


def test_no_flipped_byte_in_the_log_loses_anything(dead: Path, whole: Boot, tmp_path: Path) -> None:
    log = (dead / WAL).read_bytes()
    lost_silently_by_duckdb = 0
    for place in [*range(0, len(log), 37), *range(5)]:
        directory = copy(dead, tmp_path / "ledger", ledger_db_wal=flipped(log, place))
        read = boot(directory)
        assert read[:3] == whole[:3], f"byte {place}"
        assert any("appended from the journal" in finding for finding in read.findings), f"byte {place}"
        unreadable = any("DuckDB cannot read its log" in finding for finding in read.findings)
        lost_silently_by_duckdb += not unreadable
        assert not unreadable or (directory / "ledger.db.wal.damaged-1").read_bytes() == flipped(log, place)
        assert not unreadable or (directory / "ledger.db.damaged-1").exists()
    assert lost_silently_by_duckdb  # or this test would not show what the journal is for


@pytest.mark.parametrize(
    "ruin",
    [
        lambda log: log[:-30],
        lambda log: log[:-30] + bytes(30),
        lambda log: log + bytes(64),
        lambda _: b"",
        lambda log: log[:7],
    ],
    ids=["torn", "zeroed end", "zeros behind", "empty", "beheaded"],
)
def test_a_torn_or_zeroed_log_loses_nothing(dead: Path, whole: Boot, tmp_path: Path, ruin: object) -> None:
    assert callable(ruin)
    directory = copy(dead, tmp_path / "ledger", ledger_db_wal=ruin((dead / WAL).read_bytes()))
    assert boot(directory)[:3] == whole[:3]
    assert boot(directory) == whole


def test_a_deleted_log_loses_nothing(dead: Path, whole: Boot, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    (directory / WAL).unlink()
    assert boot(directory)[:3] == whole[:3]


def test_a_deleted_database_is_told_from_an_empty_one(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    (directory / DATABASE).unlink()
    (directory / WAL).unlink()
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match=r"ledger\.db is missing beside its journal"):
            boot(directory)


def test_a_database_from_an_older_backup_is_not_taken_for_the_truth(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    with closing(DuckDBStore(directory)) as store:
        store.boot()
        store.append(*commit(LAST + 1, LAST + 1))
        store.checkpoint(b"later", LAST + 1, [], [])
    (directory / DATABASE).write_bytes((dead / DATABASE).read_bytes())
    with pytest.raises(LedgerDamaged, match="perdure doctor"):
        boot(directory)


def test_what_neither_log_nor_journal_has_is_refused_and_every_file_stays_as_it_was(dead: Path, tmp_path: Path) -> None:
    log, journal = (dead / WAL).read_bytes(), (dead / JOURNAL).read_bytes()
    place = len(journal) // 2
    directory = copy(dead, tmp_path / "ledger", ledger_db_wal=flipped(log, 100), ledger_journal=flipped(journal, place))
    before = contents(directory)
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match=r"are missing.*perdure doctor"):
            boot(directory)
        assert contents(directory) == before


def test_facts_that_were_changed_since_the_checkpoint_give_way_to_the_journals(
    dead: Path, whole: Boot, tmp_path: Path
) -> None:
    directory = copy(dead, tmp_path / "ledger")
    tamper(directory, "UPDATE facts SET body = 'other' WHERE seq = 9", "DELETE FROM payloads")
    read = boot(directory)
    assert read[:3] == whole[:3]
    assert "the facts 8 to 10 are not those that were written" in read.findings[1]
    assert (directory / "ledger.db.damaged-1").exists()


def test_a_fact_missing_under_the_seal_is_found_by_the_boot_that_needs_it(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    tamper(directory, "DELETE FROM facts WHERE seq = 4")
    with pytest.raises(LedgerDamaged, match="fact 4 is missing"):
        boot(directory)


# ------------------------------------------------------------------ a damaged journal


def test_a_damaged_journal_is_told_and_replaced_as_long_as_the_database_is_whole(
    dead: Path, whole: Boot, tmp_path: Path
) -> None:
    journal = (dead / JOURNAL).read_bytes()
    for place in range(0, len(journal), 43):
        directory = copy(dead, tmp_path / "ledger", ledger_journal=flipped(journal, place))
        read = boot(directory)
        assert read[:3] == whole[:3], f"byte {place}"
        assert "what the database holds verifies up to fact 17" in read.findings
        assert (directory / "ledger.journal.damaged-1").read_bytes() == flipped(journal, place)
        assert not scan(directory / JOURNAL).flaws


@pytest.mark.parametrize("ending", [b"", bytes(40)], ids=["torn", "zeros"])
def test_a_journal_that_the_power_took_is_told_and_harmless(
    dead: Path, whole: Boot, tmp_path: Path, ending: bytes
) -> None:
    directory = copy(dead, tmp_path / "ledger", ledger_journal=(dead / JOURNAL).read_bytes()[:-40] + ending)
    read = boot(directory)
    assert read[:3] == whole[:3]
    assert "torn at byte" in read.findings[0]
    assert boot(directory) == whole


def test_a_missing_journal_is_told(dead: Path, whole: Boot, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    (directory / JOURNAL).unlink()
    read = boot(directory)
    assert read[:3] == whole[:3]
    assert "there is no journal" in read.findings[0]


# ------------------------------------------------------------------ the world refuses


def test_a_full_disk_is_fatal_and_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    script = """
import resource
from perdure.ledger.errors import LedgerUnwritable
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
for seq in range(1, 100_000, 100):
    try:
        store.append(*commit(seq, seq + 99))
    except LedgerUnwritable as problem:
        print(problem.problem)
        break
    print(seq + 99)
try:
    store.facts("r0")
except LedgerUnwritable:
    print("refused")
store.close()
"""
    told, complaints = live(tmp_path / "ledger", script).communicate()
    *answered, problem, again = told.splitlines()
    assert again == "refused", complaints
    assert "disk is full" in problem
    with closing(DuckDBStore(tmp_path / "ledger")) as store:
        assert len(numbers(store.boot())) >= int(answered[-1])


def test_a_directory_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerUnwritable, match="cannot be written"):
        DuckDBStore(tmp_path / "file" / "ledger").boot()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give its rights away")
def test_a_directory_of_somebody_else_is_said_so(dead: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.errors import LedgerUnwritable
os.setuid(65534)
try:
    DuckDBStore(Path(sys.argv[1])).boot()
except LedgerUnwritable as problem:
    print(problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(dead)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "cannot be written" in done.stdout, done.stderr


def test_one_process_at_a_time(tmp_path: Path, store: DuckDBStore) -> None:
    with pytest.raises(LedgerLocked, match=rf"process {os.getpid()} is using this ledger"):
        DuckDBStore(tmp_path / "ledger").boot()
    other = live(tmp_path / "other", "print(os.getpid(), flush=True)\nsys.stdin.read()")
    assert other.stdout is not None
    owner = other.stdout.readline().strip()
    with pytest.raises(LedgerLocked, match=rf"process {owner} is using this ledger"):
        DuckDBStore(tmp_path / "other").boot()
    other.kill()
    other.communicate()
    with closing(DuckDBStore(tmp_path / "other")) as heir:
        heir.boot()


def test_a_stranger_that_holds_the_file_is_named(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    script = (
        "import duckdb, os, sys; held = duckdb.connect(sys.argv[1]); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    stranger = subprocess.Popen(
        [sys.executable, "-c", script, str(directory / DATABASE)], stdin=pipe, stdout=pipe, text=True
    )
    assert stranger.stdout is not None
    owner = stranger.stdout.readline().strip()
    with pytest.raises(LedgerLocked, match=rf"process {owner} "):
        boot(directory)
    stranger.kill()
    stranger.communicate()
    boot(directory)


# ------------------------------------------------------------------ versions


def test_a_newer_layout_is_refused(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    tamper(directory, r"UPDATE meta SET value = '\x02'::BLOB WHERE key = 'schema_version'")
    with pytest.raises(LedgerTooNew, match=r"layout 2.*newer Perdure"):
        boot(directory)


def test_the_first_layout_is_brought_up_to_date(dead: Path, tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    with closing(DuckDBStore(directory)) as store:
        store.boot()
        store.append(*commit(1, 3))
        store.append(*commit(4, 5))
    tamper(
        directory,
        "DROP TABLE seals",
        "ALTER TABLE payloads DROP COLUMN seq",
        "DELETE FROM meta",
        "INSERT INTO payloads VALUES ('r1', 'input', 'old')",
    )
    (directory / JOURNAL).unlink()
    with closing(DuckDBStore(directory)) as store:
        assert numbers(store.boot()) == [1, 2, 3, 4, 5]
        assert store.payload("r1", "input") == b"old"
        store.append(*commit(6, 6))
        store.checkpoint(b"m", 6, [run("r2", 2, 5)], ["r1"])
        assert store.payload("r1", "input") is None
    with closing(DuckDBStore(directory)) as store:
        assert store.boot().findings == []
        assert store.rows("SELECT count(*) FROM seals", []) == [(1,)]


# ------------------------------------------------------------------ questions in SQL


def test_a_select_is_answered(store: DuckDBStore) -> None:
    store.append(*commit(1, 6))
    store.checkpoint(b"m", 6, [run("r0", 3, 6), run("r1", 1, 4, live=False)], [])
    assert store.rows("SELECT run_id FROM runs WHERE live", []) == [("r0",)]
    assert store.rows("WITH f AS (FROM facts) SELECT count(*) FROM f WHERE subject = $1", ["r1"]) == [(2,)]


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM facts",
        "SELECT 1; DELETE FROM facts",
        "WITH gone AS (DELETE FROM facts RETURNING seq) SELECT * FROM gone",
        "INSERT INTO mail (mail_id) VALUES ('a')",
        "COPY facts TO 'facts.csv'",
        "ATTACH 'other.db'",
        "SET threads = 4",
        "CHECKPOINT",
        "SELECT * FROM read_text('schema.sql')",
        "SELECT * FROM nothing",
        "SELECT seq FROM facts WHERE subject = $1",
        "SELEC 1",
        "",
    ],
)
def test_anything_else_is_refused_and_changes_nothing(store: DuckDBStore, query: str) -> None:
    store.append(*commit(1, 3))
    with pytest.raises(BadRequest) as refused:
        store.rows(query, [])
    assert refused.value.field == "query"
    store.append(*commit(4, 4))
    assert store.rows("SELECT count(*) FROM facts", []) == [(4,)]


# ------------------------------------------------------------------ shape


class Tidy(DuckDBStore):
    log_max = 50


def test_the_log_is_folded_in_before_it_takes_long_to_read(tmp_path: Path) -> None:
    log = tmp_path / WAL
    with closing(Tidy(tmp_path, fsync=False)) as store:
        store.boot()
        sizes = []
        for seq in range(1, 120):
            store.append(*commit(seq, seq))
            sizes.append(log.stat().st_size if log.exists() else 0)
        assert [number for number, size in enumerate(sizes, 1) if size == 0] == [50, 100]
        store.close()
        assert numbers(store.boot()) == list(range(1, 120))


def test_a_small_ledger_is_a_small_file(store: DuckDBStore, tmp_path: Path) -> None:
    store.append(*commit(1, 100))
    store.checkpoint(b"m", 100, [run(f"r{n}", n or 3, 100) for n in range(3)], [])
    assert (tmp_path / "ledger" / DATABASE).stat().st_size < 400_000


def test_the_tables_are_what_the_schema_says(store: DuckDBStore) -> None:
    schema = (ROOT / "ledger" / "schema.sql").read_text()
    tables = {name for (name,) in store.rows("SELECT table_name FROM duckdb_tables()", [])}
    assert tables == set(re.findall(r"CREATE TABLE (\w+)", schema))
    indexes = store.rows("SELECT count(*) FROM duckdb_indexes()", [])
    assert indexes == [(0,)]
    assert duckdb.__version__ >= "2"
