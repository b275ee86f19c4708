"""The fibers of one life of an agent: accepted, entered, ended exactly once, whoever dies.

    start ─► row (pending) ─► `_enter`: row (running, attempt + 1) ─► the body ─► row (settled, or pending again)

A row is the truth; memory knows only who is at work. So whatever a death leaves is found by its row: the next life of the agent takes up
every open fiber after it has come up, never before (spec §11, 16), oldest first. One that was waiting is entered; one that was running is
recovered (`fiber_recovery`). What died before a commit did not happen, and what died after it is not done again. Between the end of a
body and the commit of its end there is a moment in which a death has it taken up like any other.

Transitions are compare-and-set on the row: it must be in the hands of this life and this attempt, or this recovery. A body that goes on
after its fiber was cancelled, or in a life that is over, changes nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from actors.activity import ACTIVITY, Activity
from actors.author import in_words, is_async, tried, tried_now
from actors.jobs.fiber import Fiber, FiberInspection
from actors.jobs.fiber_agenda import Agenda
from actors.jobs.fiber_context import CURRENT, FiberContext
from actors.jobs.fiber_records import FiberRecords
from actors.jobs.fiber_recovery import Recoveries
from actors.jobs.fiber_requests import Requests
from actors.jobs.fiber_store import FiberStore
from actors.jobs.fiber_waiters import Waiters
from actors.jobs.group_commit import GroupCommit
from actors.observability import Channel, emit
from actors.ports import KillPoint
from actors.schema import fiber_shape
from actors.steps import plain
from ledger import BadRequest, TooLarge
from policies import UNSET, Drop, Enter, FiberResult, Settle, after_error, after_hook

if TYPE_CHECKING:
    from actors.tenant import Tenant
    from ledger.storage import Transaction

READ_AT_ONCE = 100


class Fibers:
    """What is under way of an agent's fibers, in one life of it."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.store = FiberStore(tenant, self._moved)
        self.together = GroupCommit(tenant, self.store, lambda: bool(self.agenda.recovering.due))
        self.waiters = Waiters(self)
        self.recoveries = Recoveries(self)
        self.agenda = Agenda(self, self._enter, self.recoveries.recover)
        self.requests = Requests(self)
        self.records = FiberRecords(self)
        self.at_work: dict[str, FiberContext] = {}
        self._number = 0

    def roll(self) -> float:
        """A throw of the dice."""
        return self.tenant.host.world.dice.roll()

    def next_number(self) -> int:
        """The place of a new fiber among the others."""
        self._number = max(self._number + 1, self.tenant.now_ms())
        return self._number

    def inspect(self, fiber_id: str) -> FiberInspection | None:
        """A managed fiber as its author may see it."""
        fiber = self.store.find(fiber_id)
        return None if fiber is None or not fiber.is_managed else self.inspected(fiber)

    def inspected(self, fiber: Fiber, *, accepted: bool = False) -> FiberInspection:
        """A fiber as its author may see it."""
        snapshot = None if accepted and not fiber.attempt else self.store.stashed(fiber.fiber_id)[1]
        return fiber.shown(self.tenant.incarnation, snapshot, accepted=accepted)

    # what others left, and what has become durable

    def woken(self) -> None:
        """Take up what earlier lives left open."""
        open_ids = self.store.open_ids()
        if open_ids:
            self.tenant.spawn(self._take_up(open_ids))
        self.records.woken()
        self.agenda.look_soon()  # for what `on_start` began

    async def _take_up(self, open_ids: list[str]) -> None:
        """Read the rows piece by piece, so that whoever calls the agent meanwhile need not wait for that."""
        for first in range(0, len(open_ids), READ_AT_ONCE):
            found = self.store.find_many(open_ids[first : first + READ_AT_ONCE])
            self.store.fetch_inputs(each for each in found if each.status == "pending" or each.retry is not None)
            for fiber in found:
                if fiber.life != self.tenant.incarnation:
                    self.agenda.add(fiber)
            await asyncio.sleep(0)

    def _moved(self, fiber: Fiber) -> None:
        """A row has become durable: begin what is to begin, stop what is over, tell who waits."""
        if self.tenant.is_leaving:
            return
        if not fiber.is_settled:
            if fiber.status == "pending":
                self.agenda.add(fiber)
            return
        self.records.settled()
        context = self.at_work.get(fiber.fiber_id)
        if context is not None:
            context.stop()
        self.waiters.tell(fiber.fiber_id)

    def move(
        self,
        transaction: Transaction,
        fiber: Fiber,
        verdict: Enter | Settle | Drop,
        result: FiberResult | None = None,
    ) -> None:
        """Bring a fiber to where a verdict wants it, with what its result says beside."""
        now_ms, told = self.tenant.now_ms(), result or FiberResult("retry", fiber.error)
        if isinstance(verdict, Drop):
            self.store.drop(transaction, fiber)
            return
        if told.snapshot is not UNSET:
            self.store.stash(transaction, fiber.fiber_id, told.snapshot)
        if told.metadata is not UNSET:
            fiber = fiber.but(metadata=told.metadata)
        if isinstance(verdict, Enter):
            due_at_ms = now_ms + verdict.after_ms if verdict.after_ms else 0
            error = told.error and told.error[: self.tenant.limits.error_chars_max]
            moved = fiber.but(status="pending", due_at_ms=due_at_ms, settled_at_ms=0, error=error)
        else:
            error = verdict.error and verdict.error[: self.tenant.limits.error_chars_max]
            settled = fiber.but(status=verdict.status, error=error, settled_at_ms=now_ms)
            moved = settled.but(due_at_ms=0, is_recovering=False)
        self.store.put(transaction, moved)

    def cancel(self, fiber_id: str, reason: str | None) -> bool:
        """End an open fiber as aborted; whether there was one."""

        def abort(transaction: Transaction) -> bool:
            fiber = self.store.find(fiber_id)
            if fiber is None or fiber.is_settled or not fiber.is_managed:
                return False
            self.move(transaction, fiber, Settle("aborted", reason))
            self.emit_after(transaction, "fiber:run:cancelled", fiber, {"error": reason})
            return True

        return self.store.change(abort)

    def resolve(self, fiber_id: str, result: FiberResult | str) -> bool:
        """What somebody decided about an interrupted fiber, whether it is being recovered or not."""
        given = self.checked(FiberResult(result) if result == "retry" else result)  # type: ignore[arg-type]
        if given is None:
            raise BadRequest("result", "is None; it is a FiberResult, or 'retry'")

        def decide(transaction: Transaction) -> bool:
            fiber = self.store.find(fiber_id)
            is_interrupted = fiber is not None and fiber.shown(self.tenant.incarnation, None).status == "interrupted"
            if fiber is None or not is_interrupted or not fiber.is_managed:
                return False
            verdict = Enter() if given.status == "retry" else Settle(given.status, given.error)
            anew = fiber.but(recoveries=0, idle_attempts=0) if given.status == "retry" else fiber
            self.move(transaction, anew, verdict, given)
            return True

        return self.store.change(decide)

    # a body

    async def _enter(self, fiber_id: str) -> None:
        """One attempt, from the row that says so to the row that says what came of it."""
        entered = await self.together(lambda transaction: self._claim(transaction, fiber_id))
        if entered is None:
            return
        self.tenant.faults.at(KillPoint.BEFORE_RUN, f"fiber {fiber_id}")
        self.emit("fiber:run:started", entered, {"attempt": entered.attempt})
        context = FiberContext(self, entered)
        result, problem = await self._within(context, entered)
        if self.tenant.is_leaving:
            return  # it was told to stop; the next life takes the fiber up
        self.tenant.faults.at(KillPoint.BEFORE_REPORT, f"fiber {fiber_id}")
        await self.together(lambda transaction: self._conclude(transaction, context, result, problem))

    def _claim(self, transaction: Transaction, fiber_id: str) -> Fiber | None:
        fiber = self.store.find(fiber_id)
        if fiber is None or fiber.status != "pending":
            return None
        entered = fiber.but(
            status="running",
            is_recovering=False,
            attempt=fiber.attempt + 1,
            idle_attempts=fiber.idle_attempts + 1,
            life=self.tenant.incarnation,
            started_at_ms=fiber.started_at_ms or self.tenant.now_ms(),
            due_at_ms=0,
        )
        return self.store.put(transaction, entered)

    async def _within(self, context: FiberContext, fiber: Fiber) -> tuple[Any, Exception | None]:
        """What the author's method returned, or what is wrong."""
        method = getattr(self.tenant.agent, fiber.fn_name, None)
        if not callable(method):
            name = type(self.tenant.agent).__name__
            return FiberResult("interrupted", f"{name} has no method {fiber.fn_name!r} any more"), None
        self.at_work[context.id] = context
        task = asyncio.current_task()
        assert task is not None
        try:
            return await self._called(context, fiber, method, task)
        finally:
            context.finished()
            del self.at_work[context.id]

    async def _called(
        self, context: FiberContext, fiber: Fiber, method: Callable[..., Any], task: asyncio.Task[Any]
    ) -> tuple[Any, Exception | None]:
        CURRENT.set(context)
        ACTIVITY.set(Activity(f"fiber/{self.tenant.agent_id}/{context.id}"))
        arguments, problem = tried_now(lambda: self._arguments(context, fiber))
        if arguments is None or not context.holds(self.store.find(context.id), self.tenant.incarnation):
            return None, problem
        context.begin(task, can_be_cancelled=is_async(method))
        result, problem = await tried(self.tenant.call(method, *arguments))
        context.finished()
        if problem is None and isinstance(result, FiberResult):
            return tried_now(lambda: self.checked(result))
        return None, problem

    def _arguments(self, context: FiberContext, fiber: Fiber) -> tuple[Any, ...]:
        count, shape = fiber_shape(getattr(type(self.tenant.agent), fiber.fn_name))
        body = self.store.input(fiber)
        return (context, None if body is None else shape.decode("input", body))[:count]

    def _conclude(
        self, transaction: Transaction, context: FiberContext, result: FiberResult | None, problem: Exception | None
    ) -> None:
        """What an attempt came to, if the fiber is still in its hands."""
        fiber = self.store.find(context.id)
        if fiber is None or not context.holds(fiber, self.tenant.incarnation):
            return
        found, limits = fiber.interruption(has_hook=False), self.tenant.limits
        elapsed = {"elapsed_ms": self.tenant.now_ms() - fiber.started_at_ms}
        if problem is not None:
            error = in_words(problem)
            verdict = after_error(found, error, limits, self.roll())
            self.move(transaction, fiber.but(error=error[: limits.error_chars_max]), verdict)
            self.emit_after(transaction, "fiber:run:failed", fiber, {**elapsed, "error": error})
        else:
            given = result or FiberResult("completed")
            self.move(transaction, fiber, after_hook(given, found, limits, self.roll()), given)
            self.emit_after(transaction, "fiber:run:completed", fiber, {**elapsed, "status": given.status})

    # unmanaged ones

    async def run(self, name: str, fn: Callable[[FiberContext], Any]) -> Any:
        """Do something as a fiber that is remembered only while it runs. The agent is kept awake by it, whether anybody waits or not."""
        return await self.tenant.spawn(self._run(name, fn))

    async def _run(self, name: str, fn: Callable[[FiberContext], Any]) -> Any:
        now_ms = self.tenant.now_ms()
        fiber = Fiber(
            fiber_id=self.tenant.host.world.dice.token(),
            number=self.next_number(),
            name=name,
            status="running",
            is_managed=False,
            created_at_ms=now_ms,
            started_at_ms=now_ms,
            attempt=1,
            life=self.tenant.incarnation,
        )
        self.store.change(lambda transaction: self.store.put(transaction, fiber))
        self.emit("fiber:run:started", fiber, {"attempt": 1})
        context = self.at_work[fiber.fiber_id] = FiberContext(self, fiber)
        CURRENT.set(context)
        try:
            result, problem = await tried(self.tenant.call(fn, context))
        except asyncio.CancelledError:
            self._forget(fiber)
            raise
        self._forget(fiber)
        elapsed = {"elapsed_ms": self.tenant.now_ms() - now_ms}
        if problem is not None:
            self.emit("fiber:run:failed", fiber, {**elapsed, "error": in_words(problem)})
            raise problem
        self.emit("fiber:run:completed", fiber, elapsed)
        return result

    def _forget(self, fiber: Fiber) -> None:
        """It is over. If that cannot be written down its result counts all the same (spec W5)."""
        self.at_work.pop(fiber.fiber_id).finished()
        if self.tenant.is_leaving:
            return
        _, problem = tried_now(lambda: self.store.change(lambda transaction: self.store.drop(transaction, fiber)))
        if problem is not None:
            self.tenant.trouble(f"forgetting fiber {fiber.name!r}", problem)

    # what a body does

    def stash(self, context: FiberContext, value: Any) -> bool:
        """Keep a value for whoever goes on with the fiber, if it is in these hands."""

        def keep(transaction: Transaction) -> bool:
            is_held = context.holds(self.store.find(context.id), self.tenant.incarnation)
            if is_held:
                self.store.stash(transaction, context.id, value)
                transaction.then(partial(context.stashed, value))
            return is_held

        return self.store.change(keep)

    def save_step(self, context: FiberContext, name: str, body: bytes) -> bool:
        """Remember a finished step, if the fiber is in these hands. It is progress: the attempts without any begin anew."""

        def keep(transaction: Transaction) -> bool:
            fiber = self.store.find(context.id)
            if fiber is None or not context.holds(fiber, self.tenant.incarnation):
                return False
            self.store.save_step(transaction, context.id, name, body)
            transaction.then(partial(context.saved, name, body))
            if fiber.idle_attempts:
                self.store.put(transaction, fiber.but(idle_attempts=0))
            return True

        return self.store.change(keep)

    def lend(self, context: FiberContext) -> bool:
        """A body waits for another fiber: somebody else may have its place meanwhile. False if it has none."""
        has_place = self.at_work.get(context.id) is context
        if has_place:
            self.agenda.give_place(1)
        return has_place

    def take_back(self) -> None:
        """It goes on."""
        self.agenda.give_place(-1)

    def checked(self, result: Any) -> FiberResult | None:
        """What a hook or a body returned, if it is a verdict that can be kept."""
        if result is None:
            return None
        if result == "retry":
            return FiberResult("retry")
        if not isinstance(result, FiberResult):
            raise BadRequest("result", f"{result!r:.200} is no FiberResult, 'retry' or None")
        limits = self.tenant.limits
        for field, most in (("snapshot", limits.stash_bytes_max), ("metadata", limits.metadata_bytes_max)):
            value = getattr(result, field)
            body = b"" if value is UNSET else plain(field, value)
            if len(body) > most:
                raise TooLarge(field, f"has {len(body)} bytes; the limit is {most}")
        return result

    # events

    def emit(self, name: str, fiber: Fiber, payload: dict[str, Any]) -> None:
        """Tell those who observe what happened to a fiber."""
        told = {"fiber_id": fiber.fiber_id, "fiber_name": fiber.name, "managed": fiber.is_managed, **payload}
        emit(Channel.FIBER, name, agent=self.tenant.agent_id, payload=told, at_ms=self.tenant.now_ms())

    def emit_after(self, transaction: Transaction, name: str, fiber: Fiber, payload: dict[str, Any]) -> None:
        """Tell it once it is durable."""
        transaction.then(partial(self.emit, name, fiber, payload))
