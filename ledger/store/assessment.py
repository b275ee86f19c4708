"""What a ledger's files say together: the database up to the last fold, and the journal after it.

A boot and `perdure doctor` both begin here.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb

from perdure.ledger.store.batches import count_of
from perdure.ledger.store.duckdb_file import get_mark
from perdure.ledger.store.duckdb_tables import rows_after
from perdure.ledger.store.journal_scan import ReplayPlan, Scan, reconcile, scan
from perdure.ledger.store.seals import Mark
from perdure.ledger.store.store import Row


class Assessment(NamedTuple):
    """The facts after the snapshot that the database has, what the journal adds to them, and (in words) what is lost in both."""

    snapshot_seq: int
    mark: Mark
    rows: list[Row]
    scanned: Scan
    plan: ReplayPlan


def assess(con: duckdb.DuckDBPyConnection, directory: Path) -> Assessment:
    """Read the facts after the snapshot, and compare with the journal. Changes nothing.

    The cost grows with the facts after the snapshot, not with what is retained before it.
    """
    snapshot_seq, mark = get_mark(con)
    rows, scanned = rows_after(con, snapshot_seq), scan(directory)
    last_seq, kept = _follow(rows, snapshot_seq, mark.seq)
    if kept == len(rows) and last_seq == mark.seq:
        return Assessment(snapshot_seq, mark, rows, scanned, reconcile(scanned, mark))
    missing = f"fact {last_seq + 1} is missing" if last_seq < mark.seq else ""
    problem = missing or f"facts stand in {directory.name} after the last fold"
    last = Mark(last_seq, mark.digest)
    return Assessment(snapshot_seq, last, rows[:kept], scanned, ReplayPlan([], list(scanned.flaws), problem))


def _follow(rows: list[Row], seq: int, upto_seq: int) -> tuple[int, int]:
    """Up to which fact these rows follow one another after the fact of this number, and how many rows that are."""
    for place, row in enumerate(rows):
        after = seq + count_of([row])
        if row.seq != seq + 1 or after > upto_seq:
            return seq, place
        seq = after
    return seq, len(rows)
