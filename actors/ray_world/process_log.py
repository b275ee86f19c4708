"""What the code of agents prints and logs in one process, kept in the data directory: one JSON object a line, with whose it is.

Each process has a file, `logs/<host id>.jsonl`. A record is given to the operating system in one write before `print` or the logger
returns, so a process that is killed loses nothing of it. A full file is renamed to `….1.jsonl`, in the place of the one before; when all
files of the directory are too large together, the oldest are deleted. A record that cannot be written is counted, and the next one says so.

The files are our own, and not Ray's: Ray's lie on the machine of each process, are sorted by process, and say nothing of runs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO, cast

from perdure.actors.code.author_call import without_middle
from perdure.actors.life.activity import Whose, whose
from perdure.actors.telemetry.telemetry import TRACE
from perdure.ledger import Struck, without_secrets

SUFFIX: Final = ".jsonl"
FILES: Final = 32  # so many full files are as much as all may have together
TEXT_MAX: Final = 16_000  # characters of one record
UNFINISHED_MAX: Final = 1_000  # lines that have no end yet
RAY_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class ProcessLog:
    """The file of one process. Any thread may write, without a lock: one write is one record."""

    def __init__(self, directory: Path, name: str, bytes_max: float) -> None:
        self.name = name
        self._directory, self._path = directory, directory / f"{name}{SUFFIX}"
        self._all_max, self._most = bytes_max, bytes_max / FILES
        self._file: int | None = None
        self._size, self._lost, self._is_torn = 0, 0, False
        self._beginning = threading.Lock()

    def write(self, record: str) -> int:
        """Write one record, which ends with its newline. An error of the disk is told by the next record that can be written."""
        if self._all_max:
            try:
                self._append(without_secrets(record.encode(errors="backslashreplace")))
            except OSError:
                self._lost += 1
        return len(record)

    def flush(self) -> None:
        """Nothing waits."""

    def _append(self, body: bytes) -> None:
        if self._file is None or self._size >= self._most or not os.fstat(self._file).st_nlink:
            self._begin()
        assert self._file is not None, "who begins opens it, or raises"
        if self._lost:
            told = f"the disk refused {self._lost} records before this one"
            body = self.record(time.time(), "WARNING", "perdure.log", told).encode() + body
        if self._is_torn:
            body = b"\n" + body
        written = os.write(self._file, body)
        self._size += written
        self._is_torn = written < len(body)
        self._lost = 1 if self._is_torn else 0

    def _begin(self) -> None:
        """Open the file: another one if this one is full or was deleted. A thread that is about to write does so in either."""
        with self._beginning:
            if self._file is not None and self._size < self._most and os.fstat(self._file).st_nlink:
                return  # another thread was faster
            self._directory.mkdir(parents=True, exist_ok=True)
            if self._size >= self._most:
                with suppress(FileNotFoundError):
                    self._path.replace(self._path.with_suffix(f".1{SUFFIX}"))
            opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._size = os.fstat(opened).st_size
            if self._file is None:
                self._file = opened
            else:
                os.dup2(opened, self._file, inheritable=False)
                os.close(opened)
            self._prune()

    def _prune(self) -> None:
        """Delete the oldest files, of whichever process, while all are too large together."""
        sizes = []
        for path in self._directory.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                sizes.append((path.stat().st_mtime_ns, path, path.stat().st_size))
        total = sum(size for _, _, size in sizes)
        for _, path, size in sorted(sizes):
            if total <= self._all_max:
                return
            path.unlink(missing_ok=True)
            total -= size

    def record(
        self, at_s: float, level: str, logger: str, text: str, who: Whose | None = None, about: Sequence[str] = ()
    ) -> str:
        """One record as a line. `about` are agents whom it concerns besides. Where telemetry is on, it names its trace and span."""
        agent, run, work, behalf = who or Whose()
        told = {"at_ms": int(at_s * 1000), "level": level, "logger": logger, "host": self.name}
        told |= {"agent": agent, "run": run, "work": work} if agent else {}
        told |= {"behalf": list(behalf)} if behalf else {}
        told |= {"about": list(about)} if about else {}
        place = TRACE.get()
        told |= {"trace": place.trace_id, "span": place.span_id} if place is not None else {}
        return json.dumps({**told, "text": without_middle(text, TEXT_MAX)}) + "\n"


class Heard:
    """A stream of text whose lines are records of a log too. What else it can is as the stream does it.

    Lines are put together for each piece of work, so those of agents that print at the same time do not mix.
    """

    def __init__(self, stream: TextIO, log: ProcessLog, name: str, level: str) -> None:
        self._stream, self._log, self._name, self._level = stream, log, name, level
        self._unfinished: dict[Whose, str] = {}

    def write(self, text: str) -> int:
        """Write it, and keep the lines that end here."""
        who = whose()
        *lines, rest = (self._unfinished.pop(who, "") + text).split("\n")
        for line in lines:
            self._keep(who, line)
        if len(rest) > TEXT_MAX:
            self._keep(who, rest)
        elif rest:
            self._unfinished[who] = rest
        if len(self._unfinished) > UNFINISHED_MAX:
            self._finish(next(iter(self._unfinished)))
        return self._stream.write(text)

    def writelines(self, lines: list[str]) -> None:
        """The same for many."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """A line that is flushed is a record, whether it has ended or not."""
        self._finish(whose())
        self._stream.flush()

    def finish(self) -> None:
        """Keep all lines that have no end yet."""
        for who in list(self._unfinished):
            self._finish(who)

    def _finish(self, who: Whose) -> None:
        self._keep(who, self._unfinished.pop(who, ""))

    def _keep(self, who: Whose, line: str) -> None:
        if line.strip():
            self._log.write(self._log.record(time.time(), self._level, self._name, line.rstrip("\r"), who))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Lines(logging.Formatter):
    """Makes lines of what is logged. Whose it is says the record (`agent_id`, `run_id`, `host_id`, `about`), or else whose code runs."""

    def __init__(self, log: ProcessLog) -> None:
        super().__init__()
        self._log = log

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline: the handler adds that."""
        told, here = vars(record), whose()
        agent = told.get("agent_id", here.agent)
        who = Whose(agent, told.get("run_id") or (here.run if agent == here.agent else ""), here.work, here.behalf)
        about = [each for each in (told.get("host_id"), *told.get("about", ())) if each]
        text = super().format(record)
        return self._log.record(record.created, record.levelname, record.name, text, who, about)[:-1]


def listen(log: ProcessLog) -> Callable[[], None]:
    """From now on keep what this process prints and logs. Secrets are struck out, here and in what Ray keeps.

    Returns the way to keep lines that have no end, when the process ends.
    """
    out, err = Struck.over(sys.stdout), Struck.over(sys.stderr)
    heard = [Heard(out, log, "stdout", "INFO"), Heard(err, log, "stderr", "WARNING")]
    sys.stdout, sys.stderr = (cast("TextIO", each) for each in heard)
    for_ray, ours = logging.StreamHandler(err), logging.StreamHandler(cast("TextIO", log))
    for_ray.setFormatter(logging.Formatter(RAY_LINE))
    for_ray.setLevel(logging.WARNING)
    ours.setFormatter(Lines(log))
    root = logging.getLogger()
    root.setLevel(min(root.level, logging.INFO))
    for handler in (for_ray, ours):
        root.addHandler(handler)

    def finish() -> None:
        for each in heard:
            each.finish()

    return finish
