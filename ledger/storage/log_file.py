"""Where the bytes of an agent's log lie: in a file, or in memory for the simulator.

Once it is shut, nothing reaches it any more: what another thread is about to write is refused, and what it is writing is waited for.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Final

from perdure.ledger.errors import StaleIncarnation, StorageError
from perdure.ledger.in_place import opened, refuse_misplaced
from perdure.ledger.storage.shared_log import SharedLog
from perdure.ledger.storage.shared_segment import LogPiece
from perdure.ledger.storage.sql import OVER
from perdure.ledger.whole_files import synchronise, write_at, write_whole

CUT: Final = ".cut-"  # and a number: a log as it was before something was cut off


class LogFile(ABC):
    """An open log. `name` is what a person is told of it: where it lies."""

    lost: Callable[[Exception], StorageError]
    """What to do when a commit that this log waits with could be made durable nowhere. Set by what commits."""

    def __init__(self, agent_id: str, name: str) -> None:
        self.agent_id, self.name = agent_id, name
        self._lock = RLock()
        self._shut = False

    @abstractmethod
    def content(self) -> bytes: ...
    @abstractmethod
    def read(self, start: int, end: int) -> bytes: ...
    @abstractmethod
    def write(self, start: int, content: bytes, *, durable: bool) -> None:
        """Write at this place, the end of the log or a place before it. With `durable` it survives a power cut once this has returned, or
        once what the thread commits together is durable."""

    @abstractmethod
    def cut(self, end: int) -> str:
        """Cut off what follows this place, and keep the log as it was. Returns where."""

    @abstractmethod
    def replace(self, content: bytes) -> None:
        """Put another log in the place of this one, in one step that survives a power cut."""

    @abstractmethod
    def settle(self) -> None:
        """Bring the name of the log to the disk: an earlier life may have died before it did."""

    def shut(self) -> None:
        with self._lock:
            if not self._shut:
                self._shut = True
                self._close()

    @abstractmethod
    def _close(self) -> None: ...
    @contextmanager
    def held(self) -> Iterator[None]:
        """The log is not shut within this block. Raises `StaleIncarnation` if it is shut already."""
        with self._lock:
            if self._shut:
                raise StaleIncarnation(self.agent_id, OVER)
            yield


class FileLog(LogFile):
    """A log in a file that is open already. The file is locked besides its agent until it is closed, as DuckDB does it, so the kernel can
    name the process that has it. Raises `BlockingIOError` if another process has locked it.

    Args:
        place: its path below the folder of all storages.
        is_secured: whether all of it is on the disk.
    """

    def __init__(
        self, agent_id: str, path: Path, file: int, place: str, shared: SharedLog, *, is_secured: bool
    ) -> None:
        super().__init__(agent_id, str(path))
        self._path, self._file = path, file
        self._opened = opened(path, file)
        self._place, self._shared = place, shared
        self._is_secured = is_secured  # all of it is on the disk, or in the shared log, or waits to be
        self._waits = False  # for what the thread commits together
        self._is_refused = False  # what waits could not be synchronised
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def content(self) -> bytes:
        with self.held():
            return self.read(0, os.fstat(self._file).st_size)

    def read(self, start: int, end: int) -> bytes:
        with self.held():
            found = os.pread(self._file, end - start, start)
            while len(found) < end - start and (
                more := os.pread(self._file, end - start - len(found), start + len(found))
            ):
                found += more
            return found

    def write(self, start: int, content: bytes, *, durable: bool) -> None:
        # Here it is decided whether it is synchronised now, or with what the thread commits together.
        with self.held():
            write_at(self._file, content, start)
            if durable and self._is_secured and self._shared.take(self, LogPiece(self._place, start, content)):
                self._waits = True
            elif durable:
                self._synchronise()
                refuse_misplaced(self._opened)
            self._is_secured = durable

    def secure(self, *, shared: bool) -> None:
        # With `shared`, the shared log has what waits.
        with self._lock:
            if self._waits and not shared:
                with self.held():
                    self._is_refused = True  # an error is told once: to try again would say nothing
                    self._synchronise()
                    self._is_refused = False
            if self._waits:
                refuse_misplaced(self._opened)  # once for all that was committed together
            self._waits = False

    def cut(self, end: int) -> str:
        # What is kept is on the disk before anything is cut.
        with self.held():
            kept = kept_beside(self._path, self.content())
            os.ftruncate(self._file, end)
            return str(kept)

    def replace(self, content: bytes) -> None:
        # The new log takes the name of the old one when it is whole on the disk.
        with self.held():
            staged = staged_at(self._path)
            write_whole(staged, content)
            file = os.open(staged, os.O_RDWR | os.O_CLOEXEC)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(self._file)
            self._file, self._opened = file, opened(self._path, file)
            staged.replace(self._path)
            synchronise(self._path.parent)
            self._is_secured, self._waits = True, False

    def settle(self) -> None:
        synchronise(self._path.parent)

    def _close(self) -> None:
        # What waits is synchronised now, because later it cannot be. If that fails, `secure` finds it shut, and says
        # so.
        if self._waits and not self._is_refused:
            with suppress(OSError):
                self._synchronise()
                self._waits = False
        os.close(self._file)

    def _synchronise(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError:
            self._shared.keep()  # what earlier commits have left to the system may be lost with this one
            raise


class MemoryLog(LogFile):
    """A log in memory, which outlives the process that has it open."""

    def __init__(self, agent_id: str, body: bytearray) -> None:
        super().__init__(agent_id, "its log")
        self._body = body

    def content(self) -> bytes:
        with self.held():
            return bytes(self._body)

    def read(self, start: int, end: int) -> bytes:
        with self.held():
            return bytes(self._body[start:end])

    def write(self, start: int, content: bytes, *, durable: bool) -> None:
        # Memory is as durable as the disk that it stands for.
        with self.held():
            self._body[start : start + len(content)] = content

    def cut(self, end: int) -> str:
        with self.held():
            del self._body[end:]
            return "memory"

    def replace(self, content: bytes) -> None:
        with self.held():
            self._body[:] = content

    def settle(self) -> None:
        # memory has no folder
        ...

    def _close(self) -> None:
        # nothing is open
        ...


def staged_at(path: Path) -> Path:
    # The next try replaces what a crash has left under this name.
    return path.with_name(path.name + ".new")


def kept_beside(path: Path, content: bytes) -> Path:
    kept = next(each for n in count(1) if not (each := path.with_name(f"{path.name}{CUT}{n}")).exists())
    write_whole(kept, content)
    synchronise(path.parent)
    return kept
