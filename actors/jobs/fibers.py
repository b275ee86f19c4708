"""The fibers of one life of an agent: accepted, entered, and ended exactly once.

    start ─► row (pending) ─► `_enter`: row (running, attempt + 1) ─► the body ─► row (settled, or pending again)

The row is the truth. Memory knows only who is at work. The next life of the agent takes up every open fiber, oldest first, after it has
come up: a pending fiber is entered, a running one is recovered (`fiber_recovery`). What died before its commit did not happen. What died
after it is not done again. A death between the end of a body and its commit is recovered like any other.

A transition needs a row in the hands of this life and this attempt, or this recovery. A body that goes on after its fiber was cancelled,
or after its life, changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.actors.code.author_call import in_words, is_async, method_named, named_now, tried, tried_now
from perdure.actors.code.signatures import NOTHING, Arguments, fiber_shape
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_agenda import FiberAgenda
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext
from perdure.actors.jobs.fiber_records import FiberRecords
from perdure.actors.jobs.fiber_recovery import FiberRecoveries
from perdure.actors.jobs.fiber_requests import FiberRequests, FiberWaiters, checked_result
from perdure.actors.jobs.fiber_store import FiberStore, GroupCommit
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.alarm_clock import AlarmClock
from perdure.actors.life.life import Life
from perdure.actors.ports import KillPoint
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import BadRequest
from perdure.ledger.storage.cabinet import Transaction
from perdure.policies import Enter, FiberEvent, FiberResult, FiberStatus, Settle, after_error, after_hook

READ_AT_ONCE = 100


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
        """Take up what earlier lives left open."""
        open_ids = self.store.open_ids()
        if open_ids:
            self._life.spawn(self._take_up(open_ids))
        self.records.woken()
        self._agenda.look_soon()  # for what `on_start` began

    async def _take_up(self, open_ids: list[str]) -> None:
        """Read the rows in pieces, so that callers of the agent need not wait."""
        for first in range(0, len(open_ids), READ_AT_ONCE):
            found = self.store.rows.some(open_ids[first : first + READ_AT_ONCE]).values()
            self.store.fetch_inputs(row for row in found if row.status == FiberStatus.PENDING or row.retry is not None)
            for fiber in found:
                if fiber.life != self._life.incarnation:
                    self._agenda.add(fiber)
            await asyncio.sleep(0)

    def _moved(self, fiber: Fiber) -> None:
        """A row has become durable: begin the fiber, or stop its code and wake its waiters."""
        if self._life.is_leaving:
            return
        if not fiber.is_settled:
            if fiber.status == FiberStatus.PENDING:
                self._agenda.add(fiber)
            return
        self.records.settled()
        context = self._at_work.get(fiber.fiber_id)
        if context is not None:
            context.stop()
        self.waiters.tell(fiber.fiber_id)

    def cancel(self, fiber_id: str, reason: str | None) -> bool:
        """End an open fiber as aborted. Returns whether there was one."""
        error = reason and reason[: self._life.limits.error_chars_max]

        def abort(transaction: Transaction) -> bool:
            fiber = self.store.find(fiber_id)
            if fiber is None or not fiber.is_managed:
                return False
            now_ms = self._life.now_ms()
            moved = fiber.after(FiberEvent.CANCELLED, now_ms, due_at_ms=0, is_recovering=False, error=error)
            if moved is not None:
                self.store.put(transaction, moved)
                self.store.tell_after(transaction, "fiber:run:cancelled", moved, {"error": reason})
            return moved is not None

        return self.store.change(abort)

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
        """Make one attempt, from the row that announces it to the row that says how it ended."""
        entered = await self._together(lambda transaction: self._claim(transaction, fiber_id))
        if entered is None:
            return
        self._life.faults.at(KillPoint.BEFORE_RUN, f"fiber {fiber_id}")
        self.store.tell("fiber:run:started", entered, {"attempt": entered.attempt})
        context = FiberContext(self._life, self.store, entered)
        result, problem = await self._within(context, entered)
        if self._life.is_leaving:
            return  # it was told to stop; the next life takes the fiber up
        self._life.faults.at(KillPoint.BEFORE_REPORT, f"fiber {fiber_id}")
        await self._together(lambda transaction: self._conclude(transaction, context, result, problem))

    def _claim(self, transaction: Transaction, fiber_id: str) -> Fiber | None:
        fiber = self.store.find(fiber_id)
        if fiber is None:
            return None
        now_ms = self._life.now_ms()
        entered = fiber.after(
            FiberEvent.ENTERED,
            now_ms,
            is_recovering=False,
            attempt=fiber.attempt + 1,
            idle_attempts=fiber.idle_attempts + 1,
            life=self._life.incarnation,
            started_at_ms=fiber.started_at_ms or now_ms,
            entered_at_ms=now_ms,
            due_at_ms=0,
        )
        return None if entered is None else self.store.put(transaction, entered)

    async def _within(self, context: FiberContext, fiber: Fiber) -> tuple[FiberResult | None, Exception | None]:
        """Call the author's method. Returns its result or its error."""
        method = method_named(self._life.agent, fiber.fn_name)
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
        ACTIVITY.set(Activity(f"fiber/{self._life.agent_id}/{context.id}"))
        self.store.spans.enter(fiber)
        arguments, problem = tried_now(lambda: self._arguments(context, fiber))
        if arguments is None or not context.holds(self.store.find(context.id)):
            return None, problem
        task = asyncio.current_task()
        assert task is not None
        context.begin(task, can_be_cancelled=is_async(method))
        result, problem = await tried(self._life.call(method, *arguments.args, **arguments.kwargs))
        context.finished()
        if problem is None and isinstance(result, FiberResult):
            return tried_now(lambda: checked_result(self._life, result))
        return None, problem

    def _arguments(self, context: FiberContext, fiber: Fiber) -> Arguments:
        kind = type(self._life.agent)
        entered = fiber_shape(kind, named_now(kind, fiber.fn_name))
        body = self.store.input(fiber)
        return entered.arguments(entered.decode(NOTHING if body is None else body), context)

    def _conclude(
        self, transaction: Transaction, context: FiberContext, result: FiberResult | None, problem: Exception | None
    ) -> None:
        """Record how an attempt ended, if the fiber is still in its hands."""
        fiber = self.store.find(context.id)
        if fiber is None or not context.holds(fiber):
            return
        found, limits = fiber.interruption(has_hook=False), self._life.limits
        elapsed = {"elapsed_ms": self._life.now_ms() - fiber.started_at_ms}
        if problem is not None:
            self._life.log("fiber", f"fiber {fiber.name!r} ({fiber.fiber_id})", problem)
            error = in_words(problem)
            verdict = after_error(found, error, limits, self._life.dice.roll())
            self.store.move(transaction, fiber.but(error=error[: limits.error_chars_max]), verdict)
            self.store.tell_after(transaction, "fiber:run:failed", fiber, {**elapsed, "error": error})
        else:
            given = result or FiberResult("completed")
            self.store.move(transaction, fiber, after_hook(given, found, limits, self._life.dice.roll()), given)
            self.store.tell_after(transaction, "fiber:run:completed", fiber, {**elapsed, "status": given.status})

    # unmanaged fibers

    async def run(self, name: str, fn: Callable[[FiberContext], object]) -> object:
        """Run a function as a fiber that is recorded only while it runs. It keeps the agent awake, whether anybody waits or not."""
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
        self.store.tell("fiber:run:started", fiber, {"attempt": 1})
        context = self._at_work[fiber.fiber_id] = FiberContext(self._life, self.store, fiber)
        CURRENT.set(context)
        self.store.spans.enter(fiber)
        try:
            result, problem = await tried(self._life.call(fn, context))
        except asyncio.CancelledError:
            self._forget(fiber, "cancelled")
            raise
        self._forget(fiber, None if problem is None else in_words(problem))
        elapsed = {"elapsed_ms": self._life.now_ms() - now_ms}
        if problem is not None:
            self.store.tell("fiber:run:failed", fiber, {**elapsed, "error": in_words(problem)})
            raise problem
        self.store.tell("fiber:run:completed", fiber, elapsed)
        return result

    def _forget(self, fiber: Fiber, error: str | None) -> None:
        """Delete the row of a fiber that is over. Its result counts even if that fails."""
        self._at_work.pop(fiber.fiber_id).finished()
        if self._life.is_leaving:
            return
        self.store.spans.ended(fiber, error)
        _, problem = tried_now(lambda: self.store.change(lambda transaction: self.store.drop(transaction, fiber)))
        if problem is not None:
            self._life.trouble(f"forgetting fiber {fiber.name!r}", problem)
