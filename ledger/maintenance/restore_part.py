"""Where a restore brings a directory until all of it is there: a part of its own beside it, `DIR.restoring-N`.

The restore holds the lock of the ledger in its part from the beginning to its end. So a part whose lock is free was left by a restore that
was killed: `perdure doctor` names it, and the next restore takes it away. Of restores into one directory that run at once, the one with the
lowest number goes on. The others are refused, and leave nothing. Numbers only rise while there are parts, so the one that goes on stays the
lowest.

It stands apart from `restoration`, because the doctor has no use for the clients of object stores.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perdure.ledger.directory_format import LEDGER
from perdure.ledger.errors import LedgerLocked
from perdure.ledger.store.lock import Lock


@contextmanager
def part_of(data: Path) -> Iterator[Path]:
    """A new part, for this process alone. What is left of it at the end is removed.

    Raises `LedgerLocked` if another restore into the directory is under way, `OSError` if a part cannot be made.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    part, lock = _begun(data)
    try:
        older = [each for number, each in _parts(data) if number < _number(data, part)]
        under_way = [each for each in older if Lock.is_held(each / LEDGER)]
        if under_way:
            words = f"another restore into it is under way (in {under_way[0]})"
            raise LedgerLocked(str(data), words, "wait for its end, or choose another directory")
        for each in older:
            left = _claimed(each)
            if left is not None:
                shutil.rmtree(each, ignore_errors=True)
                left.release()
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        lock.release()


def left_beside(data: Path) -> list[Path]:
    # Restores that were killed have left them.
    return [part for _, part in _parts(data) if not Lock.is_held(part / LEDGER)]


def _begun(data: Path) -> tuple[Path, Lock]:
    while True:
        number = max((number for number, _ in _parts(data)), default=0) + 1
        part = data.with_name(f"{data.name}.restoring-{number}")
        with suppress(FileExistsError):
            part.mkdir()
            lock = _claimed(part)
            if lock is not None:
                return part, lock


def _claimed(part: Path) -> Lock | None:
    # None if another process has the part, or it is gone.
    with suppress(FileNotFoundError, LedgerLocked):
        (part / LEDGER).mkdir(exist_ok=True)
        lock = Lock(part / LEDGER)
        if lock.is_of(part / LEDGER):
            return lock
        lock.release()
    return None


def _parts(data: Path) -> list[tuple[int, Path]]:
    if not data.parent.is_dir():
        return []
    return sorted((number, each) for each in data.parent.iterdir() if (number := _number(data, each)) >= 0)


def _number(data: Path, path: Path) -> int:
    # -1 if it is no part of this directory
    found = re.fullmatch(rf"{re.escape(data.name)}\.restoring-(\d+)", path.name)
    return -1 if found is None else int(found[1])
