"""Waiting inside a run or a fiber, without a process if it lasts.

A short wait stays in memory. When all that a run does waits for longer, the attempt ends: `Suspended` is raised where it waits, the host
reports `Waiting`, and the child leaves. The ledger enters the run again when a wait is over, and the steps that it remembers bring it to
the same place. A death before the report costs the attempt: a wait that is begun again keeps its deadline. After it a death costs nothing,
because nothing is at work. Of a fiber it is the row that says that it waits (`actors.jobs.fibers`), and its agent that enters it again.

A wait is remembered as a step is, by its order among the calls of its kind. For a moment that is its deadline; for an event, what came, in
the transaction that takes the event out of the mailbox.

*All that a run does waits* if each of its tasks is in one of these waits, or awaits another of its tasks: by a task group, `gather` or
`wait`, or by a queue, event or lock of asyncio. Whatever else a task does keeps the run in memory, and so does `asyncio.timeout` around a
wait, whose time would begin anew. So do other event loops and threads of the author. A class with `attempts_max = 1` is never entered
twice, so its runs wait in memory.

    Waits              what one attempt waits for, and when it may end
      AttemptWaits     of a run: events come by mail
      FiberWaits       of a fiber: events lie in the storage of its agent (`actors.jobs.fiber_context`)
    RemembersWaits     the verbs of the author: each wait is remembered as a step is
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, wraps
from threading import get_ident
from types import CodeType, MethodType
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakSet

from perdure.actors.code.author_call import is_async
from perdure.actors.life.life import Life, cached_once
from perdure.actors.life.steps import RemembersSteps
from perdure.actors.tasks import OF_ATTEMPT, Pending, current_task
from perdure.actors.threads import has_loop
from perdure.ledger import (
    AwaitedInsideHandler,
    BadRequest,
    Took,
    Waiting,
    WaitTimedOut,
    check_id,
    checked,
    pack,
    unpack,
    unpack_value,
)
from perdure.policies import duration_ms, moment_ms

LOOK_AGAIN_S: Final = 0.05
"""After so long it is looked whether the rest of the run waits as well; then after twice as long each time."""
LOOK_AGAIN_MOST_S: Final = 30.0
SLEEP: Final = "\x00sleep"  # names of waits among the steps
EVENT_TAKEN: Final = "\x00event\x00"
UNTIL: Final = "\x00until"
W_co = TypeVar("W_co", bound="Waits", covariant=True)


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


# What an attempt waits for at its end: one of the events of these names, or a moment, which is `left_ms` away.
class WaitEnding(NamedTuple):
    events: list[str]
    until: WaitEnd
    left_ms: float


# An event for a run or a fiber, as it reached the host. `body` is encoded plain data.
class SentEvent(NamedTuple):
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


class Waits:
    """What one attempt waits for.

    Attributes:
        over_ms: a moment of an earlier attempt that has passed, whatever this machine's clock says.
        main: the task in which its code runs.
        thread: that of its sync code, or 0.
        tasks: those that its code has started.
        suspended: what it waits for, once the attempt is to end.
    """

    def __init__(self, life: Life, over_ms: float, main: asyncio.Task[object] | None, thread: int) -> None:
        self.life, self.over_ms, self.main, self.thread = life, over_ms, main, thread
        self.suspended: WaitEnding | None = None
        self.tasks: WeakSet[asyncio.Task[object]] = WeakSet()
        self._waiters: dict[_Waiter, None] = {}
        self._events: dict[str, deque[SentEvent]] = {}
        self._seen: set[str] = set()
        self._is_paused = self._is_over = False
        self._again: asyncio.TimerHandle | None = None
        self._again_s = LOOK_AGAIN_S

    # the attempt

    def end(self) -> None:
        self._is_over, self.main = True, None
        self._note_rest(rests=False)
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
        while not self.is_over(until):
            if not await self._wait(until, most_ms, "", thread):
                return

    async def event(self, name: str, until: WaitEnd, most_ms: float, thread: int) -> SentEvent | None:
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
            self._note_rest(rests=False)
            if waiter.timer is not None:
                waiter.timer.cancel()

    def clock_was_set(self) -> None:
        for waiter in self._waiters:
            if waiter.until.by_wall:
                _settle(waiter.signal)

    # events

    def line_up(self, events: list[SentEvent]) -> None:
        for event in events:
            line = self._events.setdefault(event.name, deque())
            is_late = bool(line) and line[-1].seq > event.seq  # it was handed over again
            line.append(event)
            if is_late:
                self._events[event.name] = deque(sorted(line, key=lambda each: each.seq))
        for waiter in self._waiters:
            if self._events.get(waiter.event):
                _settle(waiter.signal)

    def _fresh(self, events: list[SentEvent]) -> list[SentEvent]:
        # one that is handed over again is no other
        fresh = [event for event in events if event.mail_id not in self._seen]
        self._seen.update(event.mail_id for event in fresh)
        return fresh

    @property
    def goes_on(self) -> bool:
        return not (self._is_over or self.suspended or self.life.is_leaving)

    # without a process

    @property
    def _may_suspend(self) -> bool:
        return self.goes_on

    def _note_rest(self, *, rests: bool) -> None:
        """Whether all that the attempt does waits, in memory."""

    def _consider(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._is_over or not self._waiters:
            return
        all_wait = self._all_wait(None)
        self._note_rest(rests=all_wait)
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
        # For how long the run stays in memory in any case: the rest of a short wait, or a while for an event that may come at once.
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
        self.suspended = WaitEnding(sorted({waiter.event for waiter in waiters if waiter.event}), until, left_ms)
        for waiter in waiters:
            if waiter.task is not None:
                waiter.task.add_done_callback(_heard)
            if not waiter.signal.done():
                waiter.signal.set_exception(Suspended())

    def _all_wait(self, apart_from: asyncio.Task[object] | None) -> bool:
        if self.main is None:
            return False  # its code has yet to begin
        ours = {task for task in self.tasks if not task.done()} | {self.main}
        waiting = [
            waiter for waiter in self._waiters if not waiter.signal.done()
        ]  # what the others waited for has come
        in_wait = {waiter.task for waiter in waiting} | {apart_from}
        if self.thread and any(waiter.thread == self.thread for waiter in waiting):
            in_wait.add(self.main)
        return all((task in in_wait or _awaits_one_of(task, ours)) and not _times_out(task) for task in ours)


class AttemptWaits(Waits):
    """What one attempt at a run waits for.

    Attributes:
        taken_after: says after which step an event was taken, by its id.
        count_handled: is told how many mails more are in the inbox.
    """

    def __init__(
        self,
        life: Life,
        run_id: str,
        attempt: int,
        over_ms: float,
        taken_after: Callable[[str], str],
        count_handled: Callable[[int], None],
        main: asyncio.Task[object] | None,
        thread: int,
    ) -> None:
        super().__init__(life, over_ms, main, thread)
        self.run_id, self.attempt = run_id, attempt
        self.taken_after, self.count_handled = taken_after, count_handled

    @property
    def report(self) -> Waiting | None:
        if self.suspended is None:
            return None
        events, until, left_ms = self.suspended
        told = self.run_id, self.life.incarnation, self.attempt
        return Waiting(*told, events, until.at_ms, left_ms, until.by_wall)

    def deliver(self, events: list[SentEvent]) -> None:
        # One that comes again, or that an earlier life has taken, is no other.
        life, fresh = self.life, self._fresh(events)
        known = life.storage.known_inbox([event.mail_id for event in fresh]) if fresh and life.has_storage else set()
        for event in fresh:
            if event.mail_id in known:  # an earlier life took it, and could not say so
                self.say_taken(event.mail_id, self.taken_after(event.mail_id))
        self.line_up([event for event in fresh if event.mail_id not in known])

    def say_taken(self, mail_id: str, after: str) -> None:
        # An event was taken out of the mailbox, durably, after this step.
        self.life.push(Took(self.run_id, self.life.incarnation, mail_id, after))
        self.count_handled(1)

    @property
    def _may_suspend(self) -> bool:
        return self.goes_on and self.life.may_enter_again

    def _note_rest(self, *, rests: bool) -> None:
        self.life.services.rests(self.run_id, rests=rests)


def this_thread() -> int:
    # That of sync code. On a loop of the author's own, other code may go on beside the wait, unseen.
    return 0 if has_loop() else get_ident()


class Hearing(NamedTuple):
    """Events of ours that come to an attempt, each once, under a name of its own.

    Attributes:
        owner: the id of what the attempt is at.
        hear: the value of the event. Whoever is cancelled meanwhile waits for it no more.
        goes_on: whether the attempt has not ended in a wait.
    """

    owner: str
    has_heard: Callable[[str], bool]
    hear: Callable[[str], Awaitable[Any]]
    goes_on: Callable[[], bool]


class RemembersWaits(RemembersSteps, Generic[W_co]):
    """One attempt whose code may wait. A subclass says where events lie, and what is worth to be remembered."""

    attempt: int

    def __init__(self) -> None:
        super().__init__()
        self._main: asyncio.Task[object] | None = None
        self._thread = 0
        self._slept_ms = 0.0

    # for the engine

    @cached_once
    def waits(self) -> W_co:
        """What it waits for. Code that never waits never looks at it."""
        return self._new_waits()

    @property
    def has_waits(self) -> bool:
        return "waits" in vars(self)

    def begin(self) -> None:
        """Its code begins, in this task. The tasks that this starts are told to `note_task`."""
        self._main = current_task()
        if self.has_waits:
            self.waits.main = self._main
        OF_ATTEMPT.set(self)

    def entered(self) -> None:
        """Sync code of it begins, on this thread."""
        self._thread = get_ident()
        if self.has_waits:
            self.waits.thread = self._thread

    def note_task(self, task: asyncio.Task[object]) -> None:
        self.waits.tasks.add(task)

    def waits_are_over(self) -> None:
        """Its code has ended, and waits for nothing any more."""
        self._main = None  # it holds the context in which this is found
        if self.has_waits:
            self.waits.end()

    # for the author

    def sleep(self, delay: float | timedelta) -> Pending[None]:
        """Wait for so many seconds, or a `timedelta`. Await it in async code.

        If it lasts longer than `Limits.wait_in_memory_ms` and all that the run or the fiber does waits, it gives up its place: a host is
        free, and `run`, or the body of the fiber, is entered again when the time has come. That costs no attempt. A death does not begin
        the wait anew. A clock that is set changes no sleep of a run, and none in memory; a fiber that is in no process follows it, as
        schedules do.
        """
        most_ms = self._life.limits.wait_ahead_ms_max
        while_ms = checked(lambda: duration_ms("delay", delay, most_ms))
        return self._sleep_until(WaitEnd(self._life.now_ms() + while_ms), while_ms)

    def sleep_until(self, when: datetime) -> Pending[None]:
        """Wait until an instant of the calendar, by a datetime with a time zone; otherwise like `sleep`. One that has passed is no wait."""
        if not isinstance(when, datetime):
            raise BadRequest("when", f"{when!r:.200} is no datetime; `sleep` takes seconds")
        at_ms = math.ceil(checked(lambda: moment_ms("when", when)))
        left_ms, most_ms = at_ms - self._life.now_ms(), self._life.limits.wait_ahead_ms_max
        if left_ms > most_ms:
            raise BadRequest("when", f"{when} is more than {most_ms // 31_536_000_000} years ahead")
        return self._sleep_until(WaitEnd(at_ms, by_wall=True), math.inf)

    def _sleep_until(self, until: WaitEnd, most_ms: float) -> Pending[None]:
        self._may_wait("sleep")
        return self._life.bridge(self._sleep(self._occurrence(SLEEP), until, most_ms, this_thread()))

    def wait_for(self, event: str, *, timeout: float | timedelta | None = None) -> Pending[Any]:
        """Wait for an event that somebody sends to this run (`Runtime.send`) or fiber (`fibers.send` of its agent), and give its
        value. Await it in async code.

        Events of one name are taken in the order in which they were sent, each once; one that came before the wait is there. Without
        a process it waits like `sleep`.

        Args:
            timeout: seconds or a `timedelta`, counted from the first time that the wait is reached, also over deaths. After it
                `WaitTimedOut` is raised, a `TimeoutError`.
        """
        name = check_id("event", event, self._life.limits.id_max)
        until, most_ms = self._bound(timeout)
        self._may_wait("wait_for")
        return self._life.bridge(self._value_of(*self._asked(name, until, most_ms)))

    def hearing(self) -> Hearing:
        """Waits for events of ours, for the code on this thread."""
        self._may_wait("ask")
        thread = this_thread()
        return Hearing(
            self._owner,
            lambda name: self._remembered(EVENT_TAKEN + name) is not None,
            lambda name: self._value_of(EVENT_TAKEN + name, name, NEVER, math.inf, thread),
            lambda: self.waits.goes_on,
        )

    # what is remembered of a wait

    def _asked(self, name: str, until: WaitEnd, most_ms: float) -> tuple[str, str, WaitEnd, float, int]:
        return self._occurrence(EVENT_TAKEN + name), name, until, most_ms, this_thread()

    async def _value_of(self, key: str, name: str, until: WaitEnd, most_ms: float, thread: int) -> object:
        value, _ = await self._event(key, name, until, most_ms, thread)
        return value

    def _bound(self, timeout: float | timedelta | None) -> tuple[WaitEnd, float]:
        if timeout is None:
            return NEVER, math.inf
        most_ms = checked(lambda: duration_ms("timeout", timeout, self._life.limits.wait_ahead_ms_max))
        return WaitEnd(self._life.now_ms() + most_ms), most_ms

    def _may_wait(self, verb: str) -> None:
        self._boundary()
        if self._life.transaction is not None:
            raise AwaitedInsideHandler(
                verb, "a transaction cannot wait: it would hold its changes back; wait before it or after it"
            )

    def _boundary(self) -> None:
        if self.has_waits:
            self.waits.check()

    async def _sleep(self, key: str, until: WaitEnd, most_ms: float, thread: int) -> None:
        self._slept_ms += most_ms
        if self._keeps_sleep() or self._slept_ms > self._life.limits.wait_in_memory_ms:
            until = await self._kept_moment(key, until)
        # else it is not worth a storage: a death costs it anew, as it does the rest of an attempt that has remembered nothing
        await self.waits.until(until, most_ms, thread)

    async def _event(self, key: str, name: str, until: WaitEnd, most_ms: float, thread: int) -> tuple[object, str]:
        """The value of the next event of this name, and who sent it."""
        known = self._remembered(key)
        if known is None:
            if until is not NEVER:
                until = await self._kept_moment(key + UNTIL, until)
            event = await self.waits.event(name, until, most_ms, thread)
            told = [False, b"", "", "", ""]
            if event is not None:
                told = [True, event.body, event.sender, event.mail_id, self.last_step]
            known = pack(told)
            try:
                await self._life.written(partial(self._take, key, known, event))
            except BaseException:
                if event is not None and self._remembered(key) is None:
                    self.waits.put_back(event)
                raise
            await self._life.services.until_durable()
        has_come, body, sender, _, _ = unpack(known)
        if not has_come:
            raise self._late(name)
        return unpack_value(body), sender

    async def _kept_moment(self, key: str, until: WaitEnd) -> WaitEnd:
        known = self._remembered(key)
        if known is not None:
            until = WaitEnd(*unpack(known))
            if until.by_wall or not self._life.now_ms() < until.at_ms <= self.waits.over_ms:
                return until
            until = PASSED  # also if a later attempt is on a machine whose clock is behind
            await self._life.written(partial(self._note_down, key, pack([*until])))
            return until
        if not self.waits.is_over(until):
            await self._life.written(partial(self._note_down, key, pack([*until])))
        return until

    def _paused(self, until_ms: int) -> Awaitable[None]:
        left_ms = max(0, until_ms - self._life.now_ms())
        return self._life.bridge(self.waits.until(WaitEnd(until_ms), left_ms, this_thread()))

    # for subclasses

    def _new_waits(self) -> W_co:
        raise NotImplementedError

    def _keeps_sleep(self) -> bool:
        """Whether a short sleep is remembered, too."""
        raise NotImplementedError

    def _take(self, key: str, body: bytes, event: SentEvent | None) -> None:
        """Take an event out of where it lies, and remember it under this key, in one commit."""
        raise NotImplementedError

    def _late(self, event: str) -> WaitTimedOut:
        raise NotImplementedError


def entering(method: Callable[..., object], attempt: RemembersWaits[Waits]) -> Callable[..., object]:
    # Sync code says on which thread it works.
    if is_async(method):
        return method

    @wraps(method)
    def entered(*args: object, **kwargs: object) -> object:
        attempt.entered()
        return method(*args, **kwargs)

    return entered


def _settle(signal: asyncio.Future[None]) -> None:
    if not signal.done():
        signal.set_result(None)


def _heard(task: asyncio.Task[object]) -> None:
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


def _awaits_one_of(task: asyncio.Task[object], ours: set[asyncio.Task[object]]) -> bool:
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


def _calls(task: asyncio.Task[object]) -> list[object]:
    # They await each other, the innermost last.
    calls: list[object] = [task.get_coro()]
    while isinstance(below := getattr(calls[-1], "cr_await", None), Coroutine):
        calls.append(below)
    return calls


def _times_out(task: asyncio.Task[object]) -> bool:
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
