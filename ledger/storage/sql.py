"""One agent's SQL: what a script is before it runs, and the cursor on which it runs.

A script is judged by its statements before anything runs, because three questions must be answered without asking the
database: may an agent say this at all (it may not end a transaction that is not its own to end), does it only read (then it
creates no file and needs no commit), and which tables' rows does it update or delete.

The last question exists because DuckDB finds only half of the write-write conflicts. Measured on 2.0: two updates of a row
collide, two deletions collide, but an update of a row that another transaction has deleted since reports `1 row` and commits
to nothing, and a deletion of a row that was updated since simply wins. `Storage` therefore compares the tables at commit.
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from threading import RLock
from typing import Any, Literal, NamedTuple

import duckdb
from duckdb import StatementType

from perdure.ledger.errors import BadRequest, StaleIncarnation
from perdure.ledger.storage.sql_rules import kind_of

Parameters = Sequence[object] | Mapping[str, object] | None
Change = tuple[Literal["update", "delete"], str]

OVER = "this life of the agent is over"

_TEXT_REMEMBERED_MAX = 4096
_INTERRUPT_AGAIN_S = 0.001
_ALTERING = {
    StatementType.CREATE,
    StatementType.ALTER,
    StatementType.DROP,
    StatementType.MULTI,
    StatementType.CREATE_FUNC,
}

_WRITE_INSIDE_SELECT = re.compile(r"\(\s*(insert|update|delete|merge)\b", re.IGNORECASE)
_SEQUENCE = re.compile(r"\bnextval\b", re.IGNORECASE)
_UPSERT = re.compile(r"\bon\s+conflict\b|\bor\s+replace\b", re.IGNORECASE)
_TARGET = re.compile(
    r"\b(?:delete\s+from|truncate(?:\s+table)?|update|into)\s+(?:only\s+)?((?:\"[^\"]+\"|[\w.])+)",
    re.IGNORECASE,
)
_CONFLICT = re.compile(
    r"TransactionContext Error: (?:Failed to commit: )?"
    r"(?:Conflict on|Catalog write-write conflict|write-write conflict|Transaction conflict|"
    r"PRIMARY KEY or UNIQUE constraint)"
)


class SqlScript(NamedTuple):
    """What a SQL text does. `selects_only` means that it cannot create anything. `parsed` is what runs: one statement is parsed only once,
    which saves half of what it costs; of several the text is run."""

    text: str
    parsed: duckdb.Statement | str
    empty: bool
    selects_only: bool
    only_reads: bool
    alters: bool
    changes: frozenset[Change]


def script_of(text: str) -> SqlScript:
    """Classify a text. Raises `BadRequest` for a statement that agents may not use, and DuckDB's `ParserException`."""
    return _remembered(text) if len(text) <= _TEXT_REMEMBERED_MAX else _judge(text)


def _judge(text: str) -> SqlScript:
    statements = duckdb.extract_statements(text)
    kinds: set[StatementType] = set()
    changes: set[Change] = set()
    for statement in statements:
        kind = kind_of(statement)
        kinds.add(kind)
        changes.update(_changes(kind, statement.query))
    selects_only = kinds <= {StatementType.SELECT}
    return SqlScript(
        text=text,
        parsed=statements[0] if len(statements) == 1 else text,
        empty=not statements,
        selects_only=selects_only,
        only_reads=selects_only and not changes and not _SEQUENCE.search(text),
        alters=bool(kinds & _ALTERING),
        changes=frozenset(changes),
    )


_remembered = lru_cache(maxsize=1024)(_judge)
atexit.register(_remembered.cache_clear)  # DuckDB reports what is left at exit as a leak, on stderr


def _changes(kind: StatementType, query: str) -> set[Change]:
    """Which rows a statement may update or delete, by table; `*` where the text does not tell."""
    if kind is StatementType.EXPLAIN or (kind is StatementType.SELECT and _WRITE_INSIDE_SELECT.search(query)):
        return {("update", "*"), ("delete", "*")}
    upserts = kind is StatementType.INSERT and _UPSERT.search(query)
    if not upserts and kind not in {StatementType.UPDATE, StatementType.DELETE, StatementType.MERGE_INTO}:
        return set()
    target = _TARGET.search(query)
    table = target[1].replace('"', "").lower().rpartition(".")[2] if target else "*"
    changes: set[Change] = set()
    if kind is not StatementType.DELETE:
        changes.add(("update", table))
    if kind in {StatementType.DELETE, StatementType.MERGE_INTO}:
        changes.add(("delete", table))
    return changes


