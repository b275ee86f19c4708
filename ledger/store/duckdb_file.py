"""One DuckDB file: settings, schema, and errors in plain words.

What is set, and why: no log of DuckDB's own, because the journal has what comes after the last checkpoint; one thread and no helpers,
because there is one writer; small blocks, because a ledger begins small; small row groups, because a full one is compressed anew by one
checkpoint (122,880 facts at once took 1.6 s); a storage version that every DuckDB we allow can read; keys in a list are looked up by
index; memory is bounded, because DuckDB keeps what it has read or written, up to most of the machine's memory; and SQL reaches nothing
outside of the file. A new file is made under another name, so that it has its schema when it has its name.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgpack

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.errors import LedgerDamaged, LedgerError, LedgerTooNew, LedgerUnwritable
from perdure.ledger.store.lock import locked
from perdure.ledger.store.seals import GENESIS, Mark
from perdure.ledger.whole_files import synchronise

_T = TypeVar("_T")
DATABASE, WAL = "ledger.db", "ledger.db.wal"
EXAMINED = "ledger.db.examined"
UNBORN = "ledger.db.unborn"
MISSING = f"{DATABASE} is missing beside its journal"

DOCTOR = "run `perdure doctor` on this directory"
_FULL = ("No space left", "File too large", "Disk quota", "disk is full")
_SHORT = ("failed to pin block", "failed to allocate", "could not allocate")
_REFUSED = ("Permission denied", "Read-only", "read-only", "Operation not permitted", "Cannot open file")
_FULL_ERRNO = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
INDEXED_MAX = 2_048  # keys in a list that are looked up by index; more read the whole table
MEMORY_MAX_MB = 512
ROW_GROUP = 8_192  # rows
_SETTINGS = (
    "SET fsync_mode = '{fsync_mode}'",
    "SET checkpoint_threshold = '256MB'",
    "SET auto_checkpoint_skip_wal_threshold = 1000000000000",
    f"SET dynamic_or_filter_threshold = {INDEXED_MAX}",
    f"SET memory_limit = '{MEMORY_MAX_MB}MB'",
    "SET temp_directory = '{directory}/ledger.tmp'",
    "PRAGMA disable_checkpoint_on_shutdown",
)
_FENCES = ("SET enable_external_access = false", "SET lock_configuration = true")


class KeptEvidence:
    """Damaged files that are kept under new names. They are never deleted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        taken = [
            int(path.suffix[len(".damaged-") :])
            for path in directory.glob("ledger.*.damaged-*")
            if path.suffix[9:].isdigit()
        ]
        self._suffix = f".damaged-{max(taken, default=0) + 1}"

    def copy(self, name: str) -> str:
        kept = self._directory / (name + self._suffix)
        if (self._directory / name).exists() and not kept.exists():
            try:
                shutil.copyfile(self._directory / name, kept)
            except OSError:
                kept.unlink(missing_ok=True)  # a full disk is not to be filled further by each start
                raise
        return kept.name

    def keep(self, name: str) -> str:
        # The file gets a second name, which stays when another file takes the first.
        kept = self._directory / (name + self._suffix)
        try:
            kept.hardlink_to(self._directory / name)
        except OSError:  # not every file system has such names
            return self.copy(name)
        return kept.name

    def move(self, name: str) -> str:
        (self._directory / name).rename(self._directory / (name + self._suffix))
        return name + self._suffix


def connect(
    directory: Path,
    *,
    fsync: bool = True,
    read_only: bool = False,
    name: str = DATABASE,
    source: str = "",
) -> duckdb.DuckDBPyConnection:
    """Open the file, creating it if it is missing; beside it, as `source`, another one to be read.

    DuckDB replays and writes no log; the mark of a checkpoint that it leaves as one must be removed before. `TYPE duckdb` is part of each
    `ATTACH` so that the headers are read under the lock (`ledger.storage.disk`).
    Raises what DuckDB raises; `told` says it in plain words.
    """
    con = duckdb.connect(":memory:", config={"threads": 1, "async_threads": 0})
    place = str(directory).replace("'", "''")
    try:
        for setting in _SETTINGS:
            con.execute(setting.format(fsync_mode="STANDARD" if fsync else "NONE", directory=place))
        made = f"BLOCK_SIZE 16384, ROW_GROUP_SIZE {ROW_GROUP}, STORAGE_VERSION 'v2.0.0', RECOVERY_MODE no_wal_writes"
        options = "READ_ONLY" if read_only else made
        con.execute(f"ATTACH '{place}/{name}' AS ledger (TYPE duckdb, {options})")
        if source:
            con.execute(f"ATTACH '{place}/{source}' AS source (TYPE duckdb, READ_ONLY)")
        con.execute("USE ledger")
        for setting in _FENCES:
            con.execute(setting)
    except duckdb.Error:
        con.close()
        raise
    return con


