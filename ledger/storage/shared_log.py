"""Group commit: one write to the disk for the commits of many agents.

An agent's commit is a frame of its own log. By itself it is written there and synchronised. When several agents of a process commit
together, each frame is written to its agent's log and *not* synchronised, and one entry with all of them is written to a log that these
agents share, and synchronised. None of these commits is acknowledged before.

What each death leaves:

- of a process: what it wrote to the agents' logs is with the system, where the next process that opens them finds it.
- of the machine (a power cut): what the agents' logs lack is in the shared log, and is put back before anybody reads them
  (`after_power_cut`).

The shared log is two segments of a fixed size. When one is full, the other one is used, and beside it the file system is synchronised, all
agents' logs with it: then the full one is not needed any more and is free again. Commits that come while none is free, or that the shared
log cannot take, are synchronised one by one, as without a shared log. Segments that a dead process has left go in the same way when the
next process of this boot begins its own; those of an earlier boot when they were redone.

A disk that has refused to synchronise anything of this has perhaps lost what was written before, and tells it once, or not at all (Linux
before 5.8 tells `syncfs` nothing). From then on the segments of the process are kept as they are, under a name that no other process
takes away, until they are redone after the next boot.

All of this is for a disk of one machine, where a process sees what another one wrote. On any other file system nothing is shared.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from perdure.ledger.errors import StorageError
from perdure.ledger.storage.after_power_cut import redo
from perdure.ledger.storage.shared_segment import (
    KEPT,
    SUFFIX,
    LogPiece,
    Segment,
    SegmentEntry,
    alone,
    boot_of,
    is_free,
    keep,
)
from perdure.ledger.storage.this_machine import boot_id, is_local, synchronise_file_system
from perdure.ledger.whole_files import synchronise

ROOM: Final = 2 << 20  # bytes of a segment
_SEGMENTS: Final = 2
_ALONE: Final = "Commits are synchronised one by one"
_KEPT: Final = "The segments in it are kept, and what is in them is safe"
_log = logging.getLogger("perdure.storage")


class Sharer(Protocol):
    """An agent's log that has a piece in the shared one."""

    def secure(self, *, shared: bool) -> None:
        """The piece is durable in the shared log; or synchronise it here. Raises `OSError`, or `StorageError` if its life is over."""

    def lost(self, problem: Exception) -> StorageError:
        """The piece could be synchronised nowhere, which ends the life of its agent. Returns what is told of it."""


class CommitPart:
    """What one of those that commit together has committed. `told` ends it, when all of it is durable."""

    def __init__(self) -> None:
        self.pieces: list[tuple[Sharer, LogPiece]] = []
        self.then: list[Callable[[], None]] = []
        self.problem: StorageError | None = None

    def told(self) -> None:
        """Do what was put off until now. Raises `StorageError` if it did not become durable."""
        if self.problem is not None:
            raise self.problem
        for job in self.then:
            job()


