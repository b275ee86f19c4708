"""Worker threads for sync code, of which only so many run at once. One that waits for the runtime does not count.

A sync parent that waits for its children keeps its thread, and its children need threads too. So what is bounded is not how many threads
there are but how many *run*: each job holds a slot, whoever waits for the runtime lends its slot to the next in line, and takes one again
before it goes on. Nested fan-outs of sync code therefore cannot deadlock, however deep and wide they are (design §4).

A thread cannot be stopped. One whose job was given up is *left behind*: it keeps no slot, lest it starve the others, and it is counted,
so that its process can be replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from perdure.actors.tasks import RANK, to_the_end
from perdure.policies import Line, Rank

T = TypeVar("T")


class Crew:
    """The threads of one process, and the line of jobs for them.

    Args:
        slots: how many jobs run at the same time. So many threads stay when there is nothing to do.
    """

    def __init__(self, slots: int, name: str) -> None:
        self._slots, self._name = slots, name
        self._lock = threading.Lock()  # guards what follows, and the flags of the jobs
        self._running = 0
        self._left_behind = 0
        self._line: Line[_Job] = Line()
        self._returning: deque[tuple[_Job, threading.Event]] = deque()
        self._resting: list[SimpleQueue[_Job | None]] = []

    @property
    def left_behind(self) -> int:
        """How many jobs go on that nobody waits for any more."""
        return self._left_behind

    @property
    def jobs(self) -> int:
        """How many jobs run, or stand in line."""
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
        """The same for work that takes effect even if it is given up: so it is awaited all the same."""
        return await to_the_end(asyncio.wrap_future(self._line_up(work, rank).future))

    def _line_up(self, work: Callable[[], object], rank: Rank) -> _Job:
        job = _Job(self, partial(contextvars.copy_context().run, work))
        with self._lock:
            self._line.add(job, rank)
            self._go_on()
        return job

    def lend(self, job: _Job, future: Future[T]) -> T:
        """Wait for a future on the thread of this job; somebody else may have its slot meanwhile."""
        with self._lock:
            self._take_slot(job)
            self._go_on()
        try:
            return future.result()
        finally:
            turn = threading.Event()
            with self._lock:
                self._returning.append((job, turn))
                self._go_on()
            turn.wait()

    # with the lock held

    def _go_on(self) -> None:
        """Give the free slots to who is next. Those that were at work before come first: then what was begun comes to an end."""
        while self._running < self._slots and (self._returning or self._line):
            if self._returning:
                job, turn = self._returning.popleft()
                self._give_slot(job)
                turn.set()
            else:
                self._hand_over(self._line.take())

    def _give_slot(self, job: _Job) -> None:
        if not job.is_left_behind:
            job.has_slot = True
            self._running += 1

    def _take_slot(self, job: _Job) -> None:
        self._running -= job.has_slot
        job.has_slot = False

    def _hand_over(self, job: _Job) -> None:
        if not self._resting:
            jobs: SimpleQueue[_Job | None] = SimpleQueue()
            try:
                threading.Thread(target=self._work, args=(jobs,), name=self._name, daemon=True).start()
            except RuntimeError as problem:  # the system gives no more threads
                job.refuse(problem)
                return
            self._resting.append(jobs)
        self._give_slot(job)
        self._resting.pop().put(job)

    # without it

    def _leave_behind(self, job: _Job) -> None:
        with self._lock:
            if not job.future.done():
                job.is_left_behind = True
                self._left_behind += 1
                self._take_slot(job)
                self._go_on()

    def _work(self, jobs: SimpleQueue[_Job | None]) -> None:
        """The life of a thread."""
        while (job := jobs.get()) is not None:
            job.perform()
            with self._lock:
                self._left_behind -= job.is_left_behind
                self._take_slot(job)
                self._resting.append(jobs)  # on top: if there is a next job, it is this thread's
                self._go_on()
                if len(self._resting) > self._slots:
                    self._resting.pop().put(None)
            del job  # what it holds must not wait for the next one


class _Job:
    """A piece of work on its way through a thread."""

    def __init__(self, crew: Crew, work: Callable[[], object]) -> None:
        self.crew = crew
        self.future: Future[Any] = Future()
        self.has_slot = False
        self.is_left_behind = False
        self._work = work

    def perform(self) -> None:
        """Do it, unless it was cancelled while it stood in line."""
        if not self.future.set_running_or_notify_cancel():
            return
        _here.job = self
        try:
            result = self._work()
        except (StopIteration, CancelledError, asyncio.CancelledError) as problem:
            # to who waits they would mean something else
            failure = RuntimeError(f"sync code raised {type(problem).__name__}")
            failure.__cause__ = problem
            self.future.set_exception(failure)
        except BaseException as problem:
            self.future.set_exception(problem)
        else:
            self.future.set_result(result)
        finally:
            _here.job = None

    def refuse(self, problem: RuntimeError) -> None:
        """It cannot be done."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(problem)


class _Here(threading.local):
    """What the current thread is at, if it is one of a crew."""

    job: _Job | None = None


_here = _Here()


def wait_for(future: Future[T]) -> T:
    """Wait for something of the runtime, on whichever thread. One of a crew lends its slot meanwhile."""
    job = _here.job
    return future.result() if job is None else job.crew.lend(job, future)
