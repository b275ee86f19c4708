"""Which runs and agents the snapshot may have: a filter in memory, so that a new id is known to be new without a question to DuckDB.

It errs in one direction. What it denies is not in the snapshot; what it affirms is looked up there (one new id in 150,000 for each full
level). It errs so seldom because a look-up costs two milliseconds of processor time, and waits if DuckDB is just writing its file, and a
turn with it. Each key has up to five bits in each of three words of 64 bits. So it takes three steps of Python to look for it, where
fifteen bits that are spread over a level would take fifteen. Ids of what was cleared or deleted stay in it, until they are more than the
others.

It stands in the database's file beside the records, in a table of its own, because DuckDB reads a small table whole whenever it looks for
one row of it. A checkpoint writes the level that changed, so its cost does not grow with what is retained. With the filter stands for
which snapshot it was written, and one that speaks of another is not used. Without a filter every id is looked up, which is right but slow,
and the next checkpoint builds it anew from the records.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Final, Self

import duckdb

from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.store.duckdb_file import get, put, transact
from perdure.ledger.store.store import Record

_BITS_EACH: Final = 32
_PATTERNS: Final = 2_048  # of bits in a word; the upper bits of a hash choose one, and the lower bits the word
_SHIFT: Final = 64 - (_PATTERNS - 1).bit_length()
_FIRST_SIZE: Final = 1 << 15  # bytes of the first level; each further one has twice the size of the one before
_SIZE_MAX: Final = 1 << 22  # until this: room for a million ids
_PIECE: Final = 1 << 18  # bytes that are read at once, so that a start needs no memory for a second copy
_SPARE: Final = 10_000  # ids of what is gone that are not worth a new filter
_AT_ONCE: Final = 20_000
DAMAGED: Final = "the filter of the ids that the snapshot has (table run_filter) is damaged"
_KEY: Final = "key_filter_words"  # in the table `meta`: of which snapshot the levels are, and their digests
_TABLE: Final = "CREATE TABLE run_filter (place INTEGER PRIMARY KEY, bits BLOB USING COMPRESSION uncompressed)"


def _pattern(number: int) -> int:
    # Up to five bits of a word, spread by multiplication with the golden ratio.
    spread = number * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return sum({1 << (spread >> place & 63) for place in range(34, 64, 6)})


_MASKS: Final = [_pattern(number) for number in range(1, _PATTERNS + 1)]
_hashes: Final = Struct("<QQQ").unpack


class KeyFilter:
    """A Bloom filter in levels. One thread adds; another may ask meanwhile."""

    def __init__(self) -> None:
        self._levels: list[array[int]] = []
        self._count = 0  # in all levels
        self._left = 0  # in the last one
        self._digests: list[bytes] = []  # of the levels that stand in the file and do not change any more

    def __contains__(self, key: str) -> bool:
        return self._finds(*_hashes(_hash(key)))

    def _finds(self, one: int, two: int, three: int) -> bool:
        mask = _MASKS[one >> _SHIFT]
        for level in self._levels:
            last = len(level) - 1
            if level[one & last] & mask == mask and _has(level, two, last) and _has(level, three, last):
                return True
        return False

    def add(self, keys: Iterable[str]) -> set[str]:
        # From now on the snapshot may have these. Returns those that it was known not to have.
        new: set[str] = set()
        for key in keys:
            hashes = _hashes(_hash(key))
            if self._finds(*hashes):
                continue
            if not self._left:
                self._levels.append(_empty(len(self._levels)))
                self._left = 64 * len(self._levels[-1]) // _BITS_EACH
            level = self._levels[-1]
            last = len(level) - 1
            for each in hashes:
                level[each & last] |= _MASKS[each >> _SHIFT]
            new.add(key)
            self._left -= 1
        self._count += len(new)
        return new

    def is_outgrown(self, con: duckdb.DuckDBPyConnection) -> bool:
        # Most of it is of what was cleared or deleted.
        return self._count > 2 * _keys_in(con) + _SPARE

    def write(self, con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> None:
        # Keep it beside the snapshot that goes up to this fact, inside the caller's transaction.
        for number, level in enumerate(self._levels[len(self._digests) :], len(self._digests)):
            places = _places(number)
            whole = memoryview(level).cast("B")
            pieces = [bytes(whole[at : at + _PIECE]) for at in range(0, len(whole), _PIECE)]
            con.execute("DELETE FROM run_filter WHERE place BETWEEN $1 AND $2", [places[0], places[-1]])
            con.execute(
                "INSERT INTO run_filter SELECT unnest($1::INTEGER[]), unnest($2::BLOB[])", [list(places), pieces]
            )
            self._digests.append(_digest(level))
        put(con, _KEY, [snapshot_seq, _keys_in(con), self._count, self._left, self._digests])
        self._digests = self._digests[: len(self._levels) - 1]  # the last one changes

    @classmethod
    def read(cls, con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> Self | None:
        # The filter of this snapshot, or None if there is none that speaks of it: an empty snapshot needs none.
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
        made = cls()
        con.execute("DELETE FROM run_filter")
        found = con.execute("SELECT run_id FROM runs UNION ALL SELECT agent_id FROM agents")
        while rows := found.fetchmany(_AT_ONCE):
            made.add(key for (key,) in rows)
        return made


def read_filter(con: duckdb.DuckDBPyConnection, snapshot_seq: int, findings: list[str]) -> KeyFilter | None:
    """The filter of this snapshot, if there is one. One that is damaged is thrown away, and told: it says nothing that records do not."""
    try:
        read_through_filter(con)
    except duckdb.Error as problem:
        if not is_damage(problem):
            raise
        con.execute("DROP TABLE run_filter")
        con.execute(_TABLE)  # now, because DuckDB refuses a checkpoint if a table was created while others read
        findings.append(f"{DAMAGED}; it is built anew from the records")
    return KeyFilter.read(con, snapshot_seq)


def read_through_filter(con: duckdb.DuckDBPyConnection) -> None:
    """Read all of the filter's table, and find its rows by their key. Raises what DuckDB raises at a damaged block."""
    con.execute("SELECT max(hash(run_filter)) FROM run_filter").fetchall()
    con.execute("SELECT count(bits) FROM run_filter WHERE place IN (SELECT place FROM run_filter)").fetchall()


