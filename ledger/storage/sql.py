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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import dropwhile, pairwise
from threading import RLock
from typing import Any, Final, Literal, NamedTuple, NoReturn

import duckdb
from duckdb import StatementType

from perdure.ledger.errors import BadRequest, StaleIncarnation

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
    # `*` where the text does not tell the table.
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
    # DuckDB does not see it when one updates rows that the other deletes.
    return mine[0] != other[0] and (mine[1] == other[1] or "*" in {mine[1], other[1]})


def is_conflict(problem: duckdb.Error) -> bool:
    # DuckDB says "no space left" with the same class of error.
    return isinstance(problem, duckdb.TransactionException) and _CONFLICT.match(str(problem)) is not None


def refuse_untaken(parameters: Parameters, problem: Exception) -> None:
    # Called after a failed statement. Raises `BadRequest` for the first parameter that DuckDB does not take, if there is one.
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


# ---------------------------------------------------------------- what an agent may not say
# A statement is judged by what DuckDB's parser tells of it, and by its words, without comments and texts. Only what it changes is
# judged: our own tables may be read.

_TRANSACTIONS: Final = "transactions are opened with self.transaction(), and commit when its block ends"
_POOLED: Final = "the next statement may run on another cursor, so nothing that is set on a connection would stay"
_NEIGHBOURS: Final = "an agent has one database, its own; other agents live in the same process"
_TEMPORARY: Final = f"{_POOLED}. Make a table, and drop it when it is not needed any more"
_OURS: Final = "the schema perdure holds the agent's state, its runs and its mail; without them the agent would be lost"
_ELSEWHERE: Final = "what is not in the agent's own database is gone when its process ends"
_PROCESS: Final = (
    "other agents live in the same process, and it would hold for them, too. A connection of your own, "
    "`duckdb.connect()`, has what you set in it"
)
_EXTENSIONS: Final = (
    "the agent's database must open in processes that have not loaded it. A connection of your own, "
    "`duckdb.connect()`, may load what you like"
)
_CHECKPOINTS: Final = "Perdure makes the checkpoints of an agent's database, when nothing can be lost by one"
_COPIES: Final = "self.storage.snapshot(path), restore(path) and fork(name) copy a storage"

_KINDS: Final = {
    StatementType.TRANSACTION: _TRANSACTIONS,
    StatementType.SET: _POOLED,
    StatementType.VARIABLE_SET: _POOLED,
    StatementType.PREPARE: _POOLED,
    StatementType.EXECUTE: _POOLED,
    StatementType.ATTACH: _NEIGHBOURS,
    StatementType.DETACH: _NEIGHBOURS,
    StatementType.LOAD: _EXTENSIONS,
    StatementType.EXPORT: _COPIES,
}
_BEGINNINGS: Final = {  # of statements that have no kind of their own
    ("deallocate",): _POOLED,
    ("import", "database"): _COPIES,
    ("copy", "from", "database"): _NEIGHBOURS,
    ("update", "extensions"): _EXTENSIONS,
    ("checkpoint",): _CHECKPOINTS,
    ("force", "checkpoint"): _CHECKPOINTS,
}
_PRAGMAS_THAT_LOOK: Final = frozenset(
    {
        *("collations", "database_list", "database_size", "functions", "metadata_info", "platform", "show"),
        *(
            "show_databases",
            "show_tables",
            "show_tables_expanded",
            "storage_info",
            "table_info",
            "user_agent",
            "version",
        ),
    }
)
_CHECKPOINTING: Final = frozenset({"checkpoint", "force_checkpoint"})
_TEMPORARIES: Final = frozenset({"temp", "temporary"})
_OTHER_DATABASES: Final = frozenset({"temp", "memory", "system"})
_CHANGING: Final = frozenset({"into", "update", "delete", "truncate"})
_BEFORE_A_KIND: Final = frozenset({"or", "replace", "local", "global", "unique", "recursive", "persistent", "on"})
_BEFORE_A_NAME: Final = frozenset({"if", "not", "exists", "only", "table", "from"})


def kind_of(statement: duckdb.Statement) -> StatementType:
    """What a statement is. Raises `BadRequest`, with the reason, for one that agents may not use."""
    words = list(_words(statement.query))
    try:
        kind = statement.type
    except ValueError:  # a kind that this binding has no name for
        _refuse(statement, _beginning(words) or "Perdure does not know this statement")
    sets = kind is StatementType.PRAGMA and not _PRAGMAS_THAT_LOOK.intersection(words[1:2])
    reason = _KINDS.get(kind) or _beginning(words) or (_POOLED if sets else _of_words(words))
    if reason:
        _refuse(statement, reason)
    return kind


def _refuse(statement: duckdb.Statement, reason: str) -> NoReturn:
    raise BadRequest("sql", f"{statement.query.strip()!r:.200} is not for an agent: {reason}") from None


def _beginning(words: Sequence[str]) -> str:
    return next((reason for begin, reason in _BEGINNINGS.items() if tuple(words[: len(begin)]) == begin), "")


def _of_words(words: Sequence[str]) -> str:
    if any(first in _CHECKPOINTING and second == "(" for first, second in pairwise(words)):
        return _CHECKPOINTS
    rest = list(dropwhile({"explain", "analyze"}.__contains__, words))
    defined = list(dropwhile(_BEFORE_A_KIND.__contains__, rest[1:]))
    if rest[:1] == ["create"] and defined[:1] and defined[0] in _TEMPORARIES:
        return _TEMPORARY
    if rest[:1] in (["create"], ["drop"]) and "secret" in defined[:2]:
        return _PROCESS
    written = (("table", list(_name(words, at + 1))) for at, word in enumerate(words) if word in _CHANGING)
    changed = [*_defined(rest[:1], defined), *written]
    return next(filter(None, (_of_target(kind, target) for kind, target in changed)), "")


def _of_target(kind: str, target: Sequence[str]) -> str:
    if "perdure" in target[:-1] or (kind == "schema" and target[-1:] == ["perdure"]):
        return _OURS
    return _ELSEWHERE if len(target) > 1 and target[0] in _OTHER_DATABASES else ""


def _defined(verb: Sequence[str], defined: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    # What a statement defines, alters or drops: its kind, and its name by its parts; of an index also its table's.
    if verb in (["create"], ["drop"], ["alter"], ["comment"]) and defined:
        yield defined[0], list(_name(defined, 1))
        if "index" in defined[:1] and "on" in defined:
            yield "table", list(_name(defined, defined.index("on") + 1))
    elif verb == ["copy"] and "from" in defined:
        yield "table", list(_name(defined, 0))


def _name(words: Sequence[str], at: int) -> Iterator[str]:
    while at < len(words) and words[at] in _BEFORE_A_NAME:
        at += 1
    while at < len(words):
        yield words[at]
        if words[at + 1 : at + 2] != ["."]:
            return
        at += 2


def _words(query: str) -> Iterator[str]:
    # Names are without quotes and in small letters. Texts and comments are left out.
    text = query.encode()
    tokens = duckdb.tokenize(query)
    ends = [*(place for place, _ in tokens[1:]), len(text)]
    for (place, kind), end in zip(tokens, ends, strict=True):
        said = text[place:end].decode().strip()
        if kind in {duckdb.token_type.comment, duckdb.token_type.string_const}:
            continue
        if said.startswith('"') and said.endswith('"'):
            said = said[1:-1].replace('""', '"')
        if said:
            yield said.lower()


# ---------------------------------------------------------------- the cursor


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
        # The first statement takes the snapshot.
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
