"""What `perdure doctor` does with a ledger that is not in use: examine everything, and repair what can be repaired.

`examine` changes nothing. It checks each proof that the ledger keeps: the weights of everything up to the last checkpoint, the journal's
chain after it, and that records and facts agree. `repair` gives up what cannot be proven: it keeps copies of every file, cuts the facts
at the first one that is missing, and seals what is left. A file that DuckDB cannot read is rebuilt. A repaired ledger is consistent; what
it lost is in the findings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import duckdb

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.errors import LedgerDamaged, LedgerError, LedgerLocked, LedgerUnwritable
from perdure.ledger.store.duckdb_file import (
    DATABASE,
    DOCTOR,
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
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.duckdb_tables import COLUMNS, count_facts, spell_out
from perdure.ledger.store.journal_scan import assess, has_everything, has_segments, scan
from perdure.ledger.store.key_filter import DAMAGED, read_through_filter
from perdure.ledger.store.lock import LOCK, Lock
from perdure.ledger.store.seals import GENESIS, Mark, broken_seals, seal_anew

Severity = Literal["ok", "warning", "damage", "refused"]

_REPAIR = "run `perdure doctor --repair`; it keeps copies of every file"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of an examination. A `warning` mends itself at the next start, a `damage` does not; `refused` is what could not be
    examined."""

    severity: Severity
    what: str
    advice: str = ""


_UNLOCKED = Finding(
    "warning",
    f"{LOCK} was missing, so two processes could have used the ledger at once",
    "it is there again now; end processes that still serve this directory, and look again",
)


def examine(directory: Path) -> list[Finding]:
    """Examine every part of a ledger and change none. A ledger that is in use is refused."""
    try:
        if not is_begun(directory):
            return [Finding("refused", f"there is no ledger in {directory}", "check the path")]
        had_lock = lock_of(directory).exists()
        lock = Lock(directory)
    except (LedgerLocked, LedgerUnwritable) as refusal:
        return [_of(refusal)]
    except OSError as problem:
        return [_of(told(directory, problem))]
    try:
        return [*([] if had_lock else [_UNLOCKED]), *_examine(directory)]
    except OSError as problem:
        return [_of(told(directory, problem))]
    finally:
        lock.release()


def lock_of(directory: Path) -> Path:
    return directory / LOCK


def is_begun(directory: Path) -> bool:
    """Whether there is a ledger. Raises `LedgerUnwritable` if that cannot be known."""
    try:
        return DATABASE in os.listdir(directory) or has_segments(directory)  # noqa: PTH208 - no Path tells a folder that may not be read
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as problem:
        raise told(directory, problem) from problem


def refuse_if_in_use(directory: Path) -> None:
    """Raises `LedgerLocked`, which names the process, if one is using this ledger, and `LedgerUnwritable` if that cannot be known."""
    if not is_begun(directory):
        return
    try:
        Lock(directory).release()
    except OSError as problem:
        raise told(directory, problem) from problem


def repair(directory: Path) -> list[Finding]:
    """Repair what can be repaired and give up the rest. Copies of every file are kept. Ends with a new examination."""
    before = examine(directory)
    severities = {finding.severity for finding in before}
    if severities == {"ok"}:
        return [Finding("ok", "there is nothing to repair"), *before]
    if "refused" in severities:
        return before
    try:
        done = list(_mended(directory, beyond_mending="damage" in severities))
    except LedgerError as refusal:
        return [_of(_advised(directory, refusal))]
    except OSError as problem:
        return [_of(told(directory, problem))]
    return [Finding("warning", words) for words in done] + examine(directory)


def _mended(directory: Path, *, beyond_mending: bool) -> Iterator[str]:
    # A start mends, and gives up what it must if it is told to. A file that cannot be read is built anew before.
    problem = _unreadable(directory) if beyond_mending else ""
    if problem:
        yield problem
        yield from _rebuild(directory)
    if problem or not beyond_mending:
        with suppress(LedgerDamaged), closing(DuckDBStore(directory)) as store:
            yield from store.boot().findings
            return
    try:
        yield from _started(directory)
    except LedgerDamaged as refusal:  # what every row can be read of may still not be written
        if problem:
            raise
        yield refusal.problem
        yield from _rebuild(directory)
        yield from _started(directory)


