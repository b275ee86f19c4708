"""What has changed in the files of a directory's storages and code since they were looked at last, as patches.

Agents write their files themselves, and tell nobody what. So the files are looked at: those that their stamps say have changed are read, as
they were together at one moment (`copies`), and compared block by block with what they were. Whoever looks between two decisions of the
ledger gets what fits the ledger: an agent commits before it reports, and has heard of nothing that is decided later (`cut`).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.code_files import CODE, code_in
from perdure.ledger.directory_format import AGENTS
from perdure.ledger.maintenance.copies import CopyReader, copy_storage, files_of
from perdure.ledger.maintenance.listing import Stamps, list_storages, stamps_of
from perdure.ledger.storage.file_disk import is_log_at, place_of
from perdure.ledger.storage.log_format import check_of, read_log
from perdure.ledger.storage.patches import MAIN, FilePatch, Patch, whole

_BLOCK: Final = 4 << 10
_FRESH_NS: Final = 50_000_000  # so long may the clock of a file system stand still: two changes may have the same stamp
_PART: Final = 32 << 20  # bytes of patches
_SEEN_MAX: Final = 20_000  # storages that are remembered as they were
_UNREADABLE: Final = (errno.EACCES, errno.EIO, errno.EPERM)

Files = dict[str, bytes]
"""The files of a storage, by what their names add to that of the first one."""


# A file as it was: its size, and the digests of its blocks.
class _Blocks(NamedTuple):
    size: int
    digests: list[bytes]


# A storage as it was when it was read last.
class _Seen(NamedTuple):
    stamps: object
    number: int
    files: dict[str, _Blocks]


class StorageChanges:
    """The changes in one directory. Any thread may look, one at a time.

    Args:
        scratch: a folder for copies.
        known: how many patches the storage of an agent has where they are carried to.
        is_there: whether these files are what a storage is there, which has patches.
        agents: those that have storages there.

    Attributes:
        unreadable: why a storage was passed over that the disk does not give; it is tried again.
    """

    def __init__(
        self,
        data: Path,
        scratch: Path,
        *,
        known: Callable[[str], int],
        is_there: Callable[[str, Files], bool],
        agents: Iterable[str],
    ) -> None:
        self._data, self._scratch = data, scratch
        self._known, self._is_there = known, is_there
        self._agents = {place_of(agent): agent for agent in agents if agent != CODE}
        self._seen: dict[str, _Seen] = {}
        self._fresh: set[str] = set()  # may have changed without another stamp
        self._patches: list[Patch] = []
        self._lock = Lock()
        self.unreadable: dict[str, str] = {}

    def look(self, agents: Iterable[str]) -> None:
        """Look at the storages of these agents and of what lies below them, and at the code.

        Raises `StorageError`, `OSError`: what was found until then counts, and is looked at again.
        """
        with self._lock:
            for place in list(self._fresh):
                self._look_at(place, self._agents.get(place, ""))
            for agent in agents:
                place = place_of(agent)
                self._look_at(place, agent)
                folder = self._data / AGENTS / place.removesuffix(".db")
                for path in folder.rglob("*.db") if folder.is_dir() else ():
                    below = path.relative_to(self._data / AGENTS).as_posix()
                    self._look_at(below, self._agents.get(below, ""))
            self._look_at_code()

    def look_at_all(self) -> Iterator[list[Patch]]:
        """Look at all storages and the code. What has changed comes in parts, lest all of it be in memory."""
        with self._lock:
            for place in dict.fromkeys([*list_storages(self._data / AGENTS).storages, *self._agents]):
                self._look_at(place, self._agents.get(place, ""))
                if sum(len(part.content) for patch in self._patches for part in patch.parts) > _PART:
                    yield self.take()
            self._look_at_code()
            yield self.take()

    @property
    def has_news(self) -> bool:
        return bool(self._patches)

    def take(self) -> list[Patch]:
        # What came since the last call, in order.
        patches, self._patches = self._patches, []
        return patches

    def carried(self) -> None:
        # What was taken until now has been carried.
        with self._lock:
            for place in list(islice(self._seen, max(0, len(self._seen) - _SEEN_MAX))):
                if place not in self._fresh:  # what comes again is compared with what was carried
                    del self._seen[place]

    def _look_at(self, place: str, agent: str) -> None:
        self._fresh.discard(place)
        path = self._data / AGENTS / place
        stamps, seen = stamps_of(path), self._seen.get(place)
        if stamps is None:
            self._gone(place, agent)
        elif seen is None or seen.stamps != stamps:
            self._compare(place, agent, path)

    def _look_at_code(self) -> None:
        folder = self._data / CODE
        about = {path.name: path.stat() for path in sorted(folder.iterdir())} if folder.is_dir() else {}
        stamps = {name: (each.st_size, each.st_mtime_ns) for name, each in about.items()}
        seen = self._seen.get(CODE)
        if stamps and (seen is None or seen.stamps != stamps):
            self._note(CODE, CODE, stamps, code_in(folder))

    def _read(self, path: Path) -> tuple[Stamps, Files] | None:
        # The files as they were together; None if the storage is deleted.
        with suppress(FileNotFoundError):
            while is_log_at(path):
                before, content, after = stamps_of(path), path.read_bytes(), stamps_of(path)
                if before is not None and after is not None and before.database[0] == after.database[0]:
                    reading = read_log(content)
                    return before, {MAIN: content if reading.is_damaged else content[: reading.end]}
        copy = self._scratch / "copy.db"
        stamps = copy_storage(path, copy)
        if stamps is None:
            return None
        with closing(BlockGuard(copy, fsync=False)) as guard:
            guard.mend()
        return stamps, files_of(copy)

    def _gone(self, place: str, agent: str) -> None:
        seen = self._seen.pop(place, None)
        if not agent or not (self._known(agent) if seen is None else seen.number):
            return
        self._patches.append(Patch(agent, 0, 0))
        self._seen[place] = _Seen(None, 0, {})
        folder = place.removesuffix(".db")
        for below, each in list(self._agents.items()):
            if below.startswith(f"{folder}/"):
                self._look_at(below, each)

    def _compare(self, place: str, agent: str, path: Path) -> None:
        try:
            found = self._read(path)
        except OSError as problem:
            if problem.errno not in _UNREADABLE:
                raise
            self.unreadable[place] = f"{path} cannot be read: {problem.strerror}"
            self._fresh.add(place)
            return
        self.unreadable.pop(place, None)
        if found is None:
            self._gone(place, agent)
            return
        stamps, files = found
        agent = agent or self._owner(files)
        if agent:
            self._agents[place] = agent
            self._note(place, agent, stamps, files)
            if time.time_ns() - max(each[2] for each in stamps if each is not None) < _FRESH_NS:
                self._fresh.add(place)
                self._seen[place] = self._seen[place]._replace(stamps=None)

    def _owner(self, files: Files) -> str:
        # Empty while nothing was committed to the storage.
        if (head := read_log(files[MAIN]).head) is not None:
            return head.agent_id
        copy = self._scratch / "copy.db"
        for ending, content in files.items():
            copy.with_name(copy.name + ending).write_bytes(content)
        with CopyReader() as reader:
            return reader.read(copy).agent_id

    def _note(self, place: str, agent: str, stamps: object, files: Files) -> None:
        seen = self._seen.pop(place, None)
        number = self._known(agent) if seen is None else seen.number
        parts = list[FilePatch]()
        if seen is not None:
            parts = list(_changed(seen.files, files))
        elif not number or not self._is_there(agent, files):
            if number:
                self._patches.append(Patch(agent, 0, 0))
            number, parts = 0, [whole(name, content) for name, content in files.items()]
        if parts:
            number += 1
            self._patches.append(Patch(agent, 0, number, parts))
        self._seen[place] = _Seen(stamps, number, {name: _blocks_of(each) for name, each in files.items()})


def _blocks_of(content: bytes) -> _Blocks:
    with memoryview(content) as view:
        return _Blocks(len(content), [check_of(view[at : at + _BLOCK]) for at in range(0, len(content), _BLOCK)])


def _changed(before: Mapping[str, _Blocks], files: Files) -> Iterator[FilePatch]:
    # The patches make the later files of the earlier ones.
    for name, (size, digests) in before.items():
        content = files.get(name, b"")
        now = _blocks_of(content).digests
        same = [at < len(digests) and digest == digests[at] for at, digest in enumerate(now)]
        runs = [at for at in range(len(now)) if not same[at] and (not at or same[at - 1])]
        for first in runs:
            last = next((at for at in range(first, len(now)) if same[at]), len(now))
            yield FilePatch(name, first * _BLOCK, content[first * _BLOCK : last * _BLOCK], len(content))
        if not runs and len(content) != size:
            yield FilePatch(name, len(content), b"", len(content))
    yield from (whole(name, content) for name, content in files.items() if name not in before)
