"""Which runs and agents the snapshot may have: a filter in memory, so that a new id is known to be new without a question to DuckDB.

It errs in one direction. What it denies is not in the snapshot; what it affirms is looked up there (one new id in two million for each
full level). It errs so seldom because a look-up costs two milliseconds of processor time, and waits if DuckDB is just writing its file,
and a turn with it. Ids of what was cleared or deleted stay in it, until they are more than the others.

It stands in the database's file beside the records, in a table of its own, because DuckDB reads a small table whole whenever it looks for
one row of it. A checkpoint writes the level that changed, so its cost does not grow with what is retained. With the filter stands for
which snapshot it was written: an earlier version of Perdure leaves it behind, and one that is behind is not used. Without a filter every id
is looked up, which is right but slow, and the next checkpoint builds it anew from the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, Self

import duckdb

from perdure.ledger.store.duckdb_file import get, put, transact
from perdure.ledger.store.store import Record

_PROBES: Final = 14
_BITS_EACH: Final = 32
_BITS: Final = tuple(1 << place for place in range(8))
_FIRST_SIZE: Final = 1 << 15  # bytes of the first level; each further one has twice the size of the one before
_SIZE_MAX: Final = 1 << 22  # until this: room for a million ids
_PIECE: Final = 1 << 18  # bytes that are read at once, so that a start needs no memory for a second copy
_SPARE: Final = 10_000  # ids of what is gone that are not worth a new filter
_AT_ONCE: Final = 20_000
_HALF: Final = (1 << 32) - 1
_KEY: Final = f"key_filter_{_PROBES}"  # in the table `meta`: of which snapshot the levels are, and their digests
_EARLIER_KEYS: Final = ("filter", "run_filter")  # how others began, of which none is used any more
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS run_filter (place INTEGER PRIMARY KEY, bits BLOB USING COMPRESSION uncompressed)"
)


class KeyFilter:
    """A Bloom filter in levels. One thread adds; another may ask meanwhile."""

    def __init__(self) -> None:
        self._levels: list[bytearray] = []
        self._count = 0  # in all levels
        self._left = 0  # in the last one
        self._digests: list[bytes] = []  # of the levels that stand in the file and do not change any more

    def __contains__(self, key: str) -> bool:
        """Whether the snapshot may have this run or agent."""
        return self._finds(*_hashes(key))

    def _finds(self, first: int, step: int) -> bool:
        for level in self._levels:
            bit = first & 8 * len(level) - 1  # of most levels the first bit says no
            if level[bit >> 3] & _BITS[bit & 7] and _has(level, first, step):
                return True
        return False

    def add(self, keys: Iterable[str]) -> set[str]:
        """From now on the snapshot may have these. Returns those that it was known not to have."""
        new: set[str] = set()
        for key in keys:
            first, step = _hashes(key)
            if self._finds(first, step):
                continue
            if not self._left:
                self._grow()
            _set(self._levels[-1], first, step)
            new.add(key)
            self._left -= 1
        self._count += len(new)
        return new

    def _grow(self) -> None:
        size = _size(len(self._levels))
        self._left = 8 * size // _BITS_EACH
        self._levels.append(bytearray(size))

    def is_outgrown(self, con: duckdb.DuckDBPyConnection) -> bool:
        """Whether most of it is of what was cleared or deleted."""
        return self._count > 2 * _keys_in(con) + _SPARE

    def write(self, con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> None:
        """Keep it beside the snapshot that goes up to this fact, inside the caller's transaction."""
        for number, level in enumerate(self._levels[len(self._digests) :], len(self._digests)):
            places = _places(number)
            pieces = [bytes(level[at : at + _PIECE]) for at in range(0, len(level), _PIECE)]
            con.execute("DELETE FROM run_filter WHERE place BETWEEN $1 AND $2", [places[0], places[-1]])
            con.execute(
                "INSERT INTO run_filter SELECT unnest($1::INTEGER[]), unnest($2::BLOB[])", [list(places), pieces]
            )
            self._digests.append(_digest(level))
        put(con, _KEY, [snapshot_seq, _keys_in(con), self._count, self._left, self._digests])
        self._digests = self._digests[: len(self._levels) - 1]  # the last one changes

    @classmethod
    def read(cls, con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> Self | None:
        """The filter of this snapshot, or None if there is none that speaks of it: an empty snapshot needs none. A file of an earlier
        version gets its table now, because DuckDB refuses a checkpoint if a table was created while others read."""
        con.execute(_TABLE)
        kept, keys, made = get(con, _KEY), _keys_in(con), cls()
        if not keys:
            return made
        if kept is None or kept[:2] != [snapshot_seq, keys]:
            return None
        made._count, made._left, digests = kept[2:]
        for number, digest in enumerate(digests):
            level = _read_level(con, number)
            if _digest(level) != digest:
                return None
            made._levels.append(level)
        made._digests = digests[: len(digests) - 1]
        return made

    @classmethod
    def built(cls, con: duckdb.DuckDBPyConnection) -> Self:
        """A new one, from the records."""
        made = cls()
        for key in _EARLIER_KEYS:
            con.execute("DELETE FROM meta WHERE prefix(key, $1)", [key])
        con.execute("DELETE FROM run_filter")
        found = con.execute("SELECT run_id FROM runs UNION ALL SELECT agent_id FROM agents")
        while rows := found.fetchmany(_AT_ONCE):
            made.add(key for (key,) in rows)
        return made


def new_keys(known: KeyFilter | None, records: list[Record]) -> set[str]:
    """Add the runs and agents among these records to what the snapshot may have. Returns those that it is known not to have had."""
    return set() if known is None else known.add(record.key for record in records if record.table in ("runs", "agents"))


def filter_after(con: duckdb.DuckDBPyConnection, before: KeyFilter | None, snapshot_seq: int) -> KeyFilter:
    """The filter of the snapshot that goes up to this fact, whose keys were added to the one before, if there was one."""
    after = KeyFilter.built(con) if before is None or before.is_outgrown(con) else before
    transact(con, lambda: after.write(con, snapshot_seq))
    return after


def _size(number: int) -> int:
    """Bytes of a level."""
    return min(_FIRST_SIZE << min(number, 32), _SIZE_MAX)


def _places(number: int) -> range:
    """The places of a level's pieces among those of all levels."""
    first = number * (_SIZE_MAX // _PIECE)
    return range(first, first + max(1, _size(number) // _PIECE))


def _read_level(con: duckdb.DuckDBPyConnection, number: int) -> bytearray:
    """A level piece by piece; zeros stand for a piece that is not there."""
    level = bytearray(_size(number))
    for at, place in enumerate(_places(number)):
        if (row := con.execute("SELECT bits FROM run_filter WHERE place = $1", [place]).fetchone()) is not None:
            level[at * _PIECE : (at + 1) * _PIECE] = row[0]
    return level


def _digest(level: bytes | bytearray) -> bytes:
    return blake2b(level, digest_size=16).digest()


def _keys_in(con: duckdb.DuckDBPyConnection) -> int:
    ((count,),) = con.execute("SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM agents)").fetchall()
    return int(count)


def _hashes(key: str) -> tuple[int, int]:
    value = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    return value & _HALF, value >> 32 | 1


def _has(level: bytearray, first: int, step: int) -> bool:
    mask = 8 * len(level) - 1
    for place in range(first, first + _PROBES * step, step):
        bit = place & mask
        if not level[bit >> 3] & _BITS[bit & 7]:
            return False
    return True


def _set(level: bytearray, first: int, step: int) -> None:
    mask = 8 * len(level) - 1
    for place in range(first, first + _PROBES * step, step):
        level[(place & mask) >> 3] |= _BITS[place & 7]
