"""A directory brought back from a backup. It has its name only when all of it is there and was verified."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from perdure.ledger.directory_format import FORMAT_FILE, LEDGER, check_format
from perdure.ledger.errors import BadRequest, LedgerError, LedgerUnwritable
from perdure.ledger.maintenance.manifest import Manifest, ManifestEntry, backups_in, latest_in, read_manifest
from perdure.ledger.maintenance.restore_part import part_of
from perdure.ledger.maintenance.target import BackupTarget
from perdure.ledger.store.integrity import is_begun
from perdure.ledger.store.lock import Lock


def restore_backup(target: BackupTarget, data: Path, name: str = "", *, replace: bool = False) -> Manifest:
    """Bring the newest whole backup back, or the one of this name. With `replace`, what is in the directory keeps another name.

    Raises `BadRequest` for a directory that is not empty, or a backup that is not there or not whole; `LedgerLocked` for a directory
    that is in use, or that another restore is bringing back; `LedgerError` for a piece that is missing or damaged; `LedgerUnwritable` if
    there is no room. What was brought until then is removed.
    """
    if target.folder is not None and data.resolve().is_relative_to(target.folder):
        raise BadRequest("dir", f"{data.resolve()} is where the backups lie; choose a directory beside {target.folder}")
    manifest = _chosen(target, name)
    with brought(data, replace=replace) as part:
        of_format = (FORMAT_FILE, f"{LEDGER}/{FORMAT_FILE}")
        first, *others = sorted(manifest.entries.values(), key=lambda each: each.path not in of_format)
        _bring(target, first, part)
        try:
            check_format(part)
        except LedgerError as problem:
            whose, advice = f"{target.url}, backup {manifest.name}", "restore it with the Perdure that made it"
            raise type(problem)(whose, problem.problem, advice) from None
        for entry in others:
            _bring(target, entry, part)
    return manifest


@contextmanager
def brought(data: Path, *, replace: bool) -> Iterator[Path]:
    """What is put into this part is the directory when the block has ended well; else it is removed. Raises as `restore_backup`."""
    data = data.resolve()
    if data.is_mount():
        raise BadRequest("dir", f"{data} is where a file system is mounted; choose a directory in it")
    with ExitStack() as stack:
        try:
            part = stack.enter_context(part_of(data))
            taken = _taken(data, replace=replace)
            if is_begun(data / LEDGER):
                stack.callback(Lock(data / LEDGER).release)  # no process begins to use it meanwhile
            yield part
            os.sync()
            _publish(part, data, taken)
        except OSError as problem:
            advice = "make room, or choose another directory, and restore again; nothing there was changed"
            words = f"it cannot be written ({problem.strerror or problem})"
            raise LedgerUnwritable(str(data), words, advice) from problem


def _taken(data: Path, *, replace: bool) -> os.stat_result | None:
    if not data.exists() or not any(data.iterdir()):
        return None
    if not replace:
        raise BadRequest(
            "dir", f"{data} is not empty; choose another, or say --replace, which keeps it under another name"
        )
    return data.stat()


def _publish(part: Path, data: Path, taken: os.stat_result | None) -> None:
    # A name is only ever taken from an empty directory.
    if taken is not None and data.exists():
        if not os.path.samestat(taken, data.stat()):
            raise _came_meanwhile(data)
        data.rename(next(each for n in count(1) if not (each := data.with_name(f"{data.name}.replaced-{n}")).exists()))
    try:
        part.rename(data)
    except OSError as problem:
        if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _came_meanwhile(data) from None
        raise


def _came_meanwhile(data: Path) -> BadRequest:
    return BadRequest("dir", f"something else was put in {data} meanwhile; it stays, and what was brought was removed")


def _chosen(target: BackupTarget, name: str) -> Manifest:
    names = backups_in(target)
    if name and name not in names:
        raise BadRequest("backup", f"{target.url} has no backup {name!r}; it has {', '.join(names[-10:]) or 'none'}")
    found = read_manifest(target, name) if name else latest_in(target)
    if found is None:
        raise BadRequest("backup", f"{target.url} has no whole backup" + (f" {name!r}" if name else ""))
    return found


def _bring(target: BackupTarget, entry: ManifestEntry, into: Path) -> None:
    for ending, size, pieces in entry.parts:
        path = into / f"{entry.path}{ending}"
        if not path.resolve().is_relative_to(into.resolve()):
            raise LedgerError(
                target.url, f"its manifest names {entry.path}, which is outside", "restore another backup"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for piece in pieces:
                file.write(target.get_piece(piece))
        if path.stat().st_size != size:
            raise LedgerError(target.url, f"{entry.path}{ending} has not {size} bytes", "restore another backup")
