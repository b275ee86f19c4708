"""The tables of the ledger's file: what is written and read in them, always many rows by one statement.

Never a statement per row: the cost is the statement, not the row (a row in a statement of its own costs 0.5 ms, in a group 4 µs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter

import duckdb

from perdure.ledger.codec import by_bytes
from perdure.ledger.status import HARD, RETRIABLE, Status
from perdure.ledger.store.batches import batch_of, changed_by, expand_rows, is_whole, without
from perdure.ledger.store.duckdb_file import INDEXED_MAX, ROW_GROUP, first_row, get, put, transact
from perdure.ledger.store.memory_store import TABLES, boot_order
from perdure.ledger.store.seals import BATCH, FACT, PAYLOAD, Commit, SealedPayload, reweigh
from perdure.ledger.store.store import BatchRow, FactRow, First, Record, Row, Wanted

COLUMNS = {  # of every table of records, its key first; `live` comes second in all of them, and `body` last
    "runs": ("run_id", "status", "agent_type", "parent", "requested_at_ms", "ended_at_ms", "first_seq", "last_seq"),
    "agents": ("agent_id", "host_id", "incarnation"),
    "mail": ("mail_id", "recipient", "state", "run_id"),
}
_SCAN_FROM = 10_000  # keys above which one look at the whole table is quicker than the index
_NAMES = ("run_id", "agent_type", "parent")  # in which words are looked for
END = 2**62  # beyond the number of every fact, and every time
_SLICE = 4_000  # records that are replaced in one transaction
_BATCHES_AT_ONCE = 100  # each may have more than a thousand runs
_ENDED = "ended"  # in the table `meta`: the snapshot, the number of its runs, and the counts
_GROUP = "payload_group"  # in the table `meta`
GROUP_BYTES = 16 << 20
PIECE_BYTES = 16 << 20
"""Of payloads that are written or removed in one statement. While DuckDB does that, it needs five times as much."""
_INSERT_EMPTY = "INSERT INTO payloads (run_id) SELECT '' FROM range($1)"
_INSERT_PAYLOADS = """INSERT INTO payloads (seq, run_id, part, body)
    SELECT unnest($1::BIGINT[]), unnest($2::VARCHAR[]), unnest($3::VARCHAR[]), unnest($4::BLOB[])"""


class Inserter:
    """Puts commits into the tables. DuckDB's appender takes a row in 4 µs where lists take 13.

    To read one row, DuckDB takes the bodies of 2,048 into memory, and to write the last ones it writes all of their row group anew. So a
    row group with many bytes of payloads is over early: empty rows fill it, which are no run's and in no seal.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._facts, self._batches = con.appender("facts"), con.appender("batches")
        self._done = 0  # payloads of the commits that come next, and are there already
        is_new = first_row(con, "SELECT 1 FROM payloads LIMIT 1", []) is None
        # Of the last row group of payloads: its rows, and their bytes. One that nobody has counted is over.
        self._group: list[int] = get(con, _GROUP) or [0, 0 if is_new else GROUP_BYTES]
        self._noted = self._group

    def insert(self, commits: list[Commit]) -> None:
        """In transactions of its own. Who tries again after an error begins with the same commit: what is there does not come again."""
        self._con.complete()  # an answer that was not read to its end would be in the appender's way
        payloads = [payload for commit in commits for payload in commit.payloads]
        *pieces, last = by_bytes(payloads[self._done :], lambda each: len(each.body), PIECE_BYTES) or [[]]
        for piece in pieces:
            self._begin_group()
            transact(self._con, partial(self._insert_payloads, piece))
            self._count(piece)
        self._begin_group()
        transact(self._con, partial(self._insert_all, last, [row for commit in commits for row in commit.rows]))
        self._count(last)
        self._done = max(0, self._done - len(payloads))

    def note_group(self) -> None:
        # The caller has a transaction open.
        if self._group != self._noted:
            put(self._con, _GROUP, self._group)
            self._noted = self._group

    def _insert_all(self, payloads: list[SealedPayload], rows: list[Row]) -> None:
        self._insert_payloads(payloads)  # if memory runs out for these, the appenders hold nothing
        for appender, kind in ((self._facts, FactRow), (self._batches, BatchRow)):
            appender.append_rows([row for row in rows if type(row) is kind])
            appender.flush()

    def _insert_payloads(self, payloads: list[SealedPayload]) -> None:
        if payloads:
            self._con.execute(_INSERT_PAYLOADS, [list(column) for column in zip(*payloads, strict=True)])

    def _begin_group(self) -> None:
        rows, size = self._group
        if size >= GROUP_BYTES:
            transact(self._con, lambda: self._con.execute(_INSERT_EMPTY, [ROW_GROUP - rows]))
            self._group = [0, 0]

    def _count(self, payloads: list[SealedPayload]) -> None:
        added, (rows, size) = sum(len(each.body) for each in payloads), self._group
        rows += len(payloads)
        self._group = [rows % ROW_GROUP, added if rows >= ROW_GROUP else size + added]
        self._done += len(payloads)


