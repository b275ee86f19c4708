"""One DuckDB file: settings, lock, schema, migrations, and errors in plain words.

What is set, and why: no log of DuckDB's own, because the journal has what comes after the last checkpoint; one thread and no helpers,
because there is one writer; small blocks, because a ledger begins small; small row groups, because a full one is compressed anew by one
checkpoint (122,880 facts at once took 1.6 s); a storage version that every DuckDB we allow can read; keys in a list are looked up by
index; memory is bounded, because DuckDB keeps what it has read or written, up to most of the machine's memory; and SQL reaches nothing
outside of the file. A new file is made under another name, so that it has its schema when it has its name.
"""

from __future__ import annotations

import errno
import fcntl
import os
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
from perdure.ledger.errors import LedgerDamaged, LedgerError, LedgerLocked, LedgerTooNew, LedgerUnwritable
from perdure.ledger.store.seals import GENESIS, Mark
from perdure.ledger.whole_files import synchronise

_T = TypeVar("_T")
DATABASE, WAL, LOCK = "ledger.db", "ledger.db.wal", "ledger.lock"
EARLIER_JOURNAL = "ledger.journal"  # of the first layouts
EXAMINED = "ledger.db.examined"
UNBORN = "ledger.db.unborn"
MISSING = f"{DATABASE} is missing beside its journal"

SCHEMA_VERSION = 4
"""The layout: until 2 DuckDB's log was the commit, since 2 the journal is, since 3 a fact in it may be a crowd, and since 4 crowds have a
table of their own."""
JOURNAL_FIRST, CROWDS_FIRST = 2, 4
MIGRATIONS: tuple[str, ...] = (
    # 0 → 1: weights of facts before the last checkpoint, and payloads that know their fact
    (
        "CREATE TABLE seals (first_seq BIGINT, last_seq BIGINT, items BIGINT, total BLOB);"
        "ALTER TABLE payloads ADD COLUMN seq BIGINT DEFAULT 0;"
    ),
    # 1 → 2: the chain stands in the journal alone
    "ALTER TABLE facts DROP COLUMN digest;",
    # 3 → 4: crowds stand in one row
    (
        "CREATE TABLE IF NOT EXISTS crowds (seq BIGINT PRIMARY KEY, at_ms BIGINT, facts BIGINT, kind VARCHAR,"
        " body BLOB USING COMPRESSION uncompressed);"
    ),
)

DOCTOR = "run `perdure doctor` on this directory"
_FULL = ("No space left", "File too large", "Disk quota", "disk is full")
_REFUSED = ("Permission denied", "Read-only", "read-only", "Operation not permitted", "Cannot open file")
_FULL_ERRNO = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
INDEXED_MAX = 2_048  # keys in a list that are looked up by index; more read the whole table
MEMORY_MAX_MB = 512
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


class Lock:
    """An exclusive lock on the directory. The kernel releases it with the process, however that ends."""

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
            self.release()
            if problem.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise locked(directory, owner) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def is_of(self, directory: Path) -> bool:
        """Whether the lock is that of this directory, which may have been deleted or moved since it was opened."""
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file), (directory / LOCK).stat())
        except FileNotFoundError:
            return False

    @staticmethod
    def is_held(directory: Path) -> bool:
        """Whether a process has the lock now. Nothing is written."""
        try:
            file = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False


class Evidence:
    """Damaged files that are kept under new names. They are never deleted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        taken = [
            int(path.suffix[len(".damaged-") :])
            for path in directory.glob("ledger.*.damaged-*")
            if path.suffix[9:].isdigit()
        ]
        self._suffix = f".damaged-{max(taken, default=0) + 1}"
        self._moved: list[str] = []

    def copy(self, name: str) -> str:
        """Keep a copy of this file, if it exists and was not set aside before, and return the copy's name."""
        kept = self._directory / (name + self._suffix)
        if (self._directory / name).exists() and not kept.exists():
            try:
                shutil.copyfile(self._directory / name, kept)
            except OSError:
                kept.unlink(missing_ok=True)  # a full disk is not to be filled further by each start
                raise
        return kept.name

    def keep(self, name: str) -> str:
        """Give this file a second name, which stays when another file takes the first, and return it."""
        kept = self._directory / (name + self._suffix)
        try:
            kept.hardlink_to(self._directory / name)
        except OSError:  # not every file system has such names
            return self.copy(name)
        return kept.name

    def move(self, name: str) -> str:
        """Move this file out of the way, and return its new name."""
        (self._directory / name).rename(self._directory / (name + self._suffix))
        self._moved.append(name)
        return name + self._suffix

    def put_back(self) -> None:
        """Leave the directory as it was found: moved files return, with the copies that were made beside them."""
        if self._moved:
            for path in self._directory.glob(f"ledger.*{self._suffix}"):
                path.rename(path.with_suffix(""))
        self._moved.clear()


