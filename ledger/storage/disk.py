"""Where the agents' storages lie: one file per agent, a log or a DuckDB database, or the same in memory for the simulator.

A disk outlives a process, what one has open of them (`ledger.storage.agent_storages`) does not. So a simulated kill drops what was open
and keeps the disk, and what was committed is found again by the next process, exactly as with files. All databases of a process are
attached to *one* in-memory DuckDB instance: a cursor that stands in one of them is cheap (0.1 ms), an instance of its own is not (30 ms,
20 MB).

Two processes cannot have the same file: it is locked, and the kernel lets go when the process dies. Within one process the
disk keeps the same rule itself, between processes. So a zombie that still runs keeps its successor out (`StorageLocked`, try
again) instead of writing beside it.
"""

from __future__ import annotations

import atexit
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Final

import duckdb

from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.errors import StorageConflict, StorageError, StorageLost
from perdure.ledger.ids import is_within
from perdure.ledger.storage.log_file import LogFile, MemoryLog
from perdure.ledger.storage.shared_log import CommitPart
from perdure.ledger.storage.sql import SqlCursor

# No primary keys. An index doubles the file (measured with 1,024 mails: 94 KB against 45 KB), and in the storage format of 1.4
# it keeps the room of deleted rows for ever. What keys would guard is guarded by the one writer and its commit lock.
SCHEMA = """
CREATE SCHEMA {0}.perdure;
CREATE TABLE {0}.perdure.meta (agent_id VARCHAR, incarnation BIGINT, schema_version INTEGER, clock BIGINT);
CREATE TABLE {0}.perdure.records (number BIGINT, kind VARCHAR, key VARCHAR, body BLOB)
"""
TYPE: Final = "TYPE duckdb"
"""Part of every `ATTACH` of a file. Without it DuckDB reads the file's headers to find its type, before it takes its lock and never again,
so a checkpoint of the former owner that falls in between is not seen, and what it holds is lost."""

_CHECKPOINTS_ARE_OURS = (  # each of them is guarded, and none is made by itself
    "PRAGMA disable_checkpoint_on_shutdown",
    "SET checkpoint_threshold = '1024TB'",
    "SET auto_checkpoint_skip_wal_threshold = 1000000000000",
)
_ATTACHED = "SELECT database_name FROM duckdb_databases() WHERE NOT internal AND database_name <> 'memory'"
_LEFT = "SELECT (SELECT count(*) FROM duckdb_tables()) + (SELECT count(*) FROM duckdb_views() WHERE NOT internal)"

_IDLE: Final[list[duckdb.DuckDBPyConnection]] = []
"""Instances of memory disks that were closed, for the next ones: simulations come by the thousand, each for a moment."""
atexit.register(_IDLE.clear)  # DuckDB reports what is left at exit as a leak, on stderr

_LOCKED = re.compile(r"Conflicting lock is held in (.*)\. See", re.DOTALL)
_UNOPENABLE = re.compile(r"IO Error: Cannot (?:open|create)")


class StorageLocked(StorageError):
    """Another process has the storage open. It is not damaged: try again when that process has let go or has died."""


