"""Clock, dice, threads and faults of one simulated process. All of them are dead when the process is.

Threads are the interesting ones. A job takes virtual time, and takes effect somewhere in the middle of it: a process
that is killed meanwhile has done it or not, and a task that is cancelled meanwhile does not stop it (a real thread
would not stop either). The ledger's thread does its jobs one after the other in call order; by the weather it is
slow, or the disk refuses, before or after the effect. Jobs that may wait for something in the middle are done in strands: an author's
code, and what waits for a bucket.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from perdure.actors.ports import KillPoint, World
from perdure.actors.sim_world.process import SimProcess, Wake, current_strand
from perdure.actors.sim_world.virtual_loop import outcome_of
from perdure.actors.sim_world.weather import DiskFault
from perdure.actors.tasks import Pending, as_failure, to_the_end
from perdure.actors.threads import has_loop
from perdure.ledger import BadRequest
from perdure.policies import Rank, RankedQueue

T = TypeVar("T")

EPOCH_MS: Final = 1_750_000_000_000  # wall time at the start of a simulation, unless another one is said
TOKEN_BITS: Final = 80
NOT_IN_TURN: Final = (
    "in a Laboratory a thread or an event loop that code starts by itself cannot wait for Perdure, whose loop stands still until that code "
    "goes on; wait in the method itself, or test this on Ray"
)

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


class _Job(NamedTuple):
    work: Callable[[], object]
    answer: asyncio.Future[Any]
    context: contextvars.Context
    may_wait: bool = False


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
        self._all_may_wait = False

    # From now on jobs of every kind may wait (`Strand.wait`).
    def wait_in_strands(self) -> None:
        self._all_may_wait = True
        self._process.on_death(self._process.end_strands)

    # Sync code has the turn until it waits, and to lend it then is all that it could do.
    def turn(self, owner: object) -> AbstractAsyncContextManager[object]:
        return nullcontext(owner)

    async def run(self, job: Callable[[], T], turn: object = None) -> T:
        entry = self._entry(job)._replace(may_wait=True)
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
        return sum(strand.is_left_behind() for strand in self._process.strands)

    def bridge(self, job: Pending[T], loop: asyncio.AbstractEventLoop) -> Future[T]:
        strand = current_strand()
        if strand is None or has_loop():
            job.close()
            raise BadRequest("call", NOT_IN_TURN)
        if not self._process.alive:
            job.close()
            strand.refuse()
        done = asyncio.run_coroutine_threadsafe(job, loop)

        def see_to(wake: Wake) -> None:
            done.add_done_callback(lambda heard: loop.call_soon_threadsafe(wake, heard))

        strand.wait(see_to)
        return done

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
        elif job.may_wait or self._all_may_wait:
            self._process.begin(job.work, done, job.answer.cancelled)
        else:
            done(*outcome_of(job.work))

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
