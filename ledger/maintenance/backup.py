"""A backup of a directory, whether or not it is served, that goes on from the last one.

1. The steward (the supervisor, or the lock of a cold ledger) keeps the ledger's snapshot as it is, and it is copied.
2. The storages that have changed since the last backup are copied, again and again until few have changed meanwhile. Agents are at work.
3. The steward makes the cut (`cut`), and what is in it is copied.
4. The manifest is written. Only then is there a backup.

Each file lies in the target in pieces that are named by their digests. So nothing is copied twice, and after an interrupted backup the next
one goes on where it was. If the snapshot did change meanwhile, all this is done again; what was copied before counts.

Bytes in memory: one piece. Besides, some hundred bytes for each storage. On a disk: in `backup.stage`, one storage at a
time, and at the end those of the cut. That lies in the directory if a supervisor makes the cut, or if the target is no directory; else in
the target, since the disk of the directory may be full, or not be ours to write.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.directory_format import AGENTS, FORMAT_FILE, LEDGER
from perdure.ledger.errors import BadRequest, LedgerError, StorageError
from perdure.ledger.maintenance.copies import CopyReader, copy_storage
from perdure.ledger.maintenance.cut import STAGE, Cut, read_cut, write_known
from perdure.ledger.maintenance.listing import Stamps, list_storages
from perdure.ledger.maintenance.manifest import (
    FOLDER,
    FilePart,
    Manifest,
    ManifestEntry,
    backups_in,
    latest_in,
    name_after,
    place_of_manifest,
    read_manifest,
    write_manifest,
)
from perdure.ledger.maintenance.target import PIECE_MAX, PIECES, BackupTarget
from perdure.ledger.storage.file_disk import log_of, place_of
from perdure.ledger.store.duckdb_file import DATABASE, told

OTHERS: Final = (FORMAT_FILE, f"{LEDGER}/{FORMAT_FILE}", "scenario.json", "code")
"""What else of a directory is durable. Where its Ray is, what its hosts said, and logs belong to the machine."""
_FEW, _PASSES_MAX, _TRIES_MAX = 32, 4, 5


class Steward(Protocol):
    """The part that keeps the ledger of a directory as a backup needs it."""

    def hold(self) -> object:
        """Keep the snapshot as it is for half a minute. What it returns is another value once the snapshot was not kept."""

    def cut(self) -> object:
        """Make the cut. Returns what `hold` would, or None if that is over."""


class BackupSummary(NamedTuple):
    """What a backup has: its name, its last fact, how many storages, and how many bytes, of which some were `copied` for it; and (in words)
    what is wrong with the directory itself."""

    name: str
    seq: int
    storages: int
    size: int
    copied: int
    findings: list[str]


class Backup:
    """One backup of a directory. `stage` is where its steward stages, too: by default in the directory."""

    def __init__(
        self,
        data: Path,
        target: BackupTarget,
        steward: Steward,
        tell: Callable[[str], None],
        stage: Path | None = None,
    ) -> None:
        self._data, self._target, self._steward, self._tell = data.resolve(), target, steward, tell
        self._stage = stage or self._data / STAGE
        self._held: object = None
        self._entries: dict[str, ManifestEntry] = {}
        self._reader = CopyReader()
        self._copied: dict[str, int] = {}  # bytes of new pieces; of some that were copied twice, this backup needs one
        self._findings: dict[str, str] = {}

    def make(self, made_at_ms: int) -> BackupSummary:
        """Make it. Raises `BadRequest` for a target that is in the directory, or that is another's; `LedgerError` if the target or the
        directory cannot be used, and if the ledger does not come to rest."""
        check_target(self._data, self._target)
        last = latest_in(self._target)
        if last is not None and last.data != str(self._data):
            raise BadRequest(
                "target", f"{self._target.url} has backups of {last.data}; choose another for {self._data}"
            )
        if last is not None:
            self._entries = dict(last.entries)
            self._target.trust(last.pieces())
        try:
            with _alone(self._data, self._stage), self._reader:
                cut = self._tried()
                return self._finished(cut, made_at_ms)
        except OSError as problem:
            where = problem.filename2 or problem.filename or self._data
            raise told(Path(where).parent, problem) from problem

    def _tried(self) -> Cut:
        for _ in range(_TRIES_MAX):
            shutil.rmtree(self._stage, ignore_errors=True)
            self._stage.mkdir()
            self._held = self._steward.hold()
            if self._copy_snapshot() and self._copy_storages():
                write_known(
                    self._stage, {place: stamps for place, stamps in self._stamps().items() if stamps is not None}
                )
                if self._steward.cut() == self._held:
                    return read_cut(self._stage)
            self._tell("the ledger's snapshot has changed meanwhile; it is copied again")
        raise LedgerError(str(self._data), f"its snapshot changed during each of {_TRIES_MAX} tries", "try again later")

    def _finished(self, cut: Cut, made_at_ms: int) -> BackupSummary:
        for place, stamps in cut.staged.items():
            self._keep_storage(place, self._stage / AGENTS / place, stamps)
        kept = {f"{AGENTS}/{place}" for place in cut.places}
        journal = [self._file(path, f"{LEDGER}/{path.name}") for path in sorted((self._stage / LEDGER).glob("*"))]
        others = [each for path, each in self._entries.items() if path in self._there]
        entries = {each.path: each for each in [*journal, *others, *(self._entries[path] for path in sorted(kept))]}
        self._compare(entries, cut.reported)
        names = backups_in(self._target)
        manifest = Manifest(name_after(names), str(self._data), cut.seq, made_at_ms, entries)
        write_manifest(self._target, manifest)
        size = sum(part.size for entry in entries.values() for part in entry.parts)
        copied = sum(self._copied.get(piece, 0) for piece in {*manifest.pieces()})
        return BackupSummary(manifest.name, cut.seq, len(kept), size, copied, list(self._findings.values()))

    def _compare(self, entries: dict[str, ManifestEntry], reported: dict[str, int]) -> None:
        # A backup does not mend what is wrong with the directory already, so it is told.
        for agent, sequence in reported.items():
            entry = entries.get(f"{AGENTS}/{place_of(agent)}")
            if sequence and (entry is None or entry.sequence < sequence):
                come = "is missing" if entry is None else f"has come to {entry.sequence}"
                self._findings[agent] = f"the storage of {agent} {come}, and it had reported {sequence}"

    # the parts

    def _copy_snapshot(self) -> bool:
        # The ledger's file does not change while it is held. False if it was not held to the end.
        files = [self._data / LEDGER / DATABASE, BlockGuard(self._data / LEDGER / DATABASE).saved]
        for name in OTHERS:
            path = self._data / name
            files += sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        self._there = {path.relative_to(self._data).as_posix(): path for path in files if path.exists()}
        for name, path in self._there.items():
            self._entries[name] = self._file(path, name)
        return self._is_held()

    def _copy_storages(self) -> bool:
        # Until few storages change meanwhile. False if the snapshot was not held to the end.
        for _ in range(_PASSES_MAX):
            known = self._stamps()
            listed = list_storages(self._data / AGENTS).storages
            changed = [place for place, stamps in listed.items() if known.get(place) != stamps]
            for number, place in enumerate(changed):
                if not number % 20 and not self._is_held():
                    return False
                self._copy_storage(place)
            if len(changed) <= _FEW:
                break
            self._tell(f"{len(changed)} of {len(listed)} storages were copied")
        return self._is_held()

    def _copy_storage(self, place: str) -> None:
        copy = self._stage / "copy.db"
        try:
            stamps = copy_storage(self._data / AGENTS / place, copy)
        except StorageError:
            return  # it is at work; the cut has it
        if stamps is not None:
            self._keep_storage(place, copy, stamps)

    def _keep_storage(self, place: str, copy: Path, stamps: Stamps) -> None:
        come = self._reader.read(copy)
        self._findings.pop(place, "")
        if come.problem:
            self._findings[place] = (
                f"{self._data / AGENTS / place} cannot be read, and was copied as it is: {come.problem}"
            )
        beside = [(copy, ""), (log_of(copy), ".wal"), (BlockGuard(copy).saved, ".blocks")]
        parts = [self._part(path, ending) for path, ending in beside if path.exists()]
        path = f"{AGENTS}/{place}"
        self._entries[path] = ManifestEntry(path, stamps, 0 if come.problem else come.sequence, parts)

    def _file(self, path: Path, name: str) -> ManifestEntry:
        return ManifestEntry(name, None, 0, [self._part(path, "")])

    def _part(self, path: Path, ending: str) -> FilePart:
        size, pieces = 0, []
        with path.open("rb") as file:
            while body := file.read(PIECE_MAX):
                piece, is_new = self._target.put_piece(body)
                pieces.append(piece)
                size += len(body)
                self._copied |= {piece: len(body)} if is_new else {}
                if size > PIECE_MAX:
                    self._is_held()  # a large file takes its time
        return FilePart(ending, size, pieces)

    def _stamps(self) -> dict[str, Stamps | None]:
        start = len(AGENTS) + 1
        return {path[start:]: each.stamps for path, each in self._entries.items() if path.startswith(f"{AGENTS}/")}

    def _is_held(self) -> bool:
        return self._steward.hold() == self._held


def prune(target: BackupTarget, keep: int) -> tuple[int, int]:
    """Delete all but the newest whole backups, and the pieces that only they needed. Returns how many of each."""
    whole = [each for name in reversed(backups_in(target)) if (each := read_manifest(target, name)) is not None]
    kept, gone = whole[:keep], whole[keep:]
    target.remove(place_of_manifest(each.name) for each in gone)
    return len(gone), target.sweep({piece for each in kept for piece in each.pieces()})


def check_target(data: Path, target: BackupTarget) -> None:
    """Refuse a target that lies in the directory of which it would be a copy, or among files that are no backups. Raises `BadRequest`."""
    place = target.folder
    if place is None:
        return
    if place.is_relative_to(data.resolve()):
        raise BadRequest(
            "target", f"{place} is in the directory itself, and would be lost with it; choose another place"
        )
    if place.exists() and not place.is_dir():
        raise BadRequest("target", f"{place} is no directory")
    there = {each.name for each in place.iterdir()} if place.exists() else set()
    if there - {f"{STAGE}.lock", "lost+found"} and not there & {FOLDER, PIECES, STAGE}:
        raise BadRequest("target", f"{place} is not empty, and has no backups; choose another, or a new one in it")


@contextmanager
def _alone(data: Path, stage: Path) -> Iterator[None]:
    stage.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(f"{stage}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(str(data), "another backup of it is being made", "wait for its end") from None
        try:
            yield
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    finally:
        os.close(file)
