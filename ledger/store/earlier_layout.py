"""Bringing a ledger of an earlier layout up to date.

Until layout 2, DuckDB's log was the commit. Each commit's last row carried the digest that chains it, and `ledger.journal`, which was not
synchronised, had a second copy of what came after the last checkpoint. Here the log is replayed once more, the chain is followed, what only
the journal has is appended, and one transaction puts everything in its new place. The old journal goes last, so that the next start begins
again if this one dies on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import duckdb
import msgpack

from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.store.duckdb_file import (
    CROWDS_FIRST,
    DATABASE,
    DOCTOR,
    EARLIER_JOURNAL,
    JOURNAL_FIRST,
    MIGRATIONS,
    SCHEMA_VERSION,
    WAL,
    Evidence,
    connect,
    get_mark,
    put,
    put_mark,
    told,
    transact,
    version_of,
)
from perdure.ledger.store.duckdb_tables import insert
from perdure.ledger.store.journal import Journal
from perdure.ledger.store.journal_scan import Plan, Scan, commits, reconcile, scan_file
from perdure.ledger.store.seals import FACT, NOTHING, Mark, Placed, Tally, extend, link, seal_anew, weigh
from perdure.ledger.store.store import FactRow


class Followed(NamedTuple):
    """What following the chain found: it holds up to `mark`, these facts weigh `tally`, and `problem` is why it ends there."""

    mark: Mark
    tally: Tally
    problem: str


def bring_forward(directory: Path, *, fsync: bool, repair: bool, evidence: Evidence) -> list[str]:
    """Put everything that the old files hold into the new ones, and say what was found. Raises `LedgerDamaged` if facts are missing, with
    every file as it was found, and what DuckDB raises."""
    findings: list[str] = []
    (directory / EARLIER_JOURNAL).touch()
    with closing(_open(directory, fsync, evidence, findings)) as con:
        try:
            transact(con, lambda: findings.extend(_moved(con, directory, repair=repair)))
        except LedgerDamaged:
            con.close()
            evidence.put_back()
            raise
        if findings:
            kept = [evidence.copy(name) for name in (DATABASE, WAL, EARLIER_JOURNAL) if (directory / name).exists()]
            findings.append(f"the files as they were are kept as {' and '.join(kept)}")
        con.execute("CHECKPOINT")
        mark = get_mark(con)[1]
    journal = Journal(directory, fsync=fsync)
    journal.resume({}, mark, None)
    journal.roll()
    journal.close()
    (directory / EARLIER_JOURNAL).unlink()
    return findings


def _open(directory: Path, fsync: bool, evidence: Evidence, findings: list[str]) -> duckdb.DuckDBPyConnection:
    """Open the file with its log; if that cannot be read, set both aside and open the file without. The journal has what the log had."""
    try:
        return connect(directory, fsync=fsync, logged=True)
    except duckdb.Error as problem:
        refusal, words = told(directory, problem), str(problem).partition("\n")[0]
        if not isinstance(refusal, LedgerDamaged) or not (directory / WAL).exists():
            raise
    evidence.copy(DATABASE)
    findings.append(f"DuckDB cannot read its log ({words}); it was set aside as {evidence.move(WAL)}")
    try:
        return connect(directory, fsync=fsync, logged=True)
    except duckdb.Error:
        evidence.put_back()
        raise refusal from None


def _moved(con: duckdb.DuckDBPyConnection, directory: Path, *, repair: bool) -> list[str]:
    """Bring the tables up to date, inside the caller's transaction, and say what was found."""
    version = version_of(con)
    if version < 1:
        con.execute(MIGRATIONS[0])
    if version < CROWDS_FIRST:
        con.execute(MIGRATIONS[2])
    snapshot_seq, anchor = get_mark(con)
    chained = version < JOURNAL_FIRST  # if it is not, an earlier start came as far as here
    mark, tally, problem = _follow_from(con, snapshot_seq, anchor) if chained else Followed(anchor, NOTHING, "")
    (last_seq,) = con.execute("SELECT coalesce(max(seq), 0) FROM facts").fetchone() or (0,)
    plan = _lacking(directory, mark, last_seq, problem)
    if plan.loss and not repair:
        raise LedgerDamaged(str(directory), plan.loss, DOCTOR)
    for table in ("facts", "payloads"):
        con.execute(f"DELETE FROM {table} WHERE seq > $1", [mark.seq])
    for commit in commits(plan.replay):
        insert(con, commit)
        mark, tally = commit.after, tally.plus(commit.tally)
    if repair:
        seal_anew(con, mark.seq)
    elif tally != NOTHING:
        extend(con, anchor.seq + 1, mark.seq, tally)
    put_mark(con, snapshot_seq, mark)
    if chained:
        con.execute(MIGRATIONS[1])
    put(con, "schema_version", SCHEMA_VERSION)
    lost = [f"given up: {plan.loss}"] if plan.loss else []
    return [*([problem] if problem else []), *plan.findings, *lost]


