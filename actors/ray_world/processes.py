"""The processes of a supervisor and of a host: what surrounds the plain `Supervisor` and `Host`.

A process begins to serve as soon as it is created. Its life is one task, and the process exits when that task ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final, TextIO, cast

from perdure.actors.code.author_call import without_middle
from perdure.actors.life.activity import Whose, whose
from perdure.actors.ports import MOVED, STOPPED, Fleet, Pulse, Transport, World
from perdure.actors.ray_world.deployment import LOGS, Deployment
from perdure.actors.ray_world.exit_report import EXIT, end_on_sigterm, keep_exit_report
from perdure.actors.ray_world.fair_scheduler import FairScheduler
from perdure.actors.ray_world.identity import refuse_elsewhere, unlike
from perdure.actors.ray_world.os_processes import ProcessId, ProcessInfo, strike, this_process, this_process_info
from perdure.actors.tasks import agent_of, awaited
from perdure.actors.telemetry.telemetry import OFF, TRACE, Telemetry
from perdure.actors.threads import inherit_contexts
from perdure.ledger import (
    DirectoryElsewhere,
    LedgerError,
    RedactedStream,
    ServedElsewhere,
    SupervisorUnreachable,
    without_secrets,
)

REST_S: Final = 2.0  # for a supervisor that is stopped to say so in its ledger
BREATH_S: Final = 1.0  # the least time between two lives, of which the second would fail like the first
SUPERVISOR: Final = "supervisor"  # the name of its log
FAREWELL_S: Final = 0.2  # for the reason to be sent before the process exits
log = logging.getLogger("perdure.process")


# ---------------------------------------------------------------- loop watch
# Watches an event loop from another thread: does it turn, and if not, whose code is it in?
#
# The watcher asks the loop for a sign, and looks in later. While the sign is due, the loop stands in one piece of work, or goes through
# many that were ready at once. A task has one turn in each round of the loop. So if the same task is at work at two looks for the same
# sign, it has been so all the while.


ANSWER_S: Final = 0.25  # for a loop that turns to say so
FRAMES_MAX: Final = 12
OURS: Final = ("perdure.actors.", "perdure.ledger.")


class LoopWatch:
    """The watch over the loop that runs when this is made."""

    def __init__(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._sign: Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._step = 0

    # To be awaited on another loop, by one at a time.
    async def pulse(self) -> Pulse:
        if self._sign is None:
            self._sign, self._task = Future(), None
            self._step += 1
            self._loop.call_soon_threadsafe(self._sign.set_result, None)
        await asyncio.wait({asyncio.wrap_future(self._sign)}, timeout=ANSWER_S)
        if self._sign.done():
            self._sign = None
            return Pulse()
        task, frame = asyncio.current_task(self._loop), _frame_of(self._thread)
        if task is not self._task:
            self._task = task
            self._step += 1
        frames = [each for each, _ in traceback.walk_stack(frame)][::-1] if frame is not None else []
        stack = "".join(traceback.format_list(traceback.extract_stack(frame, FRAMES_MAX))) if frame is not None else ""
        return Pulse(self._step, agent_of(task) or _owner(frames), _method(frames), stack)


# What a thread is at. Python to 3.11.8 holds a lock here that every beginning thread needs. A collection that the call itself begins runs
# code of authors, which lets another thread go on: then the whole process stands (python/cpython#106883). So none may begin.
def _frame_of(thread: int) -> FrameType | None:
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)  # noqa: SLF001
    finally:
        if collects:
            gc.enable()


# The agent of a task that its author has started, which has no agent of its own.
def _owner(frames: list[FrameType]) -> str:
    lives = (getattr(frame.f_locals.get("self"), "_perdure", None) for frame in frames)
    return next((str(life.agent_id) for life in lives if life is not None), "")


# The author's method that we have called, or else what of ours is at work.
def _method(frames: list[FrameType]) -> str:
    ours = [str(frame.f_globals.get("__name__", "")).startswith(OURS) for frame in frames]
    called = [frame for frame, mine, before in zip(frames, ours, [False, *ours], strict=False) if before and not mine]
    found = called[:1] or frames[-1:]
    return found[0].f_code.co_qualname if found else "unknown code"


# ---------------------------------------------------------------- process log
# What the code of agents prints and logs in one process, kept in the data directory: one JSON object a line, with whose it is.
#
# Each process has a file, `logs/<host id>.jsonl`. A record is given to the operating system in one write before `print` or the logger
# returns, so a process that is killed loses nothing of it. A full file is renamed to `….000001.jsonl`, the next to `….000002.jsonl`; when
# all files of the directory are too large together, the oldest are deleted. A record that cannot be written is counted, and the next one
# says so.
#
# The files are our own, and not Ray's: Ray's lie on the machine of each process, are sorted by process, and say nothing of runs.


SUFFIX: Final = ".jsonl"
FILES: Final = 32  # full files of this many are as much as all may have together
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
        self._beginning = threading.RLock()  # a collection in the midst of it may run a destructor that prints

    # The next record that can be written names an error of the disk.
    def write(self, record: str) -> int:
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

    # Another file if this one is full or was deleted. A thread that is about to write does so in either.
    def _begin(self) -> None:
        with self._beginning:
            if self._file is not None and self._size < self._most and os.fstat(self._file).st_nlink:
                return  # another thread was faster
            self._directory.mkdir(exist_ok=True)  # where the directory is gone, it is not made again
            if self._size >= self._most:
                with suppress(FileNotFoundError):
                    self._path.replace(self._path.with_suffix(f".{self._next_number():06}{SUFFIX}"))
            opened = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._size = os.fstat(opened).st_size
            if self._file is None:
                self._file = opened
            else:
                os.dup2(opened, self._file, inheritable=False)
                os.close(opened)
            self._prune()

    def _next_number(self) -> int:
        full = (path.name.split(".")[-2] for path in self._directory.glob(f"{self.name}.*{SUFFIX}"))
        return 1 + max((int(number) for number in full if number.isdigit()), default=0)

    def _prune(self) -> None:
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

    # `about` are agents whom it concerns besides. Where telemetry is on, the record names its trace and span.
    def record(
        self, at_s: float, level: str, logger: str, text: str, who: Whose | None = None, about: Sequence[str] = ()
    ) -> str:
        agent, run, work, behalf = who or Whose()
        told = {"at_ms": int(at_s * 1000), "level": level, "logger": logger, "host": self.name}
        told |= {"agent": agent, "run": run, "work": work} if agent else {}
        told |= {"behalf": list(behalf)} if behalf else {}
        told |= {"about": list(about)} if about else {}
        place = TRACE.get()
        told |= {"trace": place.trace_id, "span": place.span_id} if place is not None else {}
        return json.dumps({**told, "text": without_middle(text, TEXT_MAX)}) + "\n"


class LoggedStream:
    """A stream of text whose lines are records of a log too. What else it can is as the stream does it.

    Lines are put together for each piece of work, so those of agents that print at the same time do not mix.
    """

    def __init__(self, stream: TextIO, log: ProcessLog, name: str, level: str) -> None:
        self._stream, self._log, self._name, self._level = stream, log, name, level
        self._unfinished: dict[Whose, str] = {}

    # Lines that end here are kept.
    def write(self, text: str) -> int:
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
        for line in lines:
            self.write(line)

    # A line that is flushed is a record, whether it has ended or not.
    def flush(self) -> None:
        self._finish(whose())
        self._stream.flush()

    def finish(self) -> None:
        for who in list(self._unfinished):
            self._finish(who)

    def _finish(self, who: Whose) -> None:
        self._keep(who, self._unfinished.pop(who, ""))

    def _keep(self, who: Whose, line: str) -> None:
        if line.strip():
            self._log.write(self._log.record(time.time(), self._level, self._name, line.rstrip("\r"), who))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# Whose a record is, it says itself (`agent_id`, `run_id`, `host_id`, `about`); or else it is whose code runs.
class RecordFormatter(logging.Formatter):
    def __init__(self, log: ProcessLog) -> None:
        super().__init__()
        self._log = log

    def format(self, record: logging.LogRecord) -> str:
        told, here = vars(record), whose()
        agent = told.get("agent_id", here.agent)
        who = Whose(agent, told.get("run_id") or (here.run if agent == here.agent else ""), here.work, here.behalf)
        about = [each for each in (told.get("host_id"), *told.get("about", ())) if each]
        text = super().format(record)
        line = self._log.record(record.created, record.levelname, record.name, text, who, about)
        return line[:-1]  # the handler adds the newline


def listen(log: ProcessLog) -> Callable[[], None]:
    """From now on keep what this process prints and logs. Secrets are struck out, here and in what Ray keeps.

    Returns the way to keep lines that have no end, when the process ends.
    """
    out, err = RedactedStream.over(sys.stdout), RedactedStream.over(sys.stderr)
    heard = [LoggedStream(out, log, "stdout", "INFO"), LoggedStream(err, log, "stderr", "WARNING")]
    sys.stdout, sys.stderr = (cast("TextIO", each) for each in heard)
    for_ray, ours = logging.StreamHandler(err), logging.StreamHandler(cast("TextIO", log))
    for_ray.setFormatter(logging.Formatter(RAY_LINE))
    for_ray.setLevel(logging.WARNING)
    ours.setFormatter(RecordFormatter(log))
    root = logging.getLogger()
    root.setLevel(min(root.level, logging.INFO))
    for handler in (for_ray, ours):
        root.addHandler(handler)

    def finish() -> None:
        for each in heard:
            each.finish()

    return finish


# ---------------------------------------------------------------- processes


class RayProcess:
    """What supervisors and hosts have in common."""

    # Small ones, because turns wait while the collector runs: 50 ms with 40,000, for the supervisor.
    GENERATIONS: ClassVar = (5_000, 5, 4_000)

    _life: asyncio.Task[object]

    def __init__(self, deployment: Deployment, name: str, telemetry: Telemetry = OFF) -> None:
        end_on_sigterm()
        self._telemetry = telemetry
        inherit_contexts()
        self._deployment, self._name = deployment, name
        self._finish_log: Callable[[], None] | None = None
        if not unlike(deployment.data, deployment.identity):
            self._begin_log()
        gc.freeze()  # imported modules are never collected; searching them for cycles took a quarter of a busy process's time
        gc.set_threshold(*self.GENERATIONS)

    def _begin_log(self) -> None:
        deployment = self._deployment
        self._finish_log = listen(ProcessLog(deployment.data / LOGS, self._name, deployment.limits.logs_bytes_max))
        here = this_process_info()
        log.info("process %d on %s begins", here.pid, here.node)

    # Answered on an event loop of its own, even while the life is busy.
    async def info(self) -> ProcessInfo:
        return this_process_info()

    async def die(self, process: ProcessId) -> bool:
        return strike(this_process()) if this_process() == ProcessId(*process) else False

    async def stop(self) -> None:
        self._life.cancel()
        await asyncio.wait({self._life})
        await self._close_telemetry()

    async def _close_telemetry(self) -> None:
        if self._telemetry.is_on:
            await asyncio.to_thread(self._telemetry.close)


def _error_of(life: asyncio.Task[object]) -> BaseException | None:
    return None if life.cancelled() else life.exception()


def _leave(delay_s: float, code: int) -> None:
    asyncio.get_running_loop().call_later(max(0.0, delay_s), EXIT, code)


class SupervisorProcess(RayProcess):
    """A supervisor with its store. Ray restarts the process when it dies.

    Every error ends the process, except for a ledger that cannot be opened: callers get that error, and at most once a second their
    calls begin another life; but not if another Ray serves the bucket, until a program opens it anew.
    """

    def __init__(self, deployment: Deployment, world: World, fleet: Fleet) -> None:
        super().__init__(deployment, SUPERVISOR, world.telemetry)
        self._world, self._fleet = world, fleet
        self._proven = False
        self._begin()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._began_s = loop.time()
        self._made: asyncio.Future[None] = loop.create_future()
        self._life = awaited(self._live())
        self._life.add_done_callback(self._ended)

    async def _live(self) -> None:
        deployment, threads = self._deployment, self._world.threads
        await threads.commit(lambda: refuse_elsewhere(deployment.data, deployment.identity))
        if self._finish_log is None:
            self._begin_log()
        await threads.commit(deployment.check_ledger)
        store = await threads.commit(deployment.store)
        try:
            self._supervisor = deployment.part(
                "supervisor", self._world, self._fleet, store, deployment.agent_storages(), deployment.limits
            )
            self._made.set_result(None)
            why = await self._supervisor.serve()
        except LedgerError:
            await threads.commit(store.close)
            raise
        except asyncio.CancelledError:
            why = STOPPED
        await threads.commit(store.close)
        if why == MOVED:
            _leave(0, 1)  # Ray restarts no process that ends with 0
        elif store.carries_storages:
            await threads.commit(store.depart)

    # What it has at work with its hosts is excused, if it comes to say so.
    async def stop(self) -> None:
        if self._made.done() and not self._life.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_S):
                    await self._supervisor.stop()
                    await asyncio.wait({self._life})
        await super().stop()

    def _ended(self, life: asyncio.Task[object]) -> None:
        error = _error_of(life)
        if error is None:
            return
        traceback.print_exception(error)
        if self._proven or not isinstance(error, LedgerError):
            _leave(self._began_s + BREATH_S - asyncio.get_running_loop().time(), 1)

    # Which directory it serves, and whether it could not begin because its machine does not see that, or another Ray serves it.
    async def home(self) -> tuple[str, bool]:
        has_failed = self._life.done() and isinstance(_error_of(self._life), DirectoryElsewhere | ServedElsewhere)
        return self._deployment.identity, has_failed

    # Until this life has answered its first call, its end is an answer too.
    async def exchange(self, frame: bytes) -> bytes:
        if self._proven:
            answer: bytes = await self._supervisor.exchange(frame)
            return answer
        loop = asyncio.get_running_loop()
        error = _error_of(self._life) if self._life.done() else None
        is_final = error is None or isinstance(error, ServedElsewhere)
        if not is_final and loop.time() > self._began_s + BREATH_S:
            self._begin()
        life, first = self._life, awaited(self._first_exchange(frame))
        await asyncio.wait({first, life}, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            first.cancel()
            raise _error_of(life) or SupervisorUnreachable("the supervisor was stopped")
        self._proven = True
        return first.result()

    async def _first_exchange(self, frame: bytes) -> bytes:
        await asyncio.shield(self._made)  # others wait for it as well
        answer: bytes = await self._supervisor.exchange(frame)
        return answer


class HostProcess(RayProcess):
    """A host. The process exits with it."""

    # The children of a batch are gone before 40,000 objects are made, so they are not searched: that took a tenth of a host's time.
    GENERATIONS: ClassVar = (40_000, 2, 4_000)  # and 25 ms at most

    def __init__(self, deployment: Deployment, world: World, transport: Transport, host_id: str) -> None:
        super().__init__(deployment, host_id, world.telemetry)
        self._watch = LoopWatch()
        keep_exit_report(deployment.last_words(host_id))
        self._life = awaited(self._live(deployment, world._replace(turns=FairScheduler()), transport, host_id))
        self._life.add_done_callback(self._ended)

    async def _live(self, deployment: Deployment, world: World, transport: Transport, host_id: str) -> str:
        place = (deployment.code_dir, deployment.package)
        self._host = deployment.part(
            "host", world, transport, deployment.agent_storages(), host_id, deployment.limits, *place
        )
        return str(await self._host.serve())

    # `_host` is set: no caller knows of a host before it serves.
    async def look(self, frame: bytes) -> bytes:
        answer: bytes = await self._host.look(frame)
        return answer

    def _ended(self, life: asyncio.Task[object]) -> None:
        error = _error_of(life)
        if error is not None:
            traceback.print_exception(error)
        if self._finish_log is not None:
            self._finish_log()
        code = 0 if error is None else 1
        if self._telemetry.is_on:
            awaited(self._close_telemetry()).add_done_callback(lambda _: _leave(FAREWELL_S, code))
        else:
            _leave(FAREWELL_S, code)

    async def pulse(self) -> Pulse:
        return await self._watch.pulse()

    async def watch(self) -> str:
        return str(await asyncio.shield(self._life))