class SharedLog:
    """The shared log of one process, for the storages in this folder.

    Args:
        boot: the id of this boot of the machine. With an empty one nothing is shared.
        room: bytes of a segment.
        beside: does a job beside its caller.
    """

    def __init__(
        self,
        storages: Path,
        *,
        boot: str | None = None,
        room: int = ROOM,
        beside: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._storages, self._folder, self._room = storages, storages / "shared", room
        self._boot = boot_id() if boot is None else boot
        self._beside = beside or _on_a_thread
        self._here = _Here()
        self._lock = threading.RLock()  # of the free segments
        self._free: list[Segment] = []  # the first one is written to
        self._tending = threading.Lock()  # of all segments: they are begun, renewed and taken away by one at a time
        self._segments: list[Segment] = []
        self._is_kept = False  # the disk has refused something
        self._is_begun = not self._boot
        self._is_over = False
        self._is_redone = False

    def redo(self) -> None:
        """Before anything is read: put back what a power cut has taken. Raises `StorageError`."""
        if not self._is_redone:
            redo(self._storages, self._boot)
            self._is_redone = True

    # those that commit together

    @contextmanager
    def group_commit(self) -> Iterator[Callable[[], CommitPart]]:
        """What this thread commits within the block is durable after it, and not before. It gives a function that begins a part; after the
        block, each part is to be told."""
        parts: list[CommitPart] = []

        def begin() -> CommitPart:
            self._here.part = part = CommitPart()
            parts.append(part)
            return part

        try:
            yield begin
        finally:
            self._here.part = None
            self._secure(parts)

    def once_durable(self, job: Callable[[], None]) -> None:
        if self._here.part is None:
            job()
        else:
            self._here.part.then.append(job)

    def take(self, log: Sharer, piece: LogPiece) -> bool:
        """Make this piece durable with the others. False if this thread commits alone."""
        if self._here.part is None:
            return False
        self._here.part.pieces.append((log, piece))
        return True

    def _secure(self, parts: list[CommitPart]) -> None:
        pieces = [piece for part in parts for _, piece in part.pieces]
        shared = len(pieces) > 1 and self._append(pieces)
        for part in parts:
            for log, _ in part.pieces:
                try:
                    log.secure(shared=shared)
                except StorageError as problem:
                    part.problem = problem
                except OSError as problem:
                    part.problem = log.lost(problem)

    def _append(self, pieces: list[LogPiece]) -> bool:
        if sum(len(piece.frame) for piece in pieces) > self._room // 2:
            return False
        with self._lock:
            if not self._is_begun:
                self._is_begun = True
                self._beside(self._begin)
            while self._free:
                segment = self._free[0]
                entry = segment.entry(pieces)
                if entry is not None:
                    return self._has_appended(segment, entry)
                self._free.remove(segment)
                self._beside(partial(self._renew, segment))
        return False

    def _has_appended(self, segment: Segment, entry: SegmentEntry) -> bool:
        try:
            segment.append(entry)
        except OSError as problem:
            _log.warning("%s cannot be written (%s). %s", segment.path, problem, _ALONE)
            self._free.remove(segment)
            return False
        return True

    # the segments

    def _begin(self) -> None:
        with self._tending:
            try:
                self._make()
            except OSError as problem:
                _log.warning("no shared log can be made in %s (%s). %s", self._folder, problem, _ALONE)
                return
            with self._lock:
                self._free = list(self._segments)

    def _make(self) -> None:
        if self._is_over or not is_local(self._storages):
            return
        self._folder.mkdir(exist_ok=True)
        with alone(self._folder):
            ours = [each for each in self._folder.iterdir() if each.suffix == SUFFIX and not each.stem.endswith(KEPT)]
            left = [each for each in ours if boot_of(each) in (self._boot, None) and is_free(each)]
            for _ in range(_SEGMENTS):
                names = (self._folder / f"{os.getpid()}-{number}{SUFFIX}" for number in count(1))
                path = next(each for each in names if not each.exists())
                self._segments.append(Segment(path, self._boot, self._room))
            synchronise(self._folder)
            synchronise(self._storages)
            if left and self._is_synchronised():
                for each in left:
                    each.unlink(missing_ok=True)
            elif left:
                for each in left:
                    keep(each)

    def _renew(self, segment: Segment) -> None:
        # What this segment is needed for is brought to the disk; then it is free.
        with self._tending:
            if not self._is_over and self._is_synchronised():
                segment.renew()
                with self._lock:
                    self._free.append(segment)

    def close(self) -> None:
        """Bring all logs to the disk, and take the segments away. Idempotent."""
        with self._tending:
            self._is_over = self._is_begun = True
            with self._lock:
                self._free = []
            is_safe = not self._segments or self._is_synchronised()
            segments, self._segments = self._segments, []
            for segment in segments:
                try:
                    segment.close(remove=is_safe)
                except OSError as problem:
                    _log.warning("%s cannot be removed (%s); it does no harm", segment.path, problem)

    def _is_synchronised(self) -> bool:
        # True if everything that the segments have is on the disk elsewhere too.
        try:
            synchronise_file_system(self._segments[0].file)
        except OSError as problem:
            _log.warning("the disk of %s cannot be synchronised (%s). %s", self._folder, problem, _KEPT)
            self._keep()
        return not self._is_kept

    def keep(self) -> None:
        """The disk has refused to synchronise a log that may have pieces here: from now on the segments stay as they are."""
        self._is_kept = True
        with self._tending:
            self._keep()

    def _keep(self) -> None:
        self._is_kept = True
        for segment in self._segments:
            try:
                segment.keep()
            except OSError as problem:
                _log.warning("%s cannot be given another name (%s). %s", segment.path, problem, _KEPT)


class _Here(threading.local):
    part: CommitPart | None = None


def _on_a_thread(job: Callable[[], None]) -> None:
    threading.Thread(target=job, name="perdure-shared-log", daemon=True).start()
