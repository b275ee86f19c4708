"""One agent's database while it is attached: its owner, its cursors, its sweeps.

`meta` holds the agent's id (a file under a wrong name is found out), the latest incarnation (a lower one is refused) and the
version of the schema. A new database has its tables already (`ledger.storage.file_disk`), so the log never begins with table definitions,
which is where DuckDB's replay is weakest; `meta` is filled by the first commit of all. A death before that leaves a storage
without an owner, which the next opening takes.

Each statement by which records are written and read is parsed once for the whole process. That saves half of what a short one costs
(0.5 ms); its places are bound anew for each database.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from threading import RLock
from typing import Final

import duckdb

from perdure.ledger.errors import StaleIncarnation, StorageError
from perdure.ledger.storage.disk import Disk
from perdure.ledger.storage.records import GONE, OUTBOX, SCHEMA_VERSION, STATE, Records, Row, refuse_stranger
from perdure.ledger.storage.sql import OVER, SqlCursor

Durable = Callable[[], AbstractContextManager[None]]
Bound = tuple[duckdb.Statement, list[object]]

_LANES_IDLE_MAX: Final = 4
_GARBAGE_MAX: Final = 2048
_GARBAGE_AT_REST_MAX: Final = 64  # what a storage may have when it is let go
_COMMITS_MAX: Final = 1000  # between checkpoints; a log of 3,400 commits is replayed in 0.2 s
_LOG_BYTES_MAX: Final = 16 << 20  # between checkpoints, too

_INSERT = (
    "INSERT INTO perdure.records "
    "SELECT unnest($1::BIGINT[]), unnest($2::VARCHAR[]), unnest($3::VARCHAR[]), unnest($4::BLOB[])"
)
_INSERT_VALUES = "INSERT INTO perdure.records VALUES "
_BODIES = "SELECT number, body FROM perdure.records WHERE number IN "
_MANY_BODIES = f"{_BODIES} (SELECT unnest($1::BIGINT[]))"
_LOAD = (  # in no order; of other kinds only whether there is a body: without one the document is deleted
    "SELECT number, kind, key, CASE WHEN kind IN ($1, $2, $3) THEN body WHEN body IS NOT NULL THEN ''::BLOB END "
    "FROM perdure.records"
)
_OWNER = "SELECT * FROM perdure.meta"  # (agent_id, incarnation, schema_version, clock), or nothing yet
_TAKE = "UPDATE perdure.meta SET incarnation = $1"
_SIGN = "INSERT INTO perdure.meta VALUES ($1, $2, $3, $4)"
_ROWS_AS_VALUES_MAX = 8
_BODIES_BY_NAME_MAX = 16


class AgentDatabase:
    """The attached database of one incarnation. `durable` is put around whatever becomes durable."""

    def __init__(self, disk: Disk, agent_id: str, name: str, durable: Durable) -> None:
        self.name = name
        self._disk, self._agent_id, self._durable = disk, agent_id, durable
        self._incarnation, self._clock = 0, 1
        self._is_signed = True
        self._is_over = False
        self._ending = RLock()
        self._idle: list[SqlCursor] = []
        self._lanes: set[SqlCursor] = set()
        self._commits, self._is_due = 0, False

    def open(self, incarnation: int | None) -> None:
        # Earlier lives are refused from now on; without a life it is only looked at.
        self._incarnation = incarnation or 0
        if self._disk.take_blank(self.name):
            self._is_signed = False
            return
        lane = self.borrow()
        try:
            meta = lane.run(_parsed(_OWNER))
        except duckdb.CatalogException as problem:
            raise StorageError(self._agent_id, "the database in its place is no storage of an agent") from problem
        self._is_signed = bool(meta)
        if meta:
            self._clock = int(meta[0][3])
        if meta and incarnation is not None:
            agent_id, latest, version = meta[0][:3]
            refuse_stranger(self._agent_id, self._incarnation, owner=agent_id, latest=latest, version=version)
            if latest < self._incarnation:
                with self._durable():
                    lane.run(_parsed(_TAKE), [self._incarnation])
        self.give_back(lane)

    def load(self) -> Records:
        records = Records(self._clock)
        lane = self.borrow()
        stored = sorted(lane.run(_parsed(_LOAD), [STATE, OUTBOX, GONE]), key=itemgetter(0))
        records.load((number, Row(kind, key, body)) for number, kind, key, body in stored)
        self.give_back(lane)
        return records

    def write(self, number: int, rows: list[Row], lane: SqlCursor | None = None) -> None:
        """Commit what was done on this cursor, and these rows, numbered from here on. Without a transaction the last statement is one of
        its own (that saves 0.3 ms)."""
        used = lane or self.borrow()
        try:
            if not self._is_signed:
                used.begin()
                used.run(*signing(self._agent_id, self._incarnation, SCHEMA_VERSION, 1))
            if rows:
                used.run(*insertion(list(enumerate(rows, number))))
            used.commit()
            self._is_signed = True
        finally:
            if lane is None:
                used.rollback()
                self.give_back(used)

    def bodies(self, numbers: list[int]) -> list[tuple[int, bytes]]:
        lane = self.borrow()
        try:
            return lane.run(*_bodies(numbers))
        finally:
            self.give_back(lane)

    def tidy(self, records: Records, *, altered: bool) -> None:
        # The definition of a table is brought into the database at once, or as soon as there is room.
        self._commits += 1
        has_grown = self._commits >= _COMMITS_MAX or self._disk.log_bytes(self._agent_id) >= _LOG_BYTES_MAX
        self._is_due |= altered or has_grown
        is_littered = len(records.garbage) >= _GARBAGE_MAX
        if not (is_littered or self._is_due) or not self._disk.has_room(self._agent_id):
            return
        if is_littered:
            self.sweep(records)
        if self._is_due:
            self._commits, self._is_due = 0, False
            self.secure()

    def sweep(self, records: Records) -> None:
        # The clock is noted, for the row with the highest number may be among it.
        if not records.garbage:
            return
        numbers = list(records.garbage)
        lane = self.borrow()
        try:
            lane.begin()
            lane.run("DELETE FROM perdure.records WHERE number IN (SELECT unnest($1))", [numbers])
            lane.run("UPDATE perdure.meta SET clock = $1", [records.clock])
            with self._durable():
                lane.commit()
                records.swept(numbers)
        finally:
            lane.rollback()
            self.give_back(lane)

    def rest(self, records: Records) -> None:
        # A crash would bring back what was forgotten.
        if len(records.garbage) > _GARBAGE_AT_REST_MAX or records.has_forgotten:
            self.sweep(records)

    def secure(self) -> None:
        # A checkpoint is put off, without an error, while an open transaction of the agent prevents it.
        with suppress(duckdb.TransactionException):
            self._disk.secure(self._agent_id, self.name)

    def end(self, *, checkpoint: bool) -> None:
        """Close every cursor and detach the database. With `checkpoint` the log is brought into it first, if the disk lets it be; if
        not, it stays beside it."""
        with self._ending:
            self._is_over = True
        for lane in list(self._lanes):
            lane.shut()
        self._idle.clear()
        self._lanes.clear()
        self._disk.detach(self._agent_id, self.name, checkpoint=checkpoint)

    def borrow(self) -> SqlCursor:
        # The cursor is for one transaction or one query.
        if self._idle:
            with suppress(IndexError):  # another thread took the last one
                return self._idle.pop()
        with self._ending:
            if self._is_over:
                raise StaleIncarnation(self._agent_id, OVER)
            lane = self._disk.lane(self._agent_id, self.name)
            self._lanes.add(lane)
        return lane

    def give_back(self, lane: SqlCursor, *, keep: bool = True) -> None:
        if keep and len(self._idle) < _LANES_IDLE_MAX:
            self._idle.append(lane)
            return
        lane.shut()
        self._lanes.discard(lane)


def insertion(rows: list[tuple[int, Row]]) -> Bound:
    # A few rows are faster as values (by 0.2 ms), many as lists.
    flat = [(number, *row) for number, row in rows]
    if len(flat) > _ROWS_AS_VALUES_MAX:
        return _parsed(_INSERT), [list(column) for column in zip(*flat, strict=True)]
    places = ", ".join(f"(${4 * at + 1}, ${4 * at + 2}, ${4 * at + 3}, ${4 * at + 4})" for at in range(len(flat)))
    return _parsed(_INSERT_VALUES + places), list(chain.from_iterable(flat))


def _bodies(numbers: list[int]) -> Bound:
    # As `(number, body)`. A few are faster one by one (by 0.9 ms), many as a list.
    if len(numbers) > _BODIES_BY_NAME_MAX:
        return _parsed(_MANY_BODIES), [numbers]
    places = ", ".join(f"${place}" for place in range(1, len(numbers) + 1))
    return _parsed(f"{_BODIES} ({places})"), [*numbers]


def signing(agent_id: str, incarnation: int, version: int, clock: int) -> Bound:
    return _parsed(_SIGN), [agent_id, incarnation, version, clock]


@lru_cache(maxsize=64)
def _parsed(text: str) -> duckdb.Statement:
    return duckdb.extract_statements(text)[0]


atexit.register(_parsed.cache_clear)  # DuckDB reports what is left at exit as a leak, on stderr
