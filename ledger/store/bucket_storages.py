"""The agents' storages of a ledger in a bucket: their bases in packs, and their tails in the journal.

A *tail* is what an agent has committed since the last root: patches in slots of the journal, and in memory. Before a root lets these slots
go, their patches are folded into *bases*: blocks of files, many of them in one object, a *pack*. Where each block lies stands in tables of
the ledger's database, so a root that names the database's pieces names all bases too.

A pack is written once, and never changed. When less than half of it is still in use, a root writes what is left into another pack, but for
the blocks of storages that it folds; when nothing is, the pack is deleted after the root.

A pack that is missing or damaged costs the storages in it alone. What cannot be read stays where it is, and what was to be changed in it is
lost for good: `LOST` takes the place of its digest, so whoever reads that storage is refused, also if the pack comes back.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import RLock
from typing import Final, NamedTuple

import duckdb

from perdure.ledger.codec import pack, unpack
from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.ids import is_within, name_of
from perdure.ledger.slots import digest_of
from perdure.ledger.storage.patches import FilePatch, Patch, StorageImage, image_after
from perdure.ledger.storage.signed_storage import SignedBlock, SignedStorage
from perdure.ledger.store.duckdb_file import first_row, transact
from perdure.ledger.store.key_filter import KeyFilter

log = logging.getLogger("perdure.ledger")

BLOCK: Final = 1 << 18
"""Bytes of a file that lie together."""
PACK: Final = 1 << 20
"""Bytes after which the next pack is begun."""
_HELD_MAX: Final = 16  # packs that were read, and are kept in memory
LOST: Final = b""
_COLUMNS: Final = {
    "storages": "agent_id VARCHAR, number BIGINT, sizes BLOB",
    "storage_blocks": "agent_id VARCHAR, file VARCHAR, nth INT, pack VARCHAR, start INT, size INT, digest BLOB",
    "storage_packs": "pack VARCHAR, size INTEGER",
}

_NEWEST: Final = """SELECT agent_id, any_value(s.sizes) FROM storages s LEFT JOIN storage_blocks b USING (agent_id)
    GROUP BY agent_id ORDER BY max(b.pack) DESC NULLS LAST"""


def drop_storages(con: duckdb.DuckDBPyConnection) -> None:
    # For the database of a ledger that is in no bucket.
    for table in _COLUMNS:
        con.execute(f"DROP TABLE IF EXISTS {table}")


# Where a block lies.
class Extent(NamedTuple):
    pack: str
    start: int
    size: int
    digest: bytes


Place = tuple[str, int]
"""A block of a storage: its file, and which one of it."""


class Base(NamedTuple):
    """A storage as it was at the last root: how many patches it had, the sizes of its files, and where their blocks lie."""

    number: int
    sizes: dict[str, int]
    blocks: dict[Place, Extent]


def signed_storage(base: Base, tail: Sequence[Patch], urls: Mapping[str, str]) -> SignedStorage:
    """A storage of this base and tail, with the URLs of the packs."""
    places = {pack: number for number, pack in enumerate(urls)}
    blocks = [
        SignedBlock(file, nth * BLOCK, places[extent.pack], *extent[1:]) for (file, nth), extent in base.blocks.items()
    ]
    number = tail[-1].number if tail else base.number
    return SignedStorage(
        number, base.sizes, list(urls.values()), blocks, [part for patch in tail for part in patch.parts]
    )


class BucketStorages:
    """The storages of one life of the ledger.

    Args:
        where: names the bucket in errors.
        fetch: reads a pack; None if it is missing.
    """

    def __init__(self, where: str, fetch: Callable[[str], bytes | None]) -> None:
        self._where, self._fetch = where, fetch
        self._lock = RLock()
        self._tails: dict[str, list[tuple[int, Patch]]] = {}
        self._known = KeyFilter()  # of those that have bases
        self._packs: OrderedDict[str, bytes] = OrderedDict()

    def begin(self, con: duckdb.DuckDBPyConnection) -> None:
        for table, columns in _COLUMNS.items():
            con.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        self._known.add(agent for (agent,) in con.execute("SELECT agent_id FROM storages").fetchall())

    def take(self, slot: int, patches: Iterable[Patch]) -> None:
        """These are durable in a slot of the journal."""
        with self._lock:
            for patch in patches:
                self._tails.setdefault(patch.agent_id, []).append((slot, patch))

    # what there is

    def may_have(self, agent_id: str) -> bool:
        tail = self._tails.get(agent_id)
        return not tail[-1][1].is_deletion if tail else agent_id in self._known

    def number(self, con: duckdb.DuckDBPyConnection, agent_id: str) -> int:
        with self._lock:
            tail = self._tails.get(agent_id)
            if tail:
                return tail[-1][1].number
            base = self._base(con, agent_id) if agent_id in self._known else None
            return 0 if base is None else base.number

    def parts(self, con: duckdb.DuckDBPyConnection, agent_id: str) -> tuple[Base | None, list[Patch]]:
        with self._lock:
            tail = [patch for _, patch in self._tails.get(agent_id, ())]
            base = self._base(con, agent_id) if agent_id in self._known else None
        return (None if any(patch.is_deletion for patch in tail) else base), tail

    def assembled(self, agent_id: str, base: Base | None, tail: list[Patch]) -> StorageImage | None:
        """A storage, made of these. Raises `LedgerDamaged` if a pack is missing or damaged."""
        if base is None:
            return image_after(None, tail)
        files = {}
        for name, size in base.sizes.items():
            files[name] = b"".join(
                self._read(extent) for (file, _), extent in sorted(base.blocks.items()) if file == name
            )
            if len(files[name]) != size:
                raise LedgerDamaged(
                    self._where, f"the storage of {agent_id} has {len(files[name])} bytes instead of {size}"
                )
        return image_after(StorageImage(base.number, files), tail)

    def has_files(self, con: duckdb.DuckDBPyConnection, agent_id: str, files: Mapping[str, bytes]) -> bool:
        """Whether a storage surely has these files, and no others, told without reading a pack."""
        base, tail = self.parts(con, agent_id)
        files = {name: content for name, content in files.items() if content}
        if base is None:
            image = image_after(None, tail)
            return image is not None and image.files == files
        return (
            not tail
            and base.sizes == {name: len(content) for name, content in files.items()}
            and all(
                extent.digest == digest_of(files[file][nth * BLOCK : (nth + 1) * BLOCK])
                for (file, nth), extent in base.blocks.items()
            )
        )

    def family(self, con: duckdb.DuckDBPyConnection, agent_id: str) -> list[str]:
        with self._lock:
            rows = con.execute("SELECT agent_id FROM storages WHERE starts_with(agent_id, $1)", [agent_id]).fetchall()
            known = dict.fromkeys([*(agent for (agent,) in rows), *self._tails])
            return [each for each in known if self.may_have(each) and (not agent_id or is_within(each, agent_id))]

    def newest(self, con: duckdb.DuckDBPyConnection) -> dict[str, int]:
        """The agents, without code that travels, and how many bytes their storages have. Those that were written last come first: by
        their slots, and before the last root by the packs, of which each is of one root; what is packed anew counts as written then."""
        with self._lock:
            bases = {agent: unpack(sizes) for agent, sizes in con.execute(_NEWEST).fetchall()}
            tailed = sorted(self._tails, key=lambda agent: self._tails[agent][-1][0], reverse=True)
            tails = {agent: [patch for _, patch in self._tails[agent]] for agent in tailed}
        return {
            agent: _bytes_after(bases.get(agent, {}), tails.get(agent, ()))
            for agent in dict.fromkeys([*tails, *bases])
            if name_of(agent) and self.may_have(agent)
        }

    # a root

    def fold(self, con: duckdb.DuckDBPyConnection, slot: int, packs: PackWriter) -> list[str]:
        """Bring the tails up to this slot into bases. Returns the packs that nothing names any more."""
        with self._lock:
            due = {
                agent: [patch for at, patch in tail if at <= slot]
                for agent, tail in self._tails.items()
                if tail[0][0] <= slot
            }
        folded = {agent: self._folded(self._base(con, agent), patches, packs) for agent, patches in due.items()}
        moved = self._moved(con, packs, set(folded))
        packs.end()
        with self._lock:
            transact(con, lambda: self._write(con, folded, moved, packs.made))
            self._known.add(agent for agent, base in folded.items() if base is not None)
            for agent in due:
                left = [each for each in self._tails[agent] if each[0] > slot]
                if left:
                    self._tails[agent] = left
                else:
                    del self._tails[agent]
        return [
            name
            for (name,) in con.execute(
                "SELECT pack FROM storage_packs WHERE pack NOT IN (SELECT pack FROM storage_blocks)"
            ).fetchall()
        ]

    def rows(self, con: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[object, ...]]]:
        # What `put_rows` puts into another database.
        return {table: con.execute(f"SELECT * FROM {table}").fetchall() for table in _COLUMNS}

    def put_rows(self, con: duckdb.DuckDBPyConnection, rows: Mapping[str, Sequence[Sequence[object]]]) -> None:
        self.begin(con)
        for table, each in rows.items():
            con.execute(f"DELETE FROM {table}")
            _insert(con, table, each)

    def packs(self, con: duckdb.DuckDBPyConnection) -> list[str]:
        return [name for (name,) in con.execute("SELECT pack FROM storage_packs").fetchall()]

    def forget_packs(self, con: duckdb.DuckDBPyConnection, names: list[str]) -> None:
        con.execute("DELETE FROM storage_packs WHERE pack IN (SELECT unnest($1::VARCHAR[]))", [names])

    def _folded(self, base: Base | None, patches: Sequence[Patch], packs: PackWriter) -> Base | None:
        opened: dict[Place, bytearray | None] = {}  # None for what is lost
        number, sizes, blocks = (0, dict[str, int](), dict[Place, Extent]()) if base is None else base
        sizes, blocks = dict(sizes), dict(blocks)
        for patch in patches:
            number = patch.number
            if patch.is_deletion:
                for kept in (sizes, blocks, opened):
                    kept.clear()
            for part in patch.parts:
                self._change(sizes, blocks, opened, part)
        blocks |= {
            place: blocks[place]._replace(digest=LOST) if body is None else packs.add(bytes(body))
            for place, body in opened.items()
        }
        return Base(number, sizes, blocks) if number else None

    def _change(
        self,
        sizes: dict[str, int],
        blocks: dict[Place, Extent],
        opened: dict[Place, bytearray | None],
        part: FilePatch,
    ) -> None:
        def body(nth: int) -> bytearray | None:
            place = part.file, nth
            if place not in opened:
                try:
                    opened[place] = bytearray(self._read(blocks[place]) if place in blocks else b"")
                except LedgerDamaged as damage:
                    log.warning("the storage that has a block there is lost: %s", damage)
                    opened[place] = None
            return opened[place]

        end = part.start + len(part.content)
        for nth in range(part.start // BLOCK, -(-end // BLOCK)):
            first = nth * BLOCK
            begin, content = (
                max(0, part.start - first),
                part.content[max(0, first - part.start) : first + BLOCK - part.start],
            )
            if begin == 0 and (len(content) == BLOCK or end >= part.size):
                opened[part.file, nth] = bytearray(content)
            elif (block := body(nth)) is not None:
                block.extend(bytes(max(0, begin - len(block))))
                block[begin : begin + len(content)] = content
        was, sizes[part.file] = sizes.get(part.file, 0), part.size
        last, rest = divmod(part.size, BLOCK)
        if rest and max(was, end) > part.size and (block := body(last)) is not None:
            del block[rest:]
        for known in (blocks, opened):
            for place in [each for each in known if each[0] == part.file and each[1] * BLOCK >= part.size]:
                del known[place]
        if not part.size:
            del sizes[part.file]

    def _moved(
        self, con: duckdb.DuckDBPyConnection, packs: PackWriter, folded: set[str]
    ) -> list[tuple[Extent, Extent]]:
        # What is left of packs that are mostly of what was replaced.
        used = con.execute(
            "SELECT b.pack FROM storage_blocks b JOIN storage_packs p USING (pack) "
            "GROUP BY b.pack HAVING 2 * sum(b.size) < any_value(p.size)"
        ).fetchall()
        moved = []
        for (name,) in used:
            rows = con.execute(
                "SELECT agent_id, pack, start, size, digest FROM storage_blocks WHERE pack = $1 ORDER BY start", [name]
            ).fetchall()
            extents = [Extent(*row) for agent, *row in rows if agent not in folded]
            with suppress(LedgerDamaged):  # then all of it stays there
                bodies = [self._read(extent) for extent in extents]
                moved += [(extent, packs.add(body)) for extent, body in zip(extents, bodies, strict=True)]
        return moved

    def _write(
        self,
        con: duckdb.DuckDBPyConnection,
        folded: dict[str, Base | None],
        moved: list[tuple[Extent, Extent]],
        made: dict[str, int],
    ) -> None:
        agents = list(folded)
        for table in ("storages", "storage_blocks"):
            con.execute(f"DELETE FROM {table} WHERE agent_id IN (SELECT unnest($1::VARCHAR[]))", [agents])
        for former, extent in moved:
            con.execute(
                "UPDATE storage_blocks SET pack = $1, start = $2 WHERE pack = $3 AND start = $4",
                [extent.pack, extent.start, former.pack, former.start],
            )
        rows = [[agent, base.number, pack(base.sizes)] for agent, base in folded.items() if base is not None]
        blocks = [
            [agent, file, nth, *extent]
            for agent, base in folded.items()
            if base is not None
            for (file, nth), extent in base.blocks.items()
        ]
        _insert(con, "storages", rows)
        _insert(con, "storage_blocks", blocks)
        _insert(con, "storage_packs", [[name, size] for name, size in made.items()])

    def _base(self, con: duckdb.DuckDBPyConnection, agent_id: str) -> Base | None:
        row = first_row(con, "SELECT number, sizes FROM storages WHERE agent_id = $1", [agent_id])
        if row is None:
            return None
        blocks = con.execute(
            "SELECT file, nth, pack, start, size, digest FROM storage_blocks WHERE agent_id = $1", [agent_id]
        ).fetchall()
        return Base(row[0], unpack(row[1]), {(file, nth): Extent(*extent) for file, nth, *extent in blocks})

    def _read(self, extent: Extent) -> bytes:
        with self._lock:
            whole = self._packs.get(extent.pack)
        if whole is None:
            whole = self._fetch(extent.pack)
            if whole is None:
                raise LedgerDamaged(f"{self._where}/{extent.pack}", "it is missing", "restore an earlier root")
            with self._lock:
                self._packs[extent.pack] = whole
                while len(self._packs) > _HELD_MAX:
                    self._packs.popitem(last=False)
        content = whole[extent.start : extent.start + extent.size]
        if digest_of(content) != extent.digest:
            raise LedgerDamaged(
                f"{self._where}/{extent.pack}", "its bytes do not fit their digest", "restore an earlier root"
            )
        return content


class PackWriter:
    """Puts blocks into packs, and these into the bucket.

    Args:
        put: puts an object under a name into the bucket.
        name: begins the names of the packs.

    Attributes:
        made: the packs, with how many bytes they have.
    """

    def __init__(self, put: Callable[[str, bytes], object], name: str) -> None:
        self._put, self._name = put, name
        self._parts: list[bytes] = []
        self._size = 0
        self.made: dict[str, int] = {}

    def add(self, block: bytes) -> Extent:
        extent = Extent(f"{self._name}/{len(self.made):06}", self._size, len(block), digest_of(block))
        self._parts.append(block)
        self._size += len(block)
        if self._size >= PACK:
            self.end()
        return extent

    def end(self) -> None:
        if self._parts:
            name = f"{self._name}/{len(self.made):06}"
            self._put(name, b"".join(self._parts))
            self.made[name] = self._size
            self._parts, self._size = [], 0


def _bytes_after(sizes: Mapping[str, int], tail: Iterable[Patch]) -> int:
    after = dict(sizes)
    for patch in tail:
        if patch.is_deletion:
            after.clear()
        after |= {part.file: part.size for part in patch.parts}
    return sum(after.values())


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[object]]) -> None:
    if rows:
        con.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
