"""The first argument of a fiber's body and of its recovery hook."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.life import Life
from perdure.actors.life.steps import RemembersSteps, plain, step_name
from perdure.actors.tasks import Pending
from perdure.ledger import BadRequest, FiberStopped, TooLarge, taken_out, unpack_value
from perdure.ledger.storage.agent_storages import Transaction
from perdure.policies import UNSET, FiberState, FiberStatus, Json, StepRecord


class Cancelled(asyncio.Event):
    """Is set when a fiber is over. Code of any loop may wait for it, and sync code."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def wait(self) -> Pending[Literal[True]]:
        return self._life.bridge(super().wait())


class FiberContext(RemembersSteps):
    """One attempt at a fiber.

    Attributes:
        id: of the fiber; with a step's name the idempotency key for effects outside of the agent.
        name: what it was started as.
        key: its idempotency key, or None.
        metadata: what it was started with, or None.
        attempt: 1, 2, …; above 1, `snapshot` and `step` tell how far the earlier attempts came.
        cancelled: is set when the fiber was cancelled or resolved although this code still runs.
    """

    __perdure_context__: ClassVar = "FiberContext"

    def __init__(self, life: Life, store: FiberStore, fiber: Fiber, *, was_cut_off: bool = False) -> None:
        super().__init__()
        self._was_cut_off = was_cut_off
        self.id, self.name, self.attempt = fiber.fiber_id, fiber.name, fiber.attempt
        self.key = fiber.idempotency_key or None
        self.metadata: Any = taken_out(fiber.metadata)
        self._snapshot: object = UNSET
        self.cancelled = Cancelled(life)
        self.is_managed = fiber.is_managed
        self._life, self._store = life, store
        self._steps: dict[str, bytes] | None = None if self.attempt > 1 else {}  # the first attempt finds none
        self._task: asyncio.Task[object] | None = None

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

    def stash(self, data: object) -> bool:
        """Replace the stashed value. Durable on return, or with the open transaction.

        Returns False, and changes nothing, if the fiber is over or another attempt is at it.
        """
        body = plain("data", data, self._life.limits.stash_bytes_max)
        return self._store.change(partial(self._keep, unpack_value(body)))  # a copy, as a later life will read it

    def _keep(self, value: Json, transaction: Transaction) -> bool:
        is_held = self.holds(self._store.find(self.id))
        if is_held:
            self._store.stash(transaction, self.id, value)
            transaction.then(partial(setattr, self, "_snapshot", value))
        return is_held

    # for the engine

    def begin(self, task: asyncio.Task[object], *, can_be_cancelled: bool) -> None:
        """The author's code begins in this task. Sync code is not cancelled: it asks `is_cancelled`."""
        self._task = task if can_be_cancelled else None

    def finished(self) -> None:
        """The author's code has ended. The rest of the task is not cancelled."""
        self._task = None

    def stop(self) -> None:
        """The fiber is over: set `cancelled`, and cancel async code, unless that code ended the fiber."""
        self.cancelled.set()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def holds(self, fiber: Fiber | None) -> bool:
        """Whether the row names this attempt as the one at work."""
        mine = self._life.incarnation, self.attempt
        return fiber is not None and fiber.status == FiberStatus.RUNNING and (fiber.life, fiber.attempt) == mine

    def _remembered(self, name: str) -> bytes | None:
        if self._steps is None:
            self._steps = self._store.steps(self.id)
        known = self._steps.get(name)
        known = known or self._store.pending_step(self.id, name)
        if known is None and self.is_cancelled:
            raise FiberStopped(self.id, step_name(name))
        return known

    @property
    def _owner(self) -> str:
        return self.id

    def _counted(self, record: StepRecord) -> StepRecord:
        # After a death the same count goes on. A body that is entered again because it has raised counts anew.
        is_same = record.round == self.attempt or self._was_cut_off
        return record._replace(round=self.attempt) if is_same else record.counted_anew(self.attempt)

    def _undo_reference(self, undo: object) -> list[Any]:
        raise BadRequest(
            "undo", "a fiber has no end that undoes its steps; take such a step in a run, or undo in the body"
        )

    def _note_down(self, name: str, body: bytes) -> None:
        if not self._store.change(partial(self._keep_step, name, body, is_progress=False)):
            raise FiberStopped(self.id, step_name(name))

    def _remember(self, name: str, body: bytes) -> None:
        most = self._life.limits.stash_bytes_max
        if len(body) > most:
            raise TooLarge("step", f"{step_name(name)!r} has {len(body)} bytes; the limit stash_bytes_max is {most}")
        if not self._store.change(partial(self._keep_step, name, body)):
            raise FiberStopped(self.id, step_name(name))

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
        super().__init__(life, store, fiber, was_cut_off=True)
        self.recoveries, self.created_at_ms = fiber.recoveries, fiber.created_at_ms
        self._steps = None
        self._row = fiber

    @cached_property
    def input(self) -> Any:
        """The input of its body, as plain data."""
        body = self._store.input(self._row)
        return None if body is None else unpack_value(body)

    def holds(self, fiber: Fiber | None) -> bool:
        """Whether the row names this recovery as the one at work."""
        mine = self._life.incarnation, self.recoveries
        return fiber is not None and fiber.state is FiberState.RECOVERING and (fiber.life, fiber.recoveries) == mine


CURRENT: ContextVar[FiberContext | None] = ContextVar("perdure_fiber", default=None)
"""The fiber that the current code belongs to."""