def replace(
    con: duckdb.DuckDBPyConnection, table: str, records: list[Record], new: Collection[str] = frozenset()
) -> Counter[str]:
    """Delete and insert: `INSERT OR REPLACE` took ten seconds for 500 of a million rows. A dead record without a body is only deleted.

    Of a `new` key no row is there, so none is looked for. Returns by how many the rows that are not live have become more, by the first
    column of the record: for runs, the status.
    """
    more: Counter[str] = Counter()
    latest = list({record.key: record for record in records if record.table == table}.values())
    for first in range(0, len(latest), _SLICE):
        more.update(transact(con, partial(_replace, con, table, latest[first : first + _SLICE], new)))
    return more


def _replace(con: duckdb.DuckDBPyConnection, table: str, records: list[Record], new: Collection[str]) -> Counter[str]:
    more: Counter[str] = Counter()
    before = [record.key for record in records if record.key not in new]
    if before:
        more.subtract(_deleted(con, table, f"{COLUMNS[table][0]} IN (SELECT unnest($1::VARCHAR[]))", before))
    rows = [(each.key, each.live, *each.columns, each.body) for each in records if each.live or each.body]
    if rows:
        con.complete()  # what was deleted is counted in an answer, which would be in the appender's way
        appender = con.appender(table)
        appender.append_rows(rows)
        appender.flush()
    more.update(_ended((record.live, record.columns[0]) for record in records if record.live or record.body))
    return more


def _deleted(con: duckdb.DuckDBPyConnection, table: str, condition: str, keys: list[str]) -> Counter[str]:
    query = f"DELETE FROM {table} WHERE {condition} RETURNING live, {COLUMNS[table][1]}"
    return _ended(con.execute(query, [keys]).fetchall())


def _ended(rows: Iterable[tuple[bool, object]]) -> Counter[str]:
    return Counter(str(status) for live, status in rows if not live)


def forget(con: duckdb.DuckDBPyConnection, bounds: dict[str, int], snapshot_seq: int) -> Counter[str]:
    """Remove every trace of these runs, inside the caller's transaction, and its weight from the seals. Returns how many of the runs were
    not live, by status."""
    if not bounds:
        return Counter()
    keys = list(bounds)
    known = con.execute(
        "SELECT min(first_seq), count(first_seq) FROM runs WHERE run_id IN (SELECT unnest($1::VARCHAR[]))", [keys]
    ).fetchone()
    first_seq = known[0] if known and known[1] == len(keys) else 0
    gone = con.execute(
        f"""DELETE FROM facts USING (SELECT unnest($1::VARCHAR[]) AS id, unnest($2::BIGINT[]) AS bound) AS forgotten
        WHERE subject = id AND seq < bound AND seq >= $3 RETURNING {FACT}""",
        [keys, list(bounds.values()), first_seq],
    ).fetchall()
    reweigh(con, gone)
    _forget_payloads(con, bounds, first_seq)
    _forget_members(con, bounds, snapshot_seq)
    theirs = "{} IN (SELECT unnest($1::VARCHAR[]))".format
    con.execute(f"DELETE FROM agents WHERE {theirs('agent_id')}", [keys])
    con.execute(f"DELETE FROM mail WHERE {theirs('mail_id')} OR {theirs('run_id')}", [keys])
    return _deleted(con, "runs", theirs("run_id"), keys)


