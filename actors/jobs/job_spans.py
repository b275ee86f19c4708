"""The spans of fibers, and of the callbacks of schedules and of the queue.

    an attempt at a fiber    from the row that announces it to the row that ends it; a later one has a link to the one before
    a try of a callback      from its call to the commit of its effects or of its failure; a later one has a link to the one before

Each is told when a commit has ended it, so it is told once. An attempt that died is told by the life that takes the fiber up, which finds
it in the row. A try that died left nothing, and is made again under the same id.

What somebody asked for stands below who asked. The occurrences of a recurring schedule begin traces of their own, with links to who asked
for the schedule: one trace for years could not be read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

from perdure.actors.code.author_call import is_async
from perdure.actors.jobs.callback_rows import CallbackRow
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.life.documents import Documents
from perdure.actors.life.life import Life
from perdure.actors.telemetry.conventions import LOST
from perdure.ledger.storage.agent_storages import Transaction
from perdure.policies import AttemptSpans, Attribute, FiberState, FiberStatus, PastOutcome, context_of, error_type

_ERRORS: Final = {FiberStatus.ABORTED: "cancelled", FiberStatus.INTERRUPTED: "interrupted"}


class FiberSpans:
    """Tells of the fibers of one agent, in one life of it."""

    def __init__(self, life: Life, rows: Documents[Fiber]) -> None:
        self._life, self._rows, self._telemetry = life, rows, life.services.world.telemetry

    def _attempts(self, fiber: Fiber) -> AttemptSpans:
        return self._telemetry.attempts(fiber.trace, "fiber", self._life.agent_id, fiber.fiber_id, str(fiber.number))

    def enter(self, fiber: Fiber) -> None:
        if self._telemetry.is_on:
            self._telemetry.enter(self._attempts(fiber).place(fiber.attempt))

    def moves(self, transaction: Transaction, fiber_id: str, after: Fiber | None) -> None:
        # The row is about to be written, or dropped. If that ends an attempt, it is told with the commit.
        before = self._rows.get(fiber_id) if self._telemetry.is_on else None
        if before is None:
            return
        if before.state is not FiberState.RUNNING:
            if after is not None and after.is_settled and before.status == FiberStatus.PENDING and not before.attempt:
                self._tell_after(transaction, before, str(after.status), "cancelled")
            return
        if before.life != self._life.incarnation:
            self._tell_after(transaction, before, "interrupted", LOST)
        elif after is not None and (after.state, after.attempt) != (FiberState.RUNNING, before.attempt):
            self._tell_after(transaction, before, *_end(after))

    def ended(self, fiber: Fiber, problem: str | None) -> None:
        # The fiber has no row: nothing else tells of its end.
        if self._telemetry.is_on:
            end = ("completed", "") if problem is None else ("error", error_type(problem, "error"))
            self._tell(fiber, *end, self._life.now_ms())

    def _tell_after(self, transaction: Transaction, fiber: Fiber, status: str, error: str) -> None:
        transaction.then(partial(self._tell, fiber, status, error, self._life.now_ms()))

    def _tell(self, fiber: Fiber, status: str, error: str, at_ms: int) -> None:
        told: dict[str, Attribute] = {
            "perdure.agent.id": self._life.agent_id,
            "perdure.fiber.id": fiber.fiber_id,
            "perdure.fiber.name": fiber.name,
            "perdure.fiber.attempt": fiber.attempt,
            "perdure.fiber.status": status,
        }
        times = fiber.entered_at_ms or fiber.created_at_ms, at_ms
        self._telemetry.tell(self._attempts(fiber).ended(fiber.attempt, f"fiber {fiber.name}", times, told, error))


def _end(after: Fiber) -> tuple[str, str]:
    """How an attempt ended, and its error, by the row that follows. A row that is pending again failed, or asked for that; of one that
    waits the attempt has ended there, and the wait has no span."""
    if after.is_waiting:
        return str(after.state), ""
    if after.status == FiberStatus.PENDING:
        return "retry", error_type(after.error, "retry") if after.error else ""
    if after.status == FiberStatus.ERROR:
        return str(after.status), error_type(after.error or "", "error")
    return str(after.status), _ERRORS.get(after.status, "")


class CallbackSpans:
    """Tells of the callbacks of one agent's schedules, or of its queue."""

    def __init__(self, life: Life, domain: str) -> None:
        self._life, self._domain, self._telemetry = life, domain, life.services.world.telemetry

    def traced(self, row: CallbackRow, method: Callable[..., Any]) -> Callable[..., Any]:
        # What it asks for is below the span of this try of the row's occurrence.
        if not self._telemetry.is_on:
            return method
        place, telemetry = self._tries(row).place(row.attempt + 1), self._telemetry

        @wraps(method)
        async def called_async(*args: object) -> object:
            with telemetry.entered(place):
                return await method(*args)

        @wraps(method)
        def called(*args: object) -> object:
            with telemetry.entered(place):
                return method(*args)

        return called_async if is_async(method) else called

    def tried(
        self, transaction: Transaction, row: CallbackRow, begun_ms: int, outcome: PastOutcome, error: str = ""
    ) -> None:
        # The try is told with the commit. `error` is its type.
        if self._telemetry.is_on:
            transaction.then(partial(self._tell, row, (begun_ms, self._life.now_ms()), str(outcome), error))

    def _tell(self, row: CallbackRow, times: tuple[int, int], outcome: str, error: str) -> None:
        attempt, name = row.attempt + 1, f"{self._domain} {row.callback}"
        told: dict[str, Attribute] = {
            "perdure.agent.id": self._life.agent_id,
            f"perdure.{self._domain}.id": row.id,
            f"perdure.{self._domain}.callback": row.callback,
            f"perdure.{self._domain}.attempt": attempt,
            f"perdure.{self._domain}.outcome": outcome,
        }
        cause = context_of(row.trace) if row.is_recurring else None
        links = () if cause is None else (cause,)
        self._telemetry.tell(self._tries(row).ended(attempt, name, times, told, error, *links))

    def _tries(self, row: CallbackRow) -> AttemptSpans:
        carried = "" if row.is_recurring else row.trace
        return self._telemetry.attempts(carried, self._domain, self._life.agent_id, row.delivery_id)
