"""What `perdure doctor` does with a ledger that is not in use: examine everything, and repair what can be repaired.

`examine` changes nothing. It checks each proof that the ledger keeps: the weights of everything up to the last checkpoint, the journal's
chain after it, and that records and facts agree. `repair` gives up what cannot be proven: it keeps copies of every file, cuts the facts
at the first one that is missing, and seals what is left. A file that DuckDB cannot read is rebuilt (see `salvage`). A repaired ledger is
consistent; what it lost is in the findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.errors import LedgerDamaged, LedgerError, LedgerLocked
from perdure.ledger.store.duckdb_file import (
    DATABASE,
    DOCTOR,
    MISSING,
    connect,
    get_mark,
    told,
    without_log,
)
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.duckdb_tables import spell_out
from perdure.ledger.store.journal_scan import assess, has_everything, has_segments
from perdure.ledger.store.key_filter import DAMAGED, read_through_filter
from perdure.ledger.store.lock import LOCK, Lock
from perdure.ledger.store.salvage import read_through, rebuild, unreadable, way_out
from perdure.ledger.store.seals import broken_seals

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
    if not is_begun(directory):
        return [Finding("refused", f"there is no ledger in {directory}", "check the path")]
    had_lock = lock_of(directory).exists()
    try:
        lock = Lock(directory)
    except LedgerLocked as refusal:
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
    return (directory / DATABASE).exists() or has_segments(directory)


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
    problem = unreadable(directory) if beyond_mending else ""
    if problem:
        yield problem
        yield from rebuild(directory)
        with suppress(LedgerDamaged), closing(DuckDBStore(directory)) as store:
            yield from store.boot().findings
            return
    if not beyond_mending:
        with suppress(LedgerDamaged), closing(DuckDBStore(directory)) as store:
            yield from store.boot().findings
            return
    try:
        yield from _started(directory)
    except LedgerDamaged as refusal:  # what every row can be read of may still not be written
        if problem:
            raise
        yield refusal.problem
        yield from rebuild(directory)
        yield from _started(directory)


def _started(directory: Path) -> list[str]:
    with closing(DuckDBStore(directory, repair=True)) as store:
        return store.boot().findings


def _examine(directory: Path) -> Iterator[Finding]:
    if not (directory / DATABASE).exists():
        if has_everything(directory):
            yield Finding("warning", MISSING, "the next start builds it anew from the journal, which has every commit")
        else:
            yield Finding("damage", MISSING, way_out(directory))
        return
    if BlockGuard(directory / DATABASE).saved.exists():
        yield Finding("warning", "a checkpoint did not end", "the next start puts back what it has torn")
    with ExitStack() as stack:
        try:
            name = stack.enter_context(without_log(directory))
            con = stack.enter_context(closing(connect(directory, read_only=True, name=name)))
            read_through(con)
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
    return LedgerDamaged(refusal.path, refusal.problem, way_out(directory))


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
