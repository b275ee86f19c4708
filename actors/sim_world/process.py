"""Simulated processes: groups of asyncio tasks, and of threads, that live, hang and die together on one loop.

A task belongs to the process in whose context it was created (a context variable, inherited like any other); the loop's
task factory puts a `Gate` between the task and its coroutine. Through the gate a process can be stopped at any await:

    running    the gate passes everything on
    hung       the gate parks the task; whatever was to happen to it happens when the process goes on
    dead       the coroutine is never resumed: it is unwound from where it stands, and its task ends as cancelled

Death has an order, so that nothing a dying coroutine does can matter. First `alive` becomes false, and with it every
port of the process is dead. Then the `on_death` callbacks run (storages roll back, as the operating system would
close the files of a killed process). Then all tasks are cancelled, which makes each gate unwind its coroutine in the
next iteration: `Killed` is raised at the await, so that `finally` blocks do run, but with dead ports and closed
storages, and in whoever awaits again there it is raised again. (A real `SIGKILL` would not even run those.) The one task
that asked for the death from inside is unwound by the `Killed` that it raised, or by the next port that it touches.

Blocking work, such as an author's sync code, is done in a `Strand`, on a thread that takes turns with the loop. It is unwound likewise,
from where it waits, after the `on_death` callbacks.

`SimContext` is what all processes stand on: the loop, the one die, the weather, and the chronicle of what happened.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import sys
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from itertools import count
from random import Random
from threading import Lock, Thread, current_thread
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from perdure.actors.ports import Pulse
from perdure.actors.sim_world.virtual_loop import THROWS_MAX, Done, Outcome, VirtualLoop, outcome_of, unwind
from perdure.actors.sim_world.weather import DiskFault, Span, Weather
from perdure.actors.tasks import Killed, contained, note_task, thrown
from perdure.actors.threads import OURS

T = TypeVar("T")
HEARD_S = 0.1  # a signal that comes just as a thread begins to wait is not heard before the end of the wait
LOOKS_TILL_TOLD = 100
AT_WORK_LONG = (
    "has been at work for ten seconds, in which nothing else of the laboratory goes on. If it waits for other code there, by an Event, a "
    "lock or a queue, it waits in vain: test that on Ray"
)
Wake: TypeAlias = Callable[[object], None]  # lets what waits go on with an answer; the loop calls it, once


class ChronicleEntry(NamedTuple):
    at_ms: float
    process: str
    what: str


# `error` is None if it was not an exception's doing, or a mere end.
class SimFailure(NamedTuple):
    at_ms: float
    process: str
    cause: str
    error: BaseException | None

    def __str__(self) -> str:
        return f"{self.at_ms:.3f} ms, {self.process}: {self.cause}" + (f" ({self.error!r})" if self.error else "")


class SimContext:
    """The ground of one simulation: time, chance, weather, and a record of what happened."""

    def __init__(self, seed: int, weather: Weather, loop: VirtualLoop, trace_max: int) -> None:
        self.die = Random(seed)
        self.weather = weather
        self.loop = loop
        self.threads = StrandThreads()
        self.has_files = False  # messages carry files
        self.clocks_off_ms = 0  # all wall clocks, beside what each is off
        self.trace: deque[ChronicleEntry] = deque(maxlen=trace_max)
        self.errors: list[SimFailure] = []
        self.harmless: tuple[type[BaseException], ...] = (Killed, DiskFault, asyncio.CancelledError)
        self.sealed = False  # the simulation is over: the order of what is swept up does not matter
        self._digest = hashlib.blake2b(digest_size=16)

    def now_ms(self) -> float:
        return round(self.loop.time() * 1000, 3)

    # An impossible event costs no draw.
    def chance(self, probability: float) -> bool:
        return probability > 0 and self.die.random() < probability

    def draw_ms(self, span: Span) -> float:
        return self.die.uniform(span.low, span.high)

    def later(self, delay_ms: float, callback: Callable[..., object], *args: object) -> None:
        self.loop.call_later(delay_ms / 1000, callback, *args)

    # The chronicle forgets old lines, and the digest does not.
    def note(self, process: str, what: str) -> None:
        if self.sealed:
            return
        event = ChronicleEntry(self.now_ms(), process, what)
        self.trace.append(event)
        self._digest.update(f"{event.at_ms!r} {process} {what}\n".encode())

    # Report something that should not have happened, unless it is a consequence of what the weather did.
    def blame(self, process: str, cause: str, error: BaseException | None) -> None:
        if error is not None and self.excuses(error):
            return
        self.note(process, f"error: {cause}" + (f": {type(error).__name__}" if error else ""))
        self.errors.append(SimFailure(self.now_ms(), process, cause, error))

    def excuses(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(self.excuses(part) for part in error.exceptions)
        cause = error.__cause__
        return isinstance(error, self.harmless) or (cause is not None and self.excuses(cause))

    def digest(self) -> str:
        return self._digest.hexdigest()


class SimProcess:
    """One simulated operating system process. `kind` is "supervisor", "host" or "client"."""

    def __init__(self, nature: SimContext, name: str, kind: str, on_end: Callable[[SimProcess], None]) -> None:
        self.nature = nature
        self.name = name
        self.kind = kind
        self.alive = True
        self.running = True  # alive and not hung
        self.cause = ""
        self.error: BaseException | None = None
        self.clean = False
        self.cut_until_s = 0.0
        self.gates: dict[int, Gate] = {}
        self.strands: dict[Strand, None] = {}  # that have not ended, in order
        self._gate_count = 0
        self._on_end = on_end
        self._on_death: list[Callable[[], object]] = []
        self._parked: list[asyncio.Future[None]] = []
        self._thaw_at_s = 0.0
        self._mute_until_s = 0.0
        self._hangs = 0
        self._culprit: str | None = ""
        self._context = contextvars.Context()
        self._context.run(_current.set, self)

    # Every port asks this first: the dead have no ports.
    def check(self) -> None:
        if not self.alive:
            raise Killed(f"{self.name} is dead: {self.cause}")

    def start(
        self,
        coroutine: Coroutine[object, None, object],
        on_done: Callable[[asyncio.Task[object]], object] | None = None,
    ) -> None:
        task = self._context.copy().run(self.nature.loop.create_task, coroutine)
        if on_done is not None:
            task.add_done_callback(on_done)

    # Blocking work, which may wait (`Strand.wait`). The dead begin nothing.
    def begin(self, work: Callable[[], object], done: Done, is_left_behind: Callable[[], bool] = lambda: False) -> None:
        if self.alive:
            strand = Strand(self, work, done, is_left_behind)
            self.strands[strand] = None
            strand.begin()

    # After the ports are dead, and before any task notices.
    def on_death(self, callback: Callable[[], object]) -> None:
        self._on_death.append(callback)

    # Dies, or (`clean`) returns. False if it was dead already.
    def end(self, cause: str, error: BaseException | None = None, *, clean: bool = False) -> bool:
        if not self.alive:
            return False
        self.alive = self.running = False
        self.cause, self.error, self.clean = cause, error, clean
        self.nature.note(self.name, f"ends: {cause}")
        for callback in self._on_death:
            try:
                callback()
            except (Exception, Killed) as failure:
                self.nature.blame(self.name, "an on_death callback failed", failure)
        self.end_strands()
        for gate in list(self.gates.values()):
            gate.cancel()
        self._parked.clear()
        self._on_end(self)
        return True

    def end_strands(self) -> None:
        for strand in list(self.strands):
            strand.end()

    def is_cut(self) -> bool:
        return self.nature.loop.time() < self.cut_until_s

    def partition(self, ms: float) -> None:
        self.nature.note(self.name, f"partitioned for {ms:.0f} ms")
        self.cut_until_s = max(self.cut_until_s, self.nature.loop.time() + ms / 1000)

    def hang(self, ms: float, culprit: str | None = "") -> None:
        """Let its event loop stand still in a piece of work of this agent, or go from one piece to the next without end (None). Overlapping
        hangs end with the last."""
        if not self.alive:
            return
        self._hangs, self._culprit = self._hangs + 1, culprit
        self.nature.note(self.name, f"hangs for {ms:.0f} ms")
        self.running = False
        self._thaw_at_s = max(self._thaw_at_s, self.nature.loop.time() + ms / 1000)
        self.nature.loop.call_at(self._thaw_at_s, self._thaw, self._thaw_at_s)

    def stop(self, ms: float) -> None:
        self._mute_until_s = max(self._mute_until_s, self.nature.loop.time() + ms / 1000)
        self.hang(ms)

    def pulse(self) -> Pulse | None:
        if not self.gates or self.is_cut() or self.nature.loop.time() < self._mute_until_s:
            return None
        if self.running:
            return Pulse()
        step = self._hangs if self._culprit is not None else int(self.nature.now_ms())
        return Pulse(step, self._culprit or "", "run" if self._culprit else "what it does", "")

    def heal(self) -> None:
        self.cut_until_s = self._mute_until_s = 0.0
        if self.alive and not self.running:
            self._thaw_at_s = 0.0
            self._thaw(0.0)

    def _thaw(self, due_s: float) -> None:
        if not self.alive or self.running or due_s < self._thaw_at_s:
            return
        self.running = True
        self.nature.note(self.name, "goes on")
        parked, self._parked = self._parked, []
        for future in parked:
            if not future.done():
                future.set_result(None)

    def park(self) -> asyncio.Future[None]:
        future = self.nature.loop.create_future()
        self._parked.append(future)
        return future

    # The dead take no task in, and its gate will close it instead of starting it.
    def admit(self, gate: Gate) -> int:
        self._gate_count += 1
        if self.alive:
            self.gates[self._gate_count] = gate
        return self._gate_count


def is_of_authors(frame: FrameType) -> bool:
    top = str(frame.f_globals.get("__name__")).partition(".")[0]
    return top != "perdure" and top not in sys.stdlib_module_names


# At most one thread runs: the loop stands still while a strand runs, and a strand stands still while the loop does. So everything happens
# in one order, which is the same each time. A strand runs until it has ended, or until it waits: then the loop sees to what it waits for,
# and lets it go on later.
class Strand:
    """One piece of blocking work of a simulated process, which waits in virtual time.

    Args:
        work: is done on a thread, in the caller's context.
        done: is called on the loop with what came of it, unless the process died before.
        is_left_behind: whether whoever waited for it has given it up.
    """

    def __init__(
        self, process: SimProcess, work: Callable[[], object], done: Done, is_left_behind: Callable[[], bool]
    ) -> None:
        self.has_ended, self.is_left_behind = False, is_left_behind
        self._is_at_work = False
        self._thread: Thread | None = None
        self._process, self._work, self._done = process, work, done
        self._context = contextvars.copy_context()
        self._may_go, self._has_stopped = _closed(), _closed()
        self._outcome: Outcome = None, None
        self._waits_for: Callable[[Wake], None] | None = None
        self._answer: object = None
        self._killed: Killed | None = None
        self._refused = 0

    # On the loop: let it run until it waits, or ends.
    def begin(self) -> None:
        self._is_at_work = True
        self._thread = self._process.nature.threads.take()
        self._thread.give(self)
        self._until_it_stops()

    # On its thread.
    def perform(self, rest: Callable[[], None]) -> None:
        self._outcome = self._context.run(outcome_of, self._work)
        self.has_ended = True
        rest()
        self._has_stopped.release()

    # On its thread: wait for what the loop sees to. Raises `Killed` when the process dies meanwhile, or is dead.
    def wait(self, see_to: Callable[[Wake], None]) -> Any:
        if self._killed is None:
            self._waits_for = see_to
            self._has_stopped.release()
            self._may_go.acquire()
        if self._killed is not None:
            self.refuse()
        return self._answer

    # On its thread: the process is dead.
    def refuse(self) -> NoReturn:
        self._refused += 1
        if self._refused > THROWS_MAX:
            self._process.nature.blame(self._process.name, "sync code goes on after its death", None)
            self._has_stopped.release()
            self._may_go.acquire()  # for ever: a thread cannot be ended from outside
        raise Killed(self._process.cause)

    # The process is dead: the work is unwound from where it stands, and no caller is told what came of it.
    def end(self) -> None:
        if self.has_ended or self._killed is not None:
            return
        self._killed = Killed(self._process.cause)
        if not self._is_at_work:  # it may be what asks for the death, or what nobody waits for since a signal came
            self._may_go.release()
            self._has_stopped.acquire()

    def _go_on(self, answer: object) -> None:
        if not self.has_ended and self._killed is None:
            self._answer, self._is_at_work = answer, True
            self._may_go.release()
            self._until_it_stops()

    def _place(self) -> str:
        thread = self._thread
        frame = None if thread is None else sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the documented way
        for each, line in traceback.walk_stack(frame) if frame is not None else ():
            if is_of_authors(each):
                return f"{each.f_code.co_filename}:{line}, in {each.f_code.co_qualname},"
        return f"sync code of {self._process.name}"

    def _until_it_stops(self) -> None:
        try:
            for looks in count(1):
                if self._has_stopped.acquire(timeout=HEARD_S):
                    break
                if looks == LOOKS_TILL_TOLD:
                    sys.stderr.write(f"perdure: {self._place()} {AT_WORK_LONG}\n")
        except BaseException as enough:  # a person's, who waits no longer for code that does not end
            self._killed = Killed(f"given up: {type(enough).__name__}")
            raise
        self._is_at_work = False
        if self.has_ended:
            self._process.strands.pop(self, None)
            self._done(*self._outcome)
        elif self._waits_for is not None and self._refused <= THROWS_MAX:
            with suppress(Killed):  # a request may be the last thing that the process does
                self._waits_for(self._go_on)


def _closed() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock


def current_strand() -> Strand | None:
    thread = current_thread()
    return thread.strand if isinstance(thread, _StrandThread) else None


class _StrandThread(Thread):
    def __init__(self, threads: StrandThreads) -> None:
        super().__init__(daemon=True, name=f"{OURS}-simulated")
        self.strand: Strand | None = None
        self._threads, self._may_go = threads, _closed()

    # The next piece of work, or None for the end.
    def give(self, strand: Strand | None) -> None:
        self.strand = strand
        self._may_go.release()

    def run(self) -> None:
        while self._may_go.acquire() and self.strand is not None:
            self.strand.perform(self._rest)

    def _rest(self) -> None:
        self.strand = None
        if self._threads.are_over:  # nobody has waited for this one, since a signal came
            self._may_go.release()
        else:
            self._threads.resting.append(self)


class StrandThreads:
    """The threads of a simulation. One that has ended a strand takes the next."""

    def __init__(self) -> None:
        self.resting: list[_StrandThread] = []
        self.are_over = False

    def take(self) -> _StrandThread:
        if self.resting:
            return self.resting.pop()
        thread = _StrandThread(self)
        thread.start()
        return thread

    def close(self) -> None:
        self.are_over = True
        while self.resting:
            thread = self.resting.pop()
            thread.give(None)
            thread.join()


class Gate(Coroutine[object, object, object]):
    """Stands between a task and its coroutine, so that a process can hang and die at any await."""

    def __init__(self, coroutine: Coroutine[object, None, object], process: SimProcess) -> None:
        self._inner = coroutine
        self.process = process
        self._held: BaseException | type[BaseException] | None = None
        self._task: asyncio.Task[object] | None = None
        self._number = process.admit(self)
        self.__name__ = getattr(coroutine, "__name__", type(coroutine).__name__)
        self.__qualname__ = f"{process.name}: {getattr(coroutine, '__qualname__', self.__name__)}"

    # `cr_frame`, `cr_await` and the like, for those who want to know where a task stands.
    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    # A task that was begun eagerly may have ended already.
    def bind(self, task: asyncio.Task[object]) -> None:
        self._task = None if task.done() else task

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def send(self, _value: object) -> object:
        if not self.process.running:
            return self._refuse(None)
        if self._held is not None:
            held, self._held = self._held, None
            return self.throw(held)
        try:
            return self._inner.send(None)
        except BaseException as ended:  # one way or another
            self._leave()
            if self.process.alive:
                raise contained(ended)  # noqa: B904 - what stands for it has it as its cause
        raise asyncio.CancelledError  # what ended a dead coroutine does not matter, and is not kept as the cause of this

    # In practice a cancellation.
    def throw(self, error: BaseException | type[BaseException], *_rest: object) -> object:
        if not self.process.running:
            return self._refuse(error)
        try:
            return self._inner.throw(thrown(error))
        except BaseException as ended:  # as above
            self._leave()
            if self.process.alive:
                raise contained(ended)  # noqa: B904 - as above
        raise asyncio.CancelledError

    def close(self) -> None:
        self._inner.close()

    # Part of being a coroutine; tasks step it by `send`.
    def __await__(self) -> NoReturn:
        raise TypeError("a gate belongs to its task")

    def bury(self) -> None:
        self._leave()
        if not unwind(self._inner, Killed(self.process.cause)):
            self.process.nature.blame(self.process.name, f"{self.__qualname__} goes on after its death", None)

    def _refuse(self, error: BaseException | type[BaseException] | None) -> object:
        if not self.process.alive:
            self.bury()
            raise asyncio.CancelledError
        self._held = self._held if error is None else error
        return next(self.process.park().__await__())

    def _leave(self) -> None:
        self._task = None  # a finished task must not keep itself alive through its gate
        self.process.gates.pop(self._number, None)


# None for the world itself.
def current_process() -> SimProcess | None:
    return _current.get()


def begin_beside(work: Callable[[], object], done: Done) -> None:
    process = _current.get()
    if process is None:
        done(*outcome_of(work))
    else:
        process.begin(work, done)


def owner_of(task: object) -> str:
    gate = task.get_coro() if isinstance(task, asyncio.Task) else None
    return gate.process.name if isinstance(gate, Gate) else "world"


def on_death(callback: Callable[[], object]) -> None:
    """Call back when the process that runs this ends, for whatever reason. For factories and for what they make."""
    process = _current.get()
    assert process is not None, "on_death() is for code inside a simulated process"
    process.on_death(callback)


def gated_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[object, None, T] | Generator[asyncio.Future[object] | None, None, T],
    *,
    context: contextvars.Context | None = None,
    **options: Any,
) -> asyncio.Task[T]:
    process = _current.get() if context is None else context.get(_current)
    if process is None:
        return asyncio.Task(cast("Coroutine[object, None, T]", coroutine), loop=loop, context=context, **options)
    if not isinstance(coroutine, Coroutine):
        raise TypeError(f"a coroutine was expected, got {coroutine!r}")
    gate = Gate(coroutine, process)
    task = asyncio.Task(cast("Coroutine[object, None, T]", gate), loop=loop, context=context, **options)
    gate.bind(task)
    return note_task(task, context)


_current: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("simulated process", default=None)
