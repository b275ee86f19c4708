"""Whose a copied storage is, and how far it has come. The copy is opened as the agent's next life would open it, and stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import duckdb

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.errors import StorageError
from perdure.ledger.storage.agent_database import insertion, signing
from perdure.ledger.storage.disk import SCHEMA, TYPE
from perdure.ledger.storage.file_disk import is_log_at
from perdure.ledger.storage.log_format import Numbered, Reading, clock_after, read_log, rows_of

_TABLES: Final = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1"
_COME = """SELECT agent_id, incarnation, greatest(clock, (SELECT coalesce(max(number), 0) + 1 FROM {0}.perdure.records))
    FROM {0}.perdure.meta"""


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


def _come_of(copy: Path) -> Come:
    try:
        reading, rows = read_records(copy)
    except StorageError as problem:
        return Come(problem=str(problem))
    head = reading.head
    return Come(head.agent_id, reading.incarnation, clock_after(reading, rows)) if head is not None else Come()


class QueryResult(NamedTuple):
    """The names of columns, and rows."""

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
            return _come_of(copy)
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
                self._attach(name, copy)
            yield name
        finally:
            self._con.execute("USE memory")
            self._con.execute(f"DETACH DATABASE IF EXISTS {name}")

    def _attach(self, name: str, copy: Path) -> None:
        guard = BlockGuard(copy, fsync=False)
        try:
            guard.mend()
        finally:
            guard.close()
        quoted = str(copy).replace("'", "''")
        self._con.execute(f"ATTACH '{quoted}' AS {name} ({TYPE}, READ_ONLY)")

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
