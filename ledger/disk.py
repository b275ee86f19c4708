"""Where the agents' storages lie: one DuckDB file per agent, or one in-memory database per agent for the simulator.

A disk outlives a process, a cabinet (`ledger.storage`) does not. So a simulated kill drops the cabinet and keeps the disk, and
what was committed is found again by the next cabinet, exactly as with files. All databases of a process are attached to *one*
in-memory DuckDB instance: a cursor that stands in one of them is cheap (0.1 ms), an instance of its own is not (30 ms, 20 MB).

Two processes cannot have the same file: DuckDB locks it, and the kernel lets go when the process dies. Within one process the
disk keeps the same rule itself, between cabinets. So a zombie that still runs keeps its successor out (`StorageLocked`, try
again) instead of writing beside it.
"""

from __future__ import annotations

import fcntl
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import RLock

import duckdb

from ledger.agent_sql import Lane
from ledger.errors import StorageConflict, StorageError
from ledger.ids import type_of

_LEFT = "left-"
_EMPTY_FILE_BYTES = 12288  # DuckDB's three headers; they are on the disk before anything can be committed
_LOCKED = re.compile(r"Conflicting lock is held in (.*)\. See", re.DOTALL)
_UNOPENABLE = re.compile(r"IO Error: Cannot (?:open|create)")


class StorageLocked(StorageError):
    """Another process has the storage open. It is not damaged: try again when that process has let go or has died."""


class Disk(ABC):
    """Storages by agent id. `holder` is the cabinet of the process that asks; only one at a time holds a storage."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._holders: dict[str, object] = {}
        self._names = count(1)
        self._instance: duckdb.DuckDBPyConnection | None = None

    @abstractmethod
    def has(self, agent_id: str) -> bool:
        """Whether there is a storage, finished or not."""

    @abstractmethod
    def attach(self, agent_id: str, holder: object) -> str:
        """Open the storage, creating an empty one if there is none, and hold it. Returns the name of the database."""

    @abstractmethod
    def detach(self, agent_id: str, database: str, *, checkpoint: bool) -> None:
        """Let go. Without `checkpoint` the log is left as a killed process would leave it."""

    @abstractmethod
    def secure(self, agent_id: str, database: str) -> None:
        """Bring everything committed from the log into the database, so that the next opening replays nothing."""

    @abstractmethod
    def erase(self, agent_id: str, holder: object) -> None:
        """Delete the storage if there is one. It must not be attached."""

    @abstractmethod
    def stage(self, agent_id: str) -> str:
        """Begin a storage that nobody sees yet. Returns the name of its database."""

    @abstractmethod
    def publish(self, agent_id: str, database: str) -> None:
        """Make a staged storage the agent's, in one step."""

    @abstractmethod
    def discard(self, agent_id: str, database: str) -> None:
        """Drop a staged storage."""

    def lane(self, agent_id: str, database: str | None) -> Lane:
        """A new cursor in this database; without one, in an empty database that is nobody's."""
        with self._lock:
            return Lane(agent_id, self._root().cursor(), database)

    def export(self, agent_id: str, database: str, path: Path) -> None:
        """Copy what is committed in a database into a new file. The file gets its name when it is complete."""
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        copy = self._attach(agent_id, str(part), "BLOCK_SIZE 16384")
        try:
            self.copy(agent_id, database, copy)
        finally:
            self._detach(copy)
        part.rename(path)

    @contextmanager
    def snapshot(self, agent_id: str, path: Path) -> Iterator[str]:
        """The name under which an exported file can be read in this block."""
        copy = self._attach(agent_id, str(path), "READ_ONLY")
        try:
            yield copy
        finally:
            self._detach(copy)

    def copy(self, agent_id: str, source: str, target: str) -> None:
        """Copy everything that is committed from one attached database into an empty one."""
        lane = self.lane(agent_id, None)
        try:
            lane.run(f"COPY FROM DATABASE {source} TO {target}")
        except duckdb.Error as problem:
            raise StorageError(agent_id, f"it could not be copied: {problem}") from problem
        finally:
            lane.shut()

    def close(self) -> None:
        """Give the memory back. A memory disk is empty afterwards."""
        with self._lock:
            if self._instance is not None:
                self._instance.close()
            self._instance = None
            self._holders.clear()

    def _root(self) -> duckdb.DuckDBPyConnection:
        if self._instance is None:
            self._instance = duckdb.connect(
                ":memory:", config={"threads": 1, "async_threads": 0, "temp_directory": self._temporary()}
            )
        return self._instance

    def _detach(self, database: str) -> None:
        with self._lock:
            self._root().execute(f"DETACH DATABASE IF EXISTS {database}")

    def _temporary(self) -> str:
        return ""

    def _hold(self, agent_id: str, holder: object) -> None:
        if self._holders.setdefault(agent_id, holder) is not holder:
            raise StorageLocked(
                agent_id, "another process has it open; try again when that process has let go or has died"
            )

    def _attach(self, agent_id: str, source: str, options: str) -> str:
        with self._lock:
            database = f"agent_{next(self._names)}"
            quoted = source.replace("'", "''")
            try:
                self._root().execute(f"ATTACH '{quoted}' AS {database}" + (f" ({options})" if options else ""))
            except duckdb.Error as problem:
                raise _unattachable(agent_id, source, problem) from problem
            return database


