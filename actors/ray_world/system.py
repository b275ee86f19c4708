"""The part of the real world that is not Ray: the clock, dice, threads and sudden death of one operating-system process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from perdure.actors.events.observability import Metrics, NoMetrics
from perdure.actors.ports import Faults, KillPoint, World
from perdure.actors.threads import Crew
from perdure.ledger import BadRequest

T = TypeVar("T")

KILL: Final = "PERDURE_KILL"
USER_TIME: Final = 11  # where it is in /proc/<pid>/stat, after the name; the kernel's time is next
PR_SET_PDEATHSIG: Final = 1  # from <sys/prctl.h>


class SystemClock:
    """Wall time, as the machine has it."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000


class SystemDice:
    """The operating system's randomness."""

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def roll(self) -> float:
        """A number in [0, 1)."""
        return self._source.random()

    def token(self) -> str:
        """Twenty hexadecimal digits."""
        return os.urandom(10).hex()


class LoopThreads:
    """Threads beside the event loop: some for sync code, and one for the ledger alone."""

    def __init__(self, threads_max: int) -> None:
        self._shared = Crew(threads_max, "perdure")
        self._ledger = ThreadPoolExecutor(1, thread_name_prefix="perdure-ledger")

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` on a shared thread with the caller's context variables."""
        return await self._shared.run(job)

    async def commit(self, job: Callable[[], T]) -> T:
        """Run `job` on the ledger's thread, in call order."""
        return await asyncio.get_running_loop().run_in_executor(self._ledger, job)

    @property
    def left_behind(self) -> int:
        """How many jobs go on that were given up."""
        return self._shared.left_behind


class NoFaults:
    """Production: nothing happens at a kill point."""

    def at(self, point: KillPoint, detail: str = "") -> None:
        """Do nothing."""


class KillOrder:
    """Dies by `SIGKILL` at the nth visit of one kill point; with a `once` file, only in the first process that comes so far."""

    def __init__(self, point: KillPoint, visits: int = 1, once: Path | None = None) -> None:
        self._point, self._left, self._once = point, visits, once

    def at(self, point: KillPoint, detail: str = "") -> None:
        """Count a visit, and perhaps do not return."""
        if point is not self._point:
            return
        self._left -= 1
        if self._left == 0 and (self._once is None or _is_first(self._once)):
            os.kill(os.getpid(), signal.SIGKILL)


def _is_first(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def faults_from(order: str) -> Faults:
    """Read `point[:nth[:file]]`, as in `after_commit:3`. Raises `BadRequest` if there is no such kill point."""
    if not order:
        return NoFaults()
    name, _, rest = order.partition(":")
    visits, _, once = rest.partition(":")
    if name not in list(KillPoint) or not (visits or "1").isdecimal():
        raise BadRequest(KILL, f"{order!r} is not point[:nth[:file]], where point is one of {', '.join(KillPoint)}")
    return KillOrder(KillPoint(name), int(visits or 1), Path(once) if once else None)


class SystemVitals:
    """This process as the kernel sees it."""

    def pid(self) -> int:
        """Its process number."""
        return os.getpid()

    def node(self) -> str:
        """The host name."""
        return platform.node()

    def rss_mb(self) -> int:
        """The resident memory now."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() // (1024 * 1024)


def system_world(metrics: Metrics | None = None, *, threads_max: int = 4) -> World:
    """What a real process is given; a host needs as many threads as `Limits` says. `PERDURE_KILL` is read once, here."""
    return World(
        SystemClock(),
        SystemDice(),
        LoopThreads(threads_max),
        faults_from(os.environ.get(KILL, "")),
        SystemVitals(),
        metrics or NoMetrics(),
    )


# ---------------------------------------------------------------- processes


def machine() -> str:
    """Where a process number means something: the machine, and the container if there is one."""
    space = Path("/proc/self/ns/pid")
    return f"{platform.node()} {space.readlink() if space.is_symlink() else ''}"


def own_pid() -> int:
    """The number of this process on its machine."""
    return os.getpid()


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs. One that is dead but not yet buried by its parent does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _status(pid)[:1] != ["Z"]


def strike(pids: Iterable[int]) -> None:
    """`SIGKILL` these processes. Those that are gone already stay gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_death(pids: Iterable[int], patience_s: float) -> list[int]:
    """Wait until these processes are gone; returns those that are not."""
    left, end_s = list(pids), time.monotonic() + patience_s
    while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < end_s:
        time.sleep(0.01)
    return left


def descendants(pid: int, mark: str = "") -> list[int]:
    """The children of a process that have `mark` in their command line, with all that descend from these. Empty without `/proc`."""
    parents = _parents()
    found = [child for child, parent in parents.items() if parent == pid and mark in _command(child)]
    for known in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == known]
    return found


def children(pid: int, *marks: str) -> list[int]:
    """The children of a process that have all the marks in their command line."""
    found = [child for child, parent in _parents().items() if parent == pid]
    return [child for child in found if all(mark in _command(child) for mark in marks)]


def commanded(mark: str) -> list[int]:
    """The processes of this machine that have `mark` in their command line."""
    return [pid for pid in _processes() if mark in _command(pid)]


def bearing(mark: str) -> list[int]:
    """The processes that had this in their environment when they began; of other people's that cannot be known."""
    return [pid for pid in _processes() if mark in _text(pid, "environ").split("\0")]


def cpu_s(pids: Iterable[int]) -> float:
    """How long these processes have computed so far, in all; 0 where that cannot be known."""
    spent = [_status(pid)[USER_TIME : USER_TIME + 2] for pid in pids]
    return sum(int(ticks) for each in spent for ticks in each) / os.sysconf("SC_CLK_TCK")


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _parents() -> dict[int, int]:
    return {child: int(status[1]) for child in _processes() if len(status := _status(child)) > 1}


def _processes() -> Iterator[int]:
    proc = Path("/proc")
    return (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()) if proc.is_dir() else iter(())


def _status(pid: int) -> list[str]:
    """State, parent and so on; empty if that cannot be known."""
    return _text(pid, "stat").rpartition(")")[2].split()


def _command(pid: int) -> str:
    return _text(pid, "cmdline").replace("\0", " ")


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
