"""The ports of a real process, except for Ray: clock, dice, threads, kill points and vitals."""

from __future__ import annotations

import asyncio
import mmap
import os
import platform
import random
import signal
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import psutil

from perdure.actors.events.observability import Metrics, NoMetrics
from perdure.actors.ports import BUCKET_POINTS, Faults, KillPoint, World
from perdure.actors.tasks import Pending
from perdure.actors.telemetry.telemetry import OFF, Telemetry
from perdure.actors.threads import Crew
from perdure.ledger import BadRequest
from perdure.policies import Rank

T = TypeVar("T")

STORAGE_THREADS: Final = 1  # a second one costs a quarter more processor time, and saves none
QUICK_S: Final = 0.001  # a commit that takes less is done on the loop: to a thread and back takes 0.2 ms
SLOW_S: Final = 0.01  # what a commit is taken to need before one was seen
KEPT: Final = 0.5  # of the time of a slow commit, with each that follows
KILL: Final = "PERDURE_KILL"
CLOCK: Final = "PERDURE_CLOCK"
SHIFT: Final = struct.Struct("<q")


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Without the time in which the machine slept.
    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


# A drill may not set a clock that others use. So `PERDURE_CLOCK` names a file that says by how many milliseconds the clocks of the
# processes with that environment are off. They all look at the same memory, so they jump at once.
class ShiftedClock:
    def __init__(self, file: Path) -> None:
        self._machine = SystemClock()
        with file.open("r+b") as opened:
            self._shift = mmap.mmap(opened.fileno(), SHIFT.size)

    def now_ms(self) -> int:
        return self._machine.now_ms() + int(SHIFT.unpack_from(self._shift)[0])

    def steady_ms(self) -> int:
        return self._machine.steady_ms()


def clock_from(file: str) -> SystemClock | ShiftedClock:
    """The machine's clock, or one that is off by what this file says. Raises `BadRequest` if that cannot be read."""
    try:
        return ShiftedClock(Path(file)) if file else SystemClock()
    except (OSError, ValueError) as problem:
        raise BadRequest(CLOCK, f"{file!r} does not say how far the clock is off: {problem}") from problem


# Have the clocks that look at this file be off by this much from now on. The file is made if it is not there.
def shift_clocks(file: Path, by_ms: int) -> None:
    if not file.exists():
        file.write_bytes(SHIFT.pack(0))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), SHIFT.size) as shift:
        SHIFT.pack_into(shift, 0, by_ms)


class SystemDice:
    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def roll(self) -> float:
        return self._source.random()

    def token(self) -> str:
        return os.urandom(10).hex()


class LoopThreads:
    """Threads beside the event loop: some for sync code, a few for agents' storages, and three for the ledger."""

    def __init__(self, threads_max: int) -> None:
        # A batch of sync jobs starts all of these threads, and they stay a while: some 0.2 MB each, and no processor time.
        self._shared = Crew(threads_max, "perdure")
        self._storage = Crew(STORAGE_THREADS, "perdure-storage")
        self._ledger = ThreadPoolExecutor(1, thread_name_prefix="perdure-ledger")
        self._archive = ThreadPoolExecutor(1, thread_name_prefix="perdure-archive")
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="perdure-reads")
        self._commits: set[object] = set()  # those under way
        self._commit_s = SLOW_S  # what brief ones take: the longest of late

    async def run(self, job: Callable[[], T], turn: object = None) -> T:
        return await self._shared.run(job, turn)

    def turn(self, owner: object) -> AbstractAsyncContextManager[object]:
        return self._shared.turn(owner)

    async def write(self, job: Callable[[], T], rank: Rank) -> T:
        return await self._storage.finish(job, rank)

    # A brief one is run by the loop, as long as the disk is quick and none is under way.
    async def commit(self, job: Callable[[], T], *, is_brief: bool = False) -> T:
        if is_brief and self._commit_s < QUICK_S and not self._commits:
            return self._timed(job)
        future = self._ledger.submit(partial(self._timed, job) if is_brief else job)
        self._commits.add(future)
        future.add_done_callback(self._commits.discard)
        return await asyncio.wrap_future(future)

    def _timed(self, job: Callable[[], T]) -> T:
        begun_s = time.perf_counter()
        try:
            return job()
        finally:
            self._commit_s = max(time.perf_counter() - begun_s, KEPT * self._commit_s)

    async def archive(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._archive, job)

    async def read(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reads, job)

    @property
    def writes_waiting(self) -> int:
        return self._storage.jobs

    def bridge(self, job: Pending[T], loop: asyncio.AbstractEventLoop) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(job, loop)

    @property
    def left_behind(self) -> int:
        return self._shared.left_behind


class NoFaults:
    def at(self, point: KillPoint, detail: str = "") -> None: ...


# With a `once` file, only the first process that gets there is killed.
class KillOrder:
    def __init__(self, point: KillPoint, visits: int = 1, once: Path | None = None) -> None:
        self._point, self._left, self._once = point, visits, once

    def at(self, point: KillPoint, detail: str = "") -> None:
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
    points = [point for point in KillPoint if point not in BUCKET_POINTS]
    if name not in points or not (visits or "1").isdecimal():
        raise BadRequest(KILL, f"{order!r} is not point[:nth[:file]], where point is one of {', '.join(points)}")
    return KillOrder(KillPoint(name), int(visits or 1), Path(once) if once else None)


class SystemVitals:
    def pid(self) -> int:
        return os.getpid()

    def node(self) -> str:
        return platform.node()

    def rss_mb(self) -> int:
        return int(psutil.Process().memory_info().rss) // 2**20


def system_world(metrics: Metrics | None = None, *, threads_max: int = 4, telemetry: Telemetry | None = None) -> World:
    """What a real process is given; a host needs as many threads as `Limits` says. `PERDURE_KILL` and
    `PERDURE_CLOCK` are read once, here."""
    return World(
        clock_from(os.environ.get(CLOCK, "")),
        SystemDice(),
        LoopThreads(threads_max),
        faults_from(os.environ.get(KILL, "")),
        SystemVitals(),
        metrics or NoMetrics(),
        telemetry=telemetry or OFF,
    )
