"""What a data directory remembers of the fan-out that plays on it: enough for another command to carry on.

`DIR/scenario.json` holds the order and how far it came. `DIR/scenario.lock` is held for as long as a command plays, so that two
do not play on one directory at once. The runs themselves are in the ledger; this is only the script.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from perdure.ledger import BadRequest, LedgerUnwritable
from perdure.scenarios.stories.fan_out import Order, Progress

RECORD: Final = "scenario.json"
LOCK: Final = "scenario.lock"


@dataclass
class Logbook:
    """The order and its progress, kept in a directory (or nowhere, for the simulated world)."""

    order: Order
    progress: Progress = field(default_factory=Progress)
    finished: bool = False
    path: Path | None = None

    def save(self) -> None:
        """Write it down, whole or not at all."""
        if self.path is None:
            return
        body = {"order": asdict(self.order), "progress": asdict(self.progress), "finished": self.finished}
        draft = self.path.with_suffix(".json.new")
        try:
            draft.write_text(json.dumps(body, indent=1), encoding="utf-8")
            draft.replace(self.path)
        except OSError as problem:
            raise _unwritable(self.path.parent, problem) from problem


def read(data: Path) -> Logbook | None:
    """The last fan-out of this directory. Raises `BadRequest` if its record cannot be read."""
    path = data / RECORD
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Logbook(Order(**told["order"]), Progress(**told["progress"]), told["finished"], path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise BadRequest(
            "data", f"{path} cannot be read ({problem}); delete it to begin anew, the ledger is not touched"
        ) from problem


def begin(data: Path, order: Order, known: Logbook | None) -> Logbook:
    """A new fan-out in this directory, under the next number."""
    order.number = known.order.number + 1 if known is not None else 1
    book = Logbook(order, path=data / RECORD)
    book.save()
    return book


@contextmanager
def playing(data: Path) -> Iterator[None]:
    """Let one command at a time play on a directory."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise _unwritable(data, problem) from problem
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
            raise _unwritable(data, problem) from problem
        yield
    finally:
        os.close(lock)


def _unwritable(data: Path, problem: OSError) -> LedgerUnwritable:
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "free some space, or name another directory by --data" if full else "name another directory by --data"
    return LedgerUnwritable(str(data), f"it cannot be written: {problem.strerror}", advice)
