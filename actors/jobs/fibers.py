"""The fibers of one life of an agent: accepted, entered, and ended exactly once.

    start ─► row (pending) ─► `_enter`: row (running, attempt + 1) ─► the body ─► row (settled, pending again, or waiting)

The row is the truth. Memory knows only who is at work. The next life of the agent takes up every open fiber, oldest first, after it has
come up: a pending fiber is entered, a running one is recovered (`FiberRecoveries`). What died before its commit did not happen. What died
after it is not done again. A death between the end of a body and its commit is recovered like any other.

A body that waits for long, with all that it does, ends without an end of the fiber (`actors.life.waits`): the row is *waiting* then. It
has no place and keeps nobody awake. At its time, or with the event, which lies in the storage too, the body is entered again.

A transition needs a row in the hands of this life and this attempt, or this recovery. A body that goes on after its fiber was cancelled,
or after its life, changes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from perdure.actors.code.author_call import in_words, is_async, tried, tried_now
from perdure.actors.code.signatures import NOTHING, Arguments, fiber_shape
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext, FiberRecovery
from perdure.actors.jobs.fiber_requests import FiberRequests, FiberWaiters, checked_result
from perdure.actors.jobs.fiber_store import READ_AT_ONCE, FiberRecords, FiberStore, GroupCommit
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.alarm_clock import STORAGE_RETRY_MS, AlarmClock
from perdure.actors.life.asks import ANSWER_TO
from perdure.actors.life.life import Life
from perdure.actors.life.results import RunFailed, RunInfo, RunResult
from perdure.actors.life.waits import SentEvent, WaitEnding, entering
from perdure.actors.ports import KillPoint
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import BadRequest, Cancel, check_id, digest_of, pack, pack_value
from perdure.ledger.storage.agent_storages import Transaction
from perdure.policies import (
    AskHook,
    Drop,
    Enter,
    FiberEvent,
    FiberResult,
    FiberState,
    FiberStatus,
    Settle,
    after_error,
    after_hook,
    excused,
    recovery_pause_after,
    take_up,
)

# ---------------------------------------------------------------- fiber agenda
# Which fibers are entered or recovered, when, and how many at once.
#
# A fiber that waits for an instant is in `_later`. A fiber that is due is in one of two lanes, in the order of acceptance: `entering` a
# body, or `recovering` after a death. Each lane has a number of places. Nothing here is durable: every entry stands for a row, and the next
# life finds the rows. A fiber that waits for its time keeps nobody awake: its alarm is in the ledger.


PART = "fibers"


class FiberLane:
    """The fibers that are due for one kind of work, oldest first, and the free places for it."""

    def __init__(self, places: int, attend: Callable[[str], Awaitable[None]]) -> None:
        self.places, self.attend = places, attend
        self.due: list[tuple[int, str]] = []


class _Later(NamedTuple):
    at_ms: int
    number: int
    fiber_id: str
    lane: FiberLane


class FiberAgenda:
    """The work that the fibers of one agent wait for."""

    def __init__(
        self,
        life: Life,
        alarms: AlarmClock,
        store: FiberStore,
        enter: Callable[[str], Awaitable[None]],
        recover: Callable[[str], Awaitable[None]],
    ) -> None:
        self._life, self._alarms, self._store = life, alarms, store
        self.entering = FiberLane(self._life.limits.fibers_at_once_max, enter)
        self.recovering = FiberLane(self._life.limits.fiber_recoveries_at_once_max, recover)
        self._later: list[_Later] = []
        self._waiting: dict[str, int] = {}
        self._attended: dict[str, asyncio.Task[None]] = {}
        self._is_looking = False

    def add(self, fiber: Fiber, *, after_ms: int = 0) -> None:
        # The earliest instant given counts.
        fiber_id = fiber.fiber_id
        has_come = fiber.is_waiting and self._store.has_come(fiber)
        if fiber.is_waiting and not has_come and not fiber.due_at_ms:
            return  # only an event ends its wait
        at_ms = max(0 if has_come else fiber.due_at_ms, self._life.now_ms() + after_ms if after_ms else 0)
        if fiber_id in self._attended or self._waiting.get(fiber_id, at_ms + 1) <= at_ms:
            return
        self._waiting[fiber_id] = at_ms
        lane = self.entering if fiber.is_entered_next else self.recovering
        if at_ms <= self._life.now_ms():
            heappush(lane.due, (fiber.number, fiber_id))
        else:
            heappush(self._later, _Later(at_ms, fiber.number, fiber_id, lane))
        self.look_soon()

    def forget(self, fiber_id: str) -> None:
        # The fiber is over: nobody is woken for it.
        if self._waiting.pop(fiber_id, None) is not None:
            self.look_soon()

    def look_soon(self) -> None:
        if not self._is_looking and self._life.is_up:  # nothing is due before the agent is up
            self._is_looking = True
            self._alarms.owe(PART, owes=True)  # a run that ends in this turn must not take the agent away
            asyncio.get_running_loop().call_soon(self._look)

    def give_place(self, count: int) -> None:
        # A body that waits for another fiber lends its own.
        self.entering.places += count
        self.look_soon()

    def _look(self) -> None:
        self._is_looking = False
        if self._life.is_leaving:
            return
        now_ms = self._life.now_ms()
        while self._later and (self._later[0][0] <= now_ms or not self._is_of_use(self._later[0])):
            later = heappop(self._later)
            if self._is_of_use(later):
                heappush(later.lane.due, later[1:3])
        for lane in (self.entering, self.recovering):
            while lane.due and lane.places > 0:
                self._begin(lane, heappop(lane.due)[1])
        self._alarms.owe(PART, owes=bool(self._attended or self.entering.due or self.recovering.due))
        self._alarms.set(PART, self._later[0][0] if self._later else None, self.look_soon)

    def _is_of_use(self, later: _Later) -> bool:
        # else it was given an earlier instant, or is over
        return self._waiting.get(later.fiber_id) == later.at_ms

    def _begin(self, lane: FiberLane, fiber_id: str) -> None:
        if self._waiting.pop(fiber_id, None) is None or fiber_id in self._attended:
            return
        lane.places -= 1
        task = self._attended[fiber_id] = self._life.spawn_awaited(self._attend(lane, fiber_id))
        task.add_done_callback(partial(self._done, lane, fiber_id))

    async def _attend(self, lane: FiberLane, fiber_id: str) -> None:
        _, problem = await tried(lane.attend(fiber_id))
        if problem is not None and not self._life.is_leaving:
            self._life.trouble(f"fiber {fiber_id}", problem)
            raise problem

    def _done(self, lane: FiberLane, fiber_id: str, task: asyncio.Task[None]) -> None:
        lane.places += 1
        self._attended.pop(fiber_id, None)
        has_failed = not task.cancelled() and task.exception() is not None
        if self._life.is_leaving:
            return
        self._life.touch()
        fiber, _ = tried_now(lambda: self._store.find(fiber_id) if self._store.is_open(fiber_id) else None)
        if fiber is not None:
            # What fails here is the storage: an author's error is the fiber's, and ends the attempt.
            self.add(fiber, after_ms=STORAGE_RETRY_MS if has_failed else 0)
        self.look_soon()


# The recovery of fibers whose process died: applies what `policies.fiber_decisions` decides, and calls the author's hook.
#
# A hook is called at least once. Each call is recorded before it is made: after a death in its middle it is called again, after a durable
# pause, until its budget is used up. It is a task of its own with a time limit. A hook that ignores its cancellation holds no place, and
# what it does late has no effect, because it bears the number of an earlier call.
class FiberRecoveries:
    """The recoveries of one life of an agent.

    Args:
        at_work: is told which hook is at which fiber.
    """

    def __init__(self, life: Life, store: FiberStore, together: GroupCommit, at_work: dict[str, FiberContext]) -> None:
        self._life, self._store, self._together, self._at_work = life, store, together, at_work

    async def recover(self, fiber_id: str) -> None:
        """Decide about a fiber whose process died, or call its hook."""
        fiber = self._store.find(fiber_id)
        if fiber is None or fiber.state not in (FiberState.RUNNING, FiberState.RECOVERING):
            return
        if not fiber.is_recovering:
            told = {"reason": "interrupted", "elapsed_ms": self._life.now_ms() - fiber.created_at_ms}
            self._store.emit("fiber:run:interrupted", fiber, told)
            self._store.emit("fiber:recovery:detected", fiber, told)
        has_hook = bool(fiber.on_recovered) or self._life.overrides("on_fiber_recovered")
        found = fiber.interruption(has_hook=has_hook, cause=self._life.lost_by)
        if self._life.was_stopped and not fiber.is_recovering:
            found = found._replace(idle_attempts=excused(found, self._life.limits))
        verdict = take_up(found, self._life.limits, self._life.dice.roll())
        if isinstance(verdict, AskHook):
            await self._ask(fiber, verdict, found.idle_attempts)
        else:
            await self._together(lambda transaction: self._decide(transaction, fiber, verdict, found.idle_attempts))

    def _decide(
        self, transaction: Transaction, seen: Fiber, verdict: Enter | Settle | Drop, idle_attempts: int
    ) -> None:
        if self._store.find(seen.fiber_id) == seen:
            moved = seen.but(recoveries=0, is_recovering=isinstance(verdict, Enter), idle_attempts=idle_attempts)
            self._store.move(transaction, moved, verdict)
            if isinstance(verdict, Drop):
                transaction.then(partial(self._lost, seen, verdict.why))

    def _lost(self, fiber: Fiber, why: str) -> None:
        self._store.emit("fiber:recovery:skipped", fiber, {"error": why})
        self._life.trouble(f"fiber {fiber.name!r}", RuntimeError(why))

    # the author's hook

    async def _ask(self, fiber: Fiber, ask: AskHook, idle_attempts: int) -> None:
        asked = await self._together(lambda transaction: self._claim(transaction, fiber, ask, idle_attempts))
        if asked is None:
            return
        context = FiberRecovery(self._life, self._store, asked)
        self._store.spans.enter(asked)
        self._store.emit("fiber:recovery:attempt", asked, {"recoveries": asked.recoveries})
        result, problem = await self._called(context, asked)
        self._at_work.pop(context.id, None)
        context.waits_are_over()
        if self._life.is_leaving:
            return
        self._life.faults.at(KillPoint.MID_HANDLER, f"recovery of fiber {context.id}")
        await self._together(lambda transaction: self._answered(transaction, context, result, problem))

    def _claim(self, transaction: Transaction, seen: Fiber, ask: AskHook, idle_attempts: int) -> Fiber | None:
        if self._store.find(seen.fiber_id) != seen:
            return None
        now_ms = self._life.now_ms()
        asked = seen.after(
            FiberEvent.ASKED,
            now_ms,
            is_recovering=True,
            recoveries=seen.recoveries + 1,
            idle_attempts=idle_attempts,
            life=self._life.incarnation,
            due_at_ms=now_ms + ask.then_ms,
        )
        return None if asked is None else self._store.put(transaction, asked)

    async def _called(self, context: FiberRecovery, asked: Fiber) -> tuple[FiberResult | None, Exception | None]:
        # After its time limit the hook is cancelled, and not awaited.
        name = asked.on_recovered or "on_fiber_recovered"
        hook = getattr(self._life.agent, name, None)
        if not callable(hook):
            return None, BadRequest("on_recovered", f"{type(self._life.agent).__name__} has no method {name!r}")
        task = self._life.spawn_awaited(self._in_context(context, hook))
        context.begins_in(task)
        self._at_work[context.id] = context
        timeout_ms = self._life.limits.fiber_recovery_timeout_ms
        done, _ = await asyncio.wait({task}, timeout=timeout_ms / 1000)
        context.cancelled.set()
        if not done:
            self._life.give_up(task)
            return None, TimeoutError(f"{name} did not return within {timeout_ms} ms")
        return (None, RuntimeError("it was cancelled")) if task.cancelled() else task.result()

    async def _in_context(
        self, context: FiberRecovery, hook: Callable[..., object]
    ) -> tuple[FiberResult | None, Exception | None]:
        CURRENT.set(context)
        context.begin()
        ACTIVITY.set(Activity(f"fiber/{self._life.agent_id}/{context.id}/recovery", is_repeated=True))
        result, problem = await tried(self._life.call(hook, context))
        if problem is not None or not context.is_managed:
            return None, problem
        given, refusal = tried_now(lambda: checked_result(self._life, result))
        if refusal is not None:  # it would return the same again
            self._life.trouble(f"the recovery hook of fiber {context.name!r}", refusal)
            return FiberResult("interrupted", f"its recovery hook returned what is no verdict: {refusal}"), None
        return given, None

    def _answered(
        self, transaction: Transaction, context: FiberRecovery, result: FiberResult | None, problem: Exception | None
    ) -> None:
        fiber = self._store.find(context.id)
        if fiber is None or not context.holds(fiber):
            return
        limits, roll = self._life.limits, self._life.dice.roll()
        if problem is None:
            verdict = after_hook(result, fiber.interruption(has_hook=True), limits, roll)
            self._store.move(transaction, fiber.but(recoveries=0, error=None), verdict, result)
            status = verdict.status if isinstance(verdict, Settle) else type(verdict).__name__.lower()
            self._store.emit_after(transaction, "fiber:recovery:handled", fiber, {"status": status})
            return
        error = f"its recovery hook failed: {in_words(problem)}"[: limits.error_chars_max]
        due_at_ms = self._life.now_ms() + recovery_pause_after(fiber.recoveries, limits, roll)
        self._store.put(transaction, fiber.but(error=error, due_at_ms=due_at_ms))
        self._store.emit_after(transaction, "fiber:recovery:failed", fiber, {"error": error, "reason": "handler_error"})


# ---------------------------------------------------------------- fibers


class Fibers:
    """The fibers of an agent, in one life of it."""

    def __init__(self, life: Life, alarms: AlarmClock) -> None:
        self._life = life
        self._at_work: dict[str, FiberContext] = {}
        self.store = FiberStore(life, self._moved)
        self._together = GroupCommit(life, self.store, lambda: bool(self._agenda.recovering.due))
        recoveries = FiberRecoveries(life, self.store, self._together, self._at_work)
        self._agenda = FiberAgenda(life, alarms, self.store, self._enter, recoveries.recover)
        self.waiters = FiberWaiters(life, self.store, self._at_work, self._agenda.give_place)
        self.requests = FiberRequests(life, self.store)
        self.records = FiberRecords(life, self.store, self._together)

    # fibers of earlier lives, and rows that have become durable

    def woken(self) -> None:
        open_ids = self.store.open_ids()
        if open_ids:
            self._life.spawn(self._take_up(open_ids))
        self.records.woken()
        self._agenda.look_soon()  # for what `on_start` began

    async def _take_up(self, open_ids: list[str]) -> None:
        for first in range(0, len(open_ids), READ_AT_ONCE):
            found = self.store.rows.some(open_ids[first : first + READ_AT_ONCE]).values()
            self.store.fetch_inputs(
                row for row in found if not row.is_waiting and (row.is_entered_next or row.retry is not None)
            )
            for fiber in found:
                if fiber.life != self._life.incarnation:
                    self._agenda.add(fiber)
            await asyncio.sleep(0)  # callers of the agent need not wait for all

    def _moved(self, fiber: Fiber) -> None:
        # Begin the fiber, or stop its code and wake its waiters.
        if self._life.is_leaving:
            return
        if not fiber.is_settled:
            if fiber.is_entered_next:
                self._agenda.add(fiber)
            return
        self.records.settled()
        self._agenda.forget(fiber.fiber_id)
        context = self._at_work.get(fiber.fiber_id)
        if context is not None:
            context.stop()
        self.waiters.wake(fiber.fiber_id)

    def cancel(self, fiber_id: str, reason: str | None) -> bool:
        error = reason and reason[: self._life.limits.error_chars_max]

        def abort(transaction: Transaction) -> bool:
            fiber = self.store.find(fiber_id)
            if fiber is None or not fiber.is_managed:
                return False
            now_ms = self._life.now_ms()
            moved = fiber.after(FiberEvent.CANCELLED, now_ms, due_at_ms=0, is_recovering=False, error=error)
            if moved is not None:
                self.store.put(transaction, moved)
                self.store.emit_after(transaction, "fiber:run:cancelled", moved, {"error": reason})
                transaction.then(partial(self._withdraw, fiber, reason or "its fiber was cancelled"))
            return moved is not None

        return self.store.change(abort)

    def send(self, fiber_id: str, event: str, value: object, event_id: str | None) -> None:
        # A fiber whose body waits for the event is entered.
        limits = self._life.limits
        check_id("fiber_id", fiber_id, limits.id_max)
        name = check_id("event", event, limits.id_max)
        body = pack_value("value", value, limits.input_bytes_max)
        if event_id is not None:
            known = digest_of(pack([name, check_id("event_id", event_id, limits.id_max)]))
        else:
            activity = ACTIVITY.get()  # code that is entered again sends the same one
            what = f"send {self._life.agent_id} {fiber_id} {name}"
            known = self._life.dice.token() if activity is None else activity.derive(what, digest_of(body))
        self.store.change(partial(self._send, fiber_id, known, name, body))

    def answered(self, run: RunInfo, result: RunResult) -> None:
        # A question that a fiber has asked people has ended: part of the open transaction. What asked may be over by now.
        fiber_id = str((run.display or {}).get("fiber"))
        fiber = self.store.find(fiber_id)
        if fiber is not None and fiber.is_open and result.status != "interrupted":
            said = {"error": result.error} if isinstance(result, RunFailed) else {"error": "", "output": result.output}
            self.send(fiber_id, f"{ANSWER_TO}{run.run_id}", said, run.run_id)

    def _withdraw(self, fiber: Fiber, reason: str) -> None:
        # What a fiber that is over has asked people, in no process.
        for name in fiber.awaited or ():
            if name.startswith(ANSWER_TO):
                cancelled = Cancel(name.removeprefix(ANSWER_TO), self._life.agent_id, reason)
                self._life.on_loop(partial(self._life.request, cancelled))

    def _send(self, fiber_id: str, event_id: str, name: str, body: bytes, transaction: Transaction) -> None:
        fiber = self.store.find(fiber_id)
        if fiber is None:
            raise BadRequest("fiber_id", f"{fiber_id!r} is no fiber of {self._life.agent_id}, or was deleted")
        sent = self.store.send(transaction, fiber, event_id, name, body)
        if sent is None:
            return
        transaction.then(lambda: self._life.on_loop(partial(self._sent, fiber_id, sent)))

    def _sent(self, fiber_id: str, event: SentEvent) -> None:
        context = self._at_work.get(fiber_id)
        if context is not None:
            context.event_came(event)
        fiber, _ = tried_now(lambda: self.store.find(fiber_id))
        if fiber is not None and fiber.is_waiting:
            self._agenda.add(fiber)

    def clock_was_set(self) -> None:
        for context in self._at_work.values():
            if context.has_waits:
                context.waits.clock_was_set()

    def resolve(self, fiber_id: str, result: object) -> bool:
        """Apply a person's decision about an interrupted fiber, whether it is being recovered or not."""
        given = checked_result(self._life, result)
        if given is None:
            raise BadRequest("result", "is None; it is a FiberResult, or a status such as 'completed' or 'retry'")

        def decide(transaction: Transaction) -> bool:
            fiber = self.store.find(fiber_id)
            if fiber is None or not fiber.is_managed:
                return False
            if fiber.status != FiberStatus.INTERRUPTED and not fiber.is_cut_off(self._life.incarnation):
                return False
            if given.event is FiberEvent.RETRIED:
                self.store.move(transaction, fiber.but(recoveries=0, idle_attempts=0), Enter(), given)
            else:
                self.store.move(transaction, fiber, Settle(FiberStatus(given.event), given.error), given)
            return True

        return self.store.change(decide)

    # a body

    async def _enter(self, fiber_id: str) -> None:
        entered = await self._together(lambda transaction: self._claim(transaction, fiber_id))
        if entered is None:
            return
        self._life.faults.at(KillPoint.BEFORE_RUN, f"fiber {fiber_id}")
        self.store.emit("fiber:run:started", entered, {"attempt": entered.attempt})
        context = FiberContext(self._life, self.store, entered)
        result, problem = await self._within(context, entered)
        if self._life.is_leaving:
            return  # it was told to stop; the next life takes the fiber up
        self._life.faults.at(KillPoint.BEFORE_REPORT, f"fiber {fiber_id}")
        rest = context.waits.suspended if context.has_waits else None
        if rest is not None:
            await self._together(lambda transaction: self._rest(transaction, context, rest))
            self._life.faults.at(KillPoint.MID_RUN, f"fiber {fiber_id} waits")
        else:
            await self._together(lambda transaction: self._conclude(transaction, context, result, problem))

    def _claim(self, transaction: Transaction, fiber_id: str) -> Fiber | None:
        fiber = self.store.find(fiber_id)
        if fiber is None:
            return None
        now_ms, attempt = self._life.now_ms(), fiber.attempt + 1
        goes_on = fiber.is_waiting or fiber.is_recovering
        is_over = fiber.is_waiting and 0 < fiber.due_at_ms <= now_ms
        entered = fiber.after(
            FiberEvent.ENTERED,
            now_ms,
            is_recovering=False,
            attempt=attempt,
            idle_attempts=fiber.idle_attempts + (not fiber.is_waiting),
            life=self._life.incarnation,
            started_at_ms=fiber.started_at_ms or now_ms,
            entered_at_ms=now_ms,
            due_at_ms=0,
            over_ms=max(fiber.over_ms, fiber.wait_ends_ms) if is_over else fiber.over_ms,
            round=fiber.round if goes_on else attempt,
        )
        return None if entered is None else self.store.put(transaction, entered)

    def _rest(self, transaction: Transaction, context: FiberContext, rest: WaitEnding) -> None:
        fiber = self.store.find(context.id)
        if fiber is None or not context.holds(fiber):
            return
        now_ms, ends = self._life.now_ms(), rest.until
        left_ms = ends.at_ms - now_ms if ends.by_wall else rest.left_ms
        is_endless = math.isinf(left_ms)
        waiting = fiber.after(
            FiberEvent.WAITED,
            now_ms,
            awaited=rest.events,
            waits_since_ms=now_ms,
            wait_ends_ms=0 if is_endless or ends.by_wall else math.ceil(ends.at_ms),
            due_at_ms=0 if is_endless else now_ms + max(1, math.ceil(left_ms)),
            waited=fiber.waited + 1,
        )
        if waiting is not None:
            self.store.put(transaction, waiting)
            self.store.emit_after(transaction, "fiber:run:waiting", waiting, {"attempt": fiber.attempt})

    async def _within(self, context: FiberContext, fiber: Fiber) -> tuple[FiberResult | None, Exception | None]:
        method = getattr(self._life.agent, fiber.fn_name, None)
        if not callable(method):
            name = type(self._life.agent).__name__
            return FiberResult("interrupted", f"{name} has no method {fiber.fn_name!r} any more"), None
        self._at_work[context.id] = context
        try:
            return await self._called(context, fiber, method)
        finally:
            context.finished()
            del self._at_work[context.id]

    async def _called(
        self, context: FiberContext, fiber: Fiber, method: Callable[..., object]
    ) -> tuple[FiberResult | None, Exception | None]:
        CURRENT.set(context)
        ACTIVITY.set(Activity(f"fiber/{self._life.agent_id}/{context.id}", fiber=context))
        self.store.spans.enter(fiber)
        arguments, problem = tried_now(lambda: self._arguments(context, fiber))
        if arguments is None or not context.holds(self.store.find(context.id)):
            return None, problem
        task = asyncio.current_task()
        assert task is not None
        context.begins_in(task, is_sync=not is_async(method))
        context.begin()
        result, problem = await tried(self._life.call(entering(method, context), *arguments.args, **arguments.kwargs))
        context.finished()
        if problem is None and isinstance(result, FiberResult):
            return tried_now(lambda: checked_result(self._life, result))
        return None, problem

    def _arguments(self, context: FiberContext, fiber: Fiber) -> Arguments:
        kind = type(self._life.agent)
        entered = fiber_shape(kind, fiber.fn_name)
        body = self.store.input(fiber)
        return entered.arguments(entered.decode(NOTHING if body is None else body), context)

    def _conclude(
        self, transaction: Transaction, context: FiberContext, result: FiberResult | None, problem: Exception | None
    ) -> None:
        fiber = self.store.find(context.id)
        if fiber is None or not context.holds(fiber):
            return
        found, limits = fiber.interruption(has_hook=False), self._life.limits
        elapsed = {"elapsed_ms": self._life.now_ms() - fiber.started_at_ms}
        if problem is not None:
            self._life.log("fiber", f"fiber {fiber.name!r} ({fiber.fiber_id})", problem)
            error = context.in_words(problem)
            verdict = after_error(found, error, limits, self._life.dice.roll())
            self.store.move(transaction, fiber.but(error=error[: limits.error_chars_max]), verdict)
            self.store.emit_after(transaction, "fiber:run:failed", fiber, {**elapsed, "error": error})
        else:
            given = result or FiberResult("completed")
            self.store.move(transaction, fiber, after_hook(given, found, limits, self._life.dice.roll()), given)
            self.store.emit_after(transaction, "fiber:run:completed", fiber, {**elapsed, "status": given.status})

    # unmanaged fibers

    async def run(self, name: str, fn: Callable[[FiberContext], object]) -> object:
        # It is recorded only while it runs, and keeps the agent awake whether anybody waits or not.
        return await self._life.spawn_awaited(self._run(name, fn))

    async def _run(self, name: str, fn: Callable[[FiberContext], object]) -> object:
        now_ms = self._life.now_ms()
        fiber = Fiber(
            fiber_id=self._life.dice.token(),
            number=self.store.next_number(),
            name=name,
            status=FiberStatus.RUNNING,
            is_managed=False,
            created_at_ms=now_ms,
            started_at_ms=now_ms,
            attempt=1,
            life=self._life.incarnation,
            entered_at_ms=now_ms,
            trace=carried_text(),
        )
        self.store.change(lambda transaction: self.store.put(transaction, fiber))
        self.store.emit("fiber:run:started", fiber, {"attempt": 1})
        context = self._at_work[fiber.fiber_id] = FiberContext(self._life, self.store, fiber)
        CURRENT.set(context)
        context.begin()
        self.store.spans.enter(fiber)
        try:
            result, problem = await tried(self._life.call(entering(fn, context), context))
        except asyncio.CancelledError:
            self._forget(fiber, "cancelled")
            raise
        self._forget(fiber, None if problem is None else in_words(problem))
        elapsed = {"elapsed_ms": self._life.now_ms() - now_ms}
        if problem is not None:
            self.store.emit("fiber:run:failed", fiber, {**elapsed, "error": in_words(problem)})
            raise problem
        self.store.emit("fiber:run:completed", fiber, elapsed)
        return result

    def _forget(self, fiber: Fiber, error: str | None) -> None:
        self._at_work.pop(fiber.fiber_id).finished()
        if self._life.is_leaving:
            return
        self.store.spans.ended(fiber, error)
        _, problem = tried_now(lambda: self.store.change(lambda transaction: self.store.drop(transaction, fiber)))
        if problem is not None:  # the result counts all the same
            self._life.trouble(f"forgetting fiber {fiber.name!r}", problem)
