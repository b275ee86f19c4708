"""What a ledger's files say together: database, chain, journal. A boot and `perdure doctor` both begin here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from perdure.ledger.store.duckdb_file import JOURNAL, get_mark
from perdure.ledger.store.duckdb_tables import facts_after, payloads_after
from perdure.ledger.store.journal import Plan, Scan, reconcile, scan
from perdure.ledger.store.seals import GENESIS, NOTHING, Mark, Recent, follow
from perdure.ledger.store.store import FactRow


class Assessment(NamedTuple):
    """Facts after the snapshot that verify, what the journal adds to them, and (in words) what is lost in both."""

    snapshot_seq: int
    anchor: Mark
    facts: list[FactRow]
    recent: Recent
    scanned: Scan
    plan: Plan
    loss: str


def assess(con: duckdb.DuckDBPyConnection, directory: Path) -> Assessment:
    """Read the facts after the snapshot, follow the chain from the mark, and compare with the journal. Changes nothing.

    The cost grows with the facts after the snapshot, not with what is retained before it.
    """
    snapshot_seq, anchor = get_mark(con)
    rows = facts_after(con, snapshot_seq)
    recent = _follow(con, snapshot_seq, anchor, rows)
    journal = directory / JOURNAL
    unborn = anchor == GENESIS and not rows and not journal.exists()
    scanned = Scan(None, [], [], 0) if unborn else scan(journal)
    plan = reconcile(scanned, recent.mark, max(rows[-1][0] if rows else 0, recent.mark.seq))
    facts = [FactRow(*row[:6]) for row in rows if row[0] <= recent.mark.seq]
    if recent.mark.seq < anchor.seq:
        return Assessment(snapshot_seq, anchor, facts, recent, scanned, plan._replace(replay=[]), recent.problem)
    loss = f"{plan.loss} ({recent.problem})" if plan.loss and recent.problem else plan.loss
    return Assessment(snapshot_seq, anchor, facts, recent, scanned, plan, loss)


def _follow(con: duckdb.DuckDBPyConnection, snapshot_seq: int, anchor: Mark, rows: list[tuple[Any, ...]]) -> Recent:
    """Sealed facts that a boot folds again must be there without holes; from the mark on, the chain is followed."""
    sealed = [row[0] for row in rows if row[0] <= anchor.seq]
    due = range(snapshot_seq + 1, anchor.seq + 1)
    if sealed != list(due):
        missing = next(
            (seq for seq, found in zip(due, sealed, strict=False) if seq != found), snapshot_seq + len(sealed) + 1
        )
        return Recent(Mark(missing - 1, anchor.digest), NOTHING, f"fact {missing} is missing")
    chained = ((FactRow(*row[:6]), row[6]) for row in rows[len(sealed) :])
    return follow(anchor, chained, payloads_after(con, anchor.seq))
