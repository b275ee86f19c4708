"""Worker threads for sync code, of which a bounded number runs at once. One that waits for the runtime does not count.

A sync parent that waits for its children keeps its thread, and its children need threads too. So what is bounded is not how many threads
there are but how many *run*: each job holds a slot, lends it to the next in line while it waits for the runtime, and takes one again before
it goes on. Nested fan-outs of sync code therefore cannot deadlock, however deep and wide they are (design §4).

The code of a job may have threads and event loops of its own, and any of them may wait for the runtime; the job then has no slot until none
of them does. They know whose they are by their context, which `inherit_contexts` has them take over from the thread that started them.

What belongs together takes *turns*, the sync methods of one agent, say: who has the turn of an owner lends it together with its slot while
it waits for the runtime, and goes on before anyone begins who has not had it yet.

A thread cannot be stopped. One whose job was given up is *left behind*: it keeps neither slot nor turn, lest it starve the others, and it
is counted, so that its process can be replaced.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from perdure.actors.tasks import RANK, to_the_end
from perdure.ledger import BadRequest
from perdure.policies import Rank, RankedQueue

T = TypeVar("T")
OURS: Final = "perdure"  # begins the names of threads that work for many agents
RESTS_S: Final = 10.0  # a thread without a job, until it ends
LOOK_UP_S: Final = 0.5  # from a wait, for an interrupt


class Crew:
    """The threads of one process, and the line of jobs for them.

    Args:
        slots: how many jobs run at the same time, and how many threads stay when there is nothing to do.
    """

    def __init__(self, slots: int, name: str) -> None:
        self._slots, self._name = slots, name
        self._lock = threading.Lock()  # guards what follows, and the slots of the jobs
        self._over: SimpleQueue[_Slot] = SimpleQueue()  # whose turn is over
        self._running = 0
        self.left_behind = 0
        self._line: RankedQueue[_Job] = RankedQueue()
        self._returning: deque[_Slot] = deque()
        self._in_turn: dict[object, _InTurn] = {}  # of the owners whose turn somebody has
        self._resting: list[SimpleQueue[_Job | None]] = []

    @property
    def jobs(self) -> int:
        return self._running + len(self._line)

    async def run(self, work: Callable[[], T], turn: object = None) -> T:
        """Do this on a thread, with the caller's context variables and rank. If it is given up while it stands in line, it never begins."""
        slot = turn if isinstance(turn, _Slot) else _Slot(self)
        job = self._line_up(work, Rank.CALL if RANK.get() is Rank.CALL else Rank.WORK, slot)
        try:
            done: T = await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            if not job.future.cancel():
                self._leave_behind(job)
            raise
        return done

    async def finish(self, work: Callable[[], T], rank: Rank) -> T:
        """`run` for work that takes effect even if it is given up, so that it is awaited to its end."""
        return await to_the_end(asyncio.wrap_future(self._line_up(work, rank, _Slot(self)).future))

    @asynccontextmanager
    async def turn(self, owner: object) -> AsyncIterator[object]:
        """A block that one at a time enters, in the order in which they come. It gives what one job, run with it, lends while it waits."""
        slot, is_there = _Slot(self, owner), None
        with self._locked():
            if not self._takes_turn(slot):
                is_there = Future[None]()
                self._in_turn[owner].new.append((slot, is_there))
        try:
            if is_there is not None:
                await asyncio.wrap_future(is_there)
            yield slot
        finally:
            # Not with the lock: this may be done by a collection of garbage, in whichever thread, while the lock is held.
            self._over.put(slot)
            self._end_turns()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._end_turns()

    # By whoever has the lock, or lets it go.
    def _end_turns(self) -> None:
        while not self._over.empty() and self._lock.acquire(blocking=False):
            try:
                while not self._over.empty():
                    slot = self._over.get()
                    slot.is_over = True
                    self._pass_on(slot)
                self._go_on()
            finally:
                self._lock.release()

    def _line_up(self, work: Callable[[], object], rank: Rank, slot: _Slot) -> _Job:
        context = copy_context()
        context.run(_SLOT.set, slot)
        job = _Job(slot, Future(), partial(context.run, work))
        with self._locked():
            self._line.add(job, rank)
            self._go_on()
        return job

    @contextmanager
    def lent(self, slot: _Slot) -> Iterator[None]:
        """Inside, one of the threads and loops of this job waits, and another job may have its slot, and its turn."""
        with self._locked():
            slot.waits += 1
            self._take(slot)
            self._pass_on(slot)
            self._go_on()
        try:
            yield
        finally:
            self._take_back(slot)

    def _take_back(self, slot: _Slot) -> None:
        back = threading.Event()
        with self._locked():
            slot.waits -= 1
            if slot.waits or slot.is_over:
                return
            slot.coming.append(back)
            if len(slot.coming) == 1:  # else it is on its way
                self._returning.append(slot)
                self._go_on()
        back.wait()

    # with the lock held

    def _go_on(self) -> None:
        while self._running < self._slots and (self._returning or self._line):
            if self._returning:  # first those that were at work before: what was begun comes to an end
                self._come_back(self._returning.popleft())
            else:
                self._hand_over(self._line.take())

    def _come_back(self, slot: _Slot) -> None:
        if slot.waits or slot.is_over:  # another thread of it waits, or nobody waits for it any more
            self._pass_on(slot)
        elif self._takes_turn(slot):
            self._give(slot)
        else:
            self._in_turn[slot.owner].back.append(slot)
            return
        for back in slot.coming:
            back.set()
        slot.coming.clear()

    def _give(self, slot: _Slot) -> None:
        if not slot.is_held:
            slot.is_held = True
            self._running += 1

    def _take(self, slot: _Slot) -> None:
        self._running -= slot.is_held
        slot.is_held = False

    def _takes_turn(self, slot: _Slot) -> bool:
        if slot.owner is not None and slot.owner not in self._in_turn:
            self._in_turn[slot.owner] = _InTurn(slot)
        return slot.owner is None or self._in_turn[slot.owner].first is slot

    def _pass_on(self, slot: _Slot) -> None:
        turns = self._in_turn.get(slot.owner)
        if turns is None or turns.first is not slot:
            return
        if turns.back:
            turns.first = turns.back.popleft()
            self._returning.append(turns.first)
            return
        while turns.new:
            turns.first, is_there = turns.new.popleft()
            if is_there.set_running_or_notify_cancel():
                is_there.set_result(None)
                return
        del self._in_turn[slot.owner]

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
        with self._locked():
            if not job.future.done():
                job.slot.is_left_behind = job.slot.is_over = True
                self.left_behind += 1
                self._take(job.slot)
                self._go_on()

    def _next(self, jobs: SimpleQueue[_Job | None]) -> _Job | None:
        # Whoever has rested for long ends: nobody tells a crew that it is not needed any more.
        with suppress(Empty):
            return jobs.get(timeout=RESTS_S)
        with self._locked():
            if jobs in self._resting:
                self._resting.remove(jobs)
                return None
        return jobs.get()  # on its way

    def _work(self, jobs: SimpleQueue[_Job | None]) -> None:
        while (job := self._next(jobs)) is not None:
            job.perform()
            with self._locked():
                job.slot.is_over = True
                self.left_behind -= job.slot.is_left_behind
                self._take(job.slot)
                self._resting.append(jobs)  # on top: if there is a next job, it is this thread's
                self._go_on()
                if len(self._resting) > self._slots:
                    self._resting.pop().put(None)
            del job  # what it holds must not wait for the next one