def _forget_payloads(con: duckdb.DuckDBPyConnection, bounds: dict[str, int], first_seq: int) -> None:
    # Their bodies are weighed, so they are read, some at a time.
    found = con.execute(
        """SELECT payloads.rowid, octet_length(body) FROM payloads JOIN
        (SELECT unnest($1::VARCHAR[]) AS id, unnest($2::BIGINT[]) AS bound) ON run_id = id
        WHERE seq < bound AND (seq >= $3 OR seq = 0) ORDER BY payloads.rowid""",
        [list(bounds), list(bounds.values()), first_seq],
    ).fetchall()
    query = f"DELETE FROM payloads WHERE rowid IN (SELECT unnest($1::BIGINT[])) RETURNING {PAYLOAD}"
    for piece in by_bytes(found, itemgetter(1), PIECE_BYTES):
        reweigh(con, con.execute(query, [[row for row, _ in piece]]).fetchall())


def boot_records(con: duckdb.DuckDBPyConnection, rows: list[Row]) -> list[Record]:
    # The live records, those that the facts change, and the runs that live mail speaks of.
    touched = list(changed_by(rows))
    records: list[Record] = []
    for table in TABLES:
        key = COLUMNS[table][0]
        wanted = f"SELECT {key} FROM {table} WHERE live UNION SELECT unnest($1::VARCHAR[])"
        wanted += " UNION SELECT run_id FROM mail WHERE live" if table == "runs" else ""
        keys = [str(found) for (found,) in con.execute(wanted, [touched]).fetchall()]
        records += sorted(by_key(con, table, keys), key=boot_order)
    return records


def by_key(con: duckdb.DuckDBPyConnection, table: str, keys: list[str]) -> list[Record]:
    # A few keys at a time are found by index, so that the rest costs neither time nor memory, and a single one in half
    # of the time.
    if len(keys) == 1:
        return read(con, table, f"{COLUMNS[table][0]} = $1", [keys[0]])
    few = INDEXED_MAX if len(keys) <= _SCAN_FROM else len(keys)
    chosen = f"{COLUMNS[table][0]} IN (SELECT unnest($1::VARCHAR[]))"
    return [
        record for at in range(0, len(keys), few or 1) for record in read(con, table, chosen, [keys[at : at + few]])
    ]


def wanted_runs(con: duckdb.DuckDBPyConnection, wanted: Wanted, limit: int, first: First) -> list[Record]:
    """The runs that are wanted and not live, by their requests. Only what is asked for is a condition: one that is always true would cost
    ten times as much as the rest."""
    if wanted.is_of_live:
        return []
    clauses = {
        "parent = ?": wanted.parent,
        "agent_type = ?": wanted.agent_type,
        "status = ANY(?::VARCHAR[])": wanted.statuses,
        "first_seq < ?": wanted.before,
        "run_id IN (SELECT unnest(?::VARCHAR[]))": wanted.run_ids,
        "prefix(run_id, ?)": wanted.prefix or None,
        "requested_at_ms >= ?": wanted.since_ms,
        "requested_at_ms < ?": wanted.until_ms,
        "ended_at_ms >= ?": wanted.ended_since_ms,
        "ended_at_ms < ?": wanted.ended_until_ms,
        "status <> ?": str(Status.COMPLETED) if wanted.error else None,  # it has no error
    }
    given = [(clause, value) for clause, value in clauses.items() if value is not None]
    if wanted.retriable:
        given.append(("status = ANY(?::VARCHAR[])", sorted(RETRIABLE)))
    if wanted.words:
        words = "contains(lower({}), ?)".format
        given.append((f"({' OR '.join(map(words, _NAMES))})", wanted.words.lower()))
    values = [each for clause, value in given for each in [value] * clause.count("?")]
    condition = " AND ".join(["NOT live", *(clause for clause, _ in given)])
    way = "DESC NULLS LAST" if first == "newest" else "ASC NULLS FIRST"
    return _first(con, condition, f"first_seq {way} LIMIT ?", [*values, limit])


