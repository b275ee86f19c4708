"""What lies in the folder of the agents' storages, by one pass over it, without opening a storage."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from perdure.ledger.storage.after_power_cut import redo
from perdure.ledger.storage.file_disk import LEFT
from perdure.ledger.storage.log_file import CUT
from perdure.ledger.storage.this_machine import boot_id

_OTHERS = frozenset({"tmp", "locks", "shared"})  # folders without storages

Stamp = tuple[int, int, int]
"""Of a file: its number, its size, and when it was changed, in ns."""


class Stamps(NamedTuple):
    """What tells whether the files of a storage have changed: the database, its log, and what a checkpoint has saved. None stands for a
    file that is not there."""

    database: Stamp
    log: Stamp | None = None
    saved: Stamp | None = None


# The storages by their paths below the folder, and the files that a crash or a repair has left there.
class Listing(NamedTuple):
    storages: dict[str, Stamps]
    kept: list[str]


def list_storages(directory: Path) -> Listing:
    """Look through the folder of the agents' storages. What a power cut has taken is put back before. Raises `StorageError`."""
    redo(directory, boot_id())
    found = Listing({}, [])
    due = [""]
    while due:
        folder = due.pop()
        with suppress(FileNotFoundError):  # deleted meanwhile
            due += _list_folder(directory, folder, found)
    return found


def stamps_of(database: Path) -> Stamps | None:
    stamp, *others = (_stamp(Path(f"{database}{ending}")) for ending in ("", ".wal", ".blocks"))
    return None if stamp is None else Stamps(stamp, *others)


# As msgpack and JSON give them back.
def stamps_from(plain: list[list[int] | None] | None) -> Stamps | None:
    first, *others = (None if each is None else (each[0], each[1], each[2]) for each in plain or [None])
    return None if first is None else Stamps(first, *others)


def root_of(place: str) -> str:
    # The storage of the agent at the root of the family to which the storage at this path belongs.
    folder, name, *below = place.split("/", 2)
    return f"{folder}/{name}.db" if below else place


def _list_folder(directory: Path, folder: str, found: Listing) -> list[str]:
    files, folders = {}, []
    with os.scandir(directory / folder) as entries:
        for entry in entries:
            name = entry.name
            if ".db" in name:
                files[name] = _stamp(entry)
            elif "." not in name and entry.is_dir(follow_symlinks=False) and (folder or name not in _OTHERS):
                folders.append(f"{folder}{name}/")
    for name, stamp in files.items():
        if stamp is None:
            continue  # deleted meanwhile
        if name.startswith(LEFT) or CUT in name:
            found.kept.append(folder + name)
        elif name.endswith(".db"):
            found.storages[folder + name] = Stamps(stamp, files.get(f"{name}.wal"), files.get(f"{name}.blocks"))
    return folders


def _stamp(path: Path | os.DirEntry[str]) -> Stamp | None:
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
