"""`DIR/scenario.lock`, which lets one scenario at a time play on a data directory."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perdure.ledger import BadRequest, LedgerUnwritable

LOCK: Final = "scenario.lock"


@contextmanager
def playing(data: Path) -> Iterator[None]:
    """Let one command at a time play on a directory. Raises `BadRequest` if another one does."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise unwritable(data, problem) from problem
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "another one"
            raise BadRequest(
                "data",
                f"a scenario is playing on {data} already (process {owner}); watch it by `perdure ps`, or use another --data",
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except OSError as problem:
            raise unwritable(data, problem) from problem
        yield
    finally:
        os.close(lock)


def unwritable(data: Path, problem: OSError) -> LedgerUnwritable:
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free some space, or name another directory by --data" if full else "name another directory by --data"
    return LedgerUnwritable(str(data), f"it cannot be written: {problem.strerror}", advice)