def _lacking(directory: Path, mark: Mark, last_seq: int, problem: str) -> Plan:
    """What the journal has beyond a chain that holds up to `mark`, in a database that ends at `last_seq`."""
    journal = directory / EARLIER_JOURNAL
    scanned = scan_file(journal)
    if not scanned.entries and not scanned.bases:
        scanned = Scan([mark], [], scanned.flaws, [], {})
    plan = reconcile(
        scanned._replace(bases=[base for base in scanned.bases if base.seq != mark.seq or base == mark]), mark
    )
    reached = plan.replay[-1].after if plan.replay else mark
    loss = "" if "what was acknowledged after that" in plan.loss else plan.loss  # the database was the commit
    if last_seq > reached.seq:
        loss = loss or problem
    words = [f"the facts {mark.seq + 1} to {reached.seq} were appended from the journal"] if plan.replay else []
    return Plan(plan.replay, [*plan.findings, *words], loss)


def _follow_from(con: duckdb.DuckDBPyConnection, snapshot_seq: int, anchor: Mark) -> Followed:
    """Sealed facts that a boot folds again must be there without holes; from the mark on, the chain is followed."""
    rows = con.execute(f"SELECT {FACT}, digest FROM facts WHERE seq > $1 ORDER BY seq", [snapshot_seq]).fetchall()
    facts = [(FactRow(*row[:6]), row[6]) for row in rows]
    sealed = [fact.seq for fact, _ in facts if fact.seq <= anchor.seq]
    for due, seq in zip(range(snapshot_seq + 1, anchor.seq + 1), [*sealed, 0], strict=False):
        if due != seq:
            return Followed(Mark(due - 1, anchor.digest), NOTHING, f"fact {due} is missing")
    query = "SELECT seq, run_id, part, body FROM payloads WHERE seq > $1 ORDER BY seq"
    payloads = [Placed(*row) for row in con.execute(query, [anchor.seq]).fetchall()]
    return follow(anchor, facts[len(sealed) :], payloads)


def follow(anchor: Mark, rows: Iterable[tuple[FactRow, bytes | None]], payloads: Iterable[Placed]) -> Followed:
    """Follow the chain over the facts after `anchor`, in order, with their payloads, in order."""
    pack = msgpack.Packer().pack
    mark, sealed, group = anchor, NOTHING, []
    waiting = iter(payloads)
    payload = next(waiting, None)
    expected = anchor.seq
    for row, digest in rows:
        expected += 1
        if row.seq != expected:
            return Followed(
                mark, sealed, f"fact {min(expected, row.seq)} is {'missing' if row.seq > expected else 'doubled'}"
            )
        group.append(pack(row))
        if digest is None:
            continue
        while payload is not None and payload.seq <= row.seq:
            group.append(pack(payload))
            payload = next(waiting, None)
        tally = weigh(group)
        if link(mark, row.seq, tally) != digest:
            return Followed(mark, sealed, f"the facts {mark.seq + 1} to {row.seq} are not those that were written")
        mark, sealed, group = Mark(row.seq, digest), sealed.plus(tally), []
    if group:
        return Followed(mark, sealed, f"the commit of the facts from {mark.seq + 1} on has no end")
    if payload is not None:
        return Followed(mark, sealed, f"a payload of fact {payload.seq} is there without its fact")
    return Followed(mark, sealed, "")
