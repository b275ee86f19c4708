"""A copy of one storage's files as they were together at one moment, whether or not its agent is at work meanwhile.

A storage that is a log is one file, to which commits only append: the copy is cut after its last whole frame. A log that was written anew,
or has become a database meanwhile, is another file, and is read again.

Of a database, commits only append to DuckDB's log, and the database changes in checkpoints alone, each of which ends by taking the log
away. So the database is read first and the log after it. If then the database is the same, and the log is the same or has only grown, what
was read is the storage at a commit in between: the log is cut after its last whole commit. Otherwise a checkpoint came between, and it is
read again. What a checkpoint that did not end has saved (`block_guard`) is copied too, so the copy is mended as the storage would be.

No lock is taken: an agent that wakes meanwhile is not kept waiting.

A copy is read (`CopyReader`) as the agent's next life would open it, and stays as it is.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import duckdb

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import survey
from perdure.ledger.errors import StorageError
from perdure.ledger.maintenance.listing import Stamps, stamps_of
from perdure.ledger.storage.agent_database import insertion, signing
from perdure.ledger.storage.disk import SCHEMA, TYPE
from perdure.ledger.storage.file_disk import is_log_at, log_of
from perdure.ledger.storage.log_format import Numbered, Reading, clock_after, read_log, rows_of
from perdure.ledger.storage.patches import MAIN, WAL

_TRIES_MAX: Final = 200
_PAUSE_S: Final = 0.005
_TABLES: Final = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1"
_COME = """SELECT agent_id, incarnation, greatest(clock, (SELECT coalesce(max(number), 0) + 1 FROM {0}.perdure.records))
    FROM {0}.perdure.meta"""


def copy_storage(database: Path, target: Path) -> Stamps | None:
    """Copy a storage to `target`, its log and what is saved beside it. Returns what it was copied from; None if it was deleted meanwhile.

    Raises `StorageError` if it is checkpointed again and again, `OSError` if a file cannot be read or written.
    """
    for _ in range(_TRIES_MAX):
        before = stamps_of(database)
        if before is None:
            return None
        with suppress(FileNotFoundError):
            kept = _copied(database, target, before)
            if kept is not None:
                return kept
        time.sleep(_PAUSE_S)
    raise StorageError(str(database), f"it changed during each of {_TRIES_MAX} tries to copy it; try again later")


def _copied(database: Path, target: Path, before: Stamps) -> Stamps | None:
    # None if a checkpoint came between.
    for old in (target, log_of(target), BlockGuard(target).saved):
        old.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if before.saved is not None:
        shutil.copyfile(BlockGuard(database).saved, BlockGuard(target).saved)
    shutil.copyfile(database, target)
    if before.log is not None:
        _copy_log(log_of(database), log_of(target))
    after = stamps_of(database)
    if is_log_at(target):
        reading = read_log(target.read_bytes())
        if not reading.is_damaged:  # one that is damaged before its last whole frame stays as it is
            os.truncate(target, reading.end)
        return before if after is not None and after.database[0] == before.database[0] else None
    if after is None or (after.database, after.saved) != (before.database, before.saved):
        return None
    if before.log is None or after.log is None:
        return before if before.log is after.log is None else None
    return before if after.log[0] == before.log[0] and after.log[1] >= before.log[1] else None


def _copy_log(log: Path, target: Path) -> None:
    # A log that is damaged before its last whole commit is copied as it is.
    shutil.copyfile(log, target)
    content = target.read_bytes()
    end, is_damaged = survey(content)
    if not is_damaged and end < len(content):
        os.truncate(target, end)
    if not is_damaged and not end:
        target.unlink()


def files_of(copy: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in ((MAIN, copy), (WAL, log_of(copy))) if path.exists()}


class Come(NamedTuple):
    """A storage as it is: its agent (empty if nothing was committed yet), the agent's last life, and its `sequence`. `problem` says why it
    cannot be read."""

    agent_id: str = ""
    incarnation: int = 0
    sequence: int = 1
    problem: str = ""


def read_records(copy: Path) -> tuple[Reading, list[Numbered]]:
    """The log in this file, and its rows. Raises `StorageError` if it is damaged."""
    content = copy.read_bytes()
    reading = read_log(content)
    if reading.is_damaged:
        raise StorageError(str(copy), f"it is damaged at byte {reading.end}")
    return reading, [row for frame in reading.frames for row in rows_of(content, frame)]


class QueryResult(NamedTuple):
    columns: list[str]
    rows: list[tuple[Any, ...]]


class CopyReader:
    """Reads copies one after the other. It may be used by one thread at a time."""

    def __init__(self) -> None:
        self._con = duckdb.connect(":memory:", config={"threads": 1, "async_threads": 0})
        self._names = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._con.close()

    def read(self, copy: Path, *, through: bool = False) -> Come:
        """Read a copy. With `through` all rows of all tables are read, so that a damaged block is found."""
        if is_log_at(copy):
            try:
                reading, rows = read_records(copy)
            except StorageError as problem:
                return Come(problem=str(problem))
            head = reading.head
            return Come() if head is None else Come(head.agent_id, reading.incarnation, clock_after(reading, rows))
        try:
            with self.attached(copy) as name:
                found = self._con.execute(_COME.format(name)).fetchone()
                for schema, table in self._con.execute(_TABLES, [name]).fetchall() if through else ():
                    self._con.execute(f'SELECT max(hash(each)) FROM {name}."{schema}"."{table}" AS each').fetchall()
            return Come() if found is None else Come(*found)
        except duckdb.Error as problem:
            return Come(problem=str(problem).partition("\n")[0])

    @contextmanager
    def attached(self, copy: Path) -> Iterator[str]:
        """Attach a copy under a name. Its interrupted checkpoint, if there is one, is undone first, as the next life would do it. A log
        becomes a database in memory."""
        name = f"copy_{next(self._names)}"
        try:
            if is_log_at(copy):
                self._fill(name, copy)
            else:
                with closing(BlockGuard(copy, fsync=False)) as guard:
                    guard.mend()
                quoted = str(copy).replace("'", "''")
                self._con.execute(f"ATTACH '{quoted}' AS {name} ({TYPE}, READ_ONLY)")
            yield name
        finally:
            self._con.execute("USE memory")
            self._con.execute(f"DETACH DATABASE IF EXISTS {name}")

    def _fill(self, name: str, copy: Path) -> None:
        reading, rows = read_records(copy)
        self._con.execute(f"ATTACH ':memory:' AS {name} ({TYPE})")
        self._con.execute(SCHEMA.format(name))
        self._con.execute(f"USE {name}")
        if reading.head is not None:
            owner = reading.head.agent_id, reading.incarnation, reading.head.version
            self._con.execute(*signing(*owner, clock_after(reading, rows)))
        if rows:
            self._con.execute(*insertion(rows))
        self._con.execute("USE memory")

    def ask(self, query: str, *parameters: object) -> QueryResult:
        asked = self._con.execute(query, parameters)
        return QueryResult([each[0] for each in asked.description or ()], asked.fetchall())