def _started(directory: Path) -> list[str]:
    with closing(DuckDBStore(directory, repair=True)) as store:
        return store.boot().findings


def _examine(directory: Path) -> Iterator[Finding]:
    if not (directory / DATABASE).exists():
        if has_everything(directory):
            yield Finding("warning", MISSING, "the next start builds it anew from the journal, which has every commit")
        else:
            yield Finding("damage", MISSING, _way_out(directory))
        return
    if BlockGuard(directory / DATABASE).saved.exists():
        yield Finding("warning", "a checkpoint did not end", "the next start puts back what it has torn")
    with ExitStack() as stack:
        try:
            name = stack.enter_context(without_log(directory))
            con = stack.enter_context(closing(connect(directory, read_only=True, name=name)))
            _read_through(con)
            yield from _derived(con)
            yield from _sealed(con)
            yield from _recent(con, directory)
            yield from _consistent(con)
        except duckdb.Error as problem:
            yield _of(_advised(directory, told(directory, problem)))


def _advised(directory: Path, refusal: LedgerError) -> LedgerError:
    # What this doctor can do about it stands in the place of the advice to come here.
    if not isinstance(refusal, LedgerDamaged) or refusal.advice != DOCTOR:
        return refusal
    return LedgerDamaged(refusal.path, refusal.problem, _way_out(directory))


