"""Proof that no fact is missing: a chain since the last checkpoint, weights before it.

DuckDB checks every block of its file, but not whether a row is missing. So facts carry proof of their own, in two kinds.

- **The chain** guards the facts since the last checkpoint, which stand in the journal. Each commit there carries a digest over the digest
  of the commit before, its own last number, and the weight of its facts, batches and payloads. Each boot follows it.
- **The seals** guard everything before. The weight of a stretch is how many facts, batches and payloads there are and the sum of their
  digests modulo 2^128, so a forgotten run is taken out by subtraction and what remains can still be verified in full. A chain could not
  do that: one row gone breaks it for ever. Only `perdure doctor` weighs everything again, so a boot costs nothing for what is retained.

Both find accidents and bugs. Neither protects against an attacker who can write to the file, because the digests have no secret.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgpack

from perdure.ledger.store.batches import count_of
from perdure.ledger.store.store import BatchRow, FactRow, Payload, Row

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MODULUS = 1 << 128
_LONG = 1 << 63
_FRAME = (int, type(None))
_SPAN = 100_000  # facts in a seal before the next one is begun
FACT, BATCH, PAYLOAD = (
    "seq, at_ms, subject, frame, kind, body",
    "seq, at_ms, facts, kind, body",
    "seq, run_id, part, body",
)
"""What is weighed of each row of the tables, and read of it."""
_WEIGHED = {"facts": FACT, "batches": BATCH, "payloads": PAYLOAD}
_AT_ONCE = {"facts": 1_000, "batches": 100, "payloads": 16}  # rows in memory: of payloads each may have megabytes

Weighed: TypeAlias = tuple[Any, ...]
"""A fact, a batch or a payload as it is weighed. It begins with its number."""


# A place in the chain: the last fact of a commit, and the digest it carries.
class Mark(NamedTuple):
    seq: int
    digest: bytes


GENESIS = Mark(0, bytes(16))


# A weight: how many items, and the sum of their digests modulo 2^128.
class Tally(NamedTuple):
    items: int
    total: int

    def plus(self, other: Tally) -> Tally:
        return Tally(self.items + other.items, (self.total + other.total) % _MODULUS)

    def minus(self, other: Tally) -> Tally:
        return Tally(self.items - other.items, (self.total - other.total) % _MODULUS)


NOTHING = Tally(0, 0)


# A payload and the fact that it belongs to.
class SealedPayload(NamedTuple):
    seq: int
    run_id: str
    part: str
    body: bytes


class Commit(NamedTuple):
    """A group of facts and payloads, sealed onto the chain. `parts` are its canonical encoding, in pieces, of `size` bytes."""

    before: Mark
    after: Mark
    rows: Sequence[Row]
    payloads: list[SealedPayload]
    tally: Tally
    parts: list[bytes]
    size: int


def weigh(packed: Iterable[bytes]) -> Tally:
    digests = [int.from_bytes(blake2b(each, digest_size=16).digest(), "big") for each in packed]
    return Tally(len(digests), sum(digests) % _MODULUS)


def seal(before: Mark, rows: Sequence[Row], payloads: list[Payload]) -> Commit:
    """Chain a group to what was committed before it. Its facts must continue the numbers, and be what the columns can hold:
    the journal would keep what DuckDB refuses, and every later start would stumble over it."""
    last = before.seq
    for row in rows:
        if row.seq != last + 1:
            break
        last += row.facts if isinstance(row, BatchRow) else 1
        is_frame = isinstance(row, BatchRow) or type(row.frame) in _FRAME
        if type(row.at_ms) is not int or not -_LONG <= row.at_ms < _LONG or not is_frame:
            raise AssertionError(f"{row} cannot be stored")
    if not rows or last != before.seq + count_of(rows):
        raise AssertionError(f"a commit after fact {before.seq} has the numbers {[row.seq for row in rows][:10]}")
    home = {row.subject: row.seq for row in rows if isinstance(row, FactRow)} if payloads else {}
    placed = [SealedPayload(home.get(payload.run_id, last), *payload) for payload in payloads]
    pack = msgpack.Packer().pack
    facts, bodies = [pack(row) for row in rows], [pack(payload) for payload in placed]
    tally = weigh((*facts, *bodies))
    parts = [b"".join((pack((len(rows), len(placed))), *facts)), *bodies]
    return Commit(before, Mark(last, link(before, last, tally)), rows, placed, tally, parts, sum(map(len, parts)))


def unseal(before: Mark, after: Mark, packed: bytes) -> Commit:
    reader = msgpack.Unpacker(raw=False, max_buffer_size=0)
    reader.feed(packed)
    rows_count, payloads_count = next(reader)
    rows = [_row(next(reader)) for _ in range(rows_count)]
    placed = [SealedPayload(*next(reader)) for _ in range(payloads_count)]
    pack = msgpack.Packer().pack
    tally = weigh(pack(each) for each in (*rows, *placed))
    return Commit(before, after, rows, placed, tally, [packed], len(packed))


def _row(plain: list[Any]) -> Row:
    # its length tells a batch
    return FactRow(*plain) if len(plain) == len(FactRow._fields) else BatchRow(*plain)


def extend(con: DuckDBPyConnection, first_seq: int, last_seq: int, tally: Tally) -> None:
    # Seals are few, because the last one grows until it is long enough.
    last = con.execute("SELECT first_seq, last_seq, items, total FROM seals ORDER BY last_seq DESC LIMIT 1").fetchone()
    if last is not None and last[1] - last[0] < _SPAN and last[1] + 1 == first_seq:
        con.execute("DELETE FROM seals WHERE first_seq = $1", [last[0]])
        first_seq, tally = last[0], tally.plus(Tally(last[2], int.from_bytes(last[3], "big")))
    _insert(con, first_seq, last_seq, tally)


def reweigh(con: DuckDBPyConnection, gone: Iterable[Weighed], come: Iterable[Weighed] = ()) -> None:
    # Take the weight of what is gone out of its seals, and put in what has come in its place.
    pack = msgpack.Packer().pack
    seals = _seals(con)
    ends = [last_seq for _, last_seq, _ in seals]
    changes: dict[int, tuple[list[bytes], list[bytes]]] = {}
    for side, items in enumerate((gone, come)):
        for item in items:
            position = bisect_left(ends, item[0])
            if position < len(seals) and seals[position][0] <= item[0]:
                changes.setdefault(position, ([], []))[side].append(pack(item))
    for position, (out, into) in changes.items():
        first_seq, last_seq, tally = seals[position]
        con.execute("DELETE FROM seals WHERE first_seq = $1", [first_seq])
        rest = tally.minus(weigh(out)).plus(weigh(into))
        if rest.items:
            _insert(con, first_seq, last_seq, rest)


def broken_seals(con: DuckDBPyConnection, upto_seq: int) -> Iterator[str]:
    """Weigh everything up to the last checkpoint again, and say in words what differs."""
    covered = 0
    for first_seq, last_seq, tally in _seals(con):
        found = _weigh_stretch(con, first_seq, last_seq)
        covered += found.items
        if found.items != tally.items:
            yield f"of the {tally.items} facts and payloads kept from {first_seq} to {last_seq}, {found.items} are there"
        elif found != tally:
            yield f"facts or payloads from {first_seq} to {last_seq} are not those that were written"
    counts = [f"(SELECT count(*) FROM {table} WHERE seq BETWEEN 1 AND $1)" for table in _WEIGHED]
    (there,) = con.execute(f"SELECT {' + '.join(counts)}", [upto_seq]).fetchone() or (0,)
    if there != covered:
        yield f"{there - covered} facts or payloads stand outside of every seal"


def seal_anew(con: DuckDBPyConnection, upto_seq: int) -> None:
    # Only a repair may do this: from then on, what was lost is not missed.
    con.execute("DELETE FROM seals")
    for first_seq in range(1, upto_seq + 1, _SPAN):
        last_seq = min(first_seq + _SPAN - 1, upto_seq)
        tally = _weigh_stretch(con, first_seq, last_seq)
        if tally.items:
            _insert(con, first_seq, last_seq, tally)


def link(before: Mark, seq: int, tally: Tally) -> bytes:
    # The numbers of the facts are inside their weights, so their order needs no place here.
    parts = (before.digest, seq.to_bytes(8, "big"), tally.items.to_bytes(8, "big"), tally.total.to_bytes(16, "big"))
    return blake2b(b"".join(parts), digest_size=16).digest()


def _seals(con: DuckDBPyConnection) -> list[tuple[int, int, Tally]]:
    rows = con.execute("SELECT first_seq, last_seq, items, total FROM seals ORDER BY last_seq").fetchall()
    return [(first, last, Tally(items, int.from_bytes(total, "big"))) for first, last, items, total in rows]


def _insert(con: DuckDBPyConnection, first_seq: int, last_seq: int, tally: Tally) -> None:
    con.execute(
        "INSERT INTO seals VALUES ($1, $2, $3, $4)", [first_seq, last_seq, tally.items, tally.total.to_bytes(16, "big")]
    )


def _weigh_stretch(con: DuckDBPyConnection, first_seq: int, last_seq: int) -> Tally:
    # Order does not matter to a weight, so nothing is sorted.
    pack = msgpack.Packer().pack
    tally = NOTHING
    for table, columns in _WEIGHED.items():
        answer = con.execute(f"SELECT {columns} FROM {table} WHERE seq BETWEEN $1 AND $2", [first_seq, last_seq])
        while rows := answer.fetchmany(_AT_ONCE[table]):
            tally = tally.plus(weigh(map(pack, rows)))
    return tally
