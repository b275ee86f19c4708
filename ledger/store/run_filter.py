"""Which runs the snapshot may have: a filter in memory, so that a new id is known to be new without a question to DuckDB.

It errs in one direction. What it denies is not in the snapshot; what it affirms is looked up there (one new id in a hundred thousand). Ids
of runs that were cleared stay in it, until they are more than the others.

It stands in the database's file beside the records, and changes with them at one checkpoint. With it stands for which snapshot it was
written: an earlier version of Perdure leaves it behind, and one that is behind is not used. Without a filter every id is looked up, which
is right but slow, and the next checkpoint builds it anew from the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, Self

import duckdb

from perdure.ledger.store.duckdb_file import get, put, transact
from perdure.ledger.store.store import Record

_PROBES: Final = 10
_BITS_EACH: Final = 32  # one new id in half a million is affirmed by a full level
_FIRST_ROOM: Final = 1 << 13  # ids in the first level; each further one has twice the room of the one before
_SPARE: Final = 10_000  # ids of cleared runs that are not worth a new filter
_AT_ONCE: Final = 20_000
_HALF: Final = (1 << 32) - 1


class RunFilter:
    """A Bloom filter in levels. One thread adds; another may ask meanwhile."""

    def __init__(self) -> None:
        self._levels: list[bytearray] = []
        self._count = 0  # in all levels
        self._left = 0  # in the last one
        self._written = 0  # levels that stand in the file and do not change any more

    def __contains__(self, run_id: str) -> bool:
        """Whether the snapshot may have this run."""
        return self._finds(*_hashes(run_id))

    def _finds(self, first: int, step: int) -> bool:
        for level in self._levels:  # noqa: SIM110 - a generator costs as much as the look itself
            if _has(level, first, step):
                return True
        return False

    def add(self, run_ids: Iterable[str]) -> set[str]:
        """From now on the snapshot may have these. Returns those that it was known not to have."""
        new: set[str] = set()
        for run_id in run_ids:
            first, step = _hashes(run_id)
            if self._finds(first, step):
                continue
            if not self._left:
                self._grow(2 * len(self._levels[-1]) * 8 // _BITS_EACH if self._levels else _FIRST_ROOM)
            _set(self._levels[-1], first, step)
            new.add(run_id)
            self._left -= 1
        self._count += len(new)
        return new

    def _grow(self, room: int) -> None:
        self._left = room
        self._levels.append(bytearray(room * _BITS_EACH // 8))

    def is_outgrown(self, con: duckdb.DuckDBPyConnection) -> bool:
        """Whether most of it is of runs that were cleared."""
        return self._count > 2 * _runs(con) + _SPARE

    def write(self, con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> None:
        """Keep it beside the snapshot that goes up to this fact, inside the caller's transaction."""
        for number in range(self._written, len(self._levels)):
            put(con, _level(number), bytes(self._levels[number]))
        self._written = max(0, len(self._levels) - 1)
        put(con, "run_filter", [snapshot_seq, _runs(con), self._count, self._left, _digest(self._levels)])

    @classmethod
    def read(cls, con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> Self | None:
        """The filter of this snapshot, or None if there is none that speaks of it."""
        kept = get(con, "run_filter")
        if kept is None or kept[:2] != [snapshot_seq, _runs(con)]:
            return None
        made = cls()
        while (level := get(con, _level(len(made._levels)))) is not None:
            made._levels.append(bytearray(level))
        if _digest(made._levels) != kept[4]:
            return None
        made._count, made._left = kept[2:4]
        made._written = max(0, len(made._levels) - 1)
        return made

    @classmethod
    def built(cls, con: duckdb.DuckDBPyConnection) -> Self:
        """A new one, from the records."""
        made = cls()
        made._grow(max(_FIRST_ROOM, 1 << _runs(con).bit_length()))
        for name in con.execute("SELECT key FROM meta WHERE prefix(key, 'run_filter')").fetchall():
            con.execute("DELETE FROM meta WHERE key = $1", list(name))
        found = con.execute("SELECT run_id FROM runs")
        while rows := found.fetchmany(_AT_ONCE):
            made.add(run_id for (run_id,) in rows)
        return made


def new_runs(known: RunFilter | None, records: list[Record]) -> set[str]:
    """Add the runs among these records to what the snapshot may have. Returns those that it is known not to have had."""
    return set() if known is None else known.add(record.key for record in records if record.table == "runs")


def filter_after(con: duckdb.DuckDBPyConnection, before: RunFilter | None, snapshot_seq: int) -> RunFilter:
    """The filter of the snapshot that goes up to this fact, whose runs were added to the one before, if there was one."""
    after = RunFilter.built(con) if before is None or before.is_outgrown(con) else before
    transact(con, lambda: after.write(con, snapshot_seq))
    return after


def _level(number: int) -> str:
    return f"run_filter.{number}"


def _runs(con: duckdb.DuckDBPyConnection) -> int:
    ((count,),) = con.execute("SELECT count(*) FROM runs").fetchall()
    return int(count)


def _digest(levels: list[bytearray]) -> bytes:
    state = blake2b(digest_size=16)
    for level in levels:
        state.update(level)
    return state.digest()


def _hashes(run_id: str) -> tuple[int, int]:
    value = int.from_bytes(blake2b(run_id.encode(), digest_size=8).digest(), "big")
    return value & _HALF, value >> 32 | 1


def _has(level: bytearray, first: int, step: int) -> bool:
    mask = 8 * len(level) - 1
    for place in range(first, first + _PROBES * step, step):
        bit = place & mask
        if not level[bit >> 3] >> (bit & 7) & 1:
            return False
    return True


def _set(level: bytearray, first: int, step: int) -> None:
    mask = 8 * len(level) - 1
    for place in range(first, first + _PROBES * step, step):
        bit = place & mask
        level[bit >> 3] |= 1 << (bit & 7)
