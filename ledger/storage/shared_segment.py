"""A segment of the log that the commits of many agents share (`shared_log`).

It is a head (magic, the boot of the machine in which it was begun, digest) and entries (magic, generation, length, digest, body). One entry
holds the pieces of all commits that became durable together: for each the place of its agent's log, where in it the piece begins, and the
frame itself. A segment is written anew from its beginning when it is not needed any more; what is left behind the new entries is of an
earlier generation.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from perdure.ledger.codec import pack, unpack
from perdure.ledger.storage.log_format import check_of

SUFFIX: Final = ".shared"
_LOCK: Final = "lock"
_MAGIC, _ENTRY_MAGIC = b"perdureS", b"\xc5shr"
_HEAD: Final = Struct(">8s40s16s")  # magic, boot, digest
_ENTRY: Final = Struct(">4sQI16s")  # magic, generation, bytes of the body, digest


class Piece(NamedTuple):
    """A frame of an agent's log: `place` is the path of the log below the folder of all storages, `start` where in it the frame begins."""

    place: str
    start: int
    frame: bytes


class Segment:
    """A segment that is open for writing, and locked. It has its size from the beginning, so that an entry is one write to the disk and not
    two. Raises `OSError`."""

    def __init__(self, path: Path, boot: str, room: int) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._generation, self._end, self._room = 1, _HEAD.size, room
        with ExitStack() as undo:
            undo.callback(self.close, remove=True)
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = boot.encode().ljust(40, b"\0")
            write_at(self.file, _HEAD.pack(_MAGIC, name, check_of(name)).ljust(room, b"\0"), 0)
            os.fsync(self.file)
            undo.pop_all()

    def entry(self, pieces: Iterable[Piece]) -> bytes | None:
        """What `append` writes for these; None if there is no room for it."""
        body = pack([list(piece) for piece in pieces])
        check = check_of(self._generation.to_bytes(8), body)
        entry = _ENTRY.pack(_ENTRY_MAGIC, self._generation, len(body), check) + body
        return entry if self._end + len(entry) <= self._room else None

    def append(self, entry: bytes) -> None:
        """Write an entry and synchronise it."""
        write_at(self.file, entry, self._end)
        os.fdatasync(self.file)
        self._end += len(entry)

    def renew(self) -> None:
        """Begin anew: what is in it is not needed any more."""
        self._generation, self._end = self._generation + 1, _HEAD.size

    def close(self, *, remove: bool) -> None:
        """Let go of the file."""
        try:
            if remove:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self.file)


def boot_of(path: Path) -> str | None:
    """In which boot of the machine a segment was begun; None if it is gone, or was never whole: then nothing was promised in it."""
    try:
        with path.open("rb") as file:
            content = file.read(_HEAD.size)
    except FileNotFoundError:
        return None
    if len(content) < _HEAD.size:
        return None
    magic, name, check = _HEAD.unpack(content)
    return name.rstrip(b"\0").decode() if magic == _MAGIC and check_of(name) == check else None


def pieces_in(content: bytes) -> list[Piece]:
    """The pieces of a segment's last generation, in their order. An entry that is not whole was promised to nobody, or is damaged."""
    found = list(_entries(content))
    last = max((generation for generation, _ in found), default=0)
    return [Piece(*fields) for generation, body in found if generation == last for fields in unpack(body)]


def is_free(path: Path) -> bool:
    """Whether no process has this segment open for writing."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other process begins segments in this folder or takes them away within this block."""
    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _entries(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = _HEAD.size
    while (at := content.find(_ENTRY_MAGIC, at)) >= 0:
        begin = at + _ENTRY.size
        if begin > len(content):
            return
        _, generation, length, check = _ENTRY.unpack_from(content, at)
        body = content[begin : begin + length]
        is_whole = len(body) == length and check_of(generation.to_bytes(8), body) == check
        if is_whole:
            yield generation, body
        at = begin + length if is_whole else at + 1


def write_at(file: int, content: bytes, start: int) -> None:
    """Write all of it at this place, with one call unless the disk is full; then the second one says so."""
    written = os.pwrite(file, content, start)
    while written < len(content):
        written += os.pwrite(file, content[written:], start + written)
