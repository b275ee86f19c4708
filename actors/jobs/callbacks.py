"""Calls the callbacks of rows that are due, each try in one transaction of the agent's storage (`actors.life.one_transaction`).

The transaction first moves the row on (to its next tick, or out of the storage), then calls the author's method, then writes the history.
So the method finds its occurrence consumed: it may schedule itself again, also under the same key or id, and may cancel, pause or change
its own schedule. If it raises, the transaction rolls back, and a second one records the failure: the pause until the next try, or that the
row is parked. A kill between the two loses the count of that failure.

A callback that kills its process cannot record its failure. So a row that is long overdue is marked, durably, before its callback is
called. A marked row that has not ended is a suspect. Suspects are called one at a time, so that none is blamed for what another did.
After `callback_losses_max` marks the row is parked.

Callbacks of schedules and of the queue are methods of the agent. They are called as `callback(payload, occurrence)`, in a transaction of
the agent's storage that also consumes the occurrence. So what a callback writes, and what it requests (runs, fibers, submissions, other
schedules), takes effect exactly once. It should be short, because a write conflict repeats it. Long work belongs in a fiber or a run. A
callback that raises is retried with growing pauses (`retry`; else `callback_retry` of the class; else `Limits`). After its last try a
recurring schedule goes on with its next occurrence, and its history has the failure. Everything else is *parked*, with its error, until it
is retried or cancelled.

Quick callbacks share a transaction, because a commit takes longer than most callbacks do, and many are due at the full hour. Rows whose
callbacks were quick on this host recently are called one after the other, each with its own occurrence, history and end. What one cancels
is not called after it. If one raises or is slow, the transaction rolls back, and each is called in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from perdure.actors.code.author_call import is_async, result_of
from perdure.actors.jobs.callback_rows import CallbackRow, Occurrence, Rows
from perdure.actors.jobs.job_spans import CallbackSpans
from perdure.actors.jobs.schedule_requests import retries_of
from perdure.actors.life.activity import Activity
from perdure.actors.life.life import Life
from perdure.actors.life.one_transaction import Step, WorkPiece, at_work, done_in_one, failure
from perdure.actors.life.outbox import Outbox
from perdure.actors.telemetry.conventions import LOST
from perdure.ledger import BadRequest, StorageError, unpack_value
from perdure.ledger.storage.agent_storages import Transaction
from perdure.policies import CallbackEvent, Firing, PastOutcome, error_type, full_jitter_ms

ERROR_CHARS_MAX = 500  # of an error in a history
TOGETHER_TIMEOUT_MS = 1_000  # of one transaction of several
LATE_MS = 10_000  # so long overdue, a row may have ended the lives that were to call it

Turn = AbstractAsyncContextManager[None] | None
"""A lock that tries share which may meet: those that were overtaken go on one after the other."""


class RowsOwner(Protocol):
    """What schedules and the queue do with their rows."""

    @property
    def rows(self) -> Rows:
        """The rows."""

    def remedy(self, row: CallbackRow) -> str:
        """How an author takes it away, in words."""

    def firing(self, row: CallbackRow, now_ms: int) -> Firing:
        """The occurrence that is called now."""

    def moved(self, row: CallbackRow, done: Firing, began_at_ms: int, ended_at_ms: int) -> CallbackRow | None:
        """The row after an occurrence, or None if that was its last."""

    def note(self, transaction: Transaction, row: CallbackRow, done: CallbackRow | None, entry: list[object]) -> None:
        """Write the row, or delete it, and record what happened to it."""


class Callbacks:
    """One call of the callback of one row."""

    def __init__(self, life: Life, outbox: Outbox, book: RowsOwner, row_id: str) -> None:
        self._life, self._outbox, self._book, self._rows, self._id = life, outbox, book, book.rows, row_id
        self._spans = CallbackSpans(life, book.rows.domain)
        self._row: CallbackRow | None = None
        self._moved: CallbackRow | None = None
        self._firing = Firing(None, 0)
        self._began_at_ms = self._called_at_ms = 0

    async def call(self, turn: Turn = None, *, marks: bool = True) -> None:
        # Raises only errors of the storage.
        row = self._rows.get(self._id)
        is_late = row is not None and self._life.now_ms() - row.due_at_ms > LATE_MS
        if marks and is_late and self._rows.write(self._mark):
            return
        problem = await done_in_one(self._life, self._outbox, WorkPiece(self._id, self._steps, self._seal), turn)
        if problem is None:
            return
        if self._row is None:  # before anything was read
            raise problem
        error = failure(self._life, problem, "callback")
        if self._rows.write(lambda transaction: self._fail(transaction, error)):
            self._life.trouble(f"the callback of {self._id!r}, which is parked", problem)
        if isinstance(problem, StorageError) and self._life.is_broken:
            raise problem

    @property
    def is_suspect(self) -> bool:
        # A life of the agent ended after the row was marked.
        row = self._rows.get(self._id)
        return row is not None and row.losses > 0

    def _mark(self, transaction: Transaction) -> bool:
        """Mark a late row. Returns whether it is parked instead of being called: it was marked too often."""
        row = self._rows.read(transaction, self._id)
        if row is None or row.ready_at_ms is None:
            return True
        most = self._life.limits.callback_losses_max
        if row.losses < most:
            self._rows.keep(transaction, replace(row, losses=row.losses + (not self._life.was_stopped)))
            return False
        now_ms = self._life.now_ms()
        error = f"the agent died {most} times while {row.callback} was called or about to be; it may be what kills it"
        error += f"; the last time: {self._life.lost_by}" if self._life.lost_by else ""
        entry = [row.tick_ms, now_ms, now_ms, row.attempt + 1, row.missed, PastOutcome.PARKED, error]
        self._book.note(transaction, row, row.after(CallbackEvent.PARKED, error=error, losses=0), entry)
        self._spans.tried(transaction, row, row.due_at_ms, PastOutcome.PARKED, LOST)
        self._rows.emit_after(transaction, "error", row, {"error": error, "attempts": row.attempt})
        return True

    # in the transaction

    def whole(self, transaction: Transaction) -> None:
        # Do the whole call, in a transaction that several share.
        for method, args, activity in self._steps(transaction):
            with at_work(activity):
                method(*args)
        self._seal(transaction)

    async def whole_async(self, transaction: Transaction) -> None:
        for method, args, activity in self._steps(transaction):
            with at_work(activity), self._life.code.entered(method):
                await result_of(partial(method, *args))
        self._seal(transaction)

    def _steps(self, transaction: Transaction) -> list[Step]:
        now_ms = self._life.now_ms()
        row = self._row = self._rows.read(transaction, self._id)
        if row is None or row.ready_at_ms is None or row.ready_at_ms > now_ms:
            self._row = None  # cancelled, paused, or called already
            return []
        self._began_at_ms, self._called_at_ms = row.began_at_ms or now_ms, now_ms
        self._firing = Firing(row.tick_ms, row.missed) if row.attempt else self._book.firing(row, now_ms)
        tick_ms, missed = self._firing
        method: Any = getattr(self._life.agent, row.callback, None)
        if tick_ms is not None and not callable(method):
            words = f"{type(self._life.agent).__name__} has no method {row.callback!r} any more"
            raise BadRequest("callback", f"{words}; give it back and retry {row.id!r}, or {self._book.remedy(row)}")
        self._moved = self._book.moved(row, self._firing, self._began_at_ms, now_ms)
        if self._moved is None:
            self._rows.drop(transaction, row.id)
        else:
            self._rows.keep(transaction, self._moved)
        if tick_ms is None:
            return []
        called = self._called(row)
        attempt, delivery_id = row.attempt + 1, called.delivery_id
        occurrence = Occurrence(
            schedule_id=row.id, scheduled_at_ms=tick_ms, attempt=attempt, missed=missed, delivery_id=delivery_id
        )
        traced = self._spans.traced(called, method)
        return [(traced, (unpack_value(row.payload), occurrence), Activity(origin=delivery_id))]

    def _called(self, row: CallbackRow) -> CallbackRow:
        tick_ms = self._firing.tick_ms
        return row if tick_ms is None else replace(row, tick_ms=tick_ms)

    def _seal(self, transaction: Transaction) -> None:
        row, now_ms = self._row, self._life.now_ms()
        if row is None:
            return
        self._life.services.paces.note(self._life.agent_id, row.callback, now_ms - self._called_at_ms)
        now_there = self._rows.get(row.id)
        if now_there == self._moved:  # the callback left its row alone: where it stands now depends on when it ended
            now_there = self._book.moved(row, self._firing, self._began_at_ms, now_ms)
        was_called = self._firing.tick_ms is not None
        self._rows.emit_after(transaction, "execute" if was_called else "skip", row, {"missed": self._firing.missed})
        came_to = PastOutcome.COMPLETED if was_called else PastOutcome.SKIPPED
        if was_called:
            self._spans.tried(transaction, self._called(row), self._called_at_ms, came_to)
        self._book.note(transaction, row, now_there, self._entry(row, came_to, "", now_ms))

    def _entry(self, row: CallbackRow, outcome: PastOutcome, error: str, now_ms: int) -> list[object]:
        times = [self._called(row).tick_ms, self._began_at_ms, now_ms]
        return [*times, row.attempt + 1, self._firing.missed, outcome, error[:ERROR_CHARS_MAX]]

    # after a failure

    def _fail(self, transaction: Transaction, error: str) -> bool:
        """Record a failure. Returns whether the row is parked now."""
        tried, now_ms = self._row, self._life.now_ms()
        if tried is None or self._rows.read(transaction, self._id) != tried:
            return False  # cancelled or changed meanwhile
        is_gone = not callable(getattr(self._life.agent, tried.callback, None))
        retries = retries_of(self._life, tried)
        attempts_max, first_ms, most_ms = retries.attempts_max or 1, retries.first_ms or 1, retries.most_ms or 1
        failed = replace(
            self._called(tried), missed=self._firing.missed, attempt=tried.attempt + 1,
            began_at_ms=self._began_at_ms, losses=0, error=error[: self._life.limits.error_chars_max],
        )  # fmt: skip
        # No losses: what recorded its failure did not end its process.
        left: CallbackRow | None
        if is_gone or (failed.attempt >= attempts_max and not tried.is_recurring):
            came_to, left = PastOutcome.PARKED, failed.after(CallbackEvent.PARKED)
        elif failed.attempt >= attempts_max:
            came_to, left = PastOutcome.FAILED, self._book.moved(tried, self._firing, self._began_at_ms, now_ms)
        else:
            pause_ms = full_jitter_ms(failed.attempt, first_ms, most_ms, self._life.dice.roll())
            came_to, left = PastOutcome.FAILED, failed.after(CallbackEvent.FAILED, due_at_ms=now_ms + pause_ms)
        self._spans.tried(
            transaction, self._called(tried), self._called_at_ms, came_to, error_type(failed.error, "error")
        )
        self._book.note(transaction, tried, left, self._entry(tried, came_to, failed.error, now_ms))
        is_last = is_gone or failed.attempt >= attempts_max
        told = {"error": error, "attempts": failed.attempt}
        self._rows.emit_after(transaction, "error" if is_last else "retry", tried, told)
        return came_to is PastOutcome.PARKED


def rounds(
    life: Life, rows: Sequence[CallbackRow], now_ms: int, late_ms: float = LATE_MS
) -> Iterator[list[CallbackRow]]:
    """Rows that are due, in groups that share a transaction. Rows overdue by more than `late_ms` are groups of one."""

    def kind(row: CallbackRow) -> int | str:
        method: object = getattr(life.agent, row.callback, None)
        is_plain = not row.attempt and not row.losses and now_ms - row.due_at_ms <= late_ms
        if is_plain and callable(method) and life.services.paces.is_quick(life.agent_id, row.callback):
            return "async" if is_async(method) else "sync"
        return row.number  # a group of its own

    for _, group in groupby(rows, kind):
        yield list(group)


async def called_together(
    life: Life, outbox: Outbox, book: RowsOwner, rows: Sequence[CallbackRow], turn: Turn = None
) -> bool:
    """Call the callbacks of these rows in one transaction. False if it rolled back; then each is to be called by itself."""
    callings = [Callbacks(life, outbox, book, row.id) for row in rows]
    waits = is_async(getattr(life.agent, rows[0].callback))  # like all of the same round

    def steps(transaction: Transaction) -> list[Step]:
        activity = Activity(origin=rows[0].delivery_id)
        return [(each.whole_async if waits else each.whole, (transaction,), activity) for each in callings]

    piece = WorkPiece(rows[0].id, steps, lambda _: None, TOGETHER_TIMEOUT_MS)
    return await done_in_one(life, outbox, piece, turn) is None
