"""Rebuilding a ledger whose file DuckDB can no longer read.

Two sources can stand in for the file. **The journal**, if it began at fact 1: then it has every commit, and the file is not needed. Else
**what DuckDB can still read of the file**: its blocks have checksums, so a damaged block is known, and every other row is what was
written. Facts and payloads may be missing in part, because they are history. The snapshot (`runs`, `agents`, `mail`, `meta`) must be
whole, because a boot trusts it. If it is not, all facts from the first must be there, and the snapshot is folded anew from them.

The new file is made beside the old one and takes its name at the end, so a death on the way changes nothing. The old one is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.store.duckdb_file import (
    DATABASE,
    INDEXED_MAX,
    MISSING,
    WAL,
    KeptEvidence,
    connect,
    get_mark,
    prepare,
    put_mark,
    told,
    transact,
    without_log,
)
from perdure.ledger.store.duckdb_tables import COLUMNS, count_facts
from perdure.ledger.store.journal_scan import scan
from perdure.ledger.store.lock import Lock
from perdure.ledger.store.seals import GENESIS, Mark, seal_anew

REBUILT = "ledger.db.rebuilt"
HISTORY = ("facts", "batches", "payloads")
SNAPSHOT = ("runs", "agents", "mail", "meta")
_KEYS = {**{table: (columns[0], "VARCHAR") for table, columns in COLUMNS.items()}, "batches": ("seq", "BIGINT")}
_VECTOR = 2_048  # rows that DuckDB reads together; of a smaller piece nothing more can be had
_PIECE = 16 * _VECTOR
_ELSEWHERE = "bring back a copy of the directory, or move it away and begin anew"
_REPAIR = "run `perdure doctor --repair`: it"


class Saved(NamedTuple):
    """How many rows of a table could be read, and how many there are; None if even that cannot be read."""

    read: int
    there: int | None

    @property
    def whole(self) -> bool:
        return self.read == self.there


def unreadable(directory: Path) -> str:
    """Why the database cannot be read in full, in DuckDB's words; empty if it can. Its log is not read."""
    if not (directory / DATABASE).exists():
        return MISSING
    try:
        with without_log(directory) as name, closing(connect(directory, read_only=True, name=name)) as con:
            read_through(con)
    except duckdb.Error as problem:
        refusal = told(directory, problem)
        return refusal.problem if isinstance(refusal, LedgerDamaged) else ""
    return ""


def read_through(con: duckdb.DuckDBPyConnection) -> None:
    """Read every row of every table but the one that is derived, and find every row by its key as a start does. Raises what DuckDB raises
    at a damaged block."""
    for table in (*HISTORY, *SNAPSHOT, "seals"):
        con.execute(f"SELECT max(hash({table})) FROM {table}").fetchall()
    for table, (key, kind) in _KEYS.items():
        keys = con.cursor().execute(f"SELECT {key} FROM ledger.{table}")
        found = f"SELECT count(body) FROM {table} WHERE {key} IN (SELECT unnest($1::{kind}[]))"
        while rows := keys.fetchmany(INDEXED_MAX):
            con.execute(found, [[key for (key,) in rows]]).fetchall()


def way_out(directory: Path) -> str:
    """Advice about a database that cannot be read."""
    if _begins_at_first(directory):
        return f"{_REPAIR} builds the ledger anew from its journal, which has every commit from the first on, and keeps what is damaged"
    try:
        with without_log(directory) as name:
            connect(directory, read_only=True, name=name).close()
    except (duckdb.Error, OSError):
        bases = scan(directory).bases
        begins = f"begins at fact {bases[0].seq + 1}" if bases else "cannot be read either"
        return f"{_ELSEWHERE}; the journal {begins}, so the ledger cannot be built anew from it"
    return f"{_REPAIR} saves what can be read, says what cannot, and keeps the damaged file"


def _begins_at_first(directory: Path) -> bool:
    return scan(directory).bases[:1] == [GENESIS]


def rebuild(directory: Path) -> list[str]:
    """Put a new file in the place of one that cannot be read, and say what is in it and what is not. The next start adds what the
    journal has beyond it. Raises `LedgerDamaged` if too little is left, with every file as it was found, and what a `Lock` raises.
    """
    lock = Lock(directory)
    try:
        (directory / REBUILT).unlink(missing_ok=True)
        said = _empty(directory) if _begins_at_first(directory) else _saved(directory)
        return [*_exchange(directory), said]
    finally:
        for left in (REBUILT, f"{REBUILT}.wal"):
            (directory / left).unlink(missing_ok=True)
        lock.release()


def _exchange(directory: Path) -> Iterator[str]:
    # The old file is kept. Its log is moved first.
    evidence = KeptEvidence(directory)
    if (directory / WAL).exists():
        yield f"the log is kept as {evidence.move(WAL)}"
    if (directory / DATABASE).exists():
        yield f"the damaged file is kept as {evidence.keep(DATABASE)}"
    (directory / REBUILT).replace(directory / DATABASE)