def _unattachable(agent_id: str, source: str, problem: duckdb.Error) -> StorageError:
    text = str(problem)
    if isinstance(problem, duckdb.FatalException):
        return StorageError(agent_id, f"DuckDB has given up in this process, which has to be started anew: {text}")
    locked = _LOCKED.search(text)
    if locked or "Unique file handle conflict" in text:
        owner = locked[1] if locked else "this process"
        return StorageLocked(agent_id, f"{owner} has {source} open; try again when it has let go or has died")
    if _UNOPENABLE.match(text):
        return StorageError(agent_id, f"{source} cannot be opened: {text}")
    advice = "move it and its .wal aside, and restore a snapshot or let the agent begin anew"
    return StorageError(agent_id, f"{source} is damaged, or no storage of this version: {text} — {advice}")


class FileDisk(Disk):
    """Real files: `<directory>/<2 hex>/<type>-<32 hex>.db`, named by a digest, so any agent id has a file name."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = Path(directory)

    def path_of(self, agent_id: str) -> Path:
        """The file of an agent, whether or not it exists."""
        digest = blake2b(agent_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        kind = re.sub(r"[^A-Za-z0-9_]+", "-", type_of(agent_id))[-40:].strip("-")
        return self.directory / digest[:2] / f"{kind or 'agent'}-{digest}.db"

    def has(self, agent_id: str) -> bool:
        """Whether there is a file that may hold something."""
        path = self.path_of(agent_id)
        return path.exists() and not self._unborn(path)

    def attach(self, agent_id: str, holder: object) -> str:
        """Attach the file, on which DuckDB then holds a lock against other processes."""
        path = self.path_of(agent_id)
        with self._lock:
            self._hold(agent_id, holder)
            attached = False
            try:
                database = self._attach(agent_id, str(path), "") if self.has(agent_id) else self._made(agent_id, path)
                attached = True
            finally:
                if not attached:
                    self._holders.pop(agent_id)
            return database

    def detach(self, agent_id: str, database: str, *, checkpoint: bool) -> None:
        """Detach the file, with which the lock goes."""
        with self._lock:
            root = self._root()
            try:
                if not checkpoint:
                    root.execute("PRAGMA disable_checkpoint_on_shutdown")
                root.execute(f"DETACH {database}")
            finally:
                root.execute("PRAGMA enable_checkpoint_on_shutdown")
                self._holders.pop(agent_id, None)

    def secure(self, agent_id: str, database: str) -> None:
        """Checkpoint the file, on a cursor of its own, for others may attach meanwhile."""
        with self._lock:
            cursor = self._root().cursor()
        try:
            cursor.execute(f"CHECKPOINT {database}")
        finally:
            cursor.close()

    def erase(self, agent_id: str, holder: object) -> None:
        """Delete the file, its log, and what deaths left beside them."""
        with self._lock:
            self._hold(agent_id, holder)
            try:
                self._unlink(agent_id, self.path_of(agent_id))
                self._unlink(agent_id, self._staged(agent_id))
            finally:
                self._holders.pop(agent_id)

    def stage(self, agent_id: str) -> str:
        """Begin a file under a name that `has` does not find."""
        path = self._staged(agent_id)
        self._make_folder(agent_id, path.parent)
        self._unlink(agent_id, path)
        return self._attach(agent_id, str(path), "BLOCK_SIZE 16384")

    def publish(self, agent_id: str, database: str) -> None:
        """Give the file its name."""
        with self._lock:
            self._root().execute(f"CHECKPOINT {database}")
            self._root().execute(f"DETACH {database}")
            path = self.path_of(agent_id)
            self._staged(agent_id).rename(path)
            _sync(path.parent)

    def discard(self, agent_id: str, database: str) -> None:
        """Delete the file that was begun."""
        self._detach(database)
        self._unlink(agent_id, self._staged(agent_id))

    def _temporary(self) -> str:
        return str(self.directory / "tmp" / str(os.getpid()))  # the files in it have the same names in every process

    def _staged(self, agent_id: str) -> Path:
        path = self.path_of(agent_id)
        return path.with_name(path.name + ".new")

    def _made(self, agent_id: str, path: Path) -> str:
        """A new file, after moving aside what a death while it was made may have left.

        That is headers that were not finished, or a log whose database is gone, which would be replayed into the new one.
        """
        self._make_folder(agent_id, path.parent)
        if path.exists():
            _refuse_if_locked(agent_id, path)
            if not self._unborn(path):
                raise StorageConflict(agent_id, "another process created the storage meanwhile")
        for left in (path, *_logs(path)):
            if left.exists():
                left.replace(left.with_name(_LEFT + left.name))
        database = self._attach(agent_id, str(path), "BLOCK_SIZE 16384")
        _sync(path.parent)
        return database

    def _make_folder(self, agent_id: str, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sync(folder.parent)
        except OSError as problem:
            raise StorageError(agent_id, f"{folder} cannot be made: {problem}") from problem

    def _unborn(self, path: Path) -> bool:
        """Whether the file was never finished. Its headers are written before anything can be committed."""
        return path.is_file() and path.stat().st_size < _EMPTY_FILE_BYTES and not _logs(path)

    def _unlink(self, agent_id: str, path: Path) -> None:
        """The database first: a log without a database is nobody's, a database without its log would be an older agent."""
        if path.exists():
            _refuse_if_locked(agent_id, path)
        path.unlink(missing_ok=True)
        for left in (*_logs(path), *path.parent.glob(f"{_LEFT}{path.name}*")):
            left.unlink(missing_ok=True)