def family_runs(con: duckdb.DuckDBPyConnection, agent: str, limit: int) -> list[Record]:
    # As `ledger.ids.is_within` says it.
    condition = "NOT live AND (parent = $1 OR prefix(parent, $2))"
    return _first(con, condition, "requested_at_ms, first_seq LIMIT $3", [agent, f"{agent}>", limit])


def settled_before(
    con: duckdb.DuckDBPyConnection, before_ms: float, after: tuple[int, str], limit: int
) -> list[Record]:
    condition = f"""NOT live AND status IN ({", ".join(f"'{each}'" for each in sorted(HARD))}) AND ended_at_ms < $1
        AND (ended_at_ms > $2 OR ended_at_ms = $2 AND run_id > $3)"""
    return _first(con, condition, "ended_at_ms, run_id LIMIT $4", [min(before_ms, END), *after, limit])


def runs_of(con: duckdb.DuckDBPyConnection, agents: list[str], limit: int) -> list[Record]:
    condition = """NOT live AND (parent IN (SELECT unnest($1::VARCHAR[])) OR split_part(parent, '>', 1) IN
        (SELECT unnest($1::VARCHAR[])))"""
    return _first(con, condition, "requested_at_ms, first_seq LIMIT $2", [agents, limit])


def _first(con: duckdb.DuckDBPyConnection, condition: str, order: str, parameters: Sequence[object]) -> list[Record]:
    # Which runs they are is found out without their bodies: to sort whole rows, DuckDB reads all of them (6 s and 1 GB
    # for ten million).
    def found() -> list[Record]:
        keys = con.execute(f"SELECT run_id FROM runs WHERE {condition} ORDER BY {order}", parameters).fetchall()
        ordered = [str(key) for (key,) in keys]
        records = {record.key: record for record in by_key(con, "runs", ordered)}
        return [records[key] for key in ordered]

    return transact(con, found)  # of one moment


def read(con: duckdb.DuckDBPyConnection, table: str, condition: str, parameters: list[object]) -> list[Record]:
    query = f"SELECT live, body, {', '.join(COLUMNS[table])} FROM {table} WHERE {condition}"
    rows = con.execute(query, parameters).fetchall()
    return [Record(table, key, live, tuple(rest), body) for live, body, key, *rest in rows]


def frames_of(con: duckdb.DuckDBPyConnection, subjects: list[str], first_seq: int, last_seq: int) -> list[FactRow]:
    query = f"""SELECT {FACT} FROM facts WHERE subject IN (SELECT unnest($1::VARCHAR[])) AND seq BETWEEN $2 AND $3
        AND frame IS NOT NULL"""
    found = [FactRow(*row) for row in con.execute(query, [subjects, first_seq, last_seq]).fetchall()]
    members = members_between(con, first_seq, last_seq, set(subjects))
    return sorted(found + [each for each in members if each.frame is not None])


def facts_of(
    con: duckdb.DuckDBPyConnection, subject: str, snapshot_seq: int, end: int, after_frame: int | None, limit: int
) -> list[FactRow]:
    """The first facts about a run, an agent or a mail up to the `end`, in order; with `after_frame` just its events after this number."""
    events = "" if after_frame is None else f"AND frame > {after_frame}"
    query = f"SELECT {FACT} FROM facts WHERE subject = $1 AND seq BETWEEN $2 AND $3 {events} ORDER BY seq LIMIT $4"
    members = members_between(con, snapshot_seq + 1, end, {subject})
    places = stretches(con, subject, snapshot_seq, end)
    if places == [(0, end)] and any(each.frame == 0 for each in members):
        places = [(snapshot_seq + 1, end)]
    found: list[FactRow] = []
    for first_seq, last_seq in places:
        found += [FactRow(*row) for row in con.execute(query, [subject, first_seq, last_seq, limit]).fetchall()]
        if 0 < first_seq <= snapshot_seq:
            members += members_between(con, first_seq, min(last_seq, snapshot_seq), {subject})
    found += [each for each in members if after_frame is None or (each.frame is not None and each.frame > after_frame)]
    return sorted(found)[:limit]