def _derived(con: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    # The filter says nothing that the records do not say, so damage to it is only a warning.
    try:
        read_through_filter(con)
    except duckdb.Error as problem:
        if not is_damage(problem):
            raise
        yield Finding("warning", DAMAGED, "the next start builds it anew from the records")


def _sealed(con: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    _, mark = get_mark(con)
    broken = [Finding("damage", words, _REPAIR) for words in broken_seals(con, mark.seq)]
    yield from broken or [Finding("ok", f"all facts kept up to {mark.seq} are those that were written")]


def _recent(con: duckdb.DuckDBPyConnection, directory: Path) -> Iterator[Finding]:
    found = assess(con, directory)
    if found.plan.loss:
        yield Finding("damage", found.plan.loss, _REPAIR)
    else:
        later = sum(entry.after.seq - entry.before.seq for entry in found.plan.replay)
        yield Finding("ok", f"{later} facts after the last checkpoint follow one another")
    for flaw in found.scanned.flaws:
        yield Finding("warning", flaw, "the next start keeps a copy and begins a new journal")


def _consistent(con: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    snapshot_seq, _ = get_mark(con)
    whole = True
    spell_out(con)
    for words, query in _CONTRADICTIONS.items():
        found = [str(key) for (key,) in con.execute(query, [snapshot_seq]).fetchall()]
        if found:
            whole = False
            some = ", ".join(found[:3]) + (" and more" if found[3:] else "")
            yield Finding(
                "damage",
                f"{len(found)} {words}, {some}",
                "look at them with `perdure explain`; nothing brings them back",
            )
    if whole:
        (runs, facts) = con.execute(_COUNTS).fetchone() or (0, 0)
        how_many = f"{runs} run{'s' * (runs != 1)} and {facts} facts in the database"
        yield Finding("ok", f"{how_many} tell the same story")


_COUNTS = """SELECT (SELECT count(*) FROM (SELECT run_id FROM runs UNION SELECT subject FROM each_fact WHERE frame = 0)),
    (SELECT count(*) FROM each_fact)"""  # a run that began after the last snapshot has facts, and no record yet

_CONTRADICTIONS = {
    "runs have a record but no facts": """SELECT run_id FROM runs ANTI JOIN each_fact ON subject = run_id WHERE first_seq <= $1
        ORDER BY run_id LIMIT 1000""",
    "runs have facts but no record": """SELECT subject FROM each_fact ANTI JOIN runs ON run_id = subject WHERE frame = 0 AND seq <= $1
        ORDER BY subject LIMIT 1000""",
    "runs have facts before or after what their record knows": """SELECT run_id FROM runs JOIN each_fact ON subject = run_id
        WHERE seq <= $1 GROUP BY run_id, first_seq, last_seq HAVING min(seq) <> first_seq OR max(seq) > last_seq
        ORDER BY run_id LIMIT 1000""",
    "runs have holes in the numbers of their events": """SELECT subject FROM each_fact WHERE frame IS NOT NULL AND $1 >= 0
        GROUP BY subject HAVING count(*) <> max(frame) + 1 OR min(frame) <> 0 ORDER BY subject LIMIT 1000""",
}


def _of(refusal: LedgerError) -> Finding:
    severity: Severity = "damage" if isinstance(refusal, LedgerDamaged) else "refused"
    return Finding(severity, refusal.problem, refusal.advice)


# ---------------------------------------------------------------- rebuilding a file that DuckDB can no longer read
# Two sources can stand in for the file. **The journal**, if it began at fact 1: then it has every commit, and the file is not needed. Else
# **what DuckDB can still read of the file**: its blocks have checksums, so a damaged block is known, and every other row is what was
# written. Facts and payloads may be missing in part, because they are history. The snapshot (`runs`, `agents`, `mail`, `meta`) must be
# whole, because a boot trusts it. If it is not, all facts from the first must be there, and the snapshot is folded anew from them.
#
# The new file is made beside the old one and takes its name at the end, so a death on the way changes nothing. The old one is kept.

_REBUILT = "ledger.db.rebuilt"
_HISTORY = ("facts", "batches", "payloads")
_SNAPSHOT = ("runs", "agents", "mail", "meta")
_KEYS = {**{table: (columns[0], "VARCHAR") for table, columns in COLUMNS.items()}, "batches": ("seq", "BIGINT")}
_VECTOR = 2_048  # rows that DuckDB reads together; of a smaller piece nothing more can be had
_PIECE = 16 * _VECTOR
_ELSEWHERE = "bring back a copy of the directory, or move it away and begin anew"
_REPAIR_IT = "run `perdure doctor --repair`: it"


# How many rows of a table could be read, and how many there are; None if even that cannot be read.
class _Saved(NamedTuple):
    read: int
    there: int | None

    @property
    def whole(self) -> bool:
        return self.read == self.there


def _unreadable(directory: Path) -> str:
    # Why the database cannot be read in full, in DuckDB's words; empty if it can. Its log is not read.
    if not (directory / DATABASE).exists():
        return MISSING
    try:
        with without_log(directory) as name, closing(connect(directory, read_only=True, name=name)) as con:
            _read_through(con)
    except duckdb.Error as problem:
        refusal = told(directory, problem)
        return refusal.problem if isinstance(refusal, LedgerDamaged) else ""
    return ""


def _read_through(con: duckdb.DuckDBPyConnection) -> None:
    """Read every row of every table but the one that is derived, and find every row by its key as a start does. Raises what DuckDB raises
    at a damaged block."""
    for table in (*_HISTORY, *_SNAPSHOT, "seals"):
        con.execute(f"SELECT max(hash({table})) FROM {table}").fetchall()
    for table, (key, kind) in _KEYS.items():
        keys = con.cursor().execute(f"SELECT {key} FROM ledger.{table}")
        found = f"SELECT count(body) FROM {table} WHERE {key} IN (SELECT unnest($1::{kind}[]))"
        while rows := keys.fetchmany(INDEXED_MAX):
            con.execute(found, [[key for (key,) in rows]]).fetchall()


def _way_out(directory: Path) -> str:
    # Advice about a database that cannot be read.
    if _begins_at_first(directory):
        return f"{_REPAIR_IT} builds the ledger anew from its journal, which has every commit from the first on, and keeps what is damaged"
    try:
        with without_log(directory) as name:
            connect(directory, read_only=True, name=name).close()
    except (duckdb.Error, OSError):
        bases = scan(directory).bases
        begins = f"begins at fact {bases[0].seq + 1}" if bases else "cannot be read either"
        return f"{_ELSEWHERE}; the journal {begins}, so the ledger cannot be built anew from it"
    return f"{_REPAIR_IT} saves what can be read, says what cannot, and keeps the damaged file"


def _begins_at_first(directory: Path) -> bool:
    return scan(directory).bases[:1] == [GENESIS]


def _rebuild(directory: Path) -> list[str]:
    """Put a new file in the place of one that cannot be read, and say what is in it and what is not. The next start adds what the
    journal has beyond it. Raises `LedgerDamaged` if too little is left, with every file as it was found, and what a `Lock` raises.
    """
    lock = Lock(directory)
    try:
        (directory / _REBUILT).unlink(missing_ok=True)
        said = _empty(directory) if _begins_at_first(directory) else _saved(directory)
        return [*_exchange(directory), said]
    finally:
        for left in (_REBUILT, f"{_REBUILT}.wal"):
            (directory / left).unlink(missing_ok=True)
        lock.release()


def _exchange(directory: Path) -> Iterator[str]:
    # The old file is kept. Its log is moved first.
    evidence = KeptEvidence(directory)
    if (directory / WAL).exists():
        yield f"the log is kept as {evidence.move(WAL)}"
    if (directory / DATABASE).exists():
        yield f"the damaged file is kept as {evidence.keep(DATABASE)}"
    (directory / _REBUILT).replace(directory / DATABASE)


def _empty(directory: Path) -> str:
    # The journal has all facts, so the file has none.
    with closing(connect(directory, name=_REBUILT)) as con:
        prepare(con)
    scanned = scan(directory)
    last_seq = scanned.entries[-1].after.seq if scanned.entries else 0
    state = "damaged in places" if scanned.flaws else "whole"
    return f"the ledger is built anew from its journal, which is {state}: it has the facts 1 to {last_seq}"


def _saved(directory: Path) -> str:
    if not (directory / DATABASE).exists():
        raise LedgerDamaged(str(directory), MISSING, _way_out(directory))
    try:
        with without_log(directory) as name, closing(connect(directory, name=_REBUILT, source=name)) as con:
            prepare(con)
            saved = {table: _copy(con, table) for table in (*_HISTORY, *_SNAPSHOT)}
            if not any(saved[table].read for table in ("facts", "batches", "runs")):
                raise LedgerDamaged(str(directory), f"nothing of it can be read: {_words(saved)}", _ELSEWHERE)
            mark = get_mark(con)[1] if saved["meta"].whole else None
            if not all(saved[table].whole for table in _SNAPSHOT):
                mark = _without_snapshot(directory, con, saved, mark)
            seal_anew(con, mark.seq if mark is not None else 0)
            con.execute("CHECKPOINT")
    except (duckdb.Error, OSError) as problem:
        raise _advised(directory, told(directory, problem)) from problem
    return f"the ledger is built anew from what can be read: {_words(saved)}"


def _without_snapshot(
    directory: Path, con: duckdb.DuckDBPyConnection, saved: dict[str, _Saved], known: Mark | None
) -> Mark:
    # A boot folds all facts instead of an incomplete snapshot, if none of them is missing.
    count, last_seq = count_facts(con)
    if not all(saved[table].whole for table in ("facts", "batches")) or count != last_seq:
        raise LedgerDamaged(str(directory), f"too much of it cannot be read: {_words(saved)}", _ELSEWHERE)
    journal = scan(directory)
    places = [*journal.bases, *(entry.after for entry in journal.entries)]
    mark = known or next((place for place in places if place.seq == count), Mark(count, bytes(16)))

    def work() -> None:
        for table in _SNAPSHOT:
            con.execute(f"DELETE FROM {table}")
        put_mark(con, 0, mark)

    transact(con, work)
    return mark


def _words(saved: dict[str, _Saved]) -> str:
    parts = {table: each for table, each in saved.items() if each.there != 0}
    words = [
        f"no row of {table}"
        if each.there is None
        else f"{'all' if each.whole else f'{each.read:,} of'} {each.there:,} rows of {table}"
        for table, each in parts.items()
    ]
    return ", ".join(words)


def _copy(con: duckdb.DuckDBPyConnection, table: str) -> _Saved:
    try:
        query = f"SELECT count(*), coalesce(max(rowid), -1) FROM source.{table}"
        (there, last) = con.execute(query).fetchone() or (0, -1)
    except duckdb.Error:
        return _Saved(0, None)
    con.execute(f"DELETE FROM {table}")
    columns = ", ".join(str(column[0]) for column in con.execute(f"SELECT * FROM {table} LIMIT 0").description or ())
    pieces = (_piece(con, table, columns, first, min(first + _PIECE, last + 1)) for first in range(0, last + 1, _PIECE))
    return _Saved(sum(pieces), there)


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


def _answer(con: duckdb.DuckDBPyConnection, query: str, arguments: list[int]) -> list[tuple[int]] | None:
    # None if what it reads is damaged.
    try:
        return con.execute(query, arguments).fetchall()
    except duckdb.Error as problem:
        if not isinstance(told(Path(), problem), LedgerDamaged):
            raise
        return None
