"""Worker threads for sync code, of which a bounded number runs at once. One that waits for the runtime does not count.

A sync parent that waits for its children keeps its thread, and its children need threads too. So what is bounded is not how many threads
there are but how many *run*: each job holds a slot, lends it to the next in line while it waits for the runtime, and takes one again before
it goes on. Nested fan-outs of sync code therefore cannot deadlock, however deep and wide they are (design §4).

The code of a job may have threads and event loops of its own, and any of them may wait for the runtime; the job then has no slot until none
of them does. They know whose they are by their context, which `inherit_contexts` has them take over from the thread that started them.

A thread cannot be stopped. One whose job was given up is *left behind*: it keeps no slot, lest it starve the others, and it is counted,
so that its process can be replaced.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from perdure.actors.tasks import RANK, to_the_end
from perdure.ledger import BadRequest
from perdure.policies import Rank, RankedQueue

T = TypeVar("T")
OURS: Final = "perdure"  # begins the names of threads that work for many agents


class Crew:
    """The threads of one process, and the line of jobs for them.

    Args:
        slots: how many jobs run at the same time, and how many threads stay when there is nothing to do.
    """

    def __init__(self, slots: int, name: str) -> None:
        self._slots, self._name = slots, name
        self._lock = threading.Lock()  # guards what follows, and the slots of the jobs
        self._running = 0
        self.left_behind = 0
        self._line: RankedQueue[_Job] = RankedQueue()
        self._returning: deque[tuple[_Slot, threading.Event]] = deque()
        self._resting: list[SimpleQueue[_Job | None]] = []

    @property
    def jobs(self) -> int:
        return self._running + len(self._line)

    async def run(self, work: Callable[[], T]) -> T:
        """Do this on a thread, with the caller's context variables and rank. If it is given up while it stands in line, it never begins."""
        job = self._line_up(work, Rank.CALL if RANK.get() is Rank.CALL else Rank.WORK)
        try:
            done: T = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            if not job.future.cancel():
                self._leave_behind(job)
            raise
        return done

    async def finish(self, work: Callable[[], T], rank: Rank) -> T:
        """`run` for work that takes effect even if it is given up, so that it is awaited to its end."""
        return await to_the_end(asyncio.wrap_future(self._line_up(work, rank).future))

    def _line_up(self, work: Callable[[], object], rank: Rank) -> _Job:
        slot, context = _Slot(self), copy_context()
        context.run(_SLOT.set, slot)
        job = _Job(slot, Future(), partial(context.run, work))
        with self._lock:
            self._line.add(job, rank)
            self._go_on()
        return job

    @contextmanager
    def lent(self, slot: _Slot) -> Iterator[None]:
        """Inside, one of the threads and loops of this job waits, and another job may have its slot."""
        with self._lock:
            slot.waits += 1
            self._take(slot)
            self._go_on()
        try:
            yield
        finally:
            self._take_back(slot)

    def _take_back(self, slot: _Slot) -> None:
        turn = threading.Event()
        with self._lock:
            slot.waits -= 1
            if slot.waits or slot.is_over:
                return
            self._returning.append((slot, turn))
            self._go_on()
        turn.wait()

    # with the lock held

    def _go_on(self) -> None:
        while self._running < self._slots and (self._returning or self._line):
            if self._returning:  # first those that were at work before: what was begun comes to an end
                slot, turn = self._returning.popleft()
                self._give(slot)
                turn.set()
            else:
                self._hand_over(self._line.take())

    def _give(self, slot: _Slot) -> None:
        if not (slot.is_held or slot.waits or slot.is_over):
            slot.is_held = True
            self._running += 1

    def _take(self, slot: _Slot) -> None:
        self._running -= slot.is_held
        slot.is_held = False

    def _hand_over(self, job: _Job) -> None:
        if not self._resting:
            jobs: SimpleQueue[_Job | None] = SimpleQueue()
            try:
                threading.Thread(target=self._work, args=(jobs,), name=self._name, daemon=True).start()
            except RuntimeError as problem:  # the system gives no more threads
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(problem)
                return
            self._resting.append(jobs)
        self._give(job.slot)
        self._resting.pop().put(job)

    # without it

    def _leave_behind(self, job: _Job) -> None:
        with self._lock:
            if not job.future.done():
                job.slot.is_left_behind = job.slot.is_over = True
                self.left_behind += 1
                self._take(job.slot)
                self._go_on()

    def _work(self, jobs: SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            job.perform()
            with self._lock:
                job.slot.is_over = True
                self.left_behind -= job.slot.is_left_behind
                self._take(job.slot)
                self._resting.append(jobs)  # on top: if there is a next job, it is this thread's
                self._go_on()
                if len(self._resting) > self._slots:
                    self._resting.pop().put(None)
            del job  # what it holds must not wait for the next one


# The slot of a job. `waits` counts its threads and loops that wait; one that is over, or was left behind, gets none any more.
class _Slot:
    __slots__ = ("crew", "is_held", "is_left_behind", "is_over", "waits")

    def __init__(self, crew: Crew) -> None:
        self.crew, self.waits = crew, 0
        self.is_held = self.is_left_behind = self.is_over = False


_SLOT: Final[ContextVar[_Slot | None]] = ContextVar("perdure_slot", default=None)
"""That of the job for which the current code works."""


class _Job(NamedTuple):
    slot: _Slot
    future: Future[Any]
    work: Callable[[], object]

    def perform(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except (StopIteration, CancelledError, asyncio.CancelledError) as problem:
            # where the job is awaited they would mean something else
            failure = RuntimeError(f"sync code raised {type(problem).__name__}")
            failure.__cause__ = problem
            self.future.set_exception(failure)
        except BaseException as problem:
            self.future.set_exception(problem)
        else:
            self.future.set_result(result)


@contextmanager
def lent() -> Iterator[None]:
    """Inside, this code waits for something of the runtime. The job that it works for, if any, lends its slot meanwhile."""
    slot = _SLOT.get()
    if slot is None:
        yield
    else:
        with slot.crew.lent(slot):
            yield


def wait_for(future: Future[T]) -> T:
    """Wait for something of the runtime, on whichever thread. If the wait is interrupted (`KeyboardInterrupt`), the job is cancelled."""
    try:
        with lent():
            return future.result()
    except BaseException:
        future.cancel()
        raise


def awaitable(future: Future[T]) -> asyncio.Future[T]:
    """`wait_for` for code of an event loop. Cancelling it cancels what is waited for."""
    lending = ExitStack()
    lending.enter_context(lent())
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda _: lending.close())
    return waiting


def beside() -> Context:
    # Another loop works on behalf of this job, and has no slot of it to lend.
    context = copy_context()
    context.run(_SLOT.set, None)
    return context


def has_loop() -> bool:
    """Whether this is code of an event loop, which must not block. Raises `BadRequest` under trio, whose code can await nothing of ours."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        if trio is not None and trio.lowlevel.in_trio_run():
            words = "trio runs here, and only asyncio can wait for this; call it by `trio.to_thread.run_sync`, or use anyio with asyncio"
            raise BadRequest("call", words) from None
        return False
    return True


def inherit_contexts() -> None:
    """From now on threads that code of this process starts, and what it gives to a pool of threads, have the context of that code: they
    work for the same agent and run, and in the same transaction. Python itself does that for `asyncio.to_thread` alone."""
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def started(self: threading.Thread) -> None:
        if not (self.name.startswith(OURS) or getattr(self, "_context", None)):  # from 3.14 on one may be given
            self.run = partial(_within, self, copy_context(), self.run)  # type: ignore[method-assign]
        start(self)

    def submitted(self: ThreadPoolExecutor, job: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        within = partial(copy_context().run, job)
        return Context().run(submit, self, within, *args, **kwargs)  # a thread that this starts works for no agent

    threading.Thread.start = started  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submitted  # type: ignore[method-assign, assignment]


def _within(thread: threading.Thread, context: Context, run: Callable[[], None]) -> None:
    del thread.run  # it holds the thread in a circle
    context.run(run)
