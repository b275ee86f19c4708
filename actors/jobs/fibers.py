"""The fibers of one life of an agent: accepted, entered, ended exactly once, whoever dies.

    start ─► row (pending) ─► `_enter`: row (running, attempt + 1) ─► the body ─► row (settled, or pending again)

A row is the truth; memory knows only who is at work. So whatever a death leaves is found by its row: the next life of the agent takes up
every open fiber after it has come up, never before, oldest first. One that was waiting is entered; one that was running is
recovered (`fiber_recovery`). What died before a commit did not happen, and what died after it is not done again. Between the end of a
body and the commit of its end there is a moment in which a death has it taken up like any other.

Transitions are compare-and-set on the row: it must be in the hands of this life and this attempt, or this recovery. A body that goes on
after its fiber was cancelled, or in a life that is over, changes nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from perdure.actors.code.author_call import in_words, is_async, method_named, tried, tried_now
from perdure.actors.code.schema import fiber_shape
from perdure.actors.jobs.fiber import Fiber, FiberInspection
from perdure.actors.jobs.fiber_agenda import FiberAgenda
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext
from perdure.actors.jobs.fiber_moves import FiberMoves
from perdure.actors.jobs.fiber_records import FiberRecords
from perdure.actors.jobs.fiber_recovery import FiberRecoveries
from perdure.actors.jobs.fiber_requests import FiberRequests
from perdure.actors.jobs.fiber_store import FiberStore, GroupCommit
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.alarm_clock import AlarmClock
from perdure.actors.life.life import Life
from perdure.actors.ports import KillPoint
from perdure.ledger import AwaitedInsideHandler, BadRequest
from perdure.ledger.storage.cabinet import Transaction
from perdure.policies import INFINITY, Enter, FiberEvent, FiberResult, FiberStatus, Settle, after_error, after_hook

READ_AT_ONCE = 100


class Fibers:
    """What is under way of an agent's fibers, in one life of it."""

    def __init__(self, life: Life, alarms: AlarmClock) -> None:
        self._life = life
        self._at_work: dict[str, FiberContext] = {}
        self.store = FiberStore(life, self._moved)
        self._moves = FiberMoves(life, self.store)
        self._together = GroupCommit(life, self.store, lambda: bool(self._agenda.recovering.due))
        recoveries = FiberRecoveries(life, self.store, self._moves, self._together, self._at_work)
        self._agenda = FiberAgenda(life, alarms, self.store, self._enter, recoveries.recover)
        self.waiters = FiberWaiters(life, self.store, self._at_work, self._agenda.give_place)
        self.requests = FiberRequests(life, self.store)
        self.records = FiberRecords(life, self.store, self._together)

    # what others left, and what has become durable

    def woken(self) -> None:
        """Take up what earlier lives left open."""
        open_ids = self.store.open_ids()
        if open_ids:
            self._life.spawn(self._take_up(open_ids))
        self.records.woken()
        self._agenda.look_soon()  # for what `on_start` began

    async def _take_up(self, open_ids: list[str]) -> None:
        """Read the rows piece by piece, so that whoever calls the agent meanwhile need not wait for that."""
        for first in range(0, len(open_ids), READ_AT_ONCE):
            found = self.store.rows.some(open_ids[first : first + READ_AT_ONCE]).values()
            self.store.fetch_inputs(
                each for each in found if each.status == FiberStatus.PENDING or each.retry is not None
            )
            for fiber in found:
                if fiber.life != self._life.incarnation:
                    self._agenda.add(fiber)
            await asyncio.sleep(0)

    def _moved(self, fiber: Fiber) -> None:
        """A row has become durable: begin what is to begin, stop what is over, tell who waits."""
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
        """End an open fiber as aborted; whether there was one."""

        def abort(transaction: Transaction) -> bool:
            fiber = self.store.find(fiber_id)
            return fiber is not None and fiber.is_managed and self._moves.cancel(transaction, fiber, reason)

        return self.store.change(abort)

    def resolve(self, fiber_id: str, result: FiberResult | str) -> bool:
        """What somebody decided about an interrupted fiber, whether it is being recovered or not."""
        given = self._moves.checked(result)
        if given is None:
            raise BadRequest("result", "is None; it is a FiberResult, or 'retry'")

        def decide(transaction: Transaction) -> bool:
            fiber = self.store.find(fiber_id)
            if fiber is None or not fiber.is_managed:
                return False
            if fiber.status != FiberStatus.INTERRUPTED and not fiber.is_cut_off(self._life.incarnation):
                return False
            if given.event is FiberEvent.RETRIED:
                self._moves.move(transaction, fiber.but(recoveries=0, idle_attempts=0), Enter(), given)
            else:
                self._moves.move(transaction, fiber, Settle(FiberStatus(given.event), given.error), given)
            return True

        return self.store.change(decide)

    # a body

    async def _enter(self, fiber_id: str) -> None:
        """One attempt, from the row that says so to the row that says what came of it."""
        entered = await self._together(lambda transaction: self._claim(transaction, fiber_id))
        if entered is None:
            return
        self._life.faults.at(KillPoint.BEFORE_RUN, f"fiber {fiber_id}")
        self._moves.tell("fiber:run:started", entered, {"attempt": entered.attempt})
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
            due_at_ms=0,
        )
        return None if entered is None else self.store.put(transaction, entered)

    async def _within(self, context: FiberContext, fiber: Fiber) -> tuple[FiberResult | None, Exception | None]:
        """What the author's method returned, or what is wrong."""
        method = method_named(self._life.agent, fiber.fn_name)
        if not callable(method):
            name = type(self._life.agent).__name__
            return FiberResult("interrupted", f"{name} has no method {fiber.fn_name!r} any more"), None
        self._at_work[context.id] = context
        task = asyncio.current_task()
        assert task is not None
        try:
            return await self._called(context, fiber, method, task)
        finally:
            context.finished()
            del self._at_work[context.id]

    async def _called(
        self, context: FiberContext, fiber: Fiber, method: Callable[..., object], task: asyncio.Task[object]
    ) -> tuple[FiberResult | None, Exception | None]:
        CURRENT.set(context)
        ACTIVITY.set(Activity(f"fiber/{self._life.agent_id}/{context.id}"))
        arguments, problem = tried_now(lambda: self._arguments(context, fiber))
        if arguments is None or not context.holds(self.store.find(context.id)):
            return None, problem
        context.begin(task, can_be_cancelled=is_async(method))
        result, problem = await tried(self._life.call(method, *arguments))
        context.finished()
        if problem is None and isinstance(result, FiberResult):
            return tried_now(lambda: self._moves.checked(result))
        return None, problem

    def _arguments(self, context: FiberContext, fiber: Fiber) -> tuple[object, ...]:
        count, shape = fiber_shape(method_named(type(self._life.agent), fiber.fn_name))
        body = self.store.input(fiber)
        return (context, None if body is None else shape.decode("input", body))[:count]

    def _conclude(
        self, transaction: Transaction, context: FiberContext, result: FiberResult | None, problem: Exception | None
    ) -> None:
        """What an attempt came to, if the fiber is still in its hands."""
        fiber = self.store.find(context.id)
        if fiber is None or not context.holds(fiber):
            return
        found, limits = fiber.interruption(has_hook=False), self._life.limits
        elapsed = {"elapsed_ms": self._life.now_ms() - fiber.started_at_ms}
        if problem is not None:
            error = in_words(problem)
            verdict = after_error(found, error, limits, self._life.dice.roll())
            self._moves.move(transaction, fiber.but(error=error[: limits.error_chars_max]), verdict)
            self._moves.tell_after(transaction, "fiber:run:failed", fiber, {**elapsed, "error": error})
        else:
            given = result or FiberResult("completed")
            self._moves.move(transaction, fiber, after_hook(given, found, limits, self._life.dice.roll()), given)
            self._moves.tell_after(transaction, "fiber:run:completed", fiber, {**elapsed, "status": given.status})

    # unmanaged ones

    async def run(self, name: str, fn: Callable[[FiberContext], object]) -> object:
        """Do something as a fiber that is remembered only while it runs. The agent is kept awake by it, whether anybody waits or not."""
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
        )
        self.store.change(lambda transaction: self.store.put(transaction, fiber))
        self._moves.tell("fiber:run:started", fiber, {"attempt": 1})
        context = self._at_work[fiber.fiber_id] = FiberContext(self._life, self.store, fiber)
        CURRENT.set(context)
        try:
            result, problem = await tried(self._life.call(fn, context))
        except asyncio.CancelledError:
            self._forget(fiber)
            raise
        self._forget(fiber)
        elapsed = {"elapsed_ms": self._life.now_ms() - now_ms}
        if problem is not None:
            self._moves.tell("fiber:run:failed", fiber, {**elapsed, "error": in_words(problem)})
            raise problem
        self._moves.tell("fiber:run:completed", fiber, elapsed)
        return result

    def _forget(self, fiber: Fiber) -> None:
        """It is over. If that cannot be written down its result counts all the same."""
        self._at_work.pop(fiber.fiber_id).finished()
        if self._life.is_leaving:
            return
        _, problem = tried_now(lambda: self.store.change(lambda transaction: self.store.drop(transaction, fiber)))
        if problem is not None:
            self._life.trouble(f"forgetting fiber {fiber.name!r}", problem)


