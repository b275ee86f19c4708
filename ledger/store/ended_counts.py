"""How many ended runs of each status the snapshot has.

The store counts rows as they come and go, and keeps the counts beside the snapshot that they speak of, so that a start does not look at
every row. Counts that speak of another snapshot are not used: the rows are counted anew.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import duckdb

from perdure.ledger.store.duckdb_file import get, put
from perdure.ledger.store.duckdb_tables import count_ended, runs_in

_KEY: Final = "ended"  # in the table `meta`: the snapshot, the number of its runs, and the counts


def read_counts(con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> Counter[str]:
    kept = get(con, _KEY)
    if kept is None or kept[:2] != [snapshot_seq, runs_in(con)]:
        return Counter(count_ended(con))
    return Counter(kept[2])


def write_counts(con: duckdb.DuckDBPyConnection, snapshot_seq: int, counts: Counter[str]) -> None:
    put(con, _KEY, [snapshot_seq, runs_in(con), dict(+counts)])
