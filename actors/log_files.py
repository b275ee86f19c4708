"""The logs of a data directory, read while processes write them: files for each process, one record a line.

Where machines share no directory, each has a folder of logs of its own. One of its hosts reads it for the others (`read_logs`), as far as a
`LogPage` has room; who asks puts together what all machines tell (`ClusterLogs`). A line says what code printed at that moment, in an
attempt that may be lost with its machine, so it does not wait for the bucket.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from perdure.actors.link.questions import LogsOf
from perdure.actors.tasks import awaited
from perdure.ledger import PerdureError, boot_id, name_of

LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOOK_S: Final = 0.3
"""Between two looks at the files."""
LATE_MS: Final = 2_000
"""How much later than its time a record may be written."""
LAST_MAX: Final = 10_000
"""How many records are told of a machine at once."""
PAGE_BYTES: Final = 256 << 10
"""How many bytes of them."""

Logged = dict[str, Any]
Position = Sequence[tuple[int, int]]
"""How far files were read, by the numbers of their contents."""
Ask = Callable[..., Awaitable[Any]]
"""Asks the supervisor, as `Client.ask`."""
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

    # A level of an author's own has the rank of the highest.
    def includes(self, record: Logged) -> bool:
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
    """The files in one directory. Each look finds what was written since the last one, also into a file that was renamed meanwhile.

    Args:
        position: how far they were read before.
    """

    def __init__(self, directory: Path, position: Position = ()) -> None:
        self._directory = directory
        self._read = dict(position)

    @property
    def position(self) -> Position:
        return list(self._read.items())

    def look(self, wanted: WantedLogs) -> Iterator[Logged]:
        for path in self._paths():
            yield from _chosen(self._new_lines(path), wanted)

    def in_order(self, wanted: WantedLogs) -> list[Logged]:
        return in_order(self.look(wanted))

    def newest(self, wanted: WantedLogs, most: int) -> list[Logged]:
        found: list[Logged] = []
        for path in self._paths():
            lines = list(self._new_lines(path))  # a few megabytes, of which the newest are parsed
            found += reversed(list(islice(_chosen(reversed(lines), wanted), most)))
        return in_order(found)[max(0, len(found) - most) :]

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob("*.jsonl"))

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


# A line that cannot be read is not whole yet, or was torn by a full disk.
def _chosen(lines: Iterator[bytes], wanted: WantedLogs) -> Iterator[Logged]:
    for line in lines:
        if wanted.may_be(line) and (record := _record(line)) is not None and wanted.includes(record):
            yield record


def in_order(records: Iterable[Logged]) -> list[Logged]:
    return sorted(records, key=itemgetter("at_ms"))


def _record(line: bytes) -> Logged | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(found, dict) and all(isinstance(found.get(key), kind) for key, kind in _FIELDS.items())
    return found if is_record else None


# ---------------------------------------------------------------- one machine, for others


class LogPage(NamedTuple):
    """What a machine tells at once: which one it is, records in their order, how far its files are read, and whether older ones found no
    room."""

    key: str
    records: list[Logged]
    position: Position
    is_cut: bool = False

    def packed(self) -> bytes:
        return json.dumps(self).encode()


def folder_key(directory: Path | None) -> str:
    """Tells the logs of one machine from those of all others; empty if there are none."""
    try:
        found = None if directory is None else directory.stat()
    except OSError:
        found = None
    return "" if found is None else f"{platform.node()} {boot_id()} {found.st_dev}-{found.st_ino}"


def log_page(directory: Path, wanted: WantedLogs, most: int, position: Position | None) -> LogPage:
    """The newest records, `most` of them; or all that was written after a position, as far as there is room."""
    files, key = LogFiles(directory, position or ()), folder_key(directory)
    if position is not None:
        return LogPage(key, in_order(_with_room(files.look(wanted))), files.position)
    found = files.newest(wanted, min(most, LAST_MAX))
    told = list(_with_room(reversed(found)))
    return LogPage(key, told[::-1], files.position, len(told) < len(found))


def _with_room(records: Iterable[Logged]) -> Iterator[Logged]:
    room = PAGE_BYTES
    for record in records:
        room -= len(json.dumps(record))
        yield record
        if room <= 0:
            return


async def read_logs(
    directory: Path, asked: LogsOf, beside: Callable[[Callable[[], LogPage]], Awaitable[LogPage]]
) -> bytes:
    """A page for the supervisor, in JSON. If nothing has been written after a position, it waits for a while.

    Args:
        beside: does a job beside the loop.
    """
    loop = asyncio.get_running_loop()
    position, until_s = asked.position, loop.time() + asked.hold_ms / 1000
    while True:
        page = await beside(partial(log_page, directory, WantedLogs(*asked.wanted), asked.most, position))
        if page.records or position is None or loop.time() >= until_s:
            return page.packed()
        position = page.position
        await asyncio.sleep(LOOK_S)


# ---------------------------------------------------------------- all machines


ANSWER_S: Final = 30.0
"""How long the supervisor is waited for, which waits for machines less long."""
MACHINES_S: Final = 5.0
"""Between two looks for machines that have come, or are missing."""
HOLD_MS: Final = 5_000
"""How long a host waits for something to be written."""


class ClusterLogs:
    """The logs of every machine of a cluster: this one's are read here, the others' are asked for. A record of another machine names it
    (`machine`). So does a record in the place of those that are missing, which says why.

    Args:
        directory: this machine's.
        ask: asks the supervisor; without it there are only this machine's.
    """

    def __init__(self, directory: Path, ask: Ask | None = None) -> None:
        self._own, self._here, self._ask = LogFiles(directory), folder_key(directory), ask
        self._positions: dict[str, Position] = {}
        self._since_ms = 0.0

    async def newest(self, wanted: WantedLogs, most: int) -> list[Logged]:
        self._since_ms = time.time() * 1000
        own = awaited(asyncio.to_thread(self._own.newest, wanted, most))
        machines, notices = await self._machines()
        pages = await asyncio.gather(*(self._page(key, wanted, most, None) for key in machines))
        found = await own
        known = {self._here}
        for (key, name), (page, problem) in zip(machines.items(), pages, strict=True):
            if page is None:
                notices.append(_notice(name, problem))
            if page is None or page.key in known:  # a node may be told twice while a host comes up there
                continue
            known.add(page.key)
            self._positions[key] = page.position
            found += _named(page.records, name)
            if page.is_cut:
                notices.append(_notice(name, CUT, page.records[0]["at_ms"]))
        return in_order([*notices, *in_order(found)[max(0, len(found) - most) :]])

    async def follow(self, wanted: WantedLogs) -> AsyncGenerator[list[Logged], None]:
        """What is written from now on, or after `newest`, again and again. Of a machine that was not there then, what is not older."""
        arrived: list[Logged] = []
        others = awaited(self._follow_others(wanted, arrived))
        try:
            while not others.done():
                found, arrived[:] = list(arrived), []
                found += await asyncio.to_thread(self._own.in_order, wanted)
                if found:
                    yield in_order(found)
                await asyncio.sleep(LOOK_S)
            others.result()
        finally:
            others.cancel()

    async def _follow_others(self, wanted: WantedLogs, arrived: list[Logged]) -> None:
        asking: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                machines, notices = await self._machines()
                arrived += notices
                for key in [each for each in asking if each not in machines]:
                    asking.pop(key).cancel()
                for key in [each for each in machines if each not in asking]:
                    asking[key] = awaited(self._follow_one(key, machines[key], wanted, arrived))
                ended, _ = await asyncio.wait(
                    [awaited(asyncio.sleep(MACHINES_S)), *asking.values()], return_when=FIRST_COMPLETED
                )
                for task in ended:
                    task.result()  # of those that follow only a mistake of ours is an end
        finally:
            for task in asking.values():
                task.cancel()

    async def _follow_one(self, key: str, name: str, wanted: WantedLogs, arrived: list[Logged]) -> None:
        if key not in self._positions:
            wanted = wanted._replace(since_ms=max(wanted.since_ms, self._since_ms - LATE_MS))
        known = ""
        while True:
            page, problem = await self._page(key, wanted, LAST_MAX, self._positions.get(key, ()), HOLD_MS)
            if page is not None:
                self._positions[key] = page.position
                arrived += _named(page.records, name)
            elif problem != known:
                arrived.append(_notice(name, problem))
            known = problem
            await asyncio.sleep(MACHINES_S if problem else 0)

    # The other machines by their keys, and a notice if it is not known which there are.
    async def _machines(self) -> tuple[dict[str, str], list[Logged]]:
        told, problem = await self._asked(ANSWER_S, "log_machines") if self._ask is not None else ({}, "")
        machines = {key: name for key, name in (told or {}).items() if key != self._here}
        return machines, [_notice("", f"those of other machines: {problem}")] if problem else []

    async def _page(
        self, key: str, wanted: WantedLogs, most: int, position: Position | None, hold_ms: int = 0
    ) -> tuple[LogPage | None, str]:
        asked = key, list(wanted), most, position, hold_ms
        told, problem = await self._asked(ANSWER_S + hold_ms / 1000, "logs_of", *asked)
        if problem or "missing" in told:
            return None, problem or str(told["missing"])
        return LogPage(*json.loads(told["page"])), ""

    async def _asked(self, within_s: float, *question: object) -> tuple[Any, str]:
        assert self._ask is not None, "others are known by the supervisor alone"
        try:
            async with asyncio.timeout(within_s):
                return await self._ask(*question), ""
        except TimeoutError:
            return None, "the supervisor does not answer"
        except PerdureError as problem:
            return None, str(problem)


CUT: Final = f"older ones than these: a machine tells {PAGE_BYTES >> 10} KB at once. Ask for a run, a level or a time"


def _named(records: list[Logged], machine: str) -> list[Logged]:
    return [{**record, "machine": machine} for record in records]


def _notice(machine: str, what: str, at_ms: int | None = None) -> Logged:
    at_ms = int(time.time() * 1000) if at_ms is None else at_ms
    about = {"at_ms": at_ms, "level": "WARNING", "logger": "perdure.logs", "host": "-", "machine": machine}
    return {**about, "text": f"here are missing {what}"}
