"""The disk of a host that owns no storages: what is committed here is carried to the supervisor, and the files are a cache.

The supervisor says what a storage is before a life of its agent begins (`hold`), and the files are made then; they are dropped when the
life ends. So a host needs nothing but its supervisor, and whatever a death leaves here is never read again. Nothing has to be
synchronised: a commit is durable when its patch is, and until then nothing that speaks of it may leave the process (`actors.link.peer`).

A log is carried as it is written. Of a database, what DuckDB's log has grown by is carried after each commit. A checkpoint changes the file
itself: then the blocks that changed are carried, and that the log is empty, in one patch.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Lock
from typing import Final, NamedTuple

from perdure.ledger.errors import StorageError, StorageLost, TooLarge
from perdure.ledger.storage.disk import Disk
from perdure.ledger.storage.file_disk import FileDisk, log_of, place_of
from perdure.ledger.storage.log_file import FileLog, LogFile
from perdure.ledger.storage.log_format import check_of
from perdure.ledger.storage.patches import COPY_MAX, MAIN, WAL, FilePatch, Patch, StorageImage, whole
from perdure.ledger.storage.shared_log import CommitPart, SharedLog
from perdure.ledger.whole_files import write_at

_OWNER: Final = "owner"
_BLOCK: Final = 16 << 10
"""Bytes of a file that are compared, and carried, together: a block of DuckDB's has as many in our databases."""


