"""Whether a file that is open still lies at its path.

What is written to one that was deleted goes nowhere, what is written to one that was moved goes elsewhere, and no call of the system says
so. So after a commit, and before it is acknowledged, it is looked at: a few µs beside the hundreds of a synchronisation. What is
deleted or moved while a commit is under way is found out, and so is what is put in its place.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class OpenFile(NamedTuple):
    """A file that is open, so that its number is given to no other one."""

    path: str
    device: int
    number: int


class Misplaced(OSError):
    """A file that is open does not lie at its path any more. Its words say what became of it."""


def opened(path: str | os.PathLike[str], file: int | None = None) -> OpenFile:
    """A file that is open: by its descriptor, or else the one that lies at the path. Raises `OSError`."""
    found = os.stat(path) if file is None else os.fstat(file)  # noqa: PTH116 - asked often
    return OpenFile(os.fspath(path), found.st_dev, found.st_ino)


def what_became(file: OpenFile, found: tuple[int, int] | None) -> str:
    """What became of a file, when this device and number were found at its path, or nothing; empty if it lies there still."""
    if found is None:
        return "was deleted or moved while it was in use"
    return "" if found == file[1:] else "was replaced by another one while it was in use"


def misplaced(problem: Misplaced) -> str:
    return (
        f"{problem}. What was not committed before is not acknowledged; the agent goes on when that is back at its path"
    )


def refuse_misplaced(file: OpenFile) -> None:
    """Raise `Misplaced` if a file does not lie at its path. Where that cannot be seen, nothing is concluded."""
    try:
        status = os.stat(file.path)  # noqa: PTH116 - asked often
        found = status.st_dev, status.st_ino
    except (FileNotFoundError, NotADirectoryError):
        found = None
    except OSError:
        return
    if told := what_became(file, found):
        raise Misplaced(f"{file.path} {told}")