def collide(mine: Change, other: Change) -> bool:
    """Whether these two may conflict in a way that DuckDB does not see: one updates rows that the other deletes."""
    return mine[0] != other[0] and (mine[1] == other[1] or "*" in {mine[1], other[1]})


def is_conflict(problem: duckdb.Error) -> bool:
    """Whether DuckDB refused because another transaction was first. It says "no space left" with the same class of error."""
    return isinstance(problem, duckdb.TransactionException) and _CONFLICT.match(str(problem)) is not None


def refuse_untaken(parameters: Parameters, problem: Exception) -> None:
    """After a failed statement: raise `BadRequest` for the first parameter that DuckDB does not take, if that was the reason."""
    if parameters is not None and not isinstance(parameters, list | tuple | Mapping):
        raise BadRequest("parameters", f"are a list or a dictionary, not {type(parameters).__name__}") from problem
    named = parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters or ())
    with duckdb.connect() as probe:
        for name, value in named:
            try:
                probe.execute("SELECT $1", [value])
            except (duckdb.Error, TypeError) as refusal:
                said = str(refusal).partition("Error: ")[2] or str(refusal)
                raise BadRequest(
                    f"parameters[{name!r}]", f"DuckDB does not take this {type(value).__name__}: {said}"
                ) from problem


class SqlCursor:
    """One cursor that stands in one agent's database and runs one statement at a time, from any thread.

    After `shut`, a lane refuses every use, and a statement that another thread runs on it is interrupted. So nothing of a life that is
    over reaches the file after `shut` has returned.
    """

    def __init__(self, agent_id: str, cursor: duckdb.DuckDBPyConnection, database: str | None) -> None:
        self.agent_id = agent_id
        self.database = database
        self._cursor = cursor
        self._lock = RLock()
        self._shut = False
        self._in_transaction = False
        if database is not None:
            cursor.execute(f"USE {database}")

    def run(self, query: str | duckdb.Statement, parameters: Parameters = None) -> list[tuple[Any, ...]]:
        """Run a text, or one statement that is parsed already, and fetch all rows of the last statement."""
        with self._lock:
            self._check()
            try:
                return self._cursor.execute(query, parameters).fetchall()
            except duckdb.InterruptException:
                self._check()
                raise
            except (duckdb.NotImplementedException, duckdb.InvalidInputException, TypeError) as problem:
                refuse_untaken(parameters, problem)
                raise

    def begin(self) -> None:
        """Open a transaction, if none is open. Its first statement takes the snapshot."""
        with self._lock:
            self._check()
            if not self._in_transaction:
                self._cursor.begin()
                self._in_transaction = True

    def commit(self) -> None:
        """Commit what is open, if anything is. A transaction in which a statement failed commits to *nothing*, without an error;
        the caller must know."""
        with self._lock:
            self._check()
            if self._in_transaction:
                self._in_transaction = False  # also if it fails: DuckDB has rolled back then
                self._cursor.commit()

    def rollback(self) -> None:
        """Roll back what is open; harmless when nothing is."""
        with self._lock:
            if self._in_transaction and not self._shut:
                self._in_transaction = False
                self._cursor.rollback()

    def shut(self) -> None:
        """Interrupt what runs, roll back what is open, refuse from now on. Idempotent."""
        self._shut = True
        while not self._lock.acquire(timeout=_INTERRUPT_AGAIN_S):
            with suppress(duckdb.ConnectionException):  # closed meanwhile
                self._cursor.interrupt()  # again and again, for it is lost on a statement that is only about to begin
        self._cursor.close()
        self._lock.release()

    def _check(self) -> None:
        if self._shut:
            raise StaleIncarnation(self.agent_id, OVER)