class Disk(ABC):
    """Storages by agent id. `holder` is the `AgentStorages` of the process that asks; only one at a time holds a storage.

    Attributes:
        directory: where its files lie; None if it has none.
        keeps_files: whether a life may open its storage again after it has closed it.
    """

    directory: Path | None = None
    keeps_files = True

    def __init__(self) -> None:
        self._lock = RLock()
        self._holders: dict[str, object] = {}
        self._names = count(1)
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._blank: set[str] = set()  # the databases that were made and not looked at yet

    def group_commit(self) -> AbstractContextManager[Callable[[], CommitPart]]:
        """What this thread commits within the block becomes durable together at its end, if there is a gain in it. It gives a function that
        begins a part of it; after the block, each part is to be told."""
        return nullcontext(CommitPart)

    def once_durable(self, job: Callable[[], None]) -> None:
        job()

    def wrote(self, agent_id: str, incarnation: int) -> None:  # noqa: B027 - only a disk that is carried elsewhere is interested
        """A life of the agent has committed."""

    @abstractmethod
    def has(self, agent_id: str) -> bool:
        """Whether there is a storage, finished or not."""

    @abstractmethod
    def open_log(self, agent_id: str, holder: object) -> LogFile | None:
        """Open the storage and hold it, if it is a log; None if it is none."""

    @abstractmethod
    def create_log(self, agent_id: str, holder: object, content: bytes) -> LogFile:
        """Make a storage that is this log, and hold it. Raises `StorageConflict` if there is one."""

    @abstractmethod
    def release(self, agent_id: str) -> None: ...
    @abstractmethod
    def attach(self, agent_id: str, holder: object) -> str:
        """Open the database, creating one without an owner if there is none, and hold it. Returns the name of the database."""

    @abstractmethod
    def detach(self, agent_id: str, database: str, *, checkpoint: bool) -> None:
        """Let go. Without `checkpoint` the log is left as a killed process would leave it."""

    @abstractmethod
    def secure(self, agent_id: str, database: str) -> None:
        """Bring everything committed from the log into the database, so that the next opening replays nothing."""

    def log_bytes(self, agent_id: str) -> int:
        return 0

    def has_room(self, agent_id: str) -> bool:
        """Whether there is room for a checkpoint. Without it that is put off: DuckDB gives a database up whose checkpoint fails."""
        return True

    @abstractmethod
    def erase(self, agent_id: str, holder: object) -> None:
        """Delete the storage if there is one. It must not be attached."""

    @abstractmethod
    def erase_descendants(self, agent_id: str) -> None:
        """Delete the storages of all that descends from an agent. None of them may be attached elsewhere."""

    @abstractmethod
    def settle(self) -> None:
        """What was deleted until now is gone after a power cut too. Raises `StorageError` if the disk refuses it."""

    @abstractmethod
    def stage(self, agent_id: str, holder: object, *, blank: bool = False) -> str:
        """Begin a database that is not seen yet, and hold the agent. With `blank` our tables are in it. Returns its name."""

    @abstractmethod
    def publish(self, agent_id: str, database: str, *, over: bool = False) -> None:
        """Make a staged database the agent's, in one step that survives a power cut, and detach it. With `over` it takes the place of a
        log."""

    @abstractmethod
    def discard(self, agent_id: str, database: str) -> None: ...
    def take_finding(self, agent_id: str) -> str:
        """What the last `attach` has to tell of what it found; empty if there is nothing to tell, or it was told."""
        return ""

    def take_blank(self, database: str) -> bool:
        """Whether `attach` has made this database, so that nothing can be in it; true once."""
        is_blank = database in self._blank
        self._blank.discard(database)
        return is_blank

    def witness(self, agent_id: str, forgotten: dict[str, int]) -> None:  # noqa: B027 - only a simulation is interested
        """The agent forgets these mails, whose rows had these numbers."""

    def lane(self, agent_id: str, database: str | None) -> SqlCursor:
        """A new cursor in this database; without one, in an empty database of no agent."""
        with self._lock:
            return SqlCursor(agent_id, self._root().cursor(), database)

    def export(
        self, agent_id: str, database: str, path: Path, adapt: Callable[[str], None] = lambda _database: None
    ) -> None:
        """Copy what is committed in a database into a new file, which `adapt` may change. It gets its name when it is complete."""
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        copy, is_whole = self._attach(agent_id, str(part), "BLOCK_SIZE 16384"), False
        try:
            self.copy(agent_id, database, copy)
            adapt(copy)
            self._root().execute(f"CHECKPOINT {copy}")
            is_whole = True
        finally:
            self._detach(copy)
            for left in () if is_whole else part.parent.glob(f"{part.name}*"):
                left.unlink()
        part.rename(path)

    @contextmanager
    def snapshot(self, agent_id: str, path: Path) -> Iterator[str]:
        copy = self._attach(agent_id, str(path), "READ_ONLY")
        try:
            yield copy
        finally:
            self._detach(copy)

    def copy(self, agent_id: str, source: str, target: str) -> None:
        lane = self.lane(agent_id, None)
        try:
            lane.run(f"COPY FROM DATABASE {source} TO {target}")
        except duckdb.Error as problem:
            raise StorageError(agent_id, f"it could not be copied: {problem}") from problem
        finally:
            lane.shut()

    def close(self) -> None:
        with self._lock:
            if self._instance is not None:
                self._instance.close()
            self._instance = None
            self._holders.clear()

    def _root(self) -> duckdb.DuckDBPyConnection:
        if self._instance is None:
            self._instance = self._new_instance()
        return self._instance

    def _new_instance(self) -> duckdb.DuckDBPyConnection:
        instance = duckdb.connect(
            ":memory:", config={"threads": 1, "async_threads": 0, "temp_directory": self._temporary()}
        )
        for setting in _CHECKPOINTS_ARE_OURS:
            instance.execute(setting)
        return instance

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
                self._root().execute(f"ATTACH '{quoted}' AS {database} ({', '.join(filter(None, [TYPE, options]))})")
            except duckdb.Error as problem:
                is_ours = self.directory is not None and source.startswith(str(self.directory))
                raise _unattachable(agent_id, source, problem, is_ours=is_ours) from problem
            return database


def overtaken(agent_id: str) -> StorageConflict:
    return StorageConflict(agent_id, "another process created the storage meanwhile")


