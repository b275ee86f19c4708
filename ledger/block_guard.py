"""A guard around the checkpoints of one DuckDB file, because a checkpoint that a power cut interrupts must not make the file unreadable.

DuckDB writes metadata blocks in place: what the last checkpoint needs stays in them as it was, but the checksum is that of the whole
block, so a block that is half written cannot be read (measured: 15 of 896 crash states). So the headers and these blocks are saved
before a checkpoint. Before the file is attached again, those that are not whole are put back, unless a whole header says that the
checkpoint ended: then everything that it wrote was on the disk before.

What must be synchronised: what was saved, with its name, before the checkpoint begins; and, before what was saved is removed, what is put
back, or the header of a checkpoint that ended, because a process that was killed may only have written it, and the next log fits no
other. Nothing else. If the removal is lost, what was saved is found again, belongs to a checkpoint that ended, and is removed again. If
it is half there, the checkpoint had not begun. A whole block is never replaced, so another file in the place of the guarded one stays as
it is. It costs one synchronisation beside the three of DuckDB's own; a name that is new costs no second one on the usual file systems.

The descriptor of the file stays open until `close`, which comes after the detach: closing it drops DuckDB's lock on the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import duckdb

from perdure.ledger.codec import pack, unpack
from perdure.ledger.duckdb_format import BLOCKS_AT, HEADERS, block_size, is_whole
from perdure.ledger.whole_files import synchronise, write_at

_DIGEST = 16


class BlockGuard:
    """Guards the database in this file. What it saves lies beside it, as `<name>.blocks`."""

    def __init__(self, database: Path, *, fsync: bool = True) -> None:
        self.saved = database.with_name(database.name + ".blocks")
        self._database = database
        self._fsync = fsync
        self._file: int | None = None

    def mend(self) -> None:
        """Before the attach: put back what a checkpoint that did not end has torn."""
        with suppress(FileNotFoundError):
            body = self.saved.read_bytes()
            if blake2b(body[_DIGEST:], digest_size=_DIGEST).digest() == body[:_DIGEST]:
                self._put_back(dict(unpack(body[_DIGEST:])))
            self.saved.unlink()

    def _put_back(self, pieces: dict[int, bytes]) -> None:
        now = {at: os.pread(self._open(), len(piece), at) for at, piece in pieces.items()}
        ended = any(at < BLOCKS_AT and now[at] != piece and is_whole(now[at]) for at, piece in pieces.items())
        for at, piece in pieces.items():
            if not ended and not is_whole(now[at]):
                write_at(self._open(), piece, at)
        os.fsync(self._open())

    @contextmanager
    def around(self, con: duckdb.DuckDBPyConnection, name: str) -> Iterator[None]:
        """Around a checkpoint of the database that is attached under this name. If it fails, what was saved stays."""
        self._save(con.execute("SELECT block_id FROM pragma_metadata_info($1)", [name]).fetchall())
        yield
        self.saved.unlink()

    def _save(self, blocks: list[tuple[int]]) -> None:
        size = block_size(os.pread(self._open(), HEADERS[0][1], HEADERS[0][0]))
        places = [*HEADERS, *((BLOCKS_AT + block * size, size) for (block,) in blocks)]
        read = ((at, os.pread(self._open(), length, at)) for at, length in places)
        body = pack([(at, piece) for at, piece in read if is_whole(piece)])
        with self.saved.open("wb") as file:
            file.write(blake2b(body, digest_size=_DIGEST).digest() + body)
            file.flush()
            if self._fsync:
                os.fsync(file.fileno())
        if self._fsync:
            synchronise(self.saved.parent)

    def close(self) -> None:
        """After the detach. Idempotent."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._database, os.O_RDWR | os.O_CLOEXEC)
        return self._file
