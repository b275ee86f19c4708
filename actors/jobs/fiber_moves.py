"""Applies verdicts to the rows of fibers, and emits the events of fibers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perdure.actors.events.observability import Channel, emit
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.life import Life
from perdure.actors.life.steps import plain
from perdure.ledger import BadRequest, TooLarge
from perdure.ledger.storage.cabinet import Transaction
from perdure.policies import UNSET, Drop, Enter, FiberEvent, FiberResult, Settle


class FiberMoves:
    """The transitions of the fibers of one agent."""

    def __init__(self, life: Life, store: FiberStore) -> None:
        self._life, self._store = life, store

    def move(
        self,
        transaction: Transaction,
        fiber: Fiber,
        verdict: Enter | Settle | Drop,
        result: FiberResult | None = None,
    ) -> None:
        """Apply a verdict, with the snapshot and the metadata of its result."""
        now_ms, most = self._life.now_ms(), self._life.limits.error_chars_max
        if isinstance(verdict, Drop):
            self._store.drop(transaction, fiber)
            return
        if isinstance(verdict, Enter):
            due_at_ms = now_ms + verdict.after_ms if verdict.after_ms else 0
            error = fiber.error if result is None else result.error
            moved = fiber.after(FiberEvent.RETRIED, now_ms, due_at_ms=due_at_ms, error=error and error[:most])
        else:
            error = verdict.error and verdict.error[:most]
            event = FiberEvent(verdict.status)
            moved = fiber.after(event, now_ms, due_at_ms=0, is_recovering=False, error=error)
        if moved is None:
            return
        if result is not None and result.snapshot is not UNSET:
            self._store.stash(transaction, fiber.fiber_id, result.snapshot)
        if result is not None and result.metadata is not UNSET:
            moved = moved.but(metadata=result.metadata)
        self._store.put(transaction, moved)

    def cancel(self, transaction: Transaction, fiber: Fiber, reason: str | None) -> bool:
        """End an open fiber as aborted. Returns whether it was open."""
        error = reason and reason[: self._life.limits.error_chars_max]
        moved = fiber.after(FiberEvent.CANCELLED, self._life.now_ms(), due_at_ms=0, is_recovering=False, error=error)
        if moved is not None:
            self._store.put(transaction, moved)
            self.tell_after(transaction, "fiber:run:cancelled", moved, {"error": reason})
        return moved is not None

    def checked(self, result: object) -> FiberResult | None:
        """The verdict that a hook or a body returned. Raises `BadRequest` or `TooLarge` for anything else."""
        if result is None:
            return None
        if result == FiberEvent.RETRIED:
            return FiberResult("retry")
        if not isinstance(result, FiberResult):
            raise BadRequest("result", f"{result!r:.200} is no FiberResult, 'retry' or None")
        limits = self._life.limits
        for field, most in (("snapshot", limits.stash_bytes_max), ("metadata", limits.metadata_bytes_max)):
            value = getattr(result, field)
            body = b"" if value is UNSET else plain(field, value)
            if len(body) > most:
                raise TooLarge(field, f"has {len(body)} bytes; the limit is {most}")
        return result

    def tell(self, name: str, fiber: Fiber, payload: Mapping[str, object]) -> None:
        """Emit an event of a fiber."""
        told = {"fiber_id": fiber.fiber_id, "fiber_name": fiber.name, "managed": fiber.is_managed, **payload}
        emit(Channel.FIBER, name, agent=self._life.agent_id, payload=told, at_ms=self._life.now_ms())

    def tell_after(self, transaction: Transaction, name: str, fiber: Fiber, payload: Mapping[str, object]) -> None:
        """Emit an event of a fiber after the commit."""
        transaction.then(partial(self.tell, name, fiber, payload))
