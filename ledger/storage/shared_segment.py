"""A segment of the log that the commits of many agents share (`shared_log`).

It is a head (magic, the boot of the machine in which it was begun, digest) and entries. One entry holds the pieces of all commits that
became durable together. Each piece says which one of how many it is, of which entry, in which generation, and is sealed by a digest; so a
damaged byte takes one piece, and what is missing before another one is seen. At its end an entry says whose pieces were in the entry
before, so an agent that has lost one is known, unless both are damaged. A segment is written anew from its beginning when it is not needed
any more; what is left behind the new entries is of an earlier generation.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from perdure.ledger.storage.log_format import check_of, digest_in, life_in, read_frame
from perdure.ledger.whole_files import synchronise, write_at

SUFFIX: Final = ".shared"
_LOCK: Final = "lock"
KEPT: Final = ".kept"  # ends the name, before the suffix, of a segment that nobody takes away before the next boot
DAMAGED: Final = ".damaged-"  # and a number: ends the name of one that was not whole when it was redone
_MAGIC = b"perdureT"
_PIECE_MAGIC, _NAMES_MAGIC = b"\xc5shr", b"\xc5nam"
_HEAD: Final = Struct(">8s40s16s")  # magic, boot, digest
# Magic, generation, entry, number of the piece and of all in its entry, bytes of the place, where the frame begins, its bytes.
_PIECE: Final = Struct(">4sQIIIHQI")
_NAMES: Final = Struct(">4sQII")  # magic, generation, entry, how many
_NAME: Final = Struct(">16sQQQ")  # what `Name` has
_CHECK: Final = 16
_HEX: Final = 35  # characters at the end of a log's path: a digest, and `.db`


class LogPiece(NamedTuple):
    """A frame of an agent's log: `place` is the path of the log below the folder of all storages, `start` where in it the frame begins."""

    place: str
    start: int
    frame: bytes


class Name(NamedTuple):
    """Whose a piece was: the digest in the name of its agent's log, where in the log the frame begins, its number and its incarnation."""

    digest: bytes
    start: int
    number: int
    incarnation: int


# What is written at once, and whose pieces are in it.
class SegmentEntry(NamedTuple):
    content: bytes
    names: list[Name]


class Segment:
    """A segment that is open for writing, and locked. It has its size from the beginning, so that an entry is one write to the disk and not
    two. Raises `OSError`."""

    def __init__(self, path: Path, boot: str, room: int) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self.is_kept = False
        self._generation, self._entries, self._end, self._room = 1, 0, _HEAD.size, room
        self._names: list[Name] = []  # of the last entry
        with ExitStack() as undo:
            undo.callback(self.close, remove=True)
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = boot.encode().ljust(40, b"\0")
            write_at(self.file, _HEAD.pack(_MAGIC, name, check_of(name)).ljust(room, b"\0"), 0)
            os.fsync(self.file)
            undo.pop_all()

    def entry(self, pieces: Sequence[LogPiece]) -> SegmentEntry | None:
        # What `append` writes for these pieces; None if there is no room for it.
        parts: list[bytes] = []
        for number, (place, start, frame) in enumerate(pieces):
            name = place.encode()
            numbers = self._generation, self._entries + 1, number, len(pieces)
            told = _PIECE.pack(_PIECE_MAGIC, *numbers, len(name), start, len(frame)) + name
            parts += told, check_of(told, digest_in(frame)), frame
        names = b"".join(_NAME.pack(*each) for each in self._names)
        names = _NAMES.pack(_NAMES_MAGIC, self._generation, self._entries + 1, len(self._names)) + names
        entry = b"".join((*parts, names, check_of(names)))
        return (
            SegmentEntry(entry, [name_of(piece) for piece in pieces]) if self._end + len(entry) <= self._room else None
        )

    def append(self, entry: SegmentEntry) -> None:
        write_at(self.file, entry.content, self._end)
        os.fdatasync(self.file)
        self._entries, self._end, self._names = self._entries + 1, self._end + len(entry.content), entry.names

    def renew(self) -> None:
        self._generation, self._entries, self._end, self._names = self._generation + 1, 0, _HEAD.size, []

    def keep(self) -> None:
        if not self.is_kept:
            self.is_kept, self.path = True, keep(self.path)

    def close(self, *, remove: bool) -> None:
        try:
            if remove:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self.file)


def boot_of(path: Path) -> str | None:
    """In which boot of the machine a segment was begun; empty if its head is damaged. None if it is gone, or was never whole: then nothing
    was promised in it."""
    try:
        with path.open("rb") as file:
            content = file.read(_HEAD.size)
            is_begun = bool(content.strip(b"\0")) and bool(file.read(1))
    except FileNotFoundError:
        return None
    if not is_begun:
        return None
    return _boot_in(content)


