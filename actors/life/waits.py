"""Waiting inside a run, without a process if it lasts.

A short wait stays in memory. When all that a run does waits for longer, the attempt ends: `Suspended` is raised where it waits, the host
reports `Waiting`, and the child leaves. The ledger enters the run again when a wait is over, and the steps that it remembers bring it to
the same place. A death before the report costs the attempt: a wait that is begun again keeps its deadline. After it a death costs nothing,
because nothing is at work.

A wait is remembered as a step is, by its order among the calls of its kind. For a moment that is its deadline; for an event, what came, in
the transaction that takes the event out of the mailbox.

*All that a run does waits* if each of its tasks is in one of these waits, or awaits another of its tasks: by a task group, `gather` or
`wait`, or by a queue, event or lock of asyncio. Whatever else a task does keeps the run in memory, and so does `asyncio.timeout` around a
wait, whose time would begin anew. So do other event loops and threads of the author. A class with `attempts_max = 1` is never entered
twice, so its runs wait in memory.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, MethodType
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from perdure.actors.life.life import Life
from perdure.actors.tasks import Pending, current_task
from perdure.actors.threads import has_loop
from perdure.ledger import Took, Waiting

LOOK_AGAIN_S: Final = 0.05
"""After so long it is looked whether the rest of the run waits as well; then after twice as long each time."""
LOOK_AGAIN_MOST_S: Final = 30.0


class Suspended(BaseException):
    """The attempt has ended because all that the run does waits; it is entered again when a wait is over.

    It is no `Exception`, so only `finally`, `with` and a bare `except` see it. There, what is durable (steps, waits, progress) raises it
    again.
    """


class WaitEnd(NamedTuple):
    """When a wait ends: by the clock of this machine, as a point of the calendar (`by_wall`) or as the end of a while. Infinite if only an
    event ends it."""

    at_ms: float
    by_wall: bool = False


NEVER: Final = WaitEnd(math.inf)
PASSED: Final = WaitEnd(0.0)


class SentEvent(NamedTuple):
    """An event for a run, as it reached the host. `body` is encoded plain data."""

    mail_id: str
    name: str
    sender: str
    body: bytes
    seq: int


@dataclass(eq=False)
class _Waiter:
    until: WaitEnd
    left_ms: float
    event: str
    since_s: float
    signal: asyncio.Future[None]
    task: asyncio.Task[object] | None
    thread: int
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class AttemptWaits:
    """What one attempt at a run waits for.

    Attributes:
        over_ms: a moment of an earlier attempt that the ledger says has passed, whatever this machine's clock says.
        main: the task in which its code runs.
        thread: that of its sync code, or 0.
        taken_after: says after which step an event was taken, by its id.
        count_handled: is told how many mails more are in the inbox.
        tasks: those that its code has started.
        suspended: what is reported, once the attempt is to end.
    """

    life: Life
    run_id: str
    incarnation: int
    attempt: int
    over_ms: float
    taken_after: Callable[[str], str]
    count_handled: Callable[[int], None]
    main: asyncio.Task[Any] | None
    thread: int
    suspended: Waiting | None = None
    tasks: WeakSet[asyncio.Task[Any]] = field(default_factory=WeakSet)
    _waiters: dict[_Waiter, None] = field(default_factory=dict)
    _events: dict[str, deque[SentEvent]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _is_paused: bool = False
    _is_over: bool = False
    _again: asyncio.TimerHandle | None = None
    _again_s: float = LOOK_AGAIN_S

    # the attempt

    def end(self) -> None:
        self._is_over, self.main = True, None
        self.life.services.rests(self.run_id, rests=False)
        if self._again is not None:
            self._again.cancel()

    def check(self) -> None:
        """Raise `Suspended` if the attempt has ended, or is to end here because the run was paused and nothing else of it is at work."""
        if self.suspended is None and self._is_paused and (self.life.services.is_on_loop or not has_loop()):
            self.life.looked(self._pause_here)
        if self.suspended is not None:
            raise Suspended

    def _pause_here(self) -> None:
        if self._may_suspend and self._all_wait(current_task()):
            self._suspend()

    def pause(self) -> None:
        self._is_paused = True
        self._consider()

    # waiting

    def is_over(self, until: WaitEnd) -> bool:
        return until.at_ms <= self.life.now_ms()

    async def until(self, until: WaitEnd, most_ms: float, thread: int) -> None:
        """Wait until a moment, which is at most `most_ms` away. `thread` is that of the author's code."""
        while not self.is_over(until):
            if not await self._wait(until, most_ms, "", thread):
                return

    async def event(self, name: str, until: WaitEnd, most_ms: float, thread: int) -> SentEvent | None:
        """The next event of this name; None if none has come by then."""
        while not (line := self._events.get(name)):
            if self.is_over(until):
                return None
            if not await self._wait(until, most_ms, name, thread) and not self._events.get(name):
                return None
        return line.popleft()

    def put_back(self, event: SentEvent) -> None:
        self._events[event.name].appendleft(event)

    async def _wait(self, until: WaitEnd, most_ms: float, event: str, thread: int) -> bool:
        """Wait for a moment or an event. Returns whether an event came, or the clock was set, so that it has to be looked again."""
        self.check()
        loop = asyncio.get_running_loop()
        left_ms = max(0.0, min(until.at_ms - self.life.now_ms(), most_ms))
        waiter = _Waiter(until, left_ms, event, loop.time(), loop.create_future(), current_task(), thread)
        if not math.isinf(left_ms):
            waiter.timer = loop.call_later(left_ms / 1000, _settle, waiter.signal)
        self._waiters[waiter] = None
        self._again_s = LOOK_AGAIN_S
        loop.call_soon(self._consider)
        try:
            await waiter.signal
            is_due = waiter.timer is not None and loop.time() >= waiter.since_s + left_ms / 1000
            return not is_due
        finally:
            del self._waiters[waiter]
            self.life.services.rests(self.run_id, rests=False)
            if waiter.timer is not None:
                waiter.timer.cancel()

    def clock_was_set(self) -> None:
        for waiter in self._waiters:
            if waiter.until.by_wall:
                _settle(waiter.signal)

    # events

    def deliver(self, events: list[SentEvent]) -> None:
        """Take events in. One that comes again, or that an earlier life has taken, is no other."""
        life = self.life
        fresh = [event for event in events if event.mail_id not in self._seen]
        self._seen.update(event.mail_id for event in fresh)
        known = life.storage.known_inbox([event.mail_id for event in fresh]) if fresh and life.has_storage else set()
        for event in fresh:
            if event.mail_id in known:  # an earlier life took it, and could not say so
                self.say_taken(event.mail_id, self.taken_after(event.mail_id))
        for event in fresh:
            if event.mail_id not in known:
                self._line_up(event)
        for waiter in self._waiters:
            if self._events.get(waiter.event):
                _settle(waiter.signal)

    def _line_up(self, event: SentEvent) -> None:
        line = self._events.setdefault(event.name, deque())
        is_late = bool(line) and line[-1].seq > event.seq  # it was handed over again
        line.append(event)
        if is_late:
            self._events[event.name] = deque(sorted(line, key=lambda each: each.seq))

    def say_taken(self, mail_id: str, after: str) -> None:
        """An event was taken out of the mailbox, durably, after this step."""
        self.life.push(Took(self.run_id, self.incarnation, mail_id, after))
        self.count_handled(1)

    @property
    def goes_on(self) -> bool:
        """Whether the attempt is neither over, nor about to be."""
        return not (self._is_over or self.suspended or self.life.is_leaving)

    # without a process

    @property
    def _may_suspend(self) -> bool:
        return self.goes_on and self.life.may_enter_again

    def _consider(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._is_over or not self._waiters:
            return
        all_wait = self._all_wait(None)
        self.life.services.rests(self.run_id, rests=all_wait)
        if not self._may_suspend:
            return
        pause_s = 0.0 if self._is_paused else self._short_s()
        if pause_s <= 0:
            if all_wait:
                self._suspend()
                return
            pause_s = self._again_s
            self._again_s = min(2 * self._again_s, LOOK_AGAIN_MOST_S)
        self._again = asyncio.get_running_loop().call_later(pause_s, self._consider)

    def _short_s(self) -> float:
        """For how long the run stays in memory in any case: the rest of a short wait, or a while for an event that may come at once."""
        loop, bound_s = asyncio.get_running_loop(), self.life.limits.wait_in_memory_ms / 1000
        left_s = min(waiter.since_s + waiter.left_ms / 1000 for waiter in self._waiters) - loop.time()
        if left_s <= bound_s:
            return max(left_s, LOOK_AGAIN_S)
        return max((waiter.since_s + bound_s - loop.time() for waiter in self._waiters if waiter.event), default=0.0)

    def _suspend(self) -> None:
        waiters = list(self._waiters)
        first = min(waiters, key=lambda waiter: waiter.since_s + waiter.left_ms / 1000, default=None)
        until, left_ms = NEVER, math.inf
        if first is not None and not math.isinf(first.left_ms):
            until = first.until
            left_ms = max(0.0, first.left_ms - (asyncio.get_running_loop().time() - first.since_s) * 1000)
        events = sorted({waiter.event for waiter in waiters if waiter.event})
        self.suspended = Waiting(
            self.run_id, self.incarnation, self.attempt, events, until.at_ms, left_ms, until.by_wall
        )
        for waiter in waiters:
            if waiter.task is not None:
                waiter.task.add_done_callback(_heard)
            if not waiter.signal.done():
                waiter.signal.set_exception(Suspended())

    def _all_wait(self, apart_from: asyncio.Task[Any] | None) -> bool:
        if self.main is None:
            return False  # its code has yet to begin
        ours = {task for task in self.tasks if not task.done()} | {self.main}
        in_wait = {waiter.task for waiter in self._waiters} | {apart_from}
        if self.thread and any(waiter.thread == self.thread for waiter in self._waiters):
            in_wait.add(self.main)
        return all((task in in_wait or _awaits_one_of(task, ours)) and not _times_out(task) for task in ours)


def _settle(signal: asyncio.Future[None]) -> None:
    if not signal.done():
        signal.set_result(None)


def _heard(task: asyncio.Task[Any]) -> None:
    with suppress(asyncio.CancelledError):
        task.exception()


_WAITING_CODE: Final[frozenset[CodeType]] = frozenset(
    function.__code__
    for function in (
        asyncio.TaskGroup.__aexit__,
        asyncio.Queue.get,
        asyncio.Queue.put,
        asyncio.Queue.join,
        asyncio.Event.wait,
        asyncio.Condition.wait,
        asyncio.Lock.acquire,
        asyncio.Semaphore.acquire,
    )
)


def _awaits_one_of(task: asyncio.Task[Any], ours: set[asyncio.Task[Any]]) -> bool:
    """Whether a task only waits for others of these."""
    waited = getattr(task, "_fut_waiter", None)
    if waited is None or waited.done():
        return False
    if isinstance(waited, asyncio.Task):
        return waited in ours
    parts = getattr(waited, "_children", None)  # of `gather`
    if parts is not None:
        return all(part in ours or part.done() for part in parts)
    if (
        getattr(task.get_coro(), "_waiting", None) is not None
    ):  # it could go on, and waits for its turn (`ray_world.fair_scheduler`)
        return False
    inner = _calls(task)[-1]
    code, frame = getattr(inner, "cr_code", None), getattr(inner, "cr_frame", None)
    if code is _WAIT.__code__:
        return frame is not None and frame.f_locals.get("timeout") is None
    return code in _WAITING_CODE


_WAIT: Final[Callable[..., Pending[object]]] = vars(asyncio.tasks)["_wait"]


def _calls(task: asyncio.Task[Any]) -> list[Any]:
    """The coroutines of a task that await each other, the innermost last."""
    calls: list[Any] = [task.get_coro()]
    while isinstance(below := getattr(calls[-1], "cr_await", None), Coroutine):
        calls.append(below)
    return calls


def _times_out(task: asyncio.Task[Any]) -> bool:
    """Whether a task is in an `asyncio.timeout`, or in a scope with a deadline of another library.

    A coroutine holds what its `with` blocks are to call at their ends, so this does not depend on the kind of loop.
    """
    for call in _calls(task):
        held = gc.get_referents(getattr(call, "_inner", call))  # of a gate, what is behind it
        for scope in (getattr(each, "__self__", None) for each in held if isinstance(each, MethodType)):
            until = scope.when() if isinstance(scope, asyncio.Timeout) else getattr(scope, "deadline", None)
            if isinstance(until, int | float) and not math.isinf(until):
                return True
    return False
