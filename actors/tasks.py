"""Tasks and the lives that own them. Only this module starts tasks.

A *life* is that of a supervisor, a host, a client, or an agent. Each has one `Tasks`, and every task belongs to one of them:

    start           the task is not awaited. An unexpected error is logged with its traceback and ends the life; so does, in a life of an
                    agent, a cancellation that was not that of the life
    start_awaited   the task is awaited, and its error is raised there

When a life ends, its tasks are cancelled and awaited. A task outside of any life (`awaited`) is awaited or cancelled by the code that
started it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from reprlib import repr as shortened
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

from perdure.policies import Rank

T = TypeVar("T")

Pending: TypeAlias = Coroutine[Any, Any, T]
"""What async code awaits, and a task is made of. A verb of an agent that is typed so blocks in sync code, and gives the `T`."""


class Unanswered(Coroutine[Any, Any, T]):
    """What a verb of an agent gives in async code: to be awaited, and no answer before. So `if self.has_…():` raises there; a coroutine is
    true, whatever the answer is."""

    __slots__ = ("_job",)

    def __init__(self, job: Pending[T]) -> None:
        self._job = job

    def __bool__(self) -> bool:
        name = getattr(self._job, "__qualname__", "the call")
        raise TypeError(f"{name} was called in async code, so it must be awaited: what it gives is no answer yet")

    def __await__(self) -> Generator[Any, Any, T]:
        return self._job.__await__()

    def send(self, value: Any) -> Any:
        return self._job.send(value)

    def throw(self, *error: Any) -> Any:
        return self._job.throw(*error)

    def close(self) -> None:
        self._job.close()


def awaited(job: Pending[T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(job)


class Killed(BaseException):
    """A simulated `SIGKILL`: derives from `BaseException` so that no author's `except Exception` survives its own death."""


class NotAnException(Exception):
    """Code raised something that is no `Exception`, such as a `KeyboardInterrupt`, or that cannot be passed on as one. It has failed like
    code that raises one, and is told of in the words of what it raised.

    Attributes:
        raised: what it raised.
    """

    def __init__(self, raised: BaseException) -> None:
        super().__init__(raised)
        self.raised = raised
        self.__cause__ = raised


def as_failure(raised: BaseException, *, was_awaited: bool = False) -> Exception | None:
    """What stands for something that code raised and that would end more than that code. None if it is to go on: a simulated kill, and,
    where the code was awaited, a cancellation that was requested, and the close of the coroutine that awaits it.

    A cancellation that was not requested of this task counts as raised: the code waited for another task that was cancelled. Python closes
    a coroutine from the inside, with a new `GeneratorExit` for each; only one that code raised by itself comes with that code's frames.
    """
    match raised:
        case StopIteration():  # where it is awaited it would mean something else
            return NotAnException(raised)
        case Exception():
            return raised
        case Killed():
            return None
        case BaseExceptionGroup() if any(isinstance(each, Killed) for each in raised.exceptions):
            return None
        case SystemExit():  # in a host it would end the event loop of all agents there
            left = f"the code called sys.exit({shortened(raised.code)}); an agent ends by returning or raising"
            return _instead(RuntimeError(left), raised)
        case asyncio.CancelledError() if was_awaited and (task := current_task()) is not None:
            stray = RuntimeError("a task that the code waited for was cancelled")
            return None if task.cancelling() else _instead(stray, raised)
        case GeneratorExit() if was_awaited and (trace := raised.__traceback__) is not None and trace.tb_next is None:
            return None
    return NotAnException(raised)


def _instead(problem: Exception, raised: BaseException) -> Exception:
    problem.__cause__ = raised
    return problem


def failure_or_itself(raised: BaseException, *, was_awaited: bool = False) -> BaseException:
    """What stands for something that code raised, to be raised in its place; itself if it is to go on."""
    failure = as_failure(raised, was_awaited=was_awaited)
    return raised if failure is None else failure


# Code has cancelled the task in which it ran, though the runtime had not. The task, if it is this one, goes on.
def self_cancelled() -> RuntimeError:
    task = current_task()
    while task is not None and task.cancelling():
        task.uncancel()
    return RuntimeError("the code cancelled the task that it ran in")


def contained(raised: BaseException) -> BaseException:
    # `KeyboardInterrupt` and `SystemExit` of one task would end the event loop of all.
    is_bound_up = isinstance(raised, KeyboardInterrupt | SystemExit) and RANK.get() is not None
    return failure_or_itself(raised) if is_bound_up else raised


def thrown(error: BaseException | type[BaseException]) -> BaseException | type[BaseException]:
    # By a `GeneratorExit` Python would close all coroutines of the task, and none could catch it.
    return NotAnException(error) if isinstance(error, GeneratorExit) else error


def current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # this thread has no loop
        return None


