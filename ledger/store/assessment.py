"""What a ledger's files say together: the database up to the last fold, and the journal after it.

A boot and `perdure doctor` both begin here.
"""

from __future__ import annotations

from itertools import takewhile
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

    @property
    def loss(self) -> str:
        """What the plan cannot replay."""
        return self.plan.loss


def assess(con: duckdb.DuckDBPyConnection, directory: Path) -> Assessment:
    """Read the facts after the snapshot, and compare with the journal. Changes nothing.

    The cost grows with the facts after the snapshot, not with what is retained before it.
    """
    snapshot_seq, mark = get_mark(con)
    facts, scanned = facts_after(con, snapshot_seq), scan(directory)
    due = range(snapshot_seq + 1, mark.seq + 1)
    pairs = takewhile(lambda pair: pair[0] == pair[1].seq, zip(due, facts, strict=False))
    kept = [fact for _, fact in pairs]
    if len(kept) == len(due) == len(facts):
        return Assessment(snapshot_seq, mark, facts, scanned, reconcile(scanned, mark))
    missing = f"fact {due[len(kept)]} is missing" if len(kept) < len(due) else ""
    problem = missing or f"facts stand in {directory.name} after the last fold"
    last = Mark(snapshot_seq + len(kept), mark.digest)
    return Assessment(snapshot_seq, last, kept, scanned, Plan([], list(scanned.flaws), problem))