def _boot_in(head: bytes) -> str:
    magic, name, check = _HEAD.unpack(head)
    return name.rstrip(b"\0").decode() if magic == _MAGIC and check_of(name) == check else ""


class Contents(NamedTuple):
    """The pieces of a segment's last generation, in their order. `sure` are those of entries that were whole on the disk before a later one
    was begun; `last` are those of an entry that is not whole, if it is the last: it may not have been acknowledged. `lost` tells whose
    pieces were in entries before the last, and are not there; `problem` says what is missing."""

    sure: list[LogPiece]
    last: list[LogPiece]
    lost: list[Name]
    problem: str


def read_segment(content: bytes) -> Contents:
    pieces, names = list(_pieces(content)), list(_all_names(content))
    generation = max([1, *(each.generation for each in pieces), *(each.generation for each in names)])
    found = [each for each in pieces if each.generation == generation]
    named = [each for each in names if each.generation == generation]
    entries: dict[int, list[_Found]] = {each.entry: [] for each in named}  # the end of one shows that it was there
    for each in found:
        entries.setdefault(each.entry, []).append(each)
    latest = max(entries, default=0)
    missing = [number for number in range(1, latest + 1) if not _is_whole(entries.get(number, []))]
    is_cut_off = latest in missing
    sure = [each.piece for each in found if each.entry < latest or not is_cut_off]
    last = [each.piece for each in found if each.entry == latest and is_cut_off]
    there = {name_of(each.piece) for each in found}
    lost = [name for each in named for name in each.names if name not in there]
    end = max((*(each.end for each in found), *(each.end for each in named)), default=_HEAD.size)
    is_followed = generation == 1 and bool(content[end:].strip(b"\0"))
    has_head = len(content) <= _HEAD.size or bool(_boot_in(content[: _HEAD.size]))
    problem = _problem(missing[:-1] if is_cut_off else missing, is_cut_off=is_cut_off or is_followed, has_head=has_head)
    return Contents(sure, last, lost, problem)


def _problem(holes: list[int], *, is_cut_off: bool, has_head: bool) -> str:
    problems = ["its last entry is not whole"] * is_cut_off + ["its head is not whole"] * (not has_head)
    if holes:
        count, first = len(holes), holes[0]
        problems.insert(
            0, f"{count} of its entries are damaged or written over, from number {first} on, and later ones follow"
        )
    return " and ".join(problems)


def keep(path: Path) -> Path:
    kept = path.with_name(f"{path.stem}{KEPT}{SUFFIX}")
    path.replace(kept)
    synchronise(kept.parent)
    return kept


def name_of(piece: LogPiece) -> Name:
    return Name(bytes.fromhex(piece.place[-_HEX:-3]), piece.start, *life_in(piece.frame))


def kept_aside(path: Path) -> Path:
    # Beside the others, where nothing redoes it.
    kept = next(each for n in count(1) if not (each := path.with_name(f"{path.name}{DAMAGED}{n}")).exists())
    path.replace(kept)
    return kept


def is_free(path: Path) -> bool:
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


class _Found(NamedTuple):
    generation: int
    entry: int
    number: int
    total: int
    piece: LogPiece
    end: int


def _is_whole(found: list[_Found]) -> bool:
    return bool(found) and len({each.number for each in found}) == found[0].total


def _pieces(content: bytes) -> Iterator[_Found]:
    at = _HEAD.size
    while (at := content.find(_PIECE_MAGIC, at)) >= 0:
        found = _piece(content, at)
        if found is not None:
            yield found
        at = at + 1 if found is None else found.end


def _piece(content: bytes, at: int) -> _Found | None:
    begin = at + _PIECE.size
    if begin > len(content):
        return None
    _, generation, entry, number, total, size, start, length = _PIECE.unpack_from(content, at)
    sealed = begin + size
    frame = content[sealed + _CHECK : sealed + _CHECK + length]
    if content[sealed : sealed + _CHECK] != check_of(content[at:sealed], digest_in(frame)):
        return None
    if (whole := read_frame(frame, 0)) is None or whole.end != length:
        return None
    piece = LogPiece(content[begin:sealed].decode(), start, frame)
    return _Found(generation, entry, number, total, piece, sealed + _CHECK + length)


class _Names(NamedTuple):
    generation: int
    entry: int
    names: list[Name]
    end: int


def _all_names(content: bytes) -> Iterator[_Names]:
    at = _HEAD.size
    while (at := content.find(_NAMES_MAGIC, at)) >= 0:
        begin = at + _NAMES.size
        if begin <= len(content):
            _, generation, entry, count = _NAMES.unpack_from(content, at)
            end = begin + count * _NAME.size
            if content[end : end + _CHECK] == check_of(content[at:end]):
                names = [Name(*each) for each in _NAME.iter_unpack(content[begin:end])]
                yield _Names(generation, entry, names, end + _CHECK)
        at += 1
