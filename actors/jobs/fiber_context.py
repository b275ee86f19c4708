"""The first argument of a fiber's body and of its recovery hook."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

from perdure.actors.code.awaited import may_be_awaited
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.life import Life
from perdure.actors.life.steps import step_name
from perdure.actors.life.waits import RemembersWaits, SentEvent, WaitEnd, Waits
from perdure.actors.tasks import Pending
from perdure.ledger import BadRequest, FiberStopped, TooLarge, WaitTimedOut, pack_value, taken_out, unpack_value
from perdure.ledger.storage.agent_storages import Transaction
from perdure.policies import UNSET, FiberState, FiberStatus, Json, StepRecord


# Set when a fiber is over. Code of any loop may wait for it, and sync code.
class Cancelled(asyncio.Event):
    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def wait(self) -> Pending[Literal[True]]:
        return self._life.bridge(super().wait())


class FiberWaits(Waits):
    """What one attempt at a fiber waits for.

    Args:
        may_end: whether the attempt may end because of that. Otherwise it waits in memory.

    Attributes:
        stopped: the fiber is over, so nobody waits for anything any more.
    """

    def __init__(
        self, life: Life, over_ms: float, main: asyncio.Task[object] | None, thread: int, *, may_end: bool
    ) -> None:
        super().__init__(life, over_ms, main, thread)
        self._may_end = may_end
        self.stopped: FiberStopped | None = None
        self.has_events = False

    @property
    def _may_suspend(self) -> bool:
        return self._may_end and self.goes_on

    def check(self) -> None:
        if self.stopped is not None:
            raise self.stopped
        super().check()

    def deliver(self, events: list[SentEvent]) -> None:
        # One that comes again is no other.
        self.line_up(self._fresh(events))

    def stop(self, stopped: FiberStopped) -> None:
        # Sync code, which is not cancelled, is told where it waits.
        self.stopped = stopped
        for waiter in self._waiters:
            if not waiter.signal.done():
                waiter.signal.set_exception(stopped)


class FiberContext(RemembersWaits[FiberWaits]):
    """One attempt at a fiber.

    Attributes:
        id: of the fiber; with a step's name the idempotency key for effects outside of the agent.
        name: what it was started as.
        key: its idempotency key, or None.
        metadata: what it was started with, or None.
        attempt: 1, 2, …; above 1, `snapshot` and `step` tell how far the earlier attempts came. After a long wait comes another one.
        cancelled: is set when the fiber was cancelled or resolved although this code still runs.
    """

    __perdure_context__: ClassVar = "FiberContext"

    def __init__(self, life: Life, store: FiberStore, fiber: Fiber) -> None:
        super().__init__()
        self._round, self._over_ms = fiber.round, fiber.over_ms
        self.id, self.name, self.attempt = fiber.fiber_id, fiber.name, fiber.attempt
        self.key = fiber.idempotency_key or None
        self.metadata: Any = taken_out(fiber.metadata)
        self._snapshot: object = UNSET
        self.cancelled = Cancelled(life)
        self.is_managed = self._is_entered_again = fiber.is_managed
        self._life, self._store = life, store
        self._steps: dict[str, bytes] | None = None if self.attempt > 1 else {}  # the first attempt finds none
        self._task: asyncio.Task[object] | None = None
        self._is_sync = False

    @property
    def snapshot(self) -> Any:
        """The value stashed last, in this attempt or an earlier one, or None."""
        if self._snapshot is not UNSET and self._life.transaction is None:
            return self._snapshot
        return self._store.stashed(self.id)[1]  # a transaction sees its own stash, and may roll back

    @property
    def is_cancelled(self) -> bool:
        """Whether the fiber is over, so that this code has no effect any more. For sync code, which cannot be interrupted."""
        return self.cancelled.is_set() or self._life.is_leaving

    @may_be_awaited
    def stash(self, data: object) -> bool:
        """Replace the stashed value. Durable on return, or with the open transaction.

        Returns False, and changes nothing, if the fiber is over or another attempt is at it.
        """
        if not self.is_cancelled:
            self._boundary()
        elif self.cancelled.is_set():
            return False
        body = pack_value("data", data, self._life.limits.stash_bytes_max)
        return self._store.change(partial(self._keep, unpack_value(body)))  # a copy, as a later life will read it

    def _keep(self, value: Json, transaction: Transaction) -> bool:
        is_held = self.holds(self._store.find(self.id))
        if is_held:
            self._store.stash(transaction, self.id, value)
            transaction.then(partial(setattr, self, "_snapshot", value))
        return is_held

    # waiting

    def _new_waits(self) -> FiberWaits:
        return FiberWaits(self._life, self._over_ms, self._main, self._thread, may_end=self._is_entered_again)

    async def _event(self, key: str, name: str, until: WaitEnd, most_ms: float, thread: int) -> tuple[object, str]:
        if not self.waits.has_events:
            self.waits.has_events = True
            self.waits.deliver(self._store.events(self.id))
        return await super()._event(key, name, until, most_ms, thread)

    async def _kept_moment(self, key: str, until: WaitEnd) -> WaitEnd:
        return await super()._kept_moment(key, until) if self._is_entered_again else until

    def _keeps_sleep(self) -> bool:
        return True

    def _late(self, event: str) -> WaitTimedOut:
        return WaitTimedOut("", event, self.id)

    def _take(self, key: str, body: bytes, event: SentEvent | None) -> None:
        if not self._store.change(partial(self._take_in, key, body, event)):
            raise self._stopped(key)

    def _take_in(self, key: str, body: bytes, event: SentEvent | None, transaction: Transaction) -> bool:
        is_held = self.holds(self._store.find(self.id))
        if is_held and event is not None:
            self._store.took(transaction, self.id, event)
        if is_held and self._is_entered_again:
            return self._keep_step(key, body, transaction, is_progress=event is not None)
        return is_held

    def _stopped(self, key: str) -> FiberStopped:
        return FiberStopped(self.id, step_name(key) or key.split("\0")[1])  # a wait has a name of ours

    # for the engine

    def event_came(self, event: SentEvent) -> None:
        """An event was sent to the fiber, durably."""
        if self.has_waits and self.waits.has_events:  # otherwise its first wait finds it
            self.waits.deliver([event])

    def begins_in(self, task: asyncio.Task[object], *, is_sync: bool = False) -> None:
        """The author's code begins in this task. Sync code is not cancelled: it asks `is_cancelled`, and is refused after a while."""
        self._task, self._is_sync = task, is_sync

    def finished(self) -> None:
        """The author's code has ended. The rest of the task is not cancelled."""
        self._task = None
        self.waits_are_over()

    def stop(self) -> None:
        """The fiber is over: set `cancelled`, and cancel async code, unless that code ended the fiber."""
        self.cancelled.set()
        if self.has_waits:
            self.waits.stop(FiberStopped(self.id, "wait"))
        task, self._task = self._task, None
        if task is None or task is asyncio.current_task():
            return
        if not self._is_sync:
            self._life.give_up(task)
        elif CURRENT.get() is not self:
            self._life.let_end(task)

    def holds(self, fiber: Fiber | None) -> bool:
        """Whether the row names this attempt as the one at work."""
        mine = self._life.incarnation, self.attempt
        return fiber is not None and fiber.state is FiberState.RUNNING and (fiber.life, fiber.attempt) == mine

    def _remembered(self, name: str) -> bytes | None:
        if self._steps is None:
            self._steps = self._store.steps(self.id)
        known = self._steps.get(name)
        known = known or self._store.pending_step(self.id, name)
        if known is None and self.is_cancelled:
            raise self._stopped(name)
        return known

    @property
    def _owner(self) -> str:
        return self.id

    def _counted(self, record: StepRecord) -> StepRecord:
        # After a death or a wait the same count goes on. A body that is entered again because it has raised counts anew.
        return record if record.round == self._round else record.counted_anew(self._round)

    def _undo_reference(self, undo: object) -> list[object]:
        raise BadRequest(
            "undo", "a fiber has no end that undoes its steps; take such a step in a run, or undo in the body"
        )

    def _note_down(self, name: str, body: bytes) -> None:
        if not self._store.change(partial(self._keep_step, name, body, is_progress=False)):
            raise self._stopped(name)

    def _remember(self, name: str, body: bytes) -> None:
        most = self._life.limits.stash_bytes_max
        if len(body) > most:
            raise TooLarge("step", f"{step_name(name)!r} has {len(body)} bytes; the limit stash_bytes_max is {most}")
        if not self._store.change(partial(self._keep_step, name, body)):
            raise self._stopped(name)

    def _keep_step(self, name: str, body: bytes, transaction: Transaction, *, is_progress: bool = True) -> bool:
        fiber = self._store.find(self.id)
        if fiber is None or not self.holds(fiber):
            return False
        assert self._steps is not None
        self._store.save_step(transaction, self.id, name, body)
        transaction.then(partial(self._steps.__setitem__, name, body))
        if is_progress and fiber.idle_attempts:
            self._store.put(transaction, fiber.but(idle_attempts=0))
        return True