def new_keys(known: KeyFilter | None, records: list[Record]) -> set[str]:
    return set() if known is None else known.add(record.key for record in records if record.table in ("runs", "agents"))


def filter_after(con: duckdb.DuckDBPyConnection, before: KeyFilter | None, snapshot_seq: int) -> KeyFilter:
    after = KeyFilter.built(con) if before is None or before.is_outgrown(con) else before
    transact(con, lambda: after.write(con, snapshot_seq))
    return after


def _size(number: int) -> int:
    # in bytes
    return min(_FIRST_SIZE << min(number, 32), _SIZE_MAX)


def _places(number: int) -> range:
    first = number * (_SIZE_MAX // _PIECE)
    return range(first, first + max(1, _size(number) // _PIECE))


def _empty(number: int) -> array[int]:
    return array("Q", [0]) * (_size(number) // 8)


def _read_level(con: duckdb.DuckDBPyConnection, number: int) -> array[int]:
    # Zeros stand for a piece that is not there.
    level = _empty(number)
    whole = memoryview(level).cast("B")
    for at, place in enumerate(_places(number)):
        if (row := con.execute("SELECT bits FROM run_filter WHERE place = $1", [place]).fetchone()) is not None:
            whole[at * _PIECE : (at + 1) * _PIECE] = row[0]
    return level


def _digest(level: array[int]) -> bytes:
    return blake2b(level, digest_size=16).digest()


def _keys_in(con: duckdb.DuckDBPyConnection) -> int:
    ((count,),) = con.execute("SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM agents)").fetchall()
    return int(count)


def _hash(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=24).digest()


def _has(level: array[int], hashed: int, last: int) -> bool:
    mask = _MASKS[hashed >> _SHIFT]
    return level[hashed & last] & mask == mask
