"""One exclusive lock for each agent among all processes of a directory, whether or not the agent has a file yet.

DuckDB locks a database while it is attached. That is too late for a process that creates, deletes or replaces one: between a look and an
act another process may come. So a process takes the agent's lock before its first look and keeps it until it has detached.

A lock is one byte of a lock file, at an offset that is derived from the agent's id; so there are sixteen lock files in all, and none to
delete with an agent. The locks belong to the open file, not to the process: two disks in one process exclude each other, and closing
some other descriptor drops nothing. The kernel lets go when the process dies. A forked child lets go of what it inherited.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from hashlib import blake2b
from pathlib import Path
from typing import Final

_FILES: Final = 16
_FLOCK: Final = "hhqqi"  # struct flock of <fcntl.h>: type, whence, start, length, pid

_all: weakref.WeakSet[AgentLocks] = weakref.WeakSet()


class AgentLocks:
    """The locks that one disk of one process holds, in this folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, int] = {}  # number of a lock file → its descriptor
        _all.add(self)

    def take(self, agent_id: str) -> bool:
        """Take the agent's lock. False if another process has it. Raises `OSError` if the lock file cannot be made."""
        number, offset = _place(agent_id)
        try:
            self._lock(number, offset, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def release(self, agent_id: str) -> None:
        number, offset = _place(agent_id)
        if number in self._files:
            self._lock(number, offset, fcntl.F_UNLCK)

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _lock(self, number: int, offset: int, kind: int) -> None:
        if number not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[number] = os.open(self._folder / f"{number:x}", os.O_RDWR | os.O_CREAT, 0o666)
        wish = struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0)
        fcntl.fcntl(self._files[number], fcntl.F_OFD_SETLK, wish)


def holder_of(file: Path) -> str:
    """`process N` for the process that has a file open, by its lock on the file itself; "another process" if it has none just now.

    Only for a file whose agent's lock another process has: closing a descriptor drops the locks of this process on that file.
    """
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return "another process"
    try:
        wish = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wish))
    finally:
        os.close(descriptor)
    return "another process" if kind == fcntl.F_UNLCK or pid <= 0 else f"the process with PID {pid}"


def _place(agent_id: str) -> tuple[int, int]:
    digest = int.from_bytes(blake2b(agent_id.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return digest % _FILES, digest // _FILES  # an offset is below 2 to the power of 60


def _let_go_after_a_fork() -> None:
    for locks in list(_all):
        locks.close()


os.register_at_fork(after_in_child=_let_go_after_a_fork)
