"""What the ledger on disk survives: deaths, damaged files, full disks, other processes, other versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import duckdb
import pytest

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.codec import unpack
from perdure.ledger.errors import BadRequest, LedgerDamaged, LedgerLocked, LedgerUnwritable
from perdure.ledger.store.duckdb_file import DATABASE, transact
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import examine
from perdure.ledger.store.journal import Journal
from perdure.ledger.store.journal_scan import scan
from perdure.ledger.store.seals import seal
from perdure.ledger.store.store import Boot, Wanted
from tests.ledger.wrecks import (
    LAST,
    ROOT,
    commit,
    contents,
    copy,
    fact,
    flipped,
    in_frames,
    live,
    numbers,
    run,
    segment,
    small_life,
    tamper,
)


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed process left: a snapshot up to 3, a checkpoint after 4, six commits in the journal."""
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


def mirror(directory: Path) -> Path:
    return directory / segment(directory).name.replace("journal", "mirror")


def boot(directory: Path) -> Boot:
    """Start, and check that the payload is there too."""
    with closing(DuckDBStore(directory, fsync=False)) as store:
        read = store.boot()
        assert store.payload("r1", "input") == b"P" * 50
        return read


# ------------------------------------------------------------------ deaths


def test_a_killed_process_leaves_everything_it_was_told_is_durable(whole: Boot) -> None:
    assert whole.findings == []
    assert whole.rows == [fact(seq) for seq in range(4, LAST + 1)]
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
        assert told[len(told) - len(read.rows) :] == numbers(read)
        assert store.payload("r0", "input") == (b"x" * max(range(1, len(told) - 1, 6)))
        assert all("not whole" in finding or "kept as" in finding for finding in read.findings)


