"""Clock, dice, threads and faults of one simulated process. All of them are dead when the process is.

Threads are the interesting ones. A job takes virtual time, and takes effect somewhere in the middle of it: a process
that is killed meanwhile has done it or not, and a task that is cancelled meanwhile does not stop it (a real thread
would not stop either). The ledger's thread does its jobs one after the other in call order; by the weather it is
slow, or the disk refuses, before or after the effect. Jobs that wait for something in the middle are done in strands.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from threading import Semaphore, Thread, current_thread
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from perdure.actors.ports import KillPoint, World
from perdure.actors.sim_world.process import SimProcess
from perdure.actors.sim_world.weather import DiskFault
from perdure.actors.tasks import Killed, as_failure, to_the_end
from perdure.policies import Rank, RankedQueue

T = TypeVar("T")
Wake: TypeAlias = Callable[[object], None]  # lets what waits go on with an answer; the loop calls it, once
Outcome: TypeAlias = tuple[object, BaseException | None]  # what some code has returned, or raised

EPOCH_MS: Final = 1_750_000_000_000  # wall time at the start of every simulation
TOKEN_BITS: Final = 80

KillRule = Callable[[str, KillPoint, str], bool]


class KillPlan:
    """Who dies where, and how often that happened. Shared by all processes of a simulation."""

    def __init__(self, kill_at: int | None, kill_when: KillRule | None) -> None:
        self.kill_at = kill_at
        self.kill_when = kill_when
        self.visit_count = 0
        self.visits: Counter[tuple[str, KillPoint]] = Counter()
        self.kills: Counter[str] = Counter()

    def visit(self, process: SimProcess, point: KillPoint, detail: str) -> None:
        self.visit_count += 1
        self.visits[process.kind, point] += 1
        process.nature.note(process.name, f"at {point} {detail}")
        if self._strikes(process, point, detail):
            self.strike(process, f"killed at {point} {detail}".rstrip())
            process.check()

    def strike(self, process: SimProcess, cause: str) -> bool:
        if process.alive:
            self.kills[process.kind] += 1
        return process.end(cause)

    def _strikes(self, process: SimProcess, point: KillPoint, detail: str) -> bool:
        if self.visit_count == self.kill_at:
            return True
        if self.kill_when is not None and self.kill_when(process.name, point, detail):
            return True
        if process.kind == "client":
            return False
        chances = [chance for armed, chance in process.nature.weather.kills if armed is point]
        return any(process.nature.chance(chance) for chance in chances)


class SimFaults:
    def __init__(self, process: SimProcess, plan: KillPlan) -> None:
        self._process = process
        self._plan = plan

    def at(self, point: KillPoint, detail: str = "") -> None:
        self._process.check()
        self._plan.visit(self._process, point, detail)


class SimDice:
    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def roll(self) -> float:
        self._process.check()
        return self._process.nature.die.random()

    def token(self) -> str:
        self._process.check()
        return f"{self._process.nature.die.getrandbits(TOKEN_BITS):020x}"


class SimClock:
    """The wall clock of the process's machine: virtual time, plus what it is off, which changes when the weather says so.

    Jumps are drawn when the clock is read, so that a world which only waits needs no timer for them.
    """

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        skew_ms = process.nature.weather.clock_skew_ms
        self._off_ms = process.nature.die.uniform(-skew_ms, skew_ms) if skew_ms else 0.0
        self._jump_at_ms: float | None = None

    # Wall time; may run backwards.
    def now_ms(self) -> int:
        self._process.check()
        nature = self._process.nature
        now_ms = nature.now_ms()
        every_ms = nature.weather.clock_jump_every_ms
        if every_ms > 0:
            if self._jump_at_ms is not None and now_ms >= self._jump_at_ms:
                jump_ms = nature.draw_ms(nature.weather.clock_jump_ms)
                self._off_ms += jump_ms
                self._jump_at_ms = None
                nature.note(self._process.name, f"clock jumps by {jump_ms:.0f} ms")
            if self._jump_at_ms is None:
                self._jump_at_ms = now_ms + nature.die.expovariate(1 / every_ms)
        return int(EPOCH_MS + now_ms + self._off_ms + nature.clocks_off_ms)

    def steady_ms(self) -> int:
        self._process.check()
        return int(self._process.nature.now_ms())


def outcome_of(work: Callable[[], object]) -> Outcome:
    try:
        return work(), None
    except BaseException as raised:
        return None, raised


# At most one thread runs: the loop stands still while a strand runs, and a strand stands still while the loop does. So everything happens
# in one order, which is the same each time. A strand runs until it has ended, or until it waits: then the loop sees to what it waits for,
# and lets it go on later.
class Strand(Thread):
    """One piece of blocking work of a simulated process, which waits in virtual time.

    Args:
        work: is done on this thread, in the caller's context.
        done: is called on the loop with what came of it, unless the process died before.
    """

    def __init__(self, work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        super().__init__(daemon=True)
        self.has_ended = False
        self._work, self._done, self._context = work, done, copy_context()
        self._may_go, self._has_stopped = Semaphore(0), Semaphore(0)
        self._outcome: Outcome = None, None
        self._waits_for: Callable[[Wake], None] | None = None
        self._answer: object = None
        self._killed: Killed | None = None

    def run(self) -> None:
        self._outcome = self._context.run(outcome_of, self._work)
        self.has_ended = True
        self._has_stopped.release()

    # On the loop: let it run until it waits, or ends.
    def begin(self) -> None:
        self.start()
        self._until_it_stops()

    # On this thread: wait for what the loop sees to. Raises `Killed` when the process dies meanwhile.
    def wait(self, see_to: Callable[[Wake], None]) -> Any:
        if self._killed is None:
            self._waits_for = see_to
            self._has_stopped.release()
            self._may_go.acquire()
        if self._killed is not None:
            raise self._killed
        return self._answer

    # The process is dead: the work is unwound from where it stands, and no caller is told what came of it.
    def end(self, cause: str) -> None:
        if self.has_ended or self is current_thread():
            return
        self._killed = Killed(cause)
        self._may_go.release()
        self._has_stopped.acquire()

    def _go_on(self, answer: object) -> None:
        if not self.has_ended:
            self._answer = answer
            self._may_go.release()
            self._until_it_stops()

    def _until_it_stops(self) -> None:
        self._has_stopped.acquire()
        if self.has_ended:
            self._done(*self._outcome)
        elif self._waits_for is not None:
            with suppress(Killed):  # a request may be the last thing that the process does
                self._waits_for(self._go_on)


def current_strand() -> Strand | None:
    thread = current_thread()
    return thread if isinstance(thread, Strand) else None


class _Job(NamedTuple):
    work: Callable[[], object]
    answer: asyncio.Future[Any]
    context: contextvars.Context


class _Line(deque[_Job]):
    is_busy = False


class _Writes(RankedQueue[_Job]):
    is_busy = False


class SimThreads:
    """Blocking work of one process: inline, but in its own time."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._nature = process.nature
        self._ledger, self._archive, self._reads, self._writes = _Line(), _Line(), _Line(), _Writes()
        self._strands: list[Strand] | None = None  # that have not ended; None if no job waits in the middle

    # From now on jobs may wait (`Strand.wait`).
    def wait_in_strands(self) -> None:
        self._strands = []
        self._process.on_death(self._unwind)

    # The work may wait. The dead begin nothing.
    def begin_strand(self, work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        if not self._process.alive:
            return
        strand = Strand(work, done)
        self._strands = [*(each for each in self._strands or () if not each.has_ended), strand]
        strand.begin()

    def _unwind(self) -> None:
        for strand in self._strands or ():
            strand.end(self._process.cause)

    # A job is done in one piece here, and waits for nothing.
    def turn(self, owner: object) -> AbstractAsyncContextManager[object]:
        return nullcontext(owner)

    async def run(self, job: Callable[[], T], turn: object = None) -> T:
        entry = self._entry(job)
        self._spread(entry, self._nature.draw_ms(self._nature.weather.thread_ms), None, lambda: None)
        answer: T = await entry.answer
        return answer

    async def write(self, job: Callable[[], T], rank: Rank) -> T:
        entry = self._entry(job)
        self._writes.add(entry, rank)
        self._next_write()
        answer: T = await to_the_end(entry.answer)
        return answer

    def _next_write(self) -> None:
        if self._writes and not self._writes.is_busy:
            self._writes.is_busy = True
            ms = self._nature.draw_ms(self._nature.weather.thread_ms)
            self._spread(self._writes.take(), ms, None, self._written)

    def _written(self) -> None:
        self._writes.is_busy = False
        self._next_write()

    @property
    def writes_waiting(self) -> int:
        return len(self._writes) + self._writes.is_busy

    async def commit(self, job: Callable[[], T], *, is_brief: bool = False) -> T:
        return await self._in_line(self._ledger, job)

    async def archive(self, job: Callable[[], T]) -> T:
        return await self._in_line(self._archive, job)

    async def read(self, job: Callable[[], T]) -> T:
        return await self._in_line(self._reads, job)

    @property
    def left_behind(self) -> int:
        # a job is over the moment that it takes effect
        return 0

    def _entry(self, job: Callable[[], object]) -> _Job:
        self._process.check()
        return _Job(job, self._nature.loop.create_future(), contextvars.copy_context())

    async def _in_line(self, line: _Line, job: Callable[[], T]) -> T:
        entry = self._entry(job)
        line.append(entry)
        self._next(line)
        answer: T = await entry.answer
        return answer

    def _next(self, line: _Line) -> None:
        if line.is_busy or not line:
            return
        line.is_busy = True
        nature, weather = self._nature, self._nature.weather
        slow = nature.chance(weather.commit_slow)
        fault = nature.chance(weather.commit_fails)
        late_fault = not fault and nature.chance(weather.commit_fails_late)
        if slow or fault or late_fault:
            what = ("slow " if slow else "") + ("fails" if fault else "fails late" if late_fault else "")
            nature.note(self._process.name, f"commit {what}")
        error = DiskFault(took_effect=late_fault) if fault or late_fault else None
        ms = nature.draw_ms(weather.commit_slow_ms if slow else weather.commit_ms)
        self._spread(line.popleft(), ms, error, partial(self._done, line))

    def _done(self, line: _Line) -> None:
        line.is_busy = False
        self._next(line)

    # The job takes effect somewhere within the `ms` that it takes.
    def _spread(self, job: _Job, ms: float, fault: DiskFault | None, then: Callable[[], None]) -> None:
        before_ms = self._nature.die.uniform(0, ms)
        perform = partial(self._perform, job, ms - before_ms, fault, then)
        self._nature.loop.call_later(before_ms / 1000, perform, context=job.context)

    def _perform(self, job: _Job, rest_ms: float, fault: DiskFault | None, then: Callable[[], None]) -> None:
        if not self._process.alive:
            return
        done = partial(self._performed, job, rest_ms, fault, then)
        if job.answer.cancelled() or (fault is not None and not fault.took_effect):
            done(None, None)
        elif self._strands is None:
            done(*outcome_of(job.work))
        else:
            self.begin_strand(job.work, done)

    def _performed(
        self,
        job: _Job,
        rest_ms: float,
        fault: DiskFault | None,
        then: Callable[[], None],
        result: object,
        raised: BaseException | None,
    ) -> None:
        error = None if raised is None else as_failure(raised)
        if raised is not None and error is None:  # killed at a kill point inside the job: no caller waits any more
            return
        self._nature.later(rest_ms, self._answer, job.answer, result, fault if error is None else error, then)

    def _answer(
        self, answer: asyncio.Future[object], result: object, error: Exception | None, then: Callable[[], None]
    ) -> None:
        if not self._process.alive:
            return
        if not answer.done():
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)
                answer.exception()  # the caller may be dead by then, which is no mistake
        then()


# Bodies do not matter in the simulation, and must not tell two runs of it apart.
class SimVitals:
    def pid(self) -> int:
        return 0

    def node(self) -> str:
        return "simulation"

    def rss_mb(self) -> int:
        return 0


def make_world(process: SimProcess, plan: KillPlan) -> World:
    return World(SimClock(process), SimDice(process), SimThreads(process), SimFaults(process, plan), SimVitals())
