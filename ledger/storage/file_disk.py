"""The disk of real processes: one file for each agent, a log or a DuckDB database.

DuckDB locks a database while it is attached. That is too late for a process that creates, deletes or replaces one: between a look and an
act another process may come. So a process takes the agent's lock (`AgentLocks`) before it looks for a file, creates, opens, deletes or
publishes it, and keeps the lock until the file is closed. So only the process that creates a file moves a stray log of DuckDB aside, and
never a live one.

A new file has its name when it is whole on the disk. A log has its first commit then. A database is a copy of a blank one that is made once
per process: so its tables are on the disk before anything is committed, and a creation costs one small file (measured: 1 ms of work instead
of 5).
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Final

import duckdb

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import survey
from perdure.ledger.errors import WAY_OUT, StorageError, StorageLost
from perdure.ledger.ids import parent_of, type_of
from perdure.ledger.in_place import Misplaced, OpenFile, misplaced, opened, refuse_misplaced
from perdure.ledger.storage.disk import SCHEMA, Disk, StorageLocked, overtaken
from perdure.ledger.storage.log_file import FileLog, LogFile, kept_beside, staged_at
from perdure.ledger.storage.log_format import LOG_MAGIC, is_log
from perdure.ledger.storage.shared_log import CommitPart, SharedLog
from perdure.ledger.storage.this_machine import settle_file_system
from perdure.ledger.whole_files import synchronise, write_whole

LEFT: Final = "left-"  # begins the name of a log whose file is gone
# Bytes of the log of a storage that is closed: to read it costs less than the synchronisations of a checkpoint.
_LOG_KEPT_MAX: Final = 32 << 10
_ROOM_MIN: Final = 1 << 20  # bytes that a checkpoint needs, whatever it writes
_LOCK_FILES: Final = 16
_FLOCK: Final = "hhqqi"  # struct flock of <fcntl.h>: type, whence, start, length, pid


class FileDisk(Disk):
    """Real files: `<directory>/<2 hex>/<type>-<32 hex>.db`, be they logs or databases, named by a digest, so any agent id has a file name.
    What belongs to the sub-agents of an agent lies in a folder beside its own file, under the same name. With `refuse_elsewhere` it is
    asked before anything is made there whether this is the directory that is meant."""

    directory: Path

    def __init__(
        self, directory: Path, shared: SharedLog | None = None, refuse_elsewhere: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.directory = Path(directory)
        self.shared = shared or SharedLog(self.directory)
        self._locks = AgentLocks(self.directory / "locks", refuse_elsewhere)
        self._guards: dict[str, BlockGuard] = {}
        self._attached: dict[str, tuple[OpenFile, OpenFile | None]] = {}  # each database, and DuckDB's log of it
        self._findings: dict[str, str] = {}
        self._folders: set[str] = set()  # those that this process has seen to be on the disk
        self._content = b""  # of a blank storage

    def path_of(self, agent_id: str) -> Path:
        return self.directory / place_of(agent_id)

    def has(self, agent_id: str) -> bool:
        return os.path.exists(f"{self.directory}/{place_of(agent_id)}")  # noqa: PTH110 - asked often

    def open_log(self, agent_id: str, holder: object) -> LogFile | None:
        path = self.path_of(agent_id)
        with self._lock:
            self._hold(agent_id, holder)
            with self._released_unless_done(agent_id):
                try:
                    file = _opened_log(path)
                    return None if file is None else self._log(agent_id, path, file, is_secured=False)
                except BlockingIOError:
                    raise _locked(agent_id, path) from None

    def create_log(self, agent_id: str, holder: object, content: bytes) -> LogFile:
        path = self.path_of(agent_id)
        with self._lock:
            self._hold(agent_id, holder)
            with self._released_unless_done(agent_id):
                self._prepare(agent_id, path)
                self._place(agent_id, path, content)
                return self._log(agent_id, path, os.open(path, os.O_RDWR | os.O_CLOEXEC), is_secured=True)

    def _log(self, agent_id: str, path: Path, file: int, *, is_secured: bool) -> FileLog:
        return FileLog(agent_id, path, file, place_of(agent_id), self.shared, is_secured=is_secured)

    def group_commit(self) -> AbstractContextManager[Callable[[], CommitPart]]:
        # Logs share one write to the disk.
        return self.shared.group_commit()

    def once_durable(self, job: Callable[[], None]) -> None:
        self.shared.once_durable(job)

    def release(self, agent_id: str) -> None:
        with self._lock:
            self._release(agent_id)

    def attach(self, agent_id: str, holder: object) -> str:
        # DuckDB holds a lock of its own besides the agent's.
        path = self.path_of(agent_id)
        with self._lock:
            self._hold(agent_id, holder)
            with self._released_unless_done(agent_id):
                guard = self._guards[agent_id] = BlockGuard(path)
                if not self.has(agent_id):
                    self._prepare(agent_id, path)
                    self._place(agent_id, path, self._blank_storage())
                    database = self._attach(agent_id, str(path), "")
                    self._blank.add(database)
                    self._attached[agent_id] = opened(path), None
                    return database
                try:
                    guard.mend()
                    self._cut_log(agent_id, path)
                except OSError as problem:
                    raise StorageError(agent_id, f"{path} cannot be mended: {problem}") from problem
                database = self._attach(agent_id, str(path), "")
                self._attached[agent_id] = opened(path), _opened_if_there(log_of(path))
                return database

    def wrote(self, agent_id: str, incarnation: int) -> None:
        # A log looks by itself. The first commit after a checkpoint makes DuckDB's log.
        if agent_id in self._attached:
            database, log = self._attached[agent_id]
            refuse_misplaced(database)
            if log is not None:
                refuse_misplaced(log)
            else:
                self._attached[agent_id] = database, _opened_if_there(log_of(self.path_of(agent_id)))

    def _cut_log(self, agent_id: str, path: Path) -> None:
        # DuckDB would cut what is no whole commit silently, or refuse the file.
        log = log_of(path)
        if not log.exists():
            return
        content = log.read_bytes()
        end, is_damaged = survey(content)
        if is_damaged:
            raise StorageLost(agent_id, f"{log} is damaged at byte {end}, and later commits follow. {WAY_OUT}")
        if end < len(content):
            kept = kept_beside(path, content)
            os.truncate(log, end)
            self._findings[agent_id] = (
                f"the last {len(content) - end} bytes of its log were no whole commit: a write that was interrupted, or damage. "
                f"The log is kept as {kept}"
            )

    def take_finding(self, agent_id: str) -> str:
        return self._findings.pop(agent_id, "")

    def detach(self, agent_id: str, database: str, *, checkpoint: bool) -> None:
        # A short log stays, and so does any if there is no room for a checkpoint.
        with self._lock, ExitStack() as after:
            after.callback(self._release, agent_id)
            after.enter_context(suppress(duckdb.FatalException))  # DuckDB has given up: nothing is attached any more
            after.callback(self._detach, database)
            if checkpoint and self.log_bytes(agent_id) > _LOG_KEPT_MAX:
                after.enter_context(suppress(duckdb.Error, OSError))
                self.secure(agent_id, database)

    def secure(self, agent_id: str, database: str) -> None:
        # On a cursor of its own, because others may attach meanwhile.
        if not log_of(self.path_of(agent_id)).exists():
            return
        with self._lock:
            cursor = self._root().cursor()
        try:
            with self._guards[agent_id].around(cursor, database):
                cursor.execute(f"CHECKPOINT {database}")
            self._attached[agent_id] = self._attached[agent_id][0], None
        finally:
            cursor.close()

    def log_bytes(self, agent_id: str) -> int:
        try:
            return log_of(self.path_of(agent_id)).stat().st_size
        except FileNotFoundError:
            return 0

    def has_room(self, agent_id: str) -> bool:
        # What is in the log is written once more, and a block of it may be copied before.
        system = os.statvfs(self.directory)
        return system.f_bavail * system.f_frsize >= _ROOM_MIN + 2 * self.log_bytes(agent_id)

    def erase(self, agent_id: str, holder: object) -> None:
        with self._lock:
            self._hold(agent_id, holder)
            try:
                self._unlink(agent_id, self.path_of(agent_id))
            finally:
                self._release(agent_id)

    def erase_descendants(self, agent_id: str) -> None:
        # Databases go before their logs, as in `_unlink`.
        folder = self.path_of(agent_id).with_suffix("")
        if not folder.exists():
            return
        try:
            for database in folder.rglob("*.db"):
                database.unlink()
            rmtree(folder)
        except OSError as problem:
            raise StorageError(agent_id, f"{folder} cannot be deleted: {problem}") from problem

    def settle(self) -> None:
        # One synchronisation of the file system, however many were deleted.
        try:
            settle_file_system(self.directory)
        except OSError as problem:
            raise StorageError(str(self.directory), f"what was deleted in it is not gone yet: {problem}") from problem

    def stage(self, agent_id: str, holder: object, *, blank: bool = False) -> str:
        # `has` does not find a file under this name.
        path = staged_at(self.path_of(agent_id))
        with self._lock, ExitStack() as undo:
            if agent_id not in self._holders:
                undo.callback(self._release, agent_id)
            self._hold(agent_id, holder)
            self._make_folder(agent_id, path.parent)
            self._unlink(agent_id, path)
            try:
                if blank:
                    path.write_bytes(self._blank_storage())
            except OSError as problem:
                raise StorageError(agent_id, f"{path} cannot be made: {problem}") from problem
            database = self._attach(agent_id, str(path), "BLOCK_SIZE 16384")
            undo.pop_all()
            return database

    def publish(self, agent_id: str, database: str, *, over: bool = False) -> None:
        # Nothing may have the name yet; with `over`, only the log whose place it takes.
        path = self.path_of(agent_id)
        staged = staged_at(path)
        with self._lock:
            try:
                self._root().execute(f"CHECKPOINT {database}")
                self._root().execute(f"DETACH {database}")
            except duckdb.Error as problem:
                raise StorageError(agent_id, f"its copy could not be written: {problem}") from problem
            try:
                if over:
                    staged.replace(path)
                else:
                    os.link(staged, path)
                    staged.unlink()
                synchronise(path.parent)
            except FileExistsError:
                raise overtaken(agent_id) from None
            except OSError as problem:
                raise StorageError(agent_id, f"its copy could not be published: {problem}") from problem

    def discard(self, agent_id: str, database: str) -> None:
        with self._lock:
            try:
                self._detach(database)
            except duckdb.Error as problem:
                raise StorageError(agent_id, f"its copy cannot be let go of: {problem}") from problem
            self._unlink(agent_id, staged_at(self.path_of(agent_id)))

    def close(self) -> None:
        super().close()
        for guard in self._guards.values():
            guard.close()
        self._guards.clear()
        self.shared.close()
        self._locks.close()

    def _hold(self, agent_id: str, holder: object) -> None:
        is_new = agent_id not in self._holders
        super()._hold(agent_id, holder)
        if not is_new:
            self._look(agent_id)
            return
        with self._released_unless_done(agent_id):
            self._look(agent_id)
            self.shared.redo()
            try:
                is_free = self._locks.take(agent_id)
            except OSError as problem:
                raise StorageError(agent_id, f"its lock in {self.directory} cannot be made: {problem}") from problem
            if not is_free:
                raise _locked(agent_id, self.path_of(agent_id))

    def _look(self, agent_id: str) -> None:
        # Nothing is made again under a path from which everything was deleted or moved.
        try:
            self._locks.look()
        except Misplaced as problem:
            raise StorageError(agent_id, misplaced(problem)) from problem

    def _release(self, agent_id: str) -> None:
        self._attached.pop(agent_id, None)
        if agent_id in self._guards:
            self._guards.pop(agent_id).close()
        if self._holders.pop(agent_id, None) is not None:
            self._locks.release(agent_id)

    @contextmanager
    def _released_unless_done(self, agent_id: str) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(self._release, agent_id)
            yield
            undo.pop_all()

    def _temporary(self) -> str:
        return str(self.directory / "tmp" / str(os.getpid()))  # the files in it have the same names in every process

    def _prepare(self, agent_id: str, path: Path) -> None:
        # A log of DuckDB's without a database would be replayed into this file, so it is moved aside.
        self._make_folder(agent_id, path.parent)
        if path.exists():
            raise overtaken(agent_id)
        for left in [each for each in os.listdir(path.parent) if each.startswith(f"{path.name}.wal")]:  # noqa: PTH208 - costs less
            path.with_name(left).replace(path.with_name(LEFT + left))

    def _place(self, agent_id: str, path: Path, content: bytes) -> None:
        # In one step: of two processes that do this, one is refused.
        part = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            try:
                write_whole(part, content)
                os.link(part, path)
            finally:
                part.unlink(missing_ok=True)
            synchronise(path.parent)
        except FileExistsError:
            raise overtaken(agent_id) from None
        except OSError as problem:
            raise StorageError(agent_id, f"{path} cannot be made: {problem}") from problem

    def _blank_storage(self) -> bytes:
        if not self._content:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "blank.db"
                database = self._attach("", str(path), "BLOCK_SIZE 16384")
                self._root().execute(SCHEMA.format(database))
                self._root().execute(f"CHECKPOINT {database}")
                self._detach(database)
                self._content = path.read_bytes()
        return self._content

    def _make_folder(self, agent_id: str, folder: Path) -> None:
        # The names of the folders beside it are brought to the disk, too: other processes may have made them.
        if str(folder) in self._folders and folder.exists():
            return
        is_first_level = folder.parent == self.directory
        if not is_first_level:
            self._make_folder(agent_id, folder.parent)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            beside = os.listdir(self.directory) if is_first_level else []  # noqa: PTH208 - names alone cost less
            synchronise(folder.parent)
        except OSError as problem:
            raise StorageError(agent_id, f"{folder} cannot be made: {problem}") from problem
        self._folders.update(f"{self.directory}/{name}" for name in beside)
        self._folders.add(str(folder))

    def _unlink(self, agent_id: str, path: Path) -> None:
        # The database first: a log without a database belongs to no agent, a database without its log would be an older agent.
        try:
            path.unlink(missing_ok=True)
            for left in (*path.parent.glob(f"{path.name}.*"), *path.parent.glob(f"{LEFT}{path.name}*")):
                left.unlink(missing_ok=True)
        except OSError as problem:
            raise StorageError(agent_id, f"{path} cannot be deleted: {problem}") from problem


def stored_below(directory: Path, agent_id: str) -> int:
    return sum(1 for _ in (directory / place_of(agent_id)).with_suffix("").rglob("*.db"))


@lru_cache(maxsize=4096)
def place_of(agent_id: str) -> str:
    digest = blake2b(agent_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    kind = re.sub(r"[^A-Za-z0-9_]+", "-", type_of(agent_id))[-40:].strip("-") or "agent"
    parent = parent_of(agent_id)
    folder = place_of(parent).removesuffix(".db") if parent else digest[:2]
    return f"{folder}/{kind}-{digest}.db"


def _opened_log(path: Path) -> int | None:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if is_log(os.pread(file, len(LOG_MAGIC), 0)):
        return file
    os.close(file)
    return None


def _opened_if_there(path: Path) -> OpenFile | None:
    try:
        return opened(path)
    except FileNotFoundError:
        return None


def is_log_at(path: Path) -> bool:
    with path.open("rb") as file:
        return is_log(file.read(len(LOG_MAGIC)))


def log_of(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def _locked(agent_id: str, path: Path) -> StorageLocked:
    return StorageLocked(agent_id, f"{holder_of(path)} has {path} open; try again when it has let go or has died")


# ---------------------------------------------------------------- the lock of an agent

_all_locks: weakref.WeakSet[AgentLocks] = weakref.WeakSet()


class AgentLocks:
    """One exclusive lock for each agent among all processes of a directory, whether or not the agent has a file yet: those that one disk of
    one process holds.

    A lock is one byte of a lock file in this folder, at an offset that is derived from the agent's id; so there are sixteen lock files in
    all, and none to delete with an agent. The locks belong to the open file, not to the process: two disks in one process exclude each
    other, and closing some other descriptor drops nothing. The kernel lets go when the process dies. A forked child lets go of what it
    inherited.
    """

    def __init__(self, folder: Path, refuse_elsewhere: Callable[[], None] = lambda: None) -> None:
        self._folder, self._refuse_elsewhere = folder, refuse_elsewhere
        self._files: dict[int, int] = {}  # number of a lock file → its descriptor
        self._first: OpenFile | None = None  # of these files
        _all_locks.add(self)

    def take(self, agent_id: str) -> bool:
        """Take the agent's lock. False if another process has it. Raises `OSError` if the lock file cannot be made."""
        number, offset = _byte_of(agent_id)
        try:
            self._lock(number, offset, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def look(self) -> None:
        # Raises `Misplaced` if the files were deleted or moved.
        if self._first is not None:
            refuse_misplaced(self._first)

    def release(self, agent_id: str) -> None:
        number, offset = _byte_of(agent_id)
        if number in self._files:
            self._lock(number, offset, fcntl.F_UNLCK)

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._first = None

    def _lock(self, number: int, offset: int, kind: int) -> None:
        if number not in self._files:
            path = self._folder / f"{number:x}"
            self._refuse_elsewhere()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[number] = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            self._first = self._first or opened(path, self._files[number])
        wish = struct.pack(_FLOCK, kind, os.SEEK_SET, offset, 1, 0)
        fcntl.fcntl(self._files[number], fcntl.F_OFD_SETLK, wish)


def _byte_of(agent_id: str) -> tuple[int, int]:
    digest = int.from_bytes(blake2b(agent_id.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return digest % _LOCK_FILES, digest // _LOCK_FILES  # an offset is below 2 to the power of 60


def _let_go_after_a_fork() -> None:
    for locks in list(_all_locks):
        locks.close()


os.register_at_fork(after_in_child=_let_go_after_a_fork)


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
