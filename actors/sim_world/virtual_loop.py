"""An asyncio event loop on virtual time: nothing waits, everything happens in a repeatable order.

`asyncio`'s own loop is kept (`BaseEventLoop`: its ready queue, its heap of timers, its tasks). Only the selector is
another one. Where a real selector would sleep until the next timer, `_Jump` moves the clock there; where it would sleep
for ever, because no timer is set and nothing can ever become ready, it raises `Deadlock` and says who waits for what.
There are no sockets, signals or subprocesses. A thread has the turn while the loop stands still: `run_in_executor` (and so
`asyncio.to_thread`, and `anyio.to_thread`, which libraries use) lets its function run until it ends or waits, and the caller goes on in an
iteration after its end.

If it is told that nothing happens but upkeep (`lull`), time leaps to shortly before the next timer of anything else: heartbeats and
sweeps over days would cost a minute. Where nothing else is due at all, that is a deadlock, too.

Order is asyncio's: callbacks run in the order in which they were scheduled, timers in the order in which they are
due. So two runs that schedule the same things do the same things. The cyclic garbage collector could disturb that,
since it runs finalizers (of asynchronous generators, say) at moments of its own choosing: a repeatable run
switches it off, and the loop then collects at fixed steps.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, TypeVarTuple, cast

from anyio._backends._asyncio import AsyncIOBackend

from perdure.actors.upkeep import LeapingLoop

T = TypeVar("T")
V = TypeVar("V")
Ts = TypeVarTuple("Ts")
Outcome: TypeAlias = tuple[object, BaseException | None]  # what some code has returned, or raised
Done: TypeAlias = Callable[[object, BaseException | None], None]  # is told the outcome

STEPS_MAX = 5_000_000
COLLECT_STRIDE = 1 << 14  # steps between two collections of garbage, while the automatic one is off
TIMER_RESOLUTION_S = 1e-6  # timers this close fire together, so that no float remainder can make the clock stand still
PENDING_SHOWN_MAX = 40
THROWS_MAX = 1_000
NO_SOCKETS = (
    "in a Laboratory the event loop has neither sockets nor processes: let a test give this code something else to ask, do it by sync code "
    "(`asyncio.to_thread`), or test this on Ray"
)
UPKEEP_S = 4.0  # in which what looks again and again has its turn: it does so every two seconds
LEAP_COUNTS_S = 2.0  # of work, so that polling for ever comes to an end


class Stuck(Exception):
    """The simulation cannot go on usefully. `pending` says, one line each, which tasks wait and where, and `instead` what is told instead
    of that, if anything."""

    def __init__(self, problem: str, pending: list[str]) -> None:
        super().__init__(problem, pending)
        self.problem = problem
        self.pending = pending
        self.instead: list[str] = []

    def __str__(self) -> str:
        if self.instead:
            return "\n  ".join([self.problem, *self.instead])
        shown = self.pending[:PENDING_SHOWN_MAX]
        hidden = len(self.pending) - len(shown)
        more = [f"… and {hidden} more"] if hidden else []
        return "\n  ".join([f"{self.problem}; {len(self.pending)} tasks pending", *shown, *more])


class Deadlock(Stuck):
    """Nothing is ready and nothing is due: whatever is awaited will never come."""


class Runaway(Stuck):
    """More loop iterations than allowed: most likely something spins without letting time pass."""


class Overdue(Stuck):
    """The next timer lies beyond the deadline, or there was something to do for too long."""


class Lull(NamedTuple):
    """A time in which nothing but upkeep happens. `leap_s` is how far time may leap; `is_last`: it will not end by itself."""

    since_s: float
    leap_s: float
    is_last: bool


def unwind(coroutine: Coroutine[object, None, object], error: BaseException) -> bool:
    """Throw an exception into a coroutine until it ends, whatever it raises or awaits meanwhile. False if it does not end."""
    for _ in range(THROWS_MAX):
        try:
            coroutine.throw(error)
        except KeyboardInterrupt:  # a person has had enough
            raise
        except BaseException:
            return True
    return False


def outcome_of(work: Callable[[], object]) -> Outcome:
    try:
        return work(), None
    except BaseException as raised:
        return None, raised


class VirtualLoop(asyncio.BaseEventLoop, LeapingLoop):
    """The loop. `time()` starts at 0 and moves only from timer to timer.

    `after_step` is called between iterations, each `step_stride`-th time; what it raises ends the run. `begin` lets blocking work run until
    it ends or waits. `lull` says whether nothing happens but upkeep; over most of that time leaps.
    """

    _scheduled: list[Any]  # asyncio's heap of its timers

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self.steps = 0
        self.steps_max = steps_max
        self.deadline_s = self.busy_until_s = math.inf  # the other one is in seconds of upkeep
        self.after_step: Callable[[], None] | None = None
        self.step_stride = 1
        self.stopped_by: Sequence[BaseException] = ()  # the first one ends the run
        self.begin: Callable[[Callable[[], object], Done], None] = lambda work, done: done(*outcome_of(work))
        self.lull: Callable[[], Lull | None] | None = None
        self.leapt_s = 0.0
        self._idle_until_s = 0.0  # of what was idle before, nothing has been counted as work
        self._upkeep: dict[int, Any] = {}  # their hash changes with their time
        self._next_leap_s = 0.0
        self._now_s = 0.0
        self._clock_resolution = TIMER_RESOLUTION_S
        self._selector = _Jump(self)

    def time(self) -> float:
        return self._now_s

    def between_steps(self, wait_s: float | None) -> None:
        """The selector asks: an iteration has ended, and nothing is ready for `wait_s` seconds (None: for ever)."""
        self.steps += 1
        if self.stopped_by:
            raise self.stopped_by[0]
        if not self.steps % COLLECT_STRIDE and not gc.isenabled():
            gc.collect(0)
        if self.after_step is not None and self.steps % self.step_stride == 0:
            self.after_step()
        if self.steps > self.steps_max:
            raise Runaway(f"more than {self.steps_max} steps, at {self._now_s:.3f} s", self.pending())
        if wait_s is None:
            raise Deadlock(f"deadlock at {self._now_s:.3f} s: nothing is ready and no timer is set", self.pending())
        if wait_s <= 0:
            return
        if self._now_s + wait_s > self.deadline_s:
            raise Overdue(f"not finished at the deadline of {self.deadline_s:.3f} s", self.pending())
        if self._now_s + wait_s - self.leapt_s > self.busy_until_s:
            raise Overdue(f"not finished, and at work for too long, at {self._now_s:.3f} s", self.pending())
        if self.lull is not None and self._now_s >= self._next_leap_s and self._leap(self.lull()):
            return
        self._now_s += wait_s

    def upkeep_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        handle = self.call_later(delay_s, callback, *args)
        if self.lull is not None:
            self._upkeep = {key: each for key, each in self._upkeep.items() if each._scheduled}  # noqa: SLF001
            self._upkeep[id(handle)] = handle
        return handle

    # First all upkeep has its turn.
    def put_off_leap(self) -> None:
        self._next_leap_s = self._now_s + UPKEEP_S

    # What upkeep waits for comes later by as much, and so it finds nothing late. Each has its turn between two leaps.
    def _leap(self, lull: Lull | None) -> bool:
        self.put_off_leap()
        if lull is None or lull.leap_s < UPKEEP_S:
            return False
        due = (each.when() for each in self._scheduled if not (each.cancelled() or id(each) in self._upkeep))
        due_s = min(due, default=math.inf)
        if lull.is_last and math.isinf(min(due_s, self.deadline_s)):
            problem = f"deadlock at {self._now_s:.3f} s: nothing happens any more, and nothing is due"
            raise Deadlock(problem, self.pending())
        by_s = min(lull.leap_s, min(due_s, self.deadline_s) - self._now_s - UPKEEP_S)
        if by_s < UPKEEP_S:
            self._next_leap_s = min(self._next_leap_s, due_s)  # it may be no more than mail that is on its way
            return False
        for each in self._upkeep.values():
            each._when += by_s  # noqa: SLF001
        heapq.heapify(self._scheduled)
        # No work are the seconds of the lull before a leap, and those after it in which upkeep has its turn.
        idle_s = min(lull.since_s, max(0.0, self._now_s - self._idle_until_s))
        self._now_s += by_s
        self.put_off_leap()
        self.leapt_s += by_s
        self.busy_until_s += idle_s + UPKEEP_S - LEAP_COUNTS_S
        self._idle_until_s = self._now_s + UPKEEP_S
        return True

    # Sorted by text, because asyncio keeps its tasks in a set.
    def pending(self) -> list[str]:
        waiting = ((task, task.get_coro()) for task in asyncio.all_tasks(self))
        return sorted(f"{getattr(it, '__qualname__', task.get_name())} at {_line(it)}" for task, it in waiting)

    def turn(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` now, until it ends or waits; the future is done in the next iteration after its end, as a thread's may be.

        What is not an `Exception` (a simulated kill, say) goes straight up the caller's stack.
        """
        future: asyncio.Future[T] = self.create_future()
        killed: list[BaseException] = []

        def done(result: object, raised: BaseException | None) -> None:
            if raised is None:
                self.call_soon(_settle, future, future.set_result, cast("T", result))
            elif isinstance(raised, Exception):
                self.call_soon(_settle, future, future.set_exception, raised)
            else:
                killed.append(raised)

        self.begin(partial(func, *args), done)
        if killed:
            raise killed[0]
        return future

    # Asyncio would close a generator in a task; this one is closed now, and waits for nothing.
    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[object]) -> None:
        unwind(agen.aclose(), GeneratorExit())

    def _process_events(self, event_list: object) -> None:
        """Part of `BaseEventLoop`'s contract: there are never any events."""

    def _write_to_self(self) -> None:
        """Part of `BaseEventLoop`'s contract: nobody sleeps, so nobody needs to be woken."""


