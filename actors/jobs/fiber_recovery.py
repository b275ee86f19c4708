"""The recovery of fibers whose process died: applies what `policies.fibers` decides, and calls the author's hook.

A hook is called at least once. Each call is recorded before it is made: after a death in its middle it is called again, after a durable
pause, until its budget is used up. It is a task of its own with a time limit. A hook that ignores its cancellation holds no place, and
what it does late has no effect, because it bears the number of an earlier call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from perdure.actors.code.author_call import in_words, method_named, tried, tried_now
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext, FiberRecovery
from perdure.actors.jobs.fiber_requests import checked_result
from perdure.actors.jobs.fiber_store import FiberStore, GroupCommit
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life
from perdure.actors.ports import KillPoint
from perdure.ledger import BadRequest
from perdure.ledger.storage.cabinet import Transaction
from perdure.policies import (
    Ask,
    Drop,
    Enter,
    FiberEvent,
    FiberResult,
    FiberState,
    Settle,
    after_hook,
    recovery_pause_after,
    take_up,
)


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
            self._store.tell("fiber:run:interrupted", fiber, told)
            self._store.tell("fiber:recovery:detected", fiber, told)
        has_hook = bool(fiber.on_recovered) or self._life.overrides("on_fiber_recovered")
        found = fiber.interruption(has_hook=has_hook, cause=self._life.lost_by)
        verdict = take_up(found, self._life.limits, self._life.dice.roll())
        if isinstance(verdict, Ask):
            await self._ask(fiber, verdict)
        else:
            await self._together(lambda transaction: self._decide(transaction, fiber, verdict))

    def _decide(self, transaction: Transaction, seen: Fiber, verdict: Enter | Settle | Drop) -> None:
        """Apply a verdict, unless the fiber has changed since."""
        if self._store.find(seen.fiber_id) == seen:
            moved = seen.but(recoveries=0, is_recovering=isinstance(verdict, Enter))
            self._store.move(transaction, moved, verdict)
            if isinstance(verdict, Drop):
                transaction.then(partial(self._lost, seen, verdict.why))

    def _lost(self, fiber: Fiber, why: str) -> None:
        """An unmanaged fiber is over, and no hook took it up. It leaves a line in the log."""
        self._store.tell("fiber:recovery:skipped", fiber, {"error": why})
        self._life.trouble(f"fiber {fiber.name!r}", RuntimeError(why))

    # the author's hook

    async def _ask(self, fiber: Fiber, ask: Ask) -> None:
        asked = await self._together(lambda transaction: self._claim(transaction, fiber, ask))
        if asked is None:
            return
        context = FiberRecovery(self._life, self._store, asked)
        self._store.spans.enter(asked)
        self._store.tell("fiber:recovery:attempt", asked, {"recoveries": asked.recoveries})
        result, problem = await self._called(context, asked)
        self._at_work.pop(context.id, None)
        if self._life.is_leaving:
            return
        self._life.faults.at(KillPoint.MID_HANDLER, f"recovery of fiber {context.id}")
        await self._together(lambda transaction: self._answered(transaction, context, result, problem))

    def _claim(self, transaction: Transaction, seen: Fiber, ask: Ask) -> Fiber | None:
        if self._store.find(seen.fiber_id) != seen:
            return None
        now_ms = self._life.now_ms()
        asked = seen.after(
            FiberEvent.ASKED,
            now_ms,
            is_recovering=True,
            recoveries=seen.recoveries + 1,
            life=self._life.incarnation,
            due_at_ms=now_ms + ask.then_ms,
        )
        return None if asked is None else self._store.put(transaction, asked)

    async def _called(self, context: FiberRecovery, asked: Fiber) -> tuple[FiberResult | None, Exception | None]:
        """Call the hook. Returns its result or its error. After its time limit it is cancelled, and not awaited."""
        name = asked.on_recovered or "on_fiber_recovered"
        hook = method_named(self._life.agent, name)
        if not callable(hook):
            return None, BadRequest("on_recovered", f"{type(self._life.agent).__name__} has no method {name!r}")
        task = self._life.spawn_awaited(self._in_context(context, hook))
        context.begin(task, can_be_cancelled=True)
        self._at_work[context.id] = context
        timeout_ms = self._life.limits.fiber_recovery_timeout_ms
        done, _ = await asyncio.wait({task}, timeout=timeout_ms / 1000)
        context.cancelled.set()
        if not done:
            task.cancel()
            return None, TimeoutError(f"{name} did not return within {timeout_ms} ms")
        return (None, RuntimeError("it was cancelled")) if task.cancelled() else task.result()

    async def _in_context(
        self, context: FiberRecovery, hook: Callable[..., object]
    ) -> tuple[FiberResult | None, Exception | None]:
        CURRENT.set(context)
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
        """Apply the hook's verdict, if this call still counts. A hook that failed is called again after a pause."""
        fiber = self._store.find(context.id)
        if fiber is None or not context.holds(fiber):
            return
        limits, roll = self._life.limits, self._life.dice.roll()
        if problem is None:
            verdict = after_hook(result, fiber.interruption(has_hook=True), limits, roll)
            self._store.move(transaction, fiber.but(recoveries=0, error=None), verdict, result)
            status = verdict.status if isinstance(verdict, Settle) else type(verdict).__name__.lower()
            self._store.tell_after(transaction, "fiber:recovery:handled", fiber, {"status": status})
            return
        error = f"its recovery hook failed: {in_words(problem)}"[: limits.error_chars_max]
        due_at_ms = self._life.now_ms() + recovery_pause_after(fiber.recoveries, limits, roll)
        self._store.put(transaction, fiber.but(error=error, due_at_ms=due_at_ms))
        self._store.tell_after(transaction, "fiber:recovery:failed", fiber, {"error": error, "reason": "handler_error"})