def create(directory: Path, *, fsync: bool = True) -> None:
    # What a start before left half made is made anew. The file gets its name when it has its tables.
    for left in (UNBORN, f"{UNBORN}.wal", DATABASE, WAL):
        (directory / left).unlink(missing_ok=True)
    with closing(connect(directory, fsync=fsync, name=UNBORN)) as con:
        prepare(con)
    (directory / f"{UNBORN}.wal").unlink(missing_ok=True)
    (directory / UNBORN).rename(directory / DATABASE)
    if fsync:
        synchronise(directory)
        synchronise(directory.parent)


def prepare(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(files("perdure.ledger").joinpath("schema.sql").read_text(encoding="utf-8"))
    con.execute("CHECKPOINT")


@contextmanager
def without_log(directory: Path) -> Iterator[str]:
    """A second name of the database during this block, under which DuckDB finds no log. If a checkpoint did not end, it is a copy, mended
    as the next start would mend it. The caller holds the directory's lock."""
    second, saved = directory / EXAMINED, BlockGuard(directory / DATABASE).saved
    guard = BlockGuard(second)
    second.unlink(missing_ok=True)
    try:
        if saved.exists():
            shutil.copyfile(directory / DATABASE, second)
            shutil.copyfile(saved, guard.saved)
            guard.mend()
        else:
            second.hardlink_to(directory / DATABASE)
        yield second.name
    finally:
        guard.close()
        guard.saved.unlink(missing_ok=True)
        second.unlink(missing_ok=True)


def first_row(con: duckdb.DuckDBPyConnection, query: str, parameters: list[object]) -> tuple[Any, ...] | None:
    """The first row of an answer, None if it has none. The answer is read to its end: a reader that stopped before would keep its
    transaction open, and DuckDB then refuses another checkpoint."""
    rows = con.execute(query, parameters).fetchall()
    return rows[0] if rows else None


def get(con: duckdb.DuckDBPyConnection, key: str) -> Any:
    row = first_row(con, "SELECT value FROM meta WHERE key = $1", [key])
    return None if row is None else msgpack.unpackb(row[0])


def put(con: duckdb.DuckDBPyConnection, key: str, value: object) -> None:
    # The caller has a transaction open.
    con.execute("DELETE FROM meta WHERE key = $1", [key])
    con.execute("INSERT INTO meta VALUES ($1, $2)", [key, msgpack.packb(value)])


def get_mark(con: duckdb.DuckDBPyConnection) -> tuple[int, Mark]:
    # Up to which fact the snapshot reaches, and the place in the chain up to which everything is sealed.
    found = get(con, "mark")
    return (0, GENESIS) if found is None else (found[0], Mark(found[1], found[2]))


def put_mark(con: duckdb.DuckDBPyConnection, snapshot_seq: int, mark: Mark) -> None:
    put(con, "mark", [snapshot_seq, mark.seq, mark.digest])


def transact(con: duckdb.DuckDBPyConnection, work: Callable[[], _T]) -> _T:
    con.execute("BEGIN")
    done = work()
    con.execute("COMMIT")
    return done


def is_short_of_memory(problem: Exception) -> bool:
    # A commit and a checkpoint say so in errors of other kinds.
    return isinstance(problem, duckdb.OutOfMemoryException) or any(word in str(problem) for word in _SHORT)


def told(directory: Path, problem: duckdb.Error | OSError) -> LedgerError:
    """The error that DuckDB's or the system's problem means, in plain words and with advice."""
    text = str(problem).partition("\n")[0]
    if "onflicting lock" in text or "Unique file handle conflict" in text or "Could not set lock" in text:
        owner = re.search(r"PID (\d+)", text)
        return locked(directory, owner[1] if owner else "")
    if "version number" in text or "newer version of DuckDB" in text:
        return LedgerTooNew(str(directory), f"a newer DuckDB wrote it ({text})", "use a newer Perdure")
    number = problem.errno if isinstance(problem, OSError) else 0
    if number in _FULL_ERRNO or any(word in text for word in _FULL):
        return LedgerUnwritable(
            str(directory),
            f"the disk is full ({text})",
            "free some space; what was acknowledged is kept",
        )
    if isinstance(problem, OSError) or any(word in text for word in _REFUSED):
        return LedgerUnwritable(
            str(directory),
            f"the directory cannot be written ({text})",
            "check its path, owner and permissions, or copy it elsewhere to read it",
        )
    if is_short_of_memory(problem):
        words = f"DuckDB used up the {MEMORY_MAX_MB} MB that it may have, and nothing is damaged ({text})"
        return LedgerUnwritable(str(directory), words, "start again: what was acknowledged is kept")
    return LedgerDamaged(str(directory), f"DuckDB refused ({text})", DOCTOR)
