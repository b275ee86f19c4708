"""A copy of one storage's files as they were together at one moment, whether or not its agent is at work meanwhile.

A storage that is a log is one file, to which commits only append: the copy is cut after its last whole frame. A log that was written anew,
or has become a database meanwhile, is another file, and is read again.

Of a database, commits only append to DuckDB's log, and the database changes in checkpoints alone, each of which ends by taking the log
away. So the database is read first and the log after it. If then the database is the same, and the log is the same or has only grown, what
was read is the storage at a commit in between: the log is cut after its last whole commit. Otherwise a checkpoint came between, and it is
read again. What a checkpoint that did not end has saved (`block_guard`) is copied too, so the copy is mended as the storage would be.

No lock is taken: an agent that wakes meanwhile is not kept waiting.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import survey
from perdure.ledger.errors import StorageError
from perdure.ledger.maintenance.listing import Stamps, stamps_of
from perdure.ledger.storage.file_disk import is_log_at, log_of
from perdure.ledger.storage.log_format import read_log

_TRIES_MAX: Final = 200
_PAUSE_S: Final = 0.005


def copy_storage(database: Path, target: Path) -> Stamps | None:
    """Copy a storage to `target`, its log and what is saved beside it. Returns what it was copied from; None if it was deleted meanwhile.

    Raises `StorageError` if it is checkpointed again and again, `OSError` if a file cannot be read or written.
    """
    for _ in range(_TRIES_MAX):
        before = stamps_of(database)
        if before is None:
            return None
        with suppress(FileNotFoundError):
            kept = _copied(database, target, before)
            if kept is not None:
                return kept
        time.sleep(_PAUSE_S)
    raise StorageError(str(database), f"it changed during each of {_TRIES_MAX} tries to copy it; try again later")


def _copied(database: Path, target: Path, before: Stamps) -> Stamps | None:
    # None if a checkpoint came between.
    for old in (target, log_of(target), BlockGuard(target).saved):
        old.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if before.saved is not None:
        shutil.copyfile(BlockGuard(database).saved, BlockGuard(target).saved)
    shutil.copyfile(database, target)
    if before.log is not None:
        _copy_log(log_of(database), log_of(target))
    after = stamps_of(database)
    if is_log_at(target):
        _cut_frames(target)
        return before if after is not None and after.database[0] == before.database[0] else None
    if after is None or (after.database, after.saved) != (before.database, before.saved):
        return None
    if before.log is None or after.log is None:
        return before if before.log is after.log is None else None
    return before if after.log[0] == before.log[0] and after.log[1] >= before.log[1] else None


def _cut_frames(copy: Path) -> None:
    # A log that is damaged before its last whole frame stays as it is.
    reading = read_log(copy.read_bytes())
    if not reading.is_damaged:
        os.truncate(copy, reading.end)


def _copy_log(log: Path, target: Path) -> None:
    # A log that is damaged before its last whole commit is copied as it is.
    shutil.copyfile(log, target)
    content = target.read_bytes()
    end, is_damaged = survey(content)
    if not is_damaged and end < len(content):
        os.truncate(target, end)
    if not is_damaged and not end:
        target.unlink()