def connect(
    directory: Path,
    *,
    fsync: bool = True,
    read_only: bool = False,
    logged: bool = False,
    name: str = DATABASE,
    source: str = "",
) -> duckdb.DuckDBPyConnection:
    """Open the file, creating it if it is missing; beside it, as `source`, another one to be read.

    Unless it is `logged`, as it was in the first layouts, DuckDB replays and writes no log; the mark of a checkpoint that it leaves as one
    must be removed before. `TYPE duckdb` is part of each `ATTACH` so that the headers are read under the lock (`ledger.storage.disk`).
    Raises what DuckDB raises; `told` says it in plain words.
    """
    con = duckdb.connect(":memory:", config={"threads": 1, "async_threads": 0})
    place = str(directory).replace("'", "''")
    try:
        for setting in _SETTINGS:
            con.execute(setting.format(fsync_mode="STANDARD" if fsync else "NONE", directory=place))
        options = "READ_ONLY" if read_only else "BLOCK_SIZE 16384, ROW_GROUP_SIZE 8192, STORAGE_VERSION 'v2.0.0'"
        options += "" if logged or read_only else ", RECOVERY_MODE no_wal_writes"
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
    """Make the file with its tables, and then give it its name. What a start before left half made is made anew."""
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
    """Create the tables of a new file."""
    con.execute(files("perdure.ledger").joinpath("schema.sql").read_text(encoding="utf-8"))
    put(con, "schema_version", SCHEMA_VERSION)
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


def layout(directory: Path) -> int | None:
    """The version of the file's layout, without its log; None if there is no file, or one that was never finished."""
    if not (directory / DATABASE).exists():
        return None
    with without_log(directory) as name, closing(connect(directory, read_only=True, name=name)) as con:
        if not con.execute("SELECT 1 FROM duckdb_tables() WHERE database_name = 'ledger'").fetchall():
            return None
        return version_of(con)


def version_of(con: duckdb.DuckDBPyConnection) -> int:
    """The version of the layout; 0 for files from before there was one."""
    value = get(con, "schema_version")
    return 0 if value is None else int(value)


def get(con: duckdb.DuckDBPyConnection, key: str) -> Any:
    """A value of the meta table, or None."""
    row = con.execute("SELECT value FROM meta WHERE key = $1", [key]).fetchone()
    return None if row is None else msgpack.unpackb(row[0])


def put(con: duckdb.DuckDBPyConnection, key: str, value: object) -> None:
    """Replace a value of the meta table, inside the caller's transaction."""
    con.execute("DELETE FROM meta WHERE key = $1", [key])
    con.execute("INSERT INTO meta VALUES ($1, $2)", [key, msgpack.packb(value)])


def get_mark(con: duckdb.DuckDBPyConnection) -> tuple[int, Mark]:
    """Up to which fact the snapshot reaches, and the place in the chain up to which everything is sealed."""
    found = get(con, "mark")
    return (0, GENESIS) if found is None else (found[0], Mark(found[1], found[2]))


def put_mark(con: duckdb.DuckDBPyConnection, snapshot_seq: int, mark: Mark) -> None:
    """Replace both, inside the caller's transaction."""
    put(con, "mark", [snapshot_seq, mark.seq, mark.digest])


def transact(con: duckdb.DuckDBPyConnection, work: Callable[[], _T]) -> _T:
    """Run this work in one transaction, and return what it returns."""
    con.execute("BEGIN")
    done = work()
    con.execute("COMMIT")
    return done


def refuse_newer(con: duckdb.DuckDBPyConnection, directory: Path) -> None:
    """Raise `LedgerTooNew` if a newer version wrote the file."""
    if version_of(con) > SCHEMA_VERSION:
        raise too_new(directory, version_of(con))


def raise_layout(con: duckdb.DuckDBPyConnection, guard: BlockGuard) -> None:
    """Bring a file of an earlier layout to this one. It is on the disk before the journal is written."""
    if version_of(con) < SCHEMA_VERSION:
        con.execute("DROP TABLE IF EXISTS temp.crowds")

        def work() -> None:
            con.execute(MIGRATIONS[2])
            put(con, "schema_version", SCHEMA_VERSION)

        transact(con, work)
        with guard.around(con, "ledger"):
            con.execute("CHECKPOINT")


def locked(directory: Path, owner: str) -> LedgerLocked:
    """The error that another process uses the directory; `owner` names it, if it is known."""
    who = f"process {owner}" if owner else "another process"
    return LedgerLocked(
        str(directory), f"{who} is using this ledger", "ask through its supervisor, or stop that process first"
    )


def too_new(directory: Path, version: int) -> LedgerTooNew:
    """The error that a newer version wrote the directory."""
    words = f"a newer Perdure wrote it (layout {version}, known up to {SCHEMA_VERSION})"
    return LedgerTooNew(str(directory), words, "use a newer Perdure")


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
    if isinstance(problem, duckdb.OutOfMemoryException):
        return LedgerUnwritable(
            str(directory), f"memory ran out ({text})", "give the supervisor more memory and start again"
        )
    return LedgerDamaged(str(directory), f"DuckDB refused ({text})", DOCTOR)
