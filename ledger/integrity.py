"""What `perdure doctor` does with a ledger that no one is using: look at everything, and mend what can be mended.

`examine` changes nothing. It says of each proof that the ledger keeps whether it holds: the weights of everything up to the last
checkpoint, the chain after it, the journal beside it, and that records and facts tell the same story. `repair` gives up what cannot
be proven: it keeps copies of every file, cuts the facts at the first one that is missing or does not verify, appends what the
journal has from there, and seals what is left as it is. A repaired ledger is consistent; what it lost is in the findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb

from ledger.assessment import assess
from ledger.duckdb_file import (
    DATABASE,
    JOURNAL,
    SCHEMA_VERSION,
    WAL,
    Lock,
    connect,
    get_mark,
    told,
    too_new,
    version_of,
)
from ledger.duckdb_store import DuckDBStore
from ledger.errors import LedgerDamaged, LedgerError, LedgerLocked
from ledger.seals import broken_seals

Severity = Literal["ok", "warning", "damage"]

_REPAIR = "run `perdure doctor --repair`; it keeps copies of every file"
_EXAMINED = "ledger.db.examined"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. A `warning` mends itself at the next start, a `damage` does not."""

    severity: Severity
    what: str
    advice: str = ""


def examine(directory: Path) -> list[Finding]:
    """Look at every part of a ledger, and change none. A ledger that is in use is left alone."""
    if not any((directory / name).exists() for name in (DATABASE, JOURNAL)):
        return [Finding("warning", f"there is no ledger in {directory}", "check the path")]
    if not (directory / DATABASE).exists():
        return [Finding("damage", f"{DATABASE} is missing beside its journal", "bring back a copy of the directory")]
    try:
        lock = Lock(directory)
    except LedgerLocked as refusal:
        return [_of(refusal)]
    except OSError as problem:
        return [_of(told(directory, problem))]
    try:
        return list(_examine(directory))
    finally:
        (directory / _EXAMINED).unlink(missing_ok=True)
        lock.release()


def repair(directory: Path) -> list[Finding]:
    """Mend what can be mended and give up what cannot, with copies of every file kept. Ends with a new examination."""
    before = examine(directory)
    if all(finding.severity == "ok" for finding in before):
        return [Finding("ok", "there is nothing to repair"), *before]
    if not (directory / DATABASE).exists():
        return before
    beyond_mending = any(finding.severity == "damage" for finding in before)
    try:
        with closing(DuckDBStore(directory, repair=beyond_mending)) as store:
            done = [Finding("warning", finding) for finding in store.boot().findings]
    except LedgerDamaged as refusal:
        advice = "nothing here can be opened: bring back a copy of the directory, or move it away and begin anew"
        return [Finding("damage", refusal.problem, advice)]
    except LedgerError as refusal:
        return [_of(refusal)]
    return done + examine(directory)


def _examine(directory: Path) -> Iterator[Finding]:
    opened = _open(directory)
    if isinstance(opened, LedgerError):
        yield _of(opened)
        return
    con, log_problem = opened
    if log_problem:
        yield Finding(
            "warning",
            f"DuckDB cannot read its log ({log_problem})",
            "the next start sets it aside and uses the journal",
        )
    with closing(con):
        try:
            version = version_of(con)
            if version > SCHEMA_VERSION:
                yield _of(too_new(directory, version))
                return
            if version < SCHEMA_VERSION:
                words = f"its layout has the older version {version}"
                yield Finding("warning", words, "the next start brings it up to date; examine it then")
                return
            yield from _sealed(con)
            yield from _recent(con, directory)
            yield from _consistent(con)
        except duckdb.Error as problem:
            yield _of(told(directory, problem))


def _open(directory: Path) -> tuple[duckdb.DuckDBPyConnection, str] | LedgerError:
    """The database opened for reading; without its log, under a second name, if the log cannot be read."""
    try:
        return connect(directory, read_only=True), ""
    except duckdb.Error as problem:
        refusal, words = told(directory, problem), str(problem).partition("\n")[0]
    if not isinstance(refusal, LedgerDamaged) or not (directory / WAL).exists():
        return refusal
    try:
        (directory / _EXAMINED).unlink(missing_ok=True)
        (directory / _EXAMINED).hardlink_to(directory / DATABASE)
        return connect(directory, read_only=True, name=_EXAMINED), words
    except (duckdb.Error, OSError):
        return refusal


def _sealed(con: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    """Weigh everything up to the last checkpoint."""
    _, mark = get_mark(con)
    broken = [Finding("damage", words, _REPAIR) for words in broken_seals(con, mark.seq)]
    yield from broken or [Finding("ok", f"all facts kept up to {mark.seq} are those that were written")]


def _recent(con: duckdb.DuckDBPyConnection, directory: Path) -> Iterator[Finding]:
    """Follow the chain after the last checkpoint, and compare with the journal."""
    found = assess(con, directory)
    if found.loss:
        yield Finding("damage", found.loss, _REPAIR)
    elif found.recent.problem:
        yield Finding("warning", found.recent.problem, "the journal has what is missing; the next start appends it")
    elif found.plan.replay:
        first, last = found.plan.replay[0].before.seq + 1, found.plan.replay[-1].after.seq
        words = f"the facts {first} to {last} are in the journal and not in the database"
        yield Finding("warning", words, "the next start appends them")
    else:
        yield Finding(
            "ok", f"{found.recent.mark.seq - found.anchor.seq} facts after the last checkpoint follow one another"
        )
    for flaw in found.scanned.flaws:
        yield Finding("warning", flaw, "the next start begins a new journal")


def _consistent(con: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
    """Records and facts tell the same story, and no run's events have a hole."""
    snapshot_seq, _ = get_mark(con)
    whole = True
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
        (runs, facts) = con.execute("SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM facts)").fetchone() or (
            0,
            0,
        )
        yield Finding("ok", f"the records of {runs} runs and {facts} facts tell the same story")


_CONTRADICTIONS = {
    "runs have a record but no facts": """SELECT run_id FROM runs ANTI JOIN facts ON subject = run_id WHERE first_seq <= $1
        ORDER BY run_id LIMIT 1000""",
    "runs have facts but no record": """SELECT subject FROM facts ANTI JOIN runs ON run_id = subject WHERE frame = 0 AND seq <= $1
        ORDER BY subject LIMIT 1000""",
    "runs have facts before or after what their record knows": """SELECT run_id FROM runs JOIN facts ON subject = run_id
        WHERE seq <= $1 GROUP BY run_id, first_seq, last_seq HAVING min(seq) <> first_seq OR max(seq) > last_seq
        ORDER BY run_id LIMIT 1000""",
    "runs have holes in the numbers of their events": """SELECT subject FROM facts WHERE frame IS NOT NULL AND $1 >= 0
        GROUP BY subject HAVING count(*) <> max(frame) + 1 OR min(frame) <> 0 ORDER BY subject LIMIT 1000""",
}


def _of(refusal: LedgerError) -> Finding:
    severity: Severity = "damage" if isinstance(refusal, LedgerDamaged) else "warning"
    return Finding(severity, refusal.problem, refusal.advice)