def _empty(directory: Path) -> str:
    # The journal has all facts, so the file has none.
    with closing(connect(directory, name=REBUILT)) as con:
        prepare(con)
    scanned = scan(directory)
    last_seq = scanned.entries[-1].after.seq if scanned.entries else 0
    state = "damaged in places" if scanned.flaws else "whole"
    return f"the ledger is built anew from its journal, which is {state}: it has the facts 1 to {last_seq}"


def _saved(directory: Path) -> str:
    if not (directory / DATABASE).exists():
        raise LedgerDamaged(str(directory), MISSING, way_out(directory))
    try:
        with without_log(directory) as name, closing(connect(directory, name=REBUILT, source=name)) as con:
            prepare(con)
            saved = {table: _copy(con, table) for table in (*HISTORY, *SNAPSHOT)}
            if not any(saved[table].read for table in ("facts", "batches", "runs")):
                raise LedgerDamaged(str(directory), f"nothing of it can be read: {_words(saved)}", _ELSEWHERE)
            mark = get_mark(con)[1] if saved["meta"].whole else None
            if not all(saved[table].whole for table in SNAPSHOT):
                mark = _without_snapshot(directory, con, saved, mark)
            seal_anew(con, mark.seq if mark is not None else 0)
            con.execute("CHECKPOINT")
    except (duckdb.Error, OSError) as problem:
        refusal = told(directory, problem)
        if isinstance(refusal, LedgerDamaged):
            refusal = LedgerDamaged(refusal.path, refusal.problem, way_out(directory))
        raise refusal from problem
    return f"the ledger is built anew from what can be read: {_words(saved)}"


def _without_snapshot(
    directory: Path, con: duckdb.DuckDBPyConnection, saved: dict[str, Saved], known: Mark | None
) -> Mark:
    # A boot folds all facts instead of an incomplete snapshot, if none of them is missing.
    count, last_seq = count_facts(con)
    if not all(saved[table].whole for table in ("facts", "batches")) or count != last_seq:
        raise LedgerDamaged(str(directory), f"too much of it cannot be read: {_words(saved)}", _ELSEWHERE)
    journal = scan(directory)
    places = [*journal.bases, *(entry.after for entry in journal.entries)]
    mark = known or next((place for place in places if place.seq == count), Mark(count, bytes(16)))

    def work() -> None:
        for table in SNAPSHOT:
            con.execute(f"DELETE FROM {table}")
        put_mark(con, 0, mark)

    transact(con, work)
    return mark


def _words(saved: dict[str, Saved]) -> str:
    parts = {table: each for table, each in saved.items() if each.there != 0}
    words = [
        f"no row of {table}"
        if each.there is None
        else f"{'all' if each.whole else f'{each.read:,} of'} {each.there:,} rows of {table}"
        for table, each in parts.items()
    ]
    return ", ".join(words)


def _copy(con: duckdb.DuckDBPyConnection, table: str) -> Saved:
    try:
        query = f"SELECT count(*), coalesce(max(rowid), -1) FROM source.{table}"
        (there, last) = con.execute(query).fetchone() or (0, -1)
    except duckdb.Error:
        return Saved(0, None)
    con.execute(f"DELETE FROM {table}")
    columns = ", ".join(str(column[0]) for column in con.execute(f"SELECT * FROM {table} LIMIT 0").description or ())
    pieces = (_piece(con, table, columns, first, min(first + _PIECE, last + 1)) for first in range(0, last + 1, _PIECE))
    return Saved(sum(pieces), there)


def _piece(con: duckdb.DuckDBPyConnection, table: str, columns: str, first: int, end: int) -> int:
    # If the rows cannot be read together, their halves are copied.
    copying = f"INSERT INTO {table} BY NAME SELECT {columns} FROM source.{table} WHERE rowid >= $1 AND rowid < $2"
    answer = _answer(con, copying, [first, end])
    if answer is not None:
        return sum(count for (count,) in answer)
    if end - first <= _VECTOR:
        return _one_by_one(con, columns, first, end) if table == "batches" else 0
    middle = (first + end) // 2
    return _piece(con, table, columns, first, middle) + _piece(con, table, columns, middle, end)


def _one_by_one(con: duckdb.DuckDBPyConnection, columns: str, first: int, end: int) -> int:
    # Under its key each batch is read by itself.
    copying = f"INSERT INTO batches BY NAME SELECT {columns} FROM source.batches WHERE seq = $1"
    keys = _answer(con, "SELECT seq FROM source.batches WHERE rowid >= $1 AND rowid < $2", [first, end])
    answers = [_answer(con, copying, [seq]) for (seq,) in keys or ()]
    return sum(count for answer in answers for (count,) in answer or ())


def _answer(con: duckdb.DuckDBPyConnection, query: str, arguments: list[int]) -> list[tuple[Any, ...]] | None:
    """What a query gives; None if what it reads is damaged."""
    try:
        return con.execute(query, arguments).fetchall()
    except duckdb.Error as problem:
        if not isinstance(told(Path(), problem), LedgerDamaged):
            raise
        return None
