"""A directory brought back from a backup. It has its name only when all of it is there and was verified."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

from perdure.ledger.errors import BadRequest, LedgerError, LedgerUnwritable
from perdure.ledger.keeping.manifest import Entry, Manifest, backups_in, latest_in, read_manifest
from perdure.ledger.keeping.target import Target
from perdure.ledger.store.integrity import lock_of, refuse_if_in_use

LEDGER = "ledger"


def restore_backup(target: Target, data: Path, name: str = "", *, replace: bool = False) -> Manifest:
    """Bring the newest whole backup back, or the one of this name. With `replace`, what is in the directory keeps another name.

    Raises `BadRequest` for a directory that is not empty, or a backup that is not there or not whole; `LedgerLocked` for a directory
    that is in use; `LedgerError` for a piece that is missing or damaged; `LedgerUnwritable` if there is no room. What was brought until
    then is removed.
    """
    manifest = _chosen(target, name)
    is_taken = data.exists() and any(data.iterdir())
    if is_taken and not replace:
        raise BadRequest(
            "dir", f"{data} is not empty; choose another, or say --replace, which keeps it under another name"
        )
    refuse_if_in_use(data / LEDGER)
    part = data.with_name(f"{data.name}.restoring")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        for entry in manifest.entries.values():
            _bring(target, entry, part)
        lock_of(part / LEDGER).touch()
    except BaseException as problem:
        shutil.rmtree(part, ignore_errors=True)
        if not isinstance(problem, OSError):
            raise
        advice = "make room, or choose another directory, and restore again; nothing there was changed"
        raise LedgerUnwritable(str(data), f"it cannot be written ({problem.strerror or problem})", advice) from problem
    os.sync()
    if is_taken:
        data.rename(next(each for n in count(1) if not (each := data.with_name(f"{data.name}.replaced-{n}")).exists()))
    elif data.exists():
        data.rmdir()
    part.rename(data)
    return manifest


def _chosen(target: Target, name: str) -> Manifest:
    names = backups_in(target)
    if name and name not in names:
        raise BadRequest("backup", f"{target.url} has no backup {name!r}; it has {', '.join(names[-10:]) or 'none'}")
    found = read_manifest(target, name) if name else latest_in(target)
    if found is None:
        raise BadRequest("backup", f"{target.url} has no whole backup" + (f" {name!r}" if name else ""))
    return found


def _bring(target: Target, entry: Entry, into: Path) -> None:
    """Write the files of one entry."""
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
