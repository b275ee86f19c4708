"""The queue of one agent: items that call a method of the agent, one after the other, in the order in which they were queued.

An item's callback and its deletion are one transaction (`callbacks`), so it takes effect once, wherever the agent dies. The queue is
drained while the agent is awake. An alarm is set as long as an item waits, so a sleeping agent is woken. An item that failed waits aside
for its next try, and a parked one for a person. Neither holds up the items behind it. Items with quick callbacks share transactions.

Whoever takes an item out of the line and does nothing with it puts it aside again: the clock may be set back at any time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice

from perdure.actors.code.author_call import tried
from perdure.actors.jobs.callback_rows import CallbackRow, Rows
from perdure.actors.jobs.callbacks import Callbacks, called_together, rounds
from perdure.actors.life.alarm_clock import AlarmClock, StorageRetry
from perdure.actors.life.life import Life, Ready
from perdure.actors.life.outbox import Outbox
from perdure.ledger.storage.agent_storages import Transaction
from perdure.ledger.storage.records import QUEUED
from perdure.policies import Firing

PART = "queue"
TOGETHER_MAX = 64


class CallbackQueue:
    """The queue of one agent, in one life of it."""

    def __init__(self, life: Life, outbox: Outbox, alarms: AlarmClock, ready: Ready) -> None:
        self._life, self._outbox, self._alarms, self._ready = life, outbox, alarms, ready
        self.rows = Rows(life, QUEUED, self._changed)
        self.storage_retry = StorageRetry(life, alarms, PART, self.woken)
        self._line: list[tuple[int, str]] = []  # ready, by number
        self._aside: list[tuple[int, str]] = []  # for later, by instant
        self._drain: asyncio.Task[None] | None = None
        self._is_first = True  # in this life: what ended the one before may have been the same item

    # the line

    def woken(self) -> None:
        # After waking, and after the storage failed.
        self._line = []
        self._aside = [(row.ready_at_ms, row.id) for row in self.rows.in_order() if row.ready_at_ms is not None]
        heapify(self._aside)
        self._go_on()

    def _put_aside(self, row: CallbackRow) -> None:
        if row.ready_at_ms is not None:
            heappush(self._aside, (row.ready_at_ms, row.id))

    def _changed(self, row: CallbackRow) -> None:
        self._put_aside(row)
        self._go_on()

    def _go_on(self) -> None:
        if self._drain is None and not self._life.is_leaving:
            at_ms = 0 if self._line else self._aside[0][0] if self._aside else None
            if at_ms is not None and at_ms <= self._life.now_ms():
                self._drain = self._life.spawn(self._drain_all())
            else:
                self._alarms.set(PART, at_ms, self._go_on)

    async def _drain_all(self) -> None:
        _, problem = await tried(self._do_all())
        self._drain = None
        self._life.touch()
        if problem is None:
            self._go_on()
        else:
            self.storage_retry.failed(problem)

    async def _do_all(self) -> None:
        # The first item of a life is called alone, because it may be what ended the last life.
        await self._ready()
        while few := list(islice(iter(self._next, None), 1 if self._is_first else TOGETHER_MAX)):
            # However late, an item is no suspect: it waited for its turn. Only the first of a life is, and that one is alone.
            for group in rounds(self._life, few, self._life.now_ms(), math.inf):
                is_done = len(group) > 1 and await called_together(self._life, self._outbox, self, group)
                for row in () if is_done else group:
                    await Callbacks(self._life, self._outbox, self, row.id).call(marks=self._is_first)
                    self._is_first = False
                for row in [each for each in group if self.rows.get(each.id) == each]:
                    self._put_aside(row)  # nothing was done with it, because it was not due any more

    def _next(self) -> CallbackRow | None:
        # An item that waited aside returns to its old place.
        now_ms = self._life.now_ms()
        while self._aside and self._aside[0][0] <= now_ms:
            at_ms, row_id = heappop(self._aside)
            row = self.rows.get(row_id)
            if row is not None and row.ready_at_ms == at_ms:
                heappush(self._line, (row.number, row_id))
        while self._line and not self._life.is_leaving:
            _, row_id = heappop(self._line)
            row = self.rows.get(row_id)
            if row is not None and row.ready_at_ms is not None and row.ready_at_ms <= now_ms:
                return row
            if row is not None:
                self._put_aside(row)
        return None

    # what an item does

    def remedy(self, row: CallbackRow) -> str:
        return f"drop it (`queued.drop({row.id!r})` of {self._life.agent_id})"

    def firing(self, row: CallbackRow, now_ms: int) -> Firing:
        return Firing(row.tick_ms, 0)

    def moved(self, row: CallbackRow, done: Firing, began_at_ms: int, ended_at_ms: int) -> CallbackRow | None:
        return None  # an item that was done is deleted

    def note(self, transaction: Transaction, row: CallbackRow, done: CallbackRow | None, entry: list[object]) -> None:
        # It has no history. An item that took its id meanwhile stays.
        if done is None:
            self.rows.drop(transaction, row.id)
        elif done.number == row.number:
            self.rows.keep(transaction, done)

    # what authors ask for

    def add(self, asked: CallbackRow) -> CallbackRow:
        def found(_: Transaction, known: CallbackRow) -> CallbackRow:
            known.refuse_conflict(asked, ("callback", "payload", "retry"), f"{self.remedy(known)} first")
            return known

        return self.rows.add(asked, self._life.limits.queued_max, found)

    def drop(self, chosen: Callable[[CallbackRow], bool]) -> int:
        # The callback of a deleted item has no effect, even if it runs now.
        def drop(transaction: Transaction) -> int:
            found = [row.id for row in self.rows.in_order() if chosen(row)]
            return sum(self._drop(transaction, row_id) for row_id in found)

        return self.rows.write(drop)

    def drop_one(self, row_id: str) -> bool:
        return self.rows.write(lambda transaction: self._drop(transaction, row_id))

    def _drop(self, transaction: Transaction, row_id: str) -> bool:
        is_there = self.rows.read(transaction, row_id) is not None
        self.rows.drop(transaction, row_id)
        return is_there