def own_folder(place: Path) -> Path:
    """A new folder in this one, for this process alone. Those of processes that have ended are deleted."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / _OWNER).open("ab") as door:
        fcntl.flock(door, fcntl.LOCK_EX)  # a folder that is being made is not locked yet
        for each in place.iterdir():
            with suppress(OSError), (each / _OWNER).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(each, ignore_errors=True)
        made = Path(mkdtemp(prefix=f"{os.getpid()}-", dir=place))
        owner = os.open(made / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(owner, fcntl.LOCK_EX)  # until this process ends
    return made


def _in_one_patch(agent_id: str, file: Path) -> bytes:
    if (size := file.stat().st_size) > COPY_MAX:
        why = f"the copy of {agent_id} has {size} bytes, and one for a ledger in a bucket has {COPY_MAX} at most: it is carried whole"
        raise TooLarge("storage", f"{why}. Nothing was written; let the agent keep less, or write what is needed anew")
    return file.read_bytes()


class FetchedStorage(NamedTuple):
    """A storage as it is after `number` patches, whose files were made apart (`CarriedDisk.new_place`). They are moved to where they
    belong."""

    number: int
    files: dict[str, Path]

    def whole(self) -> FetchedStorage:
        # Files of no size are none.
        empty = {name: path for name, path in self.files.items() if not path.stat().st_size}
        FetchedStorage(0, empty).discard()
        return FetchedStorage(self.number, {name: path for name, path in self.files.items() if name not in empty})

    def discard(self) -> None:
        for path in self.files.values():
            path.unlink(missing_ok=True)


class CarriedDisk(FileDisk):
    """A disk whose commits are taken away by `take_patches`.

    Attributes:
        on_patch: is called after each commit, from whichever thread made it.
    """

    keeps_files = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SharedLog(Path(directory), boot=""))
        self.on_patch: Callable[[], None] = lambda: None
        self._places = count(1)
        # Of lives that have not opened their storages yet.
        self._told: dict[str, StorageImage | FetchedStorage | None] = {}
        self._lost: dict[str, str] = {}
        self._numbers: dict[str, int] = {}  # the last patch of each storage that is open
        self._closed: set[str] = set()  # by lives that go on: the files are gone
        self._ending: set[str] = set()  # those that lives which are over have yet to close
        self._incarnations: dict[str, int] = {}
        self._databases: dict[str, _CarriedDatabase] = {}
        self._changes: dict[str, list[FilePatch]] = {}  # of the commit that is under way
        self._patches: list[Patch] = []
        self._carrying = Lock()

    # what the host does

    def new_place(self) -> Path:
        # Nobody else makes a file there.
        folder = self.directory / "arriving"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / str(next(self._places))

    def hold(self, agent_id: str, image: StorageImage | FetchedStorage | None, lost: str = "") -> None:
        """Say what the storage of an agent is whose life is about to begin; None if it has none. One that is lost cannot be opened."""
        self.let_go(agent_id)
        self._told[agent_id] = image
        self._lost[agent_id] = lost

    def let_go(self, agent_id: str) -> None:
        """The life has ended: what was said for it does not count any more."""
        told = self._told.pop(agent_id, None)
        self._lost.pop(agent_id, None)
        self._closed.discard(agent_id)
        if agent_id in self._holders:
            self._ending.add(agent_id)
        if isinstance(told, FetchedStorage):
            told.discard()

    def taken(self, agent_id: str, place: Path) -> bytes:
        """A storage that was made at a new place, as one patch. The file is removed."""
        try:
            return _in_one_patch(agent_id, place)
        finally:
            place.unlink()

    def take_patches(self) -> list[Patch]:
        # What came since the last call, in order.
        if not self._patches:
            return []
        with self._carrying:
            patches, self._patches = self._patches, []
        return patches

    # what a storage does

    def wrote(self, agent_id: str, incarnation: int) -> None:
        super().wrote(agent_id, incarnation)  # DuckDB's log is read again to be carried
        with self._carrying:
            self._incarnations[agent_id] = incarnation
        self._carry(agent_id, [])
        if not incarnation:  # it was put there whole, and let go of; the life that did so opens it next
            self._told[agent_id] = StorageImage(self._numbers[agent_id], {MAIN: self.path_of(agent_id).read_bytes()})

    def has(self, agent_id: str) -> bool:
        if self._lost.get(agent_id):
            return True
        if agent_id in self._told:
            return self._told[agent_id] is not None
        return agent_id in self._closed or (agent_id in self._numbers and super().has(agent_id))

    def group_commit(self) -> AbstractContextManager[Callable[[], CommitPart]]:
        return Disk.group_commit(self)

    def once_durable(self, job: Callable[[], None]) -> None:
        job()

    def create_log(self, agent_id: str, holder: object, content: bytes) -> LogFile:
        log = super().create_log(agent_id, holder, content)
        self.change(agent_id, whole(MAIN, content))
        return log

    def attach(self, agent_id: str, holder: object) -> str:
        is_new = not self.has(agent_id)
        name = super().attach(agent_id, holder)
        with self._lock:
            database = self._databases[agent_id] = _CarriedDatabase(self.path_of(agent_id))
            if is_new:  # from now on there is a storage, whether or not anything is committed
                self._carry(agent_id, [whole(MAIN, database.path.read_bytes())])
        return name

    def secure(self, agent_id: str, database: str) -> None:
        super().secure(agent_id, database)
        if agent_id in self._databases:
            self._carry(agent_id, self._databases[agent_id].changed())

    def publish(self, agent_id: str, database: str, *, over: bool = False) -> None:
        super().publish(agent_id, database, over=over)
        path = self.path_of(agent_id)
        self.change(agent_id, whole(MAIN, path.read_bytes() if over else _in_one_patch(agent_id, path)))

    def change(self, agent_id: str, part: FilePatch) -> None:
        # What becomes durable with the commit that is under way.
        with self._carrying:
            self._changes.setdefault(agent_id, []).append(part)

    def _carry(self, agent_id: str, parts: list[FilePatch]) -> None:
        database = self._databases.get(agent_id)
        with self._carrying:
            parts = [*self._changes.pop(agent_id, ()), *parts]
            if database is not None and (grown := database.grown()) is not None:
                parts.append(grown)
            if not parts:
                return
            number = self._numbers[agent_id] = self._numbers.get(agent_id, 0) + 1
            self._patches.append(Patch(agent_id, self._incarnations.get(agent_id, 0), number, parts))
        self.on_patch()

    # the cache

    def _look(self, agent_id: str) -> None:
        # what was deleted of a cache is made again
        ...

    def _hold(self, agent_id: str, holder: object) -> None:
        if self._lost.get(agent_id):
            raise StorageLost(agent_id, self._lost[agent_id])
        if agent_id in self._closed and agent_id not in self._told:
            raise StorageError(
                agent_id, "this life of the agent has closed it; only the next one is given its files again"
            )
        is_new = agent_id not in self._holders
        super()._hold(agent_id, holder)
        if not is_new:
            return
        image = self._told.pop(agent_id, None)
        path = self.path_of(agent_id)
        self._drop(path)
        self._closed.discard(agent_id)
        if image is not None:
            self._numbers[agent_id] = image.number
            path.parent.mkdir(parents=True, exist_ok=True)
            for name, content in image.files.items():
                file = path.with_name(path.name + name)
                if isinstance(content, bytes):
                    file.write_bytes(content)
                else:
                    content.replace(file)

    def _release(self, agent_id: str) -> None:
        is_held = agent_id in self._holders
        super()._release(agent_id)
        if is_held:
            if agent_id in self._numbers and agent_id not in self._ending:
                self._closed.add(agent_id)
            self._ending.discard(agent_id)
            for each in (self._numbers, self._databases, self._changes, self._incarnations):
                each.pop(agent_id, None)
            self._drop(self.path_of(agent_id))

    def _drop(self, path: Path) -> None:
        for left in (path, *path.parent.glob(f"{path.name}.*")):
            left.unlink(missing_ok=True)

    def _place(self, agent_id: str, path: Path, content: bytes) -> None:
        try:
            path.write_bytes(content)
        except OSError as problem:
            raise StorageError(agent_id, f"{path} cannot be made: {problem}") from problem

    def _log(self, agent_id: str, path: Path, file: int, *, is_secured: bool) -> FileLog:
        return _CarriedLog(agent_id, path, file, self)


class _CarriedLog(FileLog):
    def __init__(self, agent_id: str, path: Path, file: int, disk: CarriedDisk) -> None:
        super().__init__(agent_id, path, file, place_of(agent_id), disk.shared, is_secured=True)
        self._disk = disk

    def write(self, start: int, content: bytes, *, durable: bool) -> None:
        with self.held():
            write_at(self._file, content, start)
            os.ftruncate(self._file, start + len(content))
            self._disk.change(self.agent_id, FilePatch(MAIN, start, content, start + len(content)))

    def replace(self, content: bytes) -> None:
        self.write(0, content, durable=True)

    def settle(self) -> None:
        # its name need not outlive the life
        ...


# What has been carried of an attached database: its file, block by block, and how much of DuckDB's log.
class _CarriedDatabase:
    def __init__(self, path: Path) -> None:
        self.path, self._wal = path, log_of(path)
        self._blocks = [check_of(block) for _, block in self._read()]
        self._end = self._wal_size()

    def grown(self) -> FilePatch | None:
        # What DuckDB's log has grown by since it was asked last.
        size = self._wal_size()
        if size <= self._end:
            return None
        with self._wal.open("rb") as file:
            file.seek(self._end)
            content = file.read(size - self._end)
        part = FilePatch(WAL, self._end, content, size)
        self._end = size
        return part

    def changed(self) -> list[FilePatch]:
        # What a checkpoint has changed.
        before, self._blocks, self._end = self._blocks, [], 0
        size, parts = self.path.stat().st_size, [FilePatch(WAL, 0, b"", 0)]
        for start, block in self._read():
            digest, at = check_of(block), len(self._blocks)
            self._blocks.append(digest)
            if at >= len(before) or before[at] != digest:
                parts.append(FilePatch(MAIN, start, block, size))
        return parts

    def _read(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield file.tell() - len(block), block

    def _wal_size(self) -> int:
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0