def stretches(con: duckdb.DuckDBPyConnection, run_id: str, snapshot_seq: int, end: int) -> list[tuple[int, int]]:
    # The facts of a run are between its record's first and last fact, and after the snapshot.
    row = first_row(con, "SELECT first_seq, last_seq FROM runs WHERE run_id = $1", [run_id])
    if row is not None and None not in row:
        return [(row[0], min(row[1], end)), (max(row[1], snapshot_seq) + 1, end)]
    born = first_row(
        con, "SELECT 1 FROM facts WHERE subject = $1 AND frame = 0 AND seq > $2 LIMIT 1", [run_id, snapshot_seq]
    )
    return [(snapshot_seq + 1, end)] if born else [(0, end)]


def payload_of(con: duckdb.DuckDBPyConnection, run_id: str, part: str, snapshot_seq: int) -> bytes | None:
    query = (
        "SELECT body FROM payloads WHERE run_id = $1 AND part = $2 AND seq BETWEEN $3 AND $4 ORDER BY seq DESC LIMIT 1"
    )
    for first_seq, last_seq in [*stretches(con, run_id, snapshot_seq, END)[::-1], (0, END)]:
        row = first_row(con, query, [run_id, part, first_seq, last_seq])
        if row is not None:
            return bytes(row[0])
    return None


def rows_after(con: duckdb.DuckDBPyConnection, seq: int) -> list[Row]:
    # The facts from there on in order, and their batches. Of a batch that is not whole its members are given.
    facts = con.execute(f"SELECT {FACT} FROM facts WHERE seq > $1", [seq]).fetchall()
    rows: list[Row] = [FactRow(*fact) for fact in facts]
    begins = con.execute("SELECT seq FROM batches WHERE seq > $1", [seq]).fetchall()
    for batch in _beginning_at(con, [int(first) for (first,) in begins]):
        rows += [batch] if is_whole(batch) else expand_rows([batch])
    return sorted(rows, key=itemgetter(0))


# ---------------------------------------------------------------- batches, each of which stands in one row
# A run stands in the batches between its record's first and last fact, and perhaps in some after the snapshot. Only those are read.


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
    for at in range(0, len(begins), _BATCHES_AT_ONCE):
        yield expand_rows(_beginning_at(con, begins[at : at + _BATCHES_AT_ONCE]))


def members_between(
    con: duckdb.DuckDBPyConnection, first_seq: int, last_seq: int, subjects: Collection[str]
) -> list[FactRow]:
    query = "SELECT seq FROM batches WHERE seq <= $2 AND seq + facts > $1"
    begins = [int(seq) for (seq,) in con.execute(query, [first_seq, last_seq]).fetchall()]
    facts = expand_rows(_beginning_at(con, begins), subjects)
    return sorted(each for each in facts if first_seq <= each.seq <= last_seq)


def _forget_members(con: duckdb.DuckDBPyConnection, bounds: Mapping[str, int], snapshot_seq: int) -> None:
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
    for at in range(0, len(begins), _BATCHES_AT_ONCE):
        rows = con.execute(query, [begins[at : at + _BATCHES_AT_ONCE]]).fetchall()
        yield from (BatchRow(*row) for row in rows)


# ---------------------------------------------------------------- how many ended runs of each status the snapshot has
# The store counts rows as they come and go, and keeps the counts beside the snapshot that they speak of, so that a start does not look at
# every row. Counts that speak of another snapshot are not used: the rows are counted anew.


def read_counts(con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> Counter[str]:
    kept = get(con, _ENDED)
    if kept is None or kept[:2] != [snapshot_seq, _runs_in(con)]:
        return Counter(dict(con.execute("SELECT status, count(*) FROM runs WHERE NOT live GROUP BY status").fetchall()))
    return Counter(kept[2])


def write_counts(con: duckdb.DuckDBPyConnection, snapshot_seq: int, counts: Counter[str]) -> None:
    put(con, _ENDED, [snapshot_seq, _runs_in(con), dict(+counts)])


def _runs_in(con: duckdb.DuckDBPyConnection) -> int:
    ((count,),) = con.execute("SELECT count(*) FROM runs").fetchall()
    return int(count)
