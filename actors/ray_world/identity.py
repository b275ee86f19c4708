"""Which directory is meant: a random word that is made with it. So a machine that has another one at its path, or none, is found out.

The word lies in the directory and in its ledger. A new one is made only where there is neither, by the program that opens the directory.
From there it goes with the deployment: the supervisor and each host compare it with what their machine has at that path before they begin,
and write nothing where it differs.

A directory on a file system of its own is noted in the user's home, with the place where that is mounted. So a mount that is missing after
a reboot is found out too, where nobody is left who knows the word.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.ledger import (
    AGENTS,
    FORMAT_FILE,
    LEDGER,
    DirectoryElsewhere,
    LedgerDamaged,
    LedgerUnwritable,
    keep_whole,
    mount_of,
    word_of,
)

IDENTITY: Final = "identity"
_PASSING: Final = frozenset(("overlay", "ramfs", "tmpfs"))  # what a reboot, or the end of a container, empties
ADVICE: Final = (
    "if it was deleted or moved, put it back at this path, or open it where it is now; where machines share it, mount the directory's"
    " storage there, at this path, or take that machine out of the cluster. Nothing was begun there"
)


def identity_of(data: Path) -> str:
    """The word of the directory that this machine has at a path; empty if there is none. Raises what `word_of` raises."""
    return word_of(data, IDENTITY)


# It is new, or what should be mounted there is not.
def is_blank(data: Path) -> bool:
    return not any((data / name).exists() for name in (IDENTITY, FORMAT_FILE, LEDGER, AGENTS))


def unlike(data: Path, identity: str) -> str:
    """What this machine has at the path instead of the directory of this word; empty if it is that one."""
    try:
        here = identity_of(data)
        is_there = data.is_dir()
    except LedgerDamaged as problem:
        return f"a mixture ({problem.problem})"
    except (LedgerUnwritable, OSError) as problem:
        return f"what it cannot read ({problem})"
    if here == identity or not identity:
        return ""
    if here or (is_there and not is_blank(data)):
        return "another directory"
    return "no directory of Perdure, perhaps because it is not mounted" if is_there else "no such directory"


def elsewhere(data: Path, seen: str) -> DirectoryElsewhere:
    return DirectoryElsewhere(
        str(data), f"{platform.node()} has {seen} at this path, and not the one that is meant", ADVICE
    )


def refuse_elsewhere(data: Path, identity: str) -> None:
    if seen := unlike(data, identity):
        raise elsewhere(data, seen)


# A reboot empties the file systems that are not noted, and the machine's first one is always mounted.
def note_mount(data: Path) -> None:
    mount, system = mount_of(data)
    if mount in ("", "/") or system in _PASSING:
        return
    noted = {path: at for path, at in _noted().items() if mount_of(Path(path))[0] != at or Path(path).is_dir()}
    with suppress(OSError):  # a home that cannot be written is no reason to refuse the directory
        keep_whole(_notes(), json.dumps({**noted, str(data.resolve()): mount}, indent=1).encode())


def refuse_unmounted(data: Path) -> None:
    mount = _noted().get(str(data.resolve()))
    if mount is not None and mount_of(data)[0] != mount and is_blank(data):
        raise elsewhere(data, f"no directory of Perdure (nothing is mounted at {mount}, where it was)")


def _notes() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "perdure" / "mounts.json"


def _noted() -> dict[str, str]:
    with suppress(OSError, ValueError):
        found = json.loads(_notes().read_bytes())
        if isinstance(found, dict):
            return {path: at for path, at in found.items() if isinstance(at, str)}
    return {}