def _unattachable(agent_id: str, source: str, problem: duckdb.Error, *, is_ours: bool) -> StorageError:
    text = str(problem)
    if isinstance(problem, duckdb.FatalException):
        return StorageError(agent_id, f"DuckDB has given up in this process, which has to be started anew: {text}")
    locked = _LOCKED.search(text)
    if locked or "Unique file handle conflict" in text:
        owner = locked[1] if locked else "this process"
        return StorageLocked(agent_id, f"{owner} has {source} open; try again when it has let go or has died")
    if _UNOPENABLE.match(text):
        return StorageError(agent_id, f"{source} cannot be opened: {text}")
    advice = "move it and its .wal aside, and restore a snapshot or let the agent begin anew with `perdure forget`"
    kind = StorageLost if is_damage(problem) and is_ours else StorageError
    return kind(agent_id, f"{source} is damaged, or no storage of this version: {text} — {advice}")


class MemoryDisk(Disk):
    """A simulated disk: what was committed outlives the process. Nothing outlives the disk object.

    Attributes:
        forgotten: by agent, the mails that it has handled and forgotten since, each with the number of its row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: dict[str, set[tuple[str, int]]] = {}
        self._storages: dict[str, str | bytearray] = {}  # the name of a database, or a log

    def witness(self, agent_id: str, forgotten: dict[str, int]) -> None:
        self.forgotten.setdefault(agent_id, set()).update(forgotten.items())

    def exchange(self, agent_id: str, storage: str | bytearray | None) -> str | bytearray | None:
        # As a fault or an operator may do it.
        former = self._storages.pop(agent_id, None)
        if storage is not None:
            self._storages[agent_id] = storage
        return former

    def has(self, agent_id: str) -> bool:
        return agent_id in self._storages

    def open_log(self, agent_id: str, holder: object) -> LogFile | None:
        with self._lock:
            self._hold(agent_id, holder)
            kept = self._storages.get(agent_id)
            return MemoryLog(agent_id, kept) if isinstance(kept, bytearray) else None

    def create_log(self, agent_id: str, holder: object, content: bytes) -> LogFile:
        with self._lock:
            self._hold(agent_id, holder)
            if agent_id in self._storages:
                raise overtaken(agent_id)
            body = self._storages[agent_id] = bytearray(content)
            return MemoryLog(agent_id, body)

    def attach(self, agent_id: str, holder: object) -> str:
        # A database in memory is attached for ever.
        with self._lock:
            self._hold(agent_id, holder)
            kept = self._storages.get(agent_id)
            if kept is None:
                kept = self._storages[agent_id] = self._made()
            assert isinstance(kept, str), "a log is opened, and not attached"
            return kept

    def detach(self, agent_id: str, database: str, *, checkpoint: bool) -> None:
        # The database stays, as a file would.
        self.release(agent_id)

    def release(self, agent_id: str) -> None:
        self._holders.pop(agent_id, None)

    def secure(self, agent_id: str, database: str) -> None:
        # a database in memory has no log
        ...

    def erase(self, agent_id: str, holder: object) -> None:
        with self._lock:
            self._hold(agent_id, holder)
            self._holders.pop(agent_id)
            self.forgotten.pop(agent_id, None)
            kept = self._storages.pop(agent_id, None)
            if isinstance(kept, str):
                self._root().execute(f"DETACH {kept}")

    def erase_descendants(self, agent_id: str) -> None:
        for each in [each for each in self._storages if each != agent_id and is_within(each, agent_id)]:
            self.erase(each, self)

    def settle(self) -> None:
        # memory is gone at once
        ...

    def stage(self, agent_id: str, holder: object, *, blank: bool = False) -> str:
        self._hold(agent_id, holder)
        return self._made() if blank else self._attach(agent_id, ":memory:", "")

    def publish(self, agent_id: str, database: str, *, over: bool = False) -> None:
        # It stays attached.
        self._storages[agent_id] = database

    def discard(self, agent_id: str, database: str) -> None:
        self._detach(database)

    def close(self) -> None:
        with self._lock:
            if self._instance is not None and _is_emptied(self._instance):
                _IDLE.append(self._instance)
                self._instance = None
            super().close()
            self._storages.clear()

    def _made(self) -> str:
        with self._lock:
            database = self._attach("", ":memory:", "")
            self._root().execute(SCHEMA.format(database))
            return database

    def _new_instance(self) -> duckdb.DuckDBPyConnection:
        with suppress(IndexError):
            return _IDLE.pop()
        return super()._new_instance()


def _is_emptied(instance: duckdb.DuckDBPyConnection) -> bool:
    # True if the instance is as it was when it was made.
    with suppress(duckdb.Error):
        for (database,) in instance.execute(_ATTACHED).fetchall():
            instance.execute(f"DETACH {database}")
        return instance.execute(_LEFT).fetchall() == [(0,)]
    return False