# The slot of a job. `waits` counts its threads and loops that wait, `coming` has those that have waited and want to go on. One that is
# over, or was left behind, gets none any more.
class _Slot:
    __slots__ = ("coming", "crew", "is_held", "is_left_behind", "is_over", "owner", "waits")

    def __init__(self, crew: Crew, owner: object = None) -> None:
        self.crew, self.owner, self.waits = crew, owner, 0
        self.coming: list[threading.Event] = []
        self.is_held = self.is_left_behind = self.is_over = False


# Who has the turn of an owner, who had it before and wants it back, and who has yet to begin.
class _InTurn:
    __slots__ = ("back", "first", "new")

    def __init__(self, first: _Slot) -> None:
        self.first = first
        self.back: deque[_Slot] = deque()
        self.new: deque[tuple[_Slot, Future[None]]] = deque()


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
            # Nothing wakes a thread for an interrupt that comes as it begins to wait, or that `interrupt_main` asks for.
            while not wait([future], LOOK_UP_S).done:
                pass
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


def within(context: Context, work: Callable[[], T]) -> T:
    """Go on in a context in which an earlier job was. What waits there lends the slot of this one."""
    context.run(_SLOT.set, _SLOT.get())
    return context.run(work)


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
    if start.__module__ == __name__:  # it is so already
        return

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
