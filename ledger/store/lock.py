"""The lock of a ledger's directory: one process at a time has it, and the kernel releases it with the process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from perdure.ledger.errors import LedgerLocked
from perdure.ledger.in_place import opened, refuse_misplaced

LOCK: Final = "ledger.lock"


class Lock:
    """An exclusive lock on the directory."""

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
            self.release()
            if problem.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise locked(directory, owner) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        self._opened = opened(path, self._file)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def look(self) -> None:
        # Raises `Misplaced` if it was deleted or moved, with its directory perhaps.
        refuse_misplaced(self._opened)

    def is_of(self, directory: Path) -> bool:
        # The directory may have been deleted or moved since the lock was opened.
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file), (directory / LOCK).stat())
        except FileNotFoundError:
            return False

    @staticmethod
    def is_held(directory: Path) -> bool:
        """Whether a process has the lock now. Nothing is written."""
        try:
            file = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False


def locked(directory: Path, owner: str) -> LedgerLocked:
    who = f"process {owner}" if owner else "another process"
    return LedgerLocked(
        str(directory),
        f"{who} is using this ledger",
        "ask through its supervisor, which answers once it has started, or stop that process first",
    )