def test_a_commit_that_was_written_and_not_answered_is_there_after_the_next_start(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    journal = Journal(directory, fsync=False)
    journal.resume({9: LAST}, scan(directory).entries[-1].after, None)
    journal.append(seal(scan(directory).entries[-1].after, *commit(LAST + 1, LAST + 2)))
    journal.close()
    read = boot(directory)
    assert (numbers(read), read.findings) == (list(range(4, LAST + 3)), [])
    assert boot(directory) == read


class Mortal(DuckDBStore):
    """Dies in its checkpoint, before or after DuckDB's own."""

    late = False

    def _fold(self, con: duckdb.DuckDBPyConnection) -> None:
        if self.late:
            super()._fold(con)
        os._exit(9)


@pytest.mark.parametrize("late", [False, True])
def test_a_death_in_a_checkpoint_is_harmless(dead: Path, tmp_path: Path, late: bool) -> None:
    directory = copy(dead, tmp_path / "ledger")
    script = f"""
from tests.ledger.test_duckdb_store import Mortal
store.close()
store = Mortal(directory)
store.late = {late}
store.boot()
store.append(*commit(18, 18))
store.checkpoint(b"later", 10, [run("r0", 3, 9), run("r2", 2, 8)], ["r1"])
"""
    process = live(directory, script)
    process.communicate()
    assert process.returncode == 9
    with closing(DuckDBStore(directory)) as store:
        read = store.boot()
        assert (read.meta, read.findings) == (b"later" if late else b"meta", [])
        assert numbers(read) == list(range(11 if late else 4, LAST + 2))
        assert [row.seq for row in store.facts("r1")] == ([13, 16] if late else [1, 4, 7, 10, 13, 16])


class Torn(BlockGuard):
    """Dies when what DuckDB's checkpoint writes over is saved."""

    @contextmanager
    def around(self, con: duckdb.DuckDBPyConnection, name: str) -> Iterator[None]:
        with super().around(con, name):
            os._exit(9)
        yield


def test_a_checkpoint_that_is_torn_by_a_death_costs_nothing(dead: Path, whole: Boot, tmp_path: Path) -> None:
    """The journal has everything until the database has it, and what was written over by halves is put back."""
    directory = copy(dead, tmp_path / "ledger")
    script = """
from tests.ledger.test_duckdb_store import DATABASE, Torn
store._guard.close()
store._guard = Torn(directory / DATABASE)
store.checkpoint(b"later", 10, [], [])
"""
    process = live(directory, script)
    process.communicate()
    assert process.returncode == 9
    saved = unpack((directory / f"{DATABASE}.blocks").read_bytes()[16:])
    at, piece = max(saved)
    with (directory / DATABASE).open("r+b") as file:
        file.seek(at + len(piece) // 2)
        file.write(b"torn")
    assert boot(directory) == whole


def test_segments_that_come_back_after_a_checkpoint_are_passed_over(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    old = {path.name: path.read_bytes() for path in directory.glob("ledger.[jm]*")}
    with closing(DuckDBStore(directory)) as store:
        store.boot()
        store.append(*commit(LAST + 1, LAST + 1))
        store.checkpoint(b"later", LAST + 1, [], [])
    for name, content in old.items():
        assert not (directory / name).exists()
        (directory / name).write_bytes(content)
    read = boot(directory)
    assert (read.meta, read.rows, read.findings) == (b"later", [], [])


def test_a_life_after_a_crash_goes_on_and_dies_again(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    for life in range(2):
        process = live(directory, f"store.append(*commit({LAST + 1 + life}, {LAST + 1 + life}))\nos._exit(9)")
        process.communicate()
    read = boot(directory)
    assert (numbers(read), read.findings) == (list(range(4, LAST + 3)), [])


def test_the_mark_of_a_checkpoint_that_duckdb_leaves_as_a_log_is_never_read(
    dead: Path, whole: Boot, tmp_path: Path
) -> None:
    """A torn one crashed the process at the attach."""
    assert boot(copy(dead, tmp_path / "ledger", ledger_db_wal=b"\x55" * 64)) == whole
    directory = copy(dead, tmp_path / "other")
    with duckdb.connect(directory / DATABASE) as con:
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        con.execute("DELETE FROM runs")
    assert (directory / f"{DATABASE}.wal").stat().st_size
    assert boot(directory) == whole


# ------------------------------------------------------------------ a damaged journal


@pytest.mark.thorough
def test_every_flipped_byte_of_the_journal_is_mended_from_its_mirror_kept_and_told(
    dead: Path, whole: Boot, tmp_path: Path
) -> None:
    journal = segment(dead).read_bytes()
    for place in [*range(0, in_frames(dead).stop, 29), *range(8)]:
        directory = copy(dead, tmp_path / "ledger")
        segment(directory).write_bytes(flipped(journal, place))
        read = boot(directory)
        assert read[:3] == whole[:3], f"byte {place}"
        assert "mirror" in read.findings[0], f"byte {place}"
        assert (directory / f"{segment(dead).name}.damaged-1").read_bytes() == flipped(journal, place)
        assert boot(directory) == whole, f"byte {place}"


def test_a_damaged_mirror_is_harmless(dead: Path, whole: Boot, tmp_path: Path) -> None:
    for content in (b"", b"x" * 50_000, flipped(mirror(dead).read_bytes(), 300)):
        directory = copy(dead, tmp_path / "ledger")
        mirror(directory).write_bytes(content)
        assert boot(directory) == whole


def test_a_deleted_segment_is_read_from_its_mirror(dead: Path, whole: Boot, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    segment(directory).unlink()
    found = boot(directory)
    assert found[:3] == whole[:3]
    assert any(f"{segment(dead).name} is missing and is taken from its mirror" in each for each in found.findings)
    assert not any("at byte" in each for each in found.findings), "each commit is not told by itself"


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("cut", [1, 40, 100])
def test_a_last_commit_that_is_not_whole_is_kept_and_told_and_never_replayed(
    dead: Path, tmp_path: Path, cut: int, zeros: bool
) -> None:
    directory = copy(dead, tmp_path / "ledger")
    end = in_frames(dead).stop
    torn = segment(dead).read_bytes()[: end - cut] + bytes(cut if zeros else 0)
    segment(directory).write_bytes(torn)
    mirror(directory).unlink()
    read = boot(directory)
    assert numbers(read) == list(range(4, LAST))
    assert "ends with a commit that is not whole" in read.findings[0]
    assert (directory / f"{segment(dead).name}.damaged-1").read_bytes() == torn
    again = boot(directory)
    assert (numbers(again), again.findings) == (list(range(4, LAST)), [])


def test_a_commit_that_is_damaged_in_both_copies_is_refused_and_every_file_stays_as_it_was(
    dead: Path, tmp_path: Path
) -> None:
    directory = copy(dead, tmp_path / "ledger")
    place = scan(dead).entries[2].offset
    for path in (segment(directory), mirror(directory)):
        path.write_bytes(flipped(path.read_bytes(), place))
    before = contents(directory)
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match=r"the facts 8 to 10 are missing.*perdure doctor"):
            boot(directory)
        assert contents(directory) == before


def test_a_journal_that_is_gone_is_refused_because_facts_may_be_gone_with_it(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    for path in (segment(directory), mirror(directory)):
        path.unlink()
    with pytest.raises(LedgerDamaged, match=r"there is no journal.*database at 4: what was acknowledged after"):
        boot(directory)


def test_a_deleted_database_is_told_from_an_empty_one(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    (directory / DATABASE).unlink()
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match=r"ledger\.db is missing beside its journal"):
            boot(directory)


def test_a_deleted_database_is_built_anew_from_a_journal_that_has_everything(tmp_path: Path) -> None:
    live(tmp_path, "store.append(*commit(1, 5, payload=b'P'))\nos._exit(9)").communicate()
    (tmp_path / DATABASE).unlink()
    with closing(DuckDBStore(tmp_path)) as store:
        read = store.boot()
        assert numbers(read) == [1, 2, 3, 4, 5]
        assert "built anew from the journal" in read.findings[0]
        assert store.payload("r2", "input") == b"P"


def test_a_database_from_an_older_backup_is_not_taken_for_the_truth(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    with closing(DuckDBStore(directory)) as store:
        store.boot()
        store.append(*commit(LAST + 1, LAST + 1))
        store.checkpoint(b"later", LAST + 1, [], [])
    (directory / DATABASE).write_bytes((dead / DATABASE).read_bytes())
    with pytest.raises(LedgerDamaged, match="perdure doctor"):
        boot(directory)


def test_a_fact_missing_under_the_seal_is_found_by_the_boot_that_needs_it(dead: Path, tmp_path: Path) -> None:
    directory = copy(dead, tmp_path / "ledger")
    tamper(directory, "DELETE FROM facts WHERE seq = 4")
    with pytest.raises(LedgerDamaged, match="fact 4 is missing"):
        boot(directory)


# ------------------------------------------------------------------ a first start


@pytest.mark.parametrize(
    "left",
    [
        {},
        {"ledger.db.unborn": b"half a file"},
        {"ledger.db.unborn": b"half a file", "ledger.db.unborn.wal": b"x"},
        {"ledger.journal.1": b""},
        {"ledger.journal.1": bytes(4_096), "ledger.mirror.1": b""},
    ],
)
def test_what_a_killed_first_start_leaves_is_begun_anew(tmp_path: Path, left: dict[str, bytes]) -> None:
    begun = tmp_path / "ledger"
    with closing(DuckDBStore(begun)) as store:
        store.boot()
    if not any("journal" in name for name in left):
        (begun / DATABASE).unlink()
    for name, content in left.items():
        (begun / name).write_bytes(content)
    assert {finding.severity for finding in examine(begun)} <= {"ok", "refused"}
    with closing(DuckDBStore(begun)) as store:
        assert store.boot() == Boot(None, [], [], [])
        store.append(*commit(1, 2))
        assert numbers(store.boot()) == [1, 2]
    assert sorted(path.name for path in begun.glob("*unborn*")) == []


# ------------------------------------------------------------------ what a commit does


def test_a_commit_is_synchronised_before_it_is_answered_and_a_segment_before_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "pwritev")}

    def watched(name: str) -> Callable[..., object]:
        def call(file: int, *rest: object) -> object:
            done.append(f"{name} {Path(f'/proc/self/fd/{file}').readlink().name}")
            return real[name](file, *rest)

        return call

    with closing(DuckDBStore(tmp_path / "ledger")) as store:
        store.boot()
        for name in real:
            monkeypatch.setattr(os, name, watched(name))
        store.append(*commit(1, 3))
        first, done[:] = list(done), []
        store.append(*commit(4, 4, payload=b"x" * 5_000))
        monkeypatch.undo()
    segment_, mirror_ = "ledger.journal.1", "ledger.mirror.1"
    commit_ = [f"pwritev {segment_}", f"pwritev {mirror_}", f"fdatasync {segment_}"]
    assert done == commit_
    assert first == [f"pwritev {segment_}", f"pwritev {mirror_}", f"fsync {segment_}", "fsync ledger", *commit_]


# ------------------------------------------------------------------ the world refuses


def test_a_full_disk_is_fatal_and_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    script = """
import resource
from perdure.ledger.errors import LedgerUnwritable
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
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


def test_a_question_that_needs_too_much_memory_is_refused_and_ends_nothing(store: DuckDBStore) -> None:
    store.append(*commit(1, 4))
    store.checkpoint(b"m", 4, [run("r0", 3, 3), run("r1", 1, 4)], [])
    query = "SELECT list(number) FROM range(1_000_000_000) AS t(number)"

    def asked() -> None:
        with store._reading() as con:  # noqa: SLF001 - as any question
            transact(con, lambda: con.execute(query).fetchall())

    with pytest.raises(BadRequest, match="Out of Memory"):
        store.rows(query, [])
    with pytest.raises(BadRequest, match="512 MB"):
        asked()
    assert [record.key for record in store.records("runs", ["r0", "r1"])] == ["r0", "r1"]
    store.append(*commit(5, 6))
    store.checkpoint(b"m", 6, [run("r2", 2, 5)], [])
    assert store.rows("SELECT count(*) FROM facts", []) == [(6,)]


# ------------------------------------------------------------------ shape


class Tidy(DuckDBStore):
    journal_max = 5_000


def test_a_long_journal_is_folded_in_without_a_checkpoint(tmp_path: Path) -> None:
    with closing(Tidy(tmp_path, fsync=False)) as store:
        store.boot()
        for seq in range(1, 120):
            store.append(*commit(seq, seq))
            store.follow()
        assert sum(entry.length for entry in scan(tmp_path).entries) < 5_000
        store.close()
        assert numbers(store.boot()) == list(range(1, 120))


def test_segments_grow_and_old_ones_go(tmp_path: Path) -> None:
    with closing(DuckDBStore(tmp_path, fsync=False)) as store:
        store.boot()
        for seq in range(1, 13):
            store.append(*commit(seq, seq, payload=b"x" * 150_000))
        assert [len(path.read_bytes()) >> 18 for path in sorted(tmp_path.glob("ledger.journal.*"))] == [1, 2, 4, 8]
        store.checkpoint(b"m", 12, [], [])
        assert [path.name for path in tmp_path.glob("ledger.journal.*")] == ["ledger.journal.5"]
        assert store.payload("r0", "input") == b"x" * 150_000


class Patient(DuckDBStore):
    """Waits in its second checkpoint."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, fsync=False)
        self.waits, self.goes_on = Event(), Event()
        self.goes_on.set()

    def _fold(self, con: duckdb.DuckDBPyConnection) -> None:
        self.waits.set()
        assert self.goes_on.wait(10)
        super()._fold(con)


def test_commits_and_readers_do_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    with closing(Patient(tmp_path)) as store, ThreadPoolExecutor(1) as other:
        store.boot()
        store.append(*commit(1, 3))
        store.checkpoint(b"m", 3, [run("r1", 1, 1, live=False)], [])
        store.goes_on.clear()
        store.waits.clear()
        checkpoint = other.submit(store.checkpoint, b"n", 3, [], [])
        assert store.waits.wait(10)
        store.append(*commit(4, 5, payload=b"late"))
        assert [record.key for record in store.records("runs", ["r1"])] == ["r1"]
        assert store.known_among(["r1", "new"]) == ["r1"]
        assert [record.key for record in store.wanted_runs(Wanted(), 10)] == ["r1"]
        assert [row.seq for row in store.facts("r2")] == [2, 5]
        assert [row.seq for row in store.frames(["r1", "r2"], 2, 5)] == [2, 4, 5]
        assert store.payload("r2", "input") == b"late"
        store.goes_on.set()
        checkpoint.result(10)
        assert [row.seq for row in store.facts("r2")] == [2, 5]
        assert store.boot().meta == b"n"


def test_readers_on_many_threads_get_what_each_has_asked_for(store: DuckDBStore) -> None:
    store.append(*commit(1, 90))
    store.checkpoint(b"m", 90, [run(f"r{n}", n or 3, 90) for n in range(3)], [])

    def read(key: str) -> None:
        for _ in range(100):
            assert [record.key for record in store.records("runs", [key])] == [key]
            assert {row.subject for row in store.facts(key)} == {key}

    with ThreadPoolExecutor(3) as others:
        readers = [others.submit(read, f"r{n}") for n in range(3)]
        for seq in range(91, 100):
            store.append(*commit(seq, seq))
            store.checkpoint(b"m", seq, [run(f"r{n}", n or 3, seq) for n in range(3)], [])
        for reader in readers:
            reader.result(60)


class Hasty(DuckDBStore):
    """DuckDB catches up in the midst of every read."""

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with super()._reading() as con:
            self.follow()
            yield con


def test_a_fact_that_duckdb_gets_while_somebody_reads_is_told_once(tmp_path: Path) -> None:
    with closing(Hasty(tmp_path, fsync=False)) as store:
        store.boot()
        store.append(*commit(1, 10))
        assert [row.seq for row in store.facts("r1")] == [1, 4, 7, 10]
        store.append(*commit(11, 20))
        assert [row.seq for row in store.frames(["r1"], 1, 20)] == [1, 4, 7, 10, 13, 16, 19]


class Slow(DuckDBStore):
    """Has a reader that takes its time."""

    @contextmanager
    def reader(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._reading() as con:
            con.execute("BEGIN")
            yield con


def test_a_checkpoint_has_everything_in_its_file_while_somebody_still_reads(tmp_path: Path) -> None:
    store = Slow(tmp_path / "ledger", fsync=False)
    store.boot()
    store.append(*commit(1, 50))
    store.checkpoint(b"old", 50, [run(f"r{n}", n or 3, 50) for n in range(3)], [])
    with store.reader() as reader:
        assert reader.execute("SELECT count(*) FROM facts").fetchone() == (50,)
        store.append(*commit(51, 60))
        store.checkpoint(b"new", 60, [run("r1", 1, 60), run("r2", 2, 60)], ["r0"])
        dead = copy(tmp_path / "ledger", tmp_path / "dead")
        assert reader.execute("SELECT count(*) FROM facts").fetchone() == (50,)
    store.close()
    with closing(DuckDBStore(dead, fsync=False)) as heir:
        assert heir.boot().meta == b"new"
        assert [len(heir.facts(f"r{n}")) for n in range(3)] == [0, 20, 20]
        assert [record.key for record in heir.records("runs", ["r0", "r1", "r2"])] == ["r1", "r2"]


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