def _logs(path: Path) -> list[Path]:
    return list(path.parent.glob(path.name + ".wal*"))


def _sync(directory: Path) -> None:
    """A new file's name survives a power cut only when its folder was written too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_if_locked(agent_id: str, path: Path) -> None:
    with path.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            raise StorageLocked(
                agent_id, f"another process has {path} open; try again when it has let go or has died"
            ) from problem


class MemoryDisk(Disk):
    """A simulated disk: what was committed outlives the cabinet. Nothing outlives the disk object."""

    def __init__(self) -> None:
        super().__init__()
        self._databases: dict[str, str] = {}

    def has(self, agent_id: str) -> bool:
        """Whether there is a database."""
        return agent_id in self._databases

    def attach(self, agent_id: str, holder: object) -> str:
        """Hold the database; it is attached for ever."""
        with self._lock:
            self._hold(agent_id, holder)
            if agent_id not in self._databases:
                self._databases[agent_id] = self._attach(agent_id, ":memory:", "")
            return self._databases[agent_id]

    def detach(self, agent_id: str, database: str, *, checkpoint: bool) -> None:
        """Let go. The database stays, as a file would."""
        self._holders.pop(agent_id, None)

    def secure(self, agent_id: str, database: str) -> None:
        """Memory has no log."""

    def erase(self, agent_id: str, holder: object) -> None:
        """Drop the database."""
        with self._lock:
            self._hold(agent_id, holder)
            self._holders.pop(agent_id)
            if agent_id in self._databases:
                self._root().execute(f"DETACH {self._databases.pop(agent_id)}")

    def stage(self, agent_id: str) -> str:
        """Begin a database that no agent has."""
        return self._attach(agent_id, ":memory:", "")

    def publish(self, agent_id: str, database: str) -> None:
        """Give it to the agent."""
        self._databases[agent_id] = database

    def discard(self, agent_id: str, database: str) -> None:
        """Drop it."""
        self._detach(database)

    def close(self) -> None:
        """Give the memory back, with everything in it."""
        super().close()
        self._databases.clear()