class FiberWaiters:
    """Those who wait for fibers, in one life of their agent: for the row, through recoveries and cancellations, whoever began it.

    Args:
        at_work: the code that is at fibers just now.
        give_place: gives places to fibers that are due, or takes them back.
    """

    def __init__(
        self, life: Life, store: FiberStore, at_work: Mapping[str, FiberContext], give_place: Callable[[int], None]
    ) -> None:
        self._life, self._store, self._at_work, self._give_place = life, store, at_work, give_place
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def tell(self, fiber_id: str) -> None:
        """The fiber is over."""
        for waiter in self._waiting.pop(fiber_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def settled(self, fiber_id: str, timeout_ms: float | None, *, accepted: bool = False) -> FiberInspection:
        """Wait until the fiber is over, or for so long; then it is shown as it is.

        A fiber that waits for another one lends its place, so that however many do, those that they wait for can begin.
        """
        if self._life.transaction is not None:
            raise AwaitedInsideHandler(
                "wait_for_completion",
                "nobody can wait inside a transaction or a handler: the fiber begins with its commit",
            )
        mine = CURRENT.get()
        is_lending = mine is not None and mine.is_managed and self._at_work.get(mine.id) is mine
        if is_lending:
            self._give_place(1)
        try:
            async with asyncio.timeout(None if timeout_ms is None or timeout_ms == INFINITY else timeout_ms / 1000):
                await self._until_settled(fiber_id)
        except TimeoutError:
            pass
        finally:
            if is_lending:
                self._give_place(-1)
        return self._store.inspected(self._found(fiber_id), accepted=accepted)

    async def _until_settled(self, fiber_id: str) -> None:
        while not self._found(fiber_id).is_settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(fiber_id, []).append(waiter)
            await waiter

    def _found(self, fiber_id: str) -> Fiber:
        fiber = self._store.find(fiber_id)
        if fiber is None:
            raise BadRequest("fiber_id", f"{fiber_id!r} is no fiber of {self._life.agent_id}, or was deleted")
        return fiber