def close_unawaited(job: object) -> None:
    # A task that is cancelled before its first step never awaits what it was given.
    if iscoroutine(job) and getcoroutinestate(job) == CORO_CREATED:
        job.close()


async def to_the_end(future: asyncio.Future[T]) -> T:
    """Wait for something that takes effect also without that. A cancellation is raised at its end, unless it failed."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        future.result()
        raise


def report_error(what: str, problem: BaseException, task: asyncio.Task[object] | None) -> None:
    # A simulation counts what comes here as a finding.
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": problem, "task": task})


AGENT: Final = "agent "  # how the name of an agent's life begins

RANK: ContextVar[Rank | None] = ContextVar("perdure_rank", default=None)
"""Why the current code works for an agent; None where it works for the host itself, whose work waits for no turn."""


class NotesTasks(Protocol):
    """What wants to know the tasks that an author's code starts."""

    def note_task(self, task: asyncio.Task[Any]) -> None: ...


OF_ATTEMPT: ContextVar[NotesTasks | None] = ContextVar("perdure_of_attempt", default=None)
"""The attempt at a run whose code this is."""


# Tell the attempt whose code has started a task. One that is started in a context of its own is ours.
def note_task(task: asyncio.Task[T], context: Context | None) -> asyncio.Task[T]:
    attempt = OF_ATTEMPT.get()
    if attempt is not None and context is None:
        attempt.note_task(task)
    return task


OWNER: Final[ContextVar[str]] = ContextVar("perdure_owner", default="")
"""The agent whose code runs here: that of the life to which the task belongs, also in what the task starts by itself."""


# Empty if a task belongs to no agent's life, like one that the author's code started.
def agent_of(task: asyncio.Task[object] | None) -> str:
    name = task.get_name() if task is not None else ""
    return name.removeprefix(AGENT) if name.startswith(AGENT) else ""


class Tasks:
    """The tasks of one life.

    Args:
        life: names the life in the log.
        on_failure: ends the life; given the unexpected error of a task. By default `over` raises it.
    """

    def __init__(self, life: str, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._life = life
        self._agent = life.removeprefix(AGENT) if life.startswith(AGENT) else ""
        self._on_failure = on_failure or self.fail
        self._running: dict[asyncio.Task[object], None] = {}  # in the order of their starts
        self._end: asyncio.Future[str] | None = None
        self._is_stopping = False

    def start(self, job: Pending[T], context: Context | None = None) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(job, context=self._owned(context), name=self._life)
        self._running[task] = None
        task.add_done_callback(self._over)
        return task

    def start_awaited(self, job: Pending[T], context: Context | None = None) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(job, context=self._owned(context), name=self._life)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    def go_unheard(self) -> None:
        # From now on an unexpected error of a task is logged, and ends nothing any more.
        self._on_failure = lambda _: None

    def _owned(self, context: Context | None) -> Context | None:
        if self._agent:
            context = context or copy_context()
            context.run(OWNER.set, self._agent)
        return context

    def _over(self, task: asyncio.Task[object]) -> None:
        self._running.pop(task, None)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            doing = getattr(task.get_coro(), "__qualname__", "a task")
            report_error(f"{self._life} ends: {doing} failed", problem, task)
            self._on_failure(problem)
        elif task.cancelled() and self._agent and not self._is_stopping:
            self._on_failure(self_cancelled())

    @contextmanager
    def joined(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None, "only tasks can join a life"
        self._running[task] = None
        try:
            yield
        finally:
            del self._running[task]

    def others(self) -> list[asyncio.Task[object]]:
        mine = asyncio.current_task()
        return [task for task in self._running if task is not mine and not task.done()]

    @property
    def has_others(self) -> bool:
        return len(self._running) > 1 and bool(self.others())

    def __bool__(self) -> bool:
        return bool(self._running)

    # the end of the life

    async def over(self) -> str:
        """Wait for the end of the life, and return why it ended. Raises an `ExceptionGroup` with the error that ended it."""
        return await self._ending()

    @property
    def has_ended(self) -> bool:
        return self._end is not None and self._end.done()

    def finish(self, why: str) -> None:
        if not self._ending().done():
            self._ending().set_result(why)

    def fail(self, problem: BaseException) -> None:
        if not self._ending().done():
            self._ending().set_exception(BaseExceptionGroup(f"{self._life} failed", [problem]))
            self._ending().exception()  # a life that is cancelled before it comes to `over` has no use for it

    def _ending(self) -> asyncio.Future[str]:
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
        return self._end

    def cancel(self) -> list[asyncio.Task[object]]:
        self._is_stopping = True
        tasks = self.others()
        for task in tasks:
            task.cancel()
        return tasks

    async def stop(self) -> None:
        tasks = self.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is not GeneratorExit:  # then nothing can be awaited any more
            await self.stop()
