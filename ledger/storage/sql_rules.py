"""Which SQL an agent may not use, and why: what DuckDB's parser tells of a statement, and its words, without comments and texts.

Only what a statement changes is judged. Our own tables may be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise
from typing import Final, NoReturn

import duckdb
from duckdb import StatementType

from perdure.ledger.errors import BadRequest

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
    reason = _KINDS.get(kind) or _beginning(words) or _of_pragma(kind, words) or _of_words(words)
    if reason:
        _refuse(statement, reason)
    return kind


def _refuse(statement: duckdb.Statement, reason: str) -> NoReturn:
    raise BadRequest("sql", f"{statement.query.strip()!r:.200} is not for an agent: {reason}") from None


def _beginning(words: Sequence[str]) -> str:
    return next((reason for begin, reason in _BEGINNINGS.items() if tuple(words[: len(begin)]) == begin), "")


def _of_pragma(kind: StatementType, words: Sequence[str]) -> str:
    looks = len(words) > 1 and words[1] in _PRAGMAS_THAT_LOOK
    return _POOLED if kind is StatementType.PRAGMA and not looks else ""


def _of_words(words: Sequence[str]) -> str:
    """Why the words of a statement forbid it; empty if they do not."""
    if any(first in _CHECKPOINTING and second == "(" for first, second in pairwise(words)):
        return _CHECKPOINTS
    rest = list(dropwhile({"explain", "analyze"}.__contains__, words))
    defined = list(dropwhile(_BEFORE_A_KIND.__contains__, rest[1:]))
    if rest[:1] == ["create"] and defined[:1] and defined[0] in _TEMPORARIES:
        return _TEMPORARY
    if rest[:1] in (["create"], ["drop"]) and "secret" in defined[:2]:
        return _PROCESS
    changed = [*_defined(rest[:1], defined), *_written(words)]
    return next(filter(None, (_of_target(kind, target) for kind, target in changed)), "")


def _of_target(kind: str, target: Sequence[str]) -> str:
    """Why nothing of this name may be changed."""
    if "perdure" in target[:-1] or (kind == "schema" and target[-1:] == ["perdure"]):
        return _OURS
    return _ELSEWHERE if len(target) > 1 and target[0] in _OTHER_DATABASES else ""


def _defined(verb: Sequence[str], defined: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """What a statement defines, alters or drops: its kind, and its name by its parts; of an index also its table's."""
    if verb in (["create"], ["drop"], ["alter"], ["comment"]) and defined:
        yield defined[0], list(_name(defined, 1))
        if "index" in defined[:1] and "on" in defined:
            yield "table", list(_name(defined, defined.index("on") + 1))
    elif verb == ["copy"] and "from" in defined:
        yield "table", list(_name(defined, 0))


def _written(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The tables whose rows a statement changes, wherever it says so."""
    yield from (("table", list(_name(words, at + 1))) for at, word in enumerate(words) if word in _CHANGING)


def _name(words: Sequence[str], at: int) -> Iterator[str]:
    """The parts of the name that begins here, behind what may stand before it."""
    while at < len(words) and words[at] in _BEFORE_A_NAME:
        at += 1
    while at < len(words):
        yield words[at]
        if words[at + 1 : at + 2] != ["."]:
            return
        at += 2


def _words(query: str) -> Iterator[str]:
    """The words of a statement: names without quotes and in small letters; texts and comments are left out."""
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
