"""The batches in the ledger's file, each in one row: what is read of their members, and how runs are forgotten from them.

A run stands in the batches between its record's first and last fact, and perhaps in some after the snapshot. Only those are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import duckdb

from perdure.ledger.store.batches import batch_of, expand_rows, without
from perdure.ledger.store.seals import BATCH, reweigh
from perdure.ledger.store.store import BatchRow, FactRow

_AT_ONCE = 100  # batches; each may have more than a thousand runs


def spell_out(con: duckdb.DuckDBPyConnection) -> None:
    """For this connection alone: `each_fact` has the number, the subject and the frame of each fact, members of batches among them."""
    con.execute("CREATE TEMP TABLE members (seq BIGINT, subject VARCHAR, frame INTEGER)")
    con.execute("CREATE TEMP VIEW each_fact AS SELECT seq, subject, frame FROM facts UNION ALL FROM members")
    for facts in _spelled_out(con):
        appender = con.appender("members")
        appender.append_rows([(each.seq, each.subject, each.frame) for each in facts])
        appender.flush()


def count_facts(con: duckdb.DuckDBPyConnection) -> tuple[int, int | None]:
    (count, last_seq) = con.execute("SELECT count(*), max(seq) FROM facts").fetchone() or (0, None)
    for facts in _spelled_out(con):
        count += len(facts)
        last_seq = max([last_seq or 0, *(each.seq for each in facts)])
    return count, last_seq


def _spelled_out(con: duckdb.DuckDBPyConnection) -> Iterator[list[FactRow]]:
    begins = [int(seq) for (seq,) in con.execute("SELECT seq FROM batches ORDER BY seq").fetchall()]
    for at in range(0, len(begins), _AT_ONCE):
        yield expand_rows(_beginning_at(con, begins[at : at + _AT_ONCE]))


def batches_after(con: duckdb.DuckDBPyConnection, seq: int) -> list[BatchRow]:
    begins = [int(first) for (first,) in con.execute("SELECT seq FROM batches WHERE seq > $1", [seq]).fetchall()]
    return list(_beginning_at(con, begins))


def members_between(
    con: duckdb.DuckDBPyConnection, first_seq: int, last_seq: int, subjects: Collection[str] | None = None
) -> list[FactRow]:
    query = "SELECT seq FROM batches WHERE seq <= $2 AND seq + facts > $1"
    begins = [int(seq) for (seq,) in con.execute(query, [first_seq, last_seq]).fetchall()]
    facts = expand_rows(_beginning_at(con, begins), subjects)
    return sorted(each for each in facts if first_seq <= each.seq <= last_seq)


def forget_members(con: duckdb.DuckDBPyConnection, bounds: Mapping[str, int], snapshot_seq: int) -> None:
    """Remove these runs from the batches, each up to its bound, inside the caller's transaction, and weigh the rest anew. The snapshot that
    is there, with the records of these runs, goes up to `snapshot_seq`."""
    query = """SELECT seq FROM batches WHERE seq > $2 UNION SELECT seq FROM batches JOIN runs
        ON seq <= last_seq AND seq + facts > first_seq WHERE run_id IN (SELECT unnest($1::VARCHAR[]))"""
    begins = [int(seq) for (seq,) in con.execute(query, [list(bounds), snapshot_seq]).fetchall()]
    gone: list[BatchRow] = []
    rest: list[BatchRow] = []
    for row in _beginning_at(con, begins):
        places = [at for at, run_id in enumerate(batch_of(row).run_ids, row.seq) if at < bounds.get(run_id, 0)]
        if places:
            gone.append(row)
            left = without(row, [place - row.seq for place in places])
            rest += [] if left is None else [left]
    if gone:
        con.execute("DELETE FROM batches WHERE seq IN (SELECT unnest($1::BIGINT[]))", [[row.seq for row in gone]])
        for row in rest:
            con.execute("INSERT INTO batches VALUES ($1, $2, $3, $4, $5)", list(row))
        reweigh(con, gone, rest)


def _beginning_at(con: duckdb.DuckDBPyConnection, begins: list[int]) -> Iterator[BatchRow]:
    # Their bodies are large, so they are read by the key alone.
    query = f"SELECT {BATCH} FROM batches WHERE seq IN (SELECT unnest($1::BIGINT[]))"
    for at in range(0, len(begins), _AT_ONCE):
        rows = con.execute(query, [begins[at : at + _AT_ONCE]]).fetchall()
        yield from (BatchRow(*row) for row in rows)
