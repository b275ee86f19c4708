"""The queue of one agent: items that call a method of the agent, one after the other, in the order in which they were queued.

An item is done in one transaction with its own deletion (`callbacks`), so it is done once in effect, wherever the agent dies. The line is
drained whenever the agent is awake, and an agent that sleeps over items is woken: an alarm is set as long as one waits. An item that failed
steps aside until its next try, and one that is parked until somebody says so; neither holds up those behind it.

Items whose callbacks are known to be quick share transactions; their order is the same.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import islice

from perdure.actors.code.author_call import tried
from perdure.actors.jobs.callback_rows import Row, Rows
from perdure.actors.jobs.callbacks import Callbacks, called_together, rounds
from perdure.actors.life.alarm_clock import AlarmClock, StorageRetry
from perdure.actors.life.life import Life, Ready
from perdure.actors.life.outbox import Outbox
from perdure.ledger import BadRequest, ConflictingRequest
from perdure.ledger.storage.cabinet import QUEUED, Transaction
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
        self._turn = asyncio.Lock()
        self._drain: asyncio.Task[None] | None = None
        self._is_first = True  # in this life: what ended the one before may have been the same item

    # the line

    def woken(self) -> None:
        """Look at all items: after waking, and after the storage failed."""
        self._line, self._aside = [], []
        for row in self.rows.in_order():
            self._place(row)
        heapify(self._line)
        heapify(self._aside)
        self._go_on()

    def _place(self, row: Row) -> None:
        if row.ready_at_ms is None:
            return
        if row.ready_at_ms <= self._life.now_ms():
            heappush(self._line, (row.number, row.id))
        else:
            heappush(self._aside, (row.ready_at_ms, row.id))

    def _changed(self, row: Row) -> None:
        if row.ready_at_ms is not None:
            heappush(self._aside, (row.ready_at_ms, row.id))
            self._go_on()

    def _go_on(self) -> None:
        """See to it that the line is drained, now or when its next item is due."""
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
        await self._ready()
        while few := self._next_few():
            for group in rounds(self._life, few, self._life.now_ms(), math.inf):
                await self._do(group)

    async def _do(self, group: list[Row]) -> None:
        """One item, or several that are known to be quick."""
        if len(group) > 1 and await called_together(self._life, self._outbox, self, group, self._turn):
            return
        for row in group:
            await Callbacks(self._life, self._outbox, self, row.id).call(self._turn, marks=self._is_first)
            self._is_first = False

    def _next_few(self) -> list[Row]:
        """The first items of the line. Of a new life it is one, which is tried with care."""
        most = 1 if self._is_first else TOGETHER_MAX
        return list(islice(iter(self._next, None), most))

    def _next(self) -> Row | None:
        """The first item of the line. Who stepped aside comes back to its old place when its time has come."""
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
        return None

    # what an item does

    def firing(self, row: Row, now_ms: int) -> Firing:
        """What is run now."""
        return Firing(row.tick_ms, 0)

    def moved(self, row: Row, done: Firing, began_at_ms: int, ended_at_ms: int) -> Row | None:
        """Nothing is left of an item that was done."""
        return None

    def note(self, transaction: Transaction, row: Row, done: Row | None, entry: list[object]) -> None:
        """Write the item; what happened to it is told by its error alone. One that took its id meanwhile stays."""
        if done is None:
            self.rows.drop(transaction, row.id)
        elif done.number == row.number:
            self.rows.keep(transaction, done)

    # what authors ask for

    def add(self, asked: Row) -> Row:
        """Queue an item, or find the one that waits under its key: durable on return, or with the open transaction."""
        return self.rows.write(lambda transaction: self._add(transaction, asked))

    def _add(self, transaction: Transaction, asked: Row) -> Row:
        known = self.rows.read(transaction, asked.id)
        if known is None:
            if len(self.rows.keys()) >= self._life.limits.queued_max:
                raise BadRequest(
                    "queue", f"{len(self.rows.keys())} items wait in this agent's queue, which is the limit"
                )
            self.rows.tell(transaction, "create", asked)
            return self.rows.keep(transaction, replace(asked, number=self.rows.number()))
        for name in ("callback", "payload", "retry"):
            if getattr(known, name) != getattr(asked, name):
                raise ConflictingRequest(
                    name, f"an item waits under the key {known.key!r} with another one; dequeue it first"
                )
        return known

    def drop(self, chosen: Callable[[Row], bool]) -> int:
        """Delete items; one that is being done has no effect then. Returns how many there were."""

        def drop(transaction: Transaction) -> int:
            found = [row.id for row in self.rows.in_order() if chosen(row)]
            return sum(self._drop(transaction, row_id) for row_id in found)

        return self.rows.write(drop)

    def drop_one(self, row_id: str) -> bool:
        """Delete one item. Whether it was there."""
        return self.rows.write(lambda transaction: self._drop(transaction, row_id))

    def _drop(self, transaction: Transaction, row_id: str) -> bool:
        is_there = self.rows.read(transaction, row_id) is not None
        self.rows.drop(transaction, row_id)
        return is_there

    def retry(self, row_id: str) -> bool:
        """Try a parked item again now, or one that waits for its next try. Whether it was one."""
        return self.rows.try_again(row_id)
