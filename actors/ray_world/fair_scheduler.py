"""The scheduler of a host's event loop: agents have their turns in slices, so that the host's own work never waits for a batch of them.

A loop runs all tasks that are ready before it looks for anything new. With a thousand agents that each compute, or write by `self.sql`, for
ten milliseconds, that took ten seconds, in which the host neither heard nor said anything. Now a task that works for an agent (`RANK`) goes
through a gate at each of its turns. When the slice is used up, the gate lets it wait in line. Between two slices the loop
comes round: messages of the supervisor, timers and answers of threads are dealt with, and they may bring somebody who goes first. The
host's own tasks have no gate. What a task of an agent ends with never ends the loop (`tasks.contained`).

What a slice cannot do is interrupt a turn: from one `await` to the next an agent has the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Generator
from time import monotonic
from typing import Any, Final, NoReturn, TypeVar, cast

from perdure.actors.tasks import RANK, Pending, contained, note_task, thrown
from perdure.policies import Rank, RankedQueue

T = TypeVar("T")

SLICE_S: Final = 0.01


class FairScheduler:
    """The gates of the event loop that runs when this is made. It makes all tasks of that loop from now on."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._loop, self._slice_s = asyncio.get_running_loop(), slice_s
        self._line: RankedQueue[_Waiting] = RankedQueue()
        self._let_in: list[_Waiting] = []  # in this slice, if there is time for all of them
        self._until_s = 0.0
        self._is_open = False  # whether a slice has begun
        self._turns = 0
        self._context = contextvars.Context()
        self._loop.set_task_factory(self._task)

    @property
    def waited_ms(self) -> int:
        first = self._line.first(Rank.OPENING)
        return 0 if first is None else int((monotonic() - first.since_s) * 1000)

    def _task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Pending[T] | Generator[asyncio.Future[object] | None, None, T],
        *,
        context: contextvars.Context | None = None,
        **options: Any,  # of the task: which there are, and which a loop hands on, differs between versions of Python
    ) -> asyncio.Task[T]:
        rank = RANK.get() if context is None else context.get(RANK)
        if rank is None or not isinstance(coroutine, Coroutine):
            return asyncio.Task(cast("Coroutine[Any, Any, T]", coroutine), loop=loop, context=context, **options)
        return note_task(asyncio.Task(_Gate(coroutine, self), loop=loop, context=context, **options), context)

    def takes_turn(self) -> bool:
        if not self._is_open:
            self._open()
        elif monotonic() >= self._until_s:
            return False
        self._turns += 1
        return True

    def _open(self) -> None:
        self._is_open, self._turns = True, 0
        self._until_s = monotonic() + self._slice_s
        self._loop.call_soon(self._next, context=self._context)

    @property
    def is_free(self) -> bool:
        return not self._line

    def line_up(self) -> _Waiting:
        waiting = _Waiting(self._loop, RANK.get() or Rank.WORK)
        self._line.add(waiting, waiting.rank)
        if not self._is_open:
            self._open()
        return waiting

    # The loop has come round. About as many are let in as the last slice had time for, first those for whom it
    # had none.
    def _next(self) -> None:
        self._is_open = False
        for waiting in reversed(self._let_in):
            if not waiting.is_over:
                self._line.put_back(waiting, waiting.rank)
        self._let_in = [self._line.take() for _ in range(min(2 * self._turns + 1, len(self._line)))]
        for waiting in self._let_in:
            waiting.let_in()


# It may be let in several times, until its task comes in time.
class _Waiting:
    def __init__(self, loop: asyncio.AbstractEventLoop, rank: Rank) -> None:
        self.rank, self.since_s, self.is_over = rank, monotonic(), False
        self._loop = loop
        self._turn = loop.create_future()

    def let_in(self) -> None:
        if not self._turn.done():
            self._turn.set_result(None)

    # This is what its task yields.
    def wait(self) -> object:
        if self._turn.done():
            self._turn = self._loop.create_future()
        return next(self._turn.__await__())


class _Gate(Coroutine[Any, Any, Any]):
    def __init__(self, coroutine: Pending[object], scheduler: FairScheduler) -> None:
        self._inner, self._scheduler = coroutine, scheduler
        self._waiting: _Waiting | None = None
        self.__name__ = getattr(coroutine, "__name__", type(coroutine).__name__)
        self.__qualname__ = getattr(coroutine, "__qualname__", self.__name__)

    # `cr_frame`, `cr_await` and the like, for those who want to know where a task stands.
    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def send(self, _value: object) -> object:
        scheduler = self._scheduler
        if (self._waiting or scheduler.is_free or RANK.get() is Rank.CALL) and scheduler.takes_turn():
            self._goes()
            try:
                return self._inner.send(None)
            except (KeyboardInterrupt, SystemExit) as ended:
                raise contained(ended) from ended
        if self._waiting is None:
            self._waiting = scheduler.line_up()
        return self._waiting.wait()

    # At once: a task that is cancelled has no turn to wait for.
    def throw(self, error: BaseException | type[BaseException], *_rest: object) -> object:
        self._goes()
        try:
            return self._inner.throw(thrown(error))
        except (KeyboardInterrupt, SystemExit) as ended:
            raise contained(ended) from ended

    def _goes(self) -> None:
        if self._waiting is not None:
            self._waiting.is_over, self._waiting = True, None

    def close(self) -> None:
        self._inner.close()

    # Part of being a coroutine; tasks step it by `send`.
    def __await__(self) -> NoReturn:
        raise TypeError("a gate belongs to its task")