class FiberRecovery(FiberContext):
    """An interrupted fiber, as its recovery hook sees it.

    Attributes:
        reason: `interrupted`: the process of its body, or of an earlier recovery, died.
        recoveries: 1, 2, …: calls of the hook for this interruption. It is called at least once.
        status: `interrupted`.
    """

    reason: Literal["interrupted"] = "interrupted"
    status: Literal[FiberStatus.INTERRUPTED] = FiberStatus.INTERRUPTED

    def __init__(self, life: Life, store: FiberStore, fiber: Fiber) -> None:
        super().__init__(life, store, fiber)
        self._is_entered_again = False  # the hook may be called again; what it waits for then is another thing
        self.recoveries, self.created_at_ms = fiber.recoveries, fiber.created_at_ms
        self._steps = None
        self._row = fiber

    @cached_property
    def input(self) -> Any:
        """The input of its body, as plain data."""
        body = self._store.input(self._row)
        return None if body is None else unpack_value(body)

    def _occurrence(self, name: str) -> str:
        return f"\0recovery\0{self.recoveries}{super()._occurrence(name)}"  # no wait of the body

    def holds(self, fiber: Fiber | None) -> bool:
        """Whether the row names this recovery as the one at work."""
        mine = self._life.incarnation, self.recoveries
        return fiber is not None and fiber.state is FiberState.RECOVERING and (fiber.life, fiber.recoveries) == mine


CURRENT: ContextVar[FiberContext | None] = ContextVar("perdure_fiber", default=None)
"""The fiber that the current code belongs to."""
