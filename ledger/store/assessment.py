"""What a ledger's files say together: the database up to the last fold, and the journal after it.

A boot and `perdure doctor` both begin here.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb

from perdure.ledger.store.duckdb_file import get_mark
from perdure.ledger.store.duckdb_tables import facts_after
from perdure.ledger.store.journal_scan import Plan, Scan, reconcile, scan
from perdure.ledger.store.seals import Mark
from perdure.ledger.store.store import FactRow


class Assessment(NamedTuple):
    """The facts after the snapshot that the database has, what the journal adds to them, and (in words) what is lost in both."""

    snapshot_seq: int
    mark: Mark
    facts: list[FactRow]
    scanned: Scan
    plan: Plan
    loss: str


def assess(con: duckdb.DuckDBPyConnection, directory: Path) -> Assessment:
    """Read the facts after the snapshot, and compare with the journal. Changes nothing.

    The cost grows with the facts after the snapshot, not with what is retained before it.
    """
    snapshot_seq, mark = get_mark(con)
    facts, scanned = facts_after(con, snapshot_seq), scan(directory)
    for due, fact in zip(range(snapshot_seq + 1, mark.seq + 1), facts, strict=False):
        if fact.seq != due:
            break
    else:
        due = snapshot_seq + len(facts) + 1
    if due <= mark.seq or len(facts) > mark.seq - snapshot_seq:
        kept = Mark(min(due - 1, mark.seq), mark.digest)
        whole = [fact for fact in facts if fact.seq <= kept.seq]
        problem = (
            f"fact {due} is missing" if due <= mark.seq else f"facts stand in {directory.name} after the last fold"
        )
        return Assessment(snapshot_seq, kept, whole, scanned, Plan([], list(scanned.flaws), problem), problem)
    plan = reconcile(scanned, mark)
    return Assessment(snapshot_seq, mark, facts, scanned, plan, plan.loss)