async def _refuse(_loop: VirtualLoop, *_given: object, **_options: object) -> NoReturn:
    raise NotImplementedError(NO_SOCKETS)


_WITHOUT = (
    "create_connection create_server create_datagram_endpoint create_unix_connection create_unix_server start_tls sendfile "
    "sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_sendall sock_sendto sock_sendfile "
    "subprocess_exec subprocess_shell connect_read_pipe connect_write_pipe"
)
for _name in _WITHOUT.split():  # asyncio would raise an error without words
    setattr(VirtualLoop, _name, _refuse)


# All that `BaseEventLoop` asks of a selector. It has no files, and passes time instead of waiting.
class _Jump:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[NoReturn]:
        self._loop.between_steps(timeout)
        return []


def _settle(future: asyncio.Future[T], settle: Callable[[V], None], value: V) -> None:
    if not future.done():
        settle(value)


def _line(coroutine: object) -> str:
    line = "?"
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            line = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return line


# Time would fly while a thread of anyio works, and one that is left when its loop is over keeps the process from ending.
def _share_threads() -> None:
    theirs = AsyncIOBackend.run_sync_in_worker_thread

    async def ours(func: Callable[..., object], args: tuple[object, ...], **options: Any) -> object:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            return await theirs(func, args, **options)
        return await loop.run_in_executor(None, partial(copy_context().run, func, *args))

    AsyncIOBackend.run_sync_in_worker_thread = ours  # type: ignore[method-assign,assignment]


_share_threads()
