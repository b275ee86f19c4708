"""The journal: a commit is durable, and may be acknowledged, when it is appended here and synchronised.

DuckDB follows it, and its own log is not relied on: that lost rows silently for 73 of 575 flipped bytes.

A directory holds segments `ledger.journal.N`. Each is a head (magic, the place in the chain where it begins) and frames (magic, length,
numbers, both ends of the link, body), each with a digest, and zeros up to its end: a commit that changes no file's size is one write to the
disk and not two. Beside each stands `ledger.mirror.N`, the same bytes, written and not synchronised, which mends a damaged frame.

What each step survives:

- A commit is written with one call and synchronised before the next one begins. So a death or a power cut leaves at most one frame that is
  not whole, at the end, and it was never acknowledged.
- A segment is synchronised with its name before its first frame is.
- Segments are dropped when the database has everything in them in its own file. Old ones that come back after a power cut are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import NamedTuple

from perdure.ledger.in_place import OpenFile, opened, refuse_misplaced
from perdure.ledger.storage.log_format import CHECK, check_of
from perdure.ledger.store.seals import Commit, Mark, unseal
from perdure.ledger.whole_files import synchronise

HEAD = Struct(">8sQ16s")
HEAD_MAGIC = b"perdureK"
FRAME = Struct(">8sQQQ16s16s")
FRAME_MAGIC = b"\xc5commit\n"
SEGMENT, MIRROR = "ledger.journal.", "ledger.mirror."
_ROOM, _ROOM_MAX = 1 << 18, 1 << 22  # bytes of a life's first segment, and of its longest
_PARTS_MAX = 1_000  # of one write; the system takes 1,024


# A whole frame of the journal, by where its body lies: the facts after `before` up to `after`.
class JournalEntry(NamedTuple):
    before: Mark
    after: Mark
    path: Path
    offset: int
    length: int


class Journal:
    """The journal open for writing. The caller holds the directory's lock. Commits come from one thread; another may roll and drop."""

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        self._directory, self._fsync = directory, fsync
        self._lock = Lock()  # of what follows
        self._files: tuple[int, int] | None = None  # the segment and its mirror
        self._written: OpenFile | None = None  # the segment
        self._number, self._place, self._end, self._room = 0, 0, 0, _ROOM
        self._closed: dict[int, int] = {}  # the last fact of each segment that is not written any more
        self._reached: Mark | None = None
        self.size = 0  # bytes of commits since the last drop

    def resume(self, segments: dict[int, int], reached: Mark, last: JournalEntry | None) -> None:
        """Go on after these segments (each by its number with its last fact). The next commit begins a new one.

        The last frame may be one that an earlier life wrote and could not synchronise. It is written and synchronised again.
        """
        self._closed = dict(segments)
        self._number, self._reached = max(segments, default=0), reached
        if last is None or not self._fsync:
            return
        file = os.open(last.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            place = last.offset - FRAME.size - CHECK
            _write(file, [os.pread(file, last.offset + last.length - place, place)], place)
            os.fsync(file)
        finally:
            os.close(file)

    def append(self, commit: Commit) -> None:
        """Write one commit and synchronise it. After an error it may or may not be there."""
        before, after, frame = commit.before, commit.after, frame_of(commit)
        size = sum(map(len, frame))
        with self._lock:
            if self._files is None or self._place + size > self._end:
                self._begin(before, size)
            assert self._files is not None
            segment, mirror = self._files
            _write(segment, frame, self._place)
            _write(mirror, frame, self._place)
            if self._fsync:
                os.fdatasync(segment)
            self._place += size
            self.size += size
            self._reached = after

    def look(self, *, waits: bool) -> None:
        # Raises `Misplaced` if the segment does not lie at its path. Who does not wait sees nothing while it is written.
        if self._lock.acquire(blocking=waits):
            try:
                if self._written is not None:
                    refuse_misplaced(self._written)
            finally:
                self._lock.release()

    def roll(self) -> None:
        # The segments before the new one can be dropped.
        with self._lock:
            if self._reached is not None and (self._files is None or self._place > HEAD.size + CHECK):
                self._room = _ROOM
                self._begin(self._reached, 0)

    def drop(self, upto_seq: int) -> None:
        # The database has all facts up to this one in its own file.
        with self._lock:
            for number in [each for each, last_seq in self._closed.items() if last_seq <= upto_seq]:
                del self._closed[number]
                for name in (SEGMENT, MIRROR):
                    (self._directory / f"{name}{number}").unlink(missing_ok=True)
            self.size = 0

    def close(self) -> None:
        with self._lock:
            self._close()
            self._closed, self._reached, self.size, self._room = {}, None, 0, _ROOM

    def _begin(self, base: Mark, size: int) -> None:
        if self._files is not None and self._reached is not None:
            self._closed[self._number] = self._reached.seq
        self._close()
        self._number += 1
        head = HEAD.pack(HEAD_MAGIC, base.seq, base.digest)
        head += check_of(head)
        self._place, self._end = len(head), max(self._room, len(head) + size)
        self._room = min(2 * self._room, _ROOM_MAX)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        paths = [self._directory / f"{name}{self._number}" for name in (SEGMENT, MIRROR)]
        segment, mirror = (os.open(path, flags, 0o644) for path in paths)
        self._files, self._written = (segment, mirror), opened(paths[0], segment)
        _write(segment, [head, bytes(self._end - len(head))], 0)
        _write(mirror, [head], 0)
        if self._fsync:
            os.fsync(segment)
            synchronise(self._directory)

    def _close(self) -> None:
        for file in self._files or ():
            with suppress(OSError):  # what was acknowledged is synchronised
                os.close(file)
        self._files = self._written = None


def frame_of(commit: Commit) -> list[bytes]:
    before, after = commit.before, commit.after
    length = sum(map(len, commit.parts))
    head = FRAME.pack(FRAME_MAGIC, length, before.seq, after.seq, before.digest, after.digest)
    return [head, check_of(head, *commit.parts), *commit.parts]


def commits_in(frames: bytes) -> Iterator[Commit]:
    """The commits that stand in frames, one after the other. Raises `ValueError` if one is not whole."""
    place = 0
    while place < len(frames):
        body = place + FRAME.size + CHECK
        head, check = frames[place : place + FRAME.size], frames[place + FRAME.size : body]
        if len(check) < CHECK:
            raise ValueError("a frame is cut off")
        _, length, before_seq, after_seq, before, after = FRAME.unpack(head)
        place = body + length
        packed = frames[body:place]
        if check != check_of(head, packed):
            raise ValueError("a frame does not fit its digest")
        yield unseal(Mark(before_seq, before), Mark(after_seq, after), packed)


def _write(file: int, parts: Sequence[bytes], place: int) -> None:
    # A file writes everything with one call unless its disk is full; then the second call says so.
    parts = parts if len(parts) <= _PARTS_MAX else [b"".join(parts)]
    size = sum(map(len, parts))
    written = os.pwritev(file, parts, place)
    while written < size:
        written += os.pwrite(file, b"".join(parts)[written:], place + written)
