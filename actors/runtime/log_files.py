"""The logs of a data directory, read while processes write them: one file for each process, one record a line."""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from perdure.ledger import name_of

LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

Logged = dict[str, Any]
_FIELDS: Final = {"at_ms": int, "level": str, "logger": str, "host": str, "text": str}  # of each record


class WantedLogs(NamedTuple):
    """Which records are wanted: of a run, an agent (by its address or its name) or a host, from a time and a level on. What an agent's
    tools do is its own, wherever it is done, unless `without_tools`."""

    whose: str = ""
    since_ms: float = 0
    level: str = LOG_LEVELS[0]
    without_tools: bool = False

    # Most lines are of others, and need not be parsed.
    def may_be(self, line: bytes) -> bool:
        return not self.whose or json.dumps(self.whose)[1:-1].encode() in line

    def includes(self, record: Logged) -> bool:
        """Whether it is one of them. A level of an author's own has the rank of the highest."""
        level = record["level"]
        rank = LOG_LEVELS.index(level) if level in LOG_LEVELS else len(LOG_LEVELS)
        if rank < LOG_LEVELS.index(self.level) or record["at_ms"] < self.since_ms:
            return False
        agents = [record.get("agent", ""), *record.get("about", ())]
        if not self.without_tools:
            agents += record.get("behalf", ())
        known = {record["host"], record.get("run"), *agents, *map(name_of, agents)}
        return not self.whose or self.whose in known


class LogFiles:
    """The files in one directory. Each look finds what was written since the last one, also into a file that was renamed meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[int, int] = {}  # how far, by the number of the file's content

    # A line that cannot be read is not whole yet, or was torn by a full disk.
    def look(self, wanted: WantedLogs) -> Iterator[Logged]:
        for path in sorted(self._directory.glob("*.jsonl")):
            for line in self._new_lines(path):
                if wanted.may_be(line) and (record := _record(line)) is not None and wanted.includes(record):
                    yield record

    def in_order(self, wanted: WantedLogs) -> list[Logged]:
        return sorted(self.look(wanted), key=itemgetter("at_ms"))

    def newest(self, wanted: WantedLogs, most: int) -> list[Logged]:
        found = heapq.nlargest(most, enumerate(self.look(wanted)), key=lambda each: (each[1]["at_ms"], each[0]))
        return sorted((record for _, record in reversed(found)), key=itemgetter("at_ms"))

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        try:
            file = path.open("rb")
        except FileNotFoundError:  # renamed or deleted since it was listed
            return
        with file:
            found = os.fstat(file.fileno())
            begun = self._read.get(found.st_ino, 0)
            at = begun if begun <= found.st_size else 0  # the number belongs to another file now
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is still being written
                at += len(line)
                self._read[found.st_ino] = at
                yield line


def _record(line: bytes) -> Logged | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in _FIELDS.items())
    return found if is_record else None
