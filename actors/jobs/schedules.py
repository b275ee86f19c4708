"""The schedules of one agent: rows that are due call a method, each occurrence exactly once in effect.

The rows are the truth. A heap of *reminders* says which is due first. Each write of a row adds a reminder; a reminder whose row has changed
since is ignored. The agent's alarm is set to the earliest one, so a sleeping or dead agent is awake when it is due.

When the alarm rings, the due rows begin in the order of their times, each in a task of its own. None waits for another, unless more than
`schedules_at_once_max` are at work. What an earlier one cancels before a later one has committed is not run.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from perdure.actors.code.author_call import tried
from perdure.actors.jobs.callback_rows import CallbackRow, MadeBy, Rows
from perdure.actors.jobs.callbacks import Callbacks, called_together, rounds
from perdure.actors.jobs.schedule_requests import at_tick, pattern_of
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.alarm_clock import AlarmClock, StorageRetry
from perdure.actors.life.documents import Documents
from perdure.actors.life.life import Life, Ready
from perdure.actors.life.outbox import Outbox
from perdure.ledger.storage.agent_storages import Transaction
from perdure.ledger.storage.records import SCHEDULE, SCHEDULE_HISTORY
from perdure.policies import CallbackEvent, CallbackStatus, Firing, firing, next_tick

HISTORIES_OVER = 100  # slack, so that not every deletion brings another transaction
PART = "schedules"
UNDECLARED = "is not declared in on_start any more"
TIMES = ("kind", "cron", "time_zone", "interval_ms")
CONTENT = ("callback", "payload", "retry", "catch_up", "overlap", "jitter_ms")


class Schedules:
    """The schedules of one agent."""

    def __init__(self, life: Life, outbox: Outbox, alarms: AlarmClock, ready: Ready) -> None:
        self._life, self._outbox, self._alarms, self._ready = life, outbox, alarms, ready
        self.rows = Rows(life, SCHEDULE, self._changed)
        self._histories: Documents[list[list[object]]] = Documents(life, SCHEDULE_HISTORY)
        self.storage_retry = StorageRetry(life, alarms, PART, self.woken)
        self._reminders: list[tuple[int, int, str]] = []
        self._running: set[str] = set()
        self._declared: dict[str, CallbackRow] = {}  # by `on_start` of this life, as it asked for them
        self._turn = asyncio.Lock()
        self._suspects = asyncio.Lock()  # one at a time, so that none is blamed for what another did

    # the clock

    def woken(self) -> None:
        # After waking, and after the storage failed.
        self._reminders = [
            (row.ready_at_ms, row.number, row.id) for row in self.rows.in_order() if row.ready_at_ms is not None
        ]
        heapify(self._reminders)
        self._begin_due()

    def _changed(self, row: CallbackRow) -> None:
        self._remind(row)
        if self._reminders and self._reminders[0][2] == row.id:
            self._ring()

    def _remind(self, row: CallbackRow | None) -> None:
        if row is not None and row.ready_at_ms is not None:
            heappush(self._reminders, (row.ready_at_ms, row.number, row.id))

    def _ring(self) -> None:
        self.storage_retry.safely(self._begin_due)

    def _begin_due(self) -> None:
        now_ms, most = self._life.now_ms(), self._life.limits.schedules_at_once_max
        due: list[CallbackRow] = []
        while self._reminders and not self._life.is_leaving:
            at_ms, _, row_id = self._reminders[0]
            row = None if row_id in self._running else self.rows.get(row_id)
            if row is not None and row.ready_at_ms == at_ms:
                if at_ms > now_ms or len(self._running) >= most:
                    break
                self._running.add(row_id)
                due.append(row)
            heappop(self._reminders)
        for group in rounds(self._life, due, now_ms):
            self._life.spawn(self._run(group))
        if len(self._running) < most:  # else the next end looks again
            self._alarms.set(PART, self._reminders[0][0] if self._reminders else None, self._ring)

    async def _run(self, rows: list[CallbackRow]) -> None:
        is_done, problem = await tried(self._call(rows))
        if problem is None and not is_done:
            for row in rows:
                self._life.spawn(self._run([row]))
            return
        row_ids = [row.id for row in rows]
        self._running.difference_update(row_ids)
        self._life.touch()
        if problem is not None:
            self.storage_retry.failed(problem)
        elif not self._life.is_leaving:
            self.storage_retry.safely(partial(self._go_on, row_ids))

    def _go_on(self, row_ids: list[str]) -> None:
        for row_id in row_ids:
            self._remind(self.rows.get(row_id))
        self._begin_due()
        self._forget_oldest()

    async def _call(self, rows: list[CallbackRow]) -> bool:
        # False if several were called together, and that rolled back.
        await self._ready()
        if len(rows) > 1:
            return await called_together(self._life, self._outbox, self, rows, self._turn)
        calling = Callbacks(self._life, self._outbox, self, rows[0].id)
        async with self._suspects if calling.is_suspect else nullcontext():
            await calling.call(self._turn)
        return True

    # what a row does

    def remedy(self, row: CallbackRow) -> str:
        return f"cancel it (`schedules.cancel({row.id!r})` of {self._life.agent_id})"

    def firing(self, row: CallbackRow, now_ms: int) -> Firing:
        if not row.is_recurring:
            return Firing(row.tick_ms, 0)
        # Within its jitter a tick is not late.
        grace_ms, most = self._life.limits.schedule_grace_ms + row.jitter_ms, self._life.limits.schedule_catch_up_max
        return firing(pattern_of(row), row.tick_ms, now_ms, row.catch_up, grace_ms=grace_ms, most=most)

    def moved(self, row: CallbackRow, done: Firing, began_at_ms: int, ended_at_ms: int) -> CallbackRow | None:
        if not row.is_recurring:
            return None
        done_ms = row.tick_ms if done.tick_ms is None else done.tick_ms
        tick_ms = next_tick(pattern_of(row), done_ms, began_at_ms, ended_at_ms, row.catch_up, row.overlap)
        moved = row.after(CallbackEvent.MOVED_ON)
        return None if tick_ms is None or moved is None else at_tick(moved, tick_ms, self._life.dice.roll)

    def note(self, transaction: Transaction, row: CallbackRow, done: CallbackRow | None, entry: list[object]) -> None:
        # The history of a deleted row is kept for a while.
        most = self._life.limits.schedule_history_max
        if done is not None and done.number == row.number:
            self.rows.keep(transaction, replace(done, history=[*done.history, entry][-most:]))
            return
        if done is None:
            self.rows.drop(transaction, row.id)
        self._leave_behind(transaction, row.id, [*row.history, entry])

    def _leave_behind(self, transaction: Transaction, row_id: str, entries: list[list[object]]) -> None:
        if entries:
            kept = [*(self._histories.get(row_id) or []), *entries][-self._life.limits.schedule_history_max :]
            self._histories.put(transaction, row_id, kept)

    def _forget_oldest(self) -> None:
        known, most = self._histories.keys(), self._life.limits.schedule_histories_max
        if len(known) < most + HISTORIES_OVER:
            return
        # A transaction of its own, so that callbacks do not conflict with it.
        with self._life.storage.transaction() as transaction:
            for row_id in known[: len(known) - most]:
                self._histories.drop(transaction, row_id)

    # what authors ask for

    def add(self, asked: CallbackRow) -> CallbackRow:
        """Keep a schedule, or find the one that exists. Durable on return, or with the open transaction.

        A recurring schedule without a key or id is found by what it does. It takes over the other arguments of the latest request.
        """
        activity = ACTIVITY.get()
        in_start = activity is not None and activity.is_start
        made = replace(asked, made_by=MadeBy.ON_START if in_start else MadeBy.ELSEWHERE)

        def found(transaction: Transaction, known: CallbackRow) -> CallbackRow:
            changed = self._found_in_start(known, made) if in_start else self._found(known, made)
            if asked.is_named and known.other_fields(changed, (*TIMES, *CONTENT)):
                self.rows.emit_after(transaction, "replace", changed)
                self._warn(transaction, known, f"is replaced by what on_start declares now: {changed.words}")
            return known if changed == known else self.rows.keep(transaction, changed)

        if in_start and asked.is_named and (before := self._declared.get(asked.id)) is not None:
            remedy = f"on_start of {self._life.agent_id} declares both, so give each a key of its own"
            before.refuse_conflict(asked, (*TIMES, *CONTENT), remedy)
        row = self.rows.add(made, self._life.limits.schedules_max, found)
        if in_start:
            self._declared[row.id] = asked
        return row

    def _found(self, known: CallbackRow, asked: CallbackRow) -> CallbackRow:
        if asked.is_named:
            remedy = f"{self.remedy(known)} first, or ask for it in on_start: what that declares replaces it"
            known.refuse_conflict(asked, (*TIMES, *CONTENT), remedy)
            return known
        return replace(known, **{name: getattr(asked, name) for name in CONTENT})

    def _found_in_start(self, known: CallbackRow, asked: CallbackRow) -> CallbackRow:
        """What `on_start` declares is the present wish. Only another rhythm makes the time anew, so no tick that was missed is lost, and a
        pause stays."""
        made_by = known.made_by or asked.made_by  # as long as it is not known
        if known.other_fields(asked, TIMES):
            status = known.status if known.status is CallbackStatus.PAUSED else asked.status
            number = self.rows.number()  # so it is no occurrence of the one before
            return replace(asked, number=number, status=status, history=known.history, made_by=made_by)
        content = {name: getattr(asked, name) for name in CONTENT}
        renewed = known.after(CallbackEvent.RETRIED) if known.other_fields(asked, CONTENT) else None
        if renewed is None or not asked.is_named:
            return replace(known, **content, made_by=made_by)
        renewed = renewed.afresh(renewed.tick_ms, min(renewed.due_at_ms, self._life.now_ms()))
        return replace(renewed, **content, made_by=made_by)

    def let_go_of_undeclared(self) -> None:
        """When `on_start` has returned: end what it declared earlier and has replaced, and warn of what it does not declare any more.

        That it does not declare a schedule does not say that it is not wanted, as code may declare one in its first life only. What it
        has replaced is clear: a recurring one without a name, if its callback and payload are declared with another time, or if its
        callback is gone.
        """
        rows, declared, self._declared = self.rows.in_order(), self._declared, {}
        recurring = [row for row in rows if row.is_recurring]
        undeclared = [row for row in recurring if row.made_by is MadeBy.ON_START and row.id not in declared]
        successors = {(row.callback, row.payload): row for row in recurring if row.id in declared}

        def let_go(transaction: Transaction) -> None:
            for row in [found for each in undeclared if (found := self.rows.read(transaction, each.id)) is not None]:
                successor = successors.get((row.callback, row.payload))
                is_gone = not callable(getattr(self._life.agent, row.callback, None))
                if row.is_named or (successor is None and not is_gone):
                    self.rows.keep(transaction, replace(row, made_by=MadeBy.UNKNOWN))  # so it is told once
                    self._warn(transaction, row, f"{UNDECLARED}, and goes on; if it is not wanted, {self.remedy(row)}")
                else:
                    self._drop(transaction, row.id)
                    why = "its callback is gone" if successor is None else f"what it declares now is {successor.words}"
                    self._warn(transaction, row, f"{UNDECLARED}, and is cancelled: {why}")

        if undeclared:
            self.rows.write(let_go)

    def _warn(self, transaction: Transaction, row: CallbackRow, words: str) -> None:
        said = f"schedule {row.words} {words}"
        transaction.then(lambda: self._life.services.report_schedule(self._life.agent_id, said))

    def cancel(self, row_id: str) -> bool:
        # If its callback is running, that has no effect.
        return self.rows.write(lambda transaction: self._drop(transaction, row_id))

    def _drop(self, transaction: Transaction, row_id: str) -> bool:
        row = self.rows.read(transaction, row_id)
        if row is not None:
            self.rows.drop(transaction, row_id)
            self._leave_behind(transaction, row.id, row.history)
            self.rows.emit_after(transaction, "cancel", row)
        return row is not None

    def pause(self, row_id: str) -> bool:
        # A parked one is not paused.
        def stop(transaction: Transaction) -> bool:
            row = self.rows.read(transaction, row_id)
            paused = None if row is None else row.after(CallbackEvent.PAUSED)
            if paused is not None:
                self.rows.keep(transaction, paused)
            return row is not None and row.status != CallbackStatus.PARKED

        return self.rows.write(stop)

    def resume(self, row_id: str) -> bool:
        """End a pause. Ticks of the pause are skipped; a single time that came meanwhile runs at once."""

        def go_on(transaction: Transaction) -> bool:
            row, now_ms = self.rows.read(transaction, row_id), self._life.now_ms()
            has_failed = row is not None and row.attempt > 0
            event = CallbackEvent.RESUMED_BETWEEN_TRIES if has_failed else CallbackEvent.RESUMED
            resumed = None if row is None else row.after(event)
            if resumed is None:
                return False
            if resumed.is_recurring and not has_failed and resumed.tick_ms <= now_ms:
                tick_ms = pattern_of(resumed).after(now_ms)
                resumed = resumed if tick_ms is None else at_tick(resumed, tick_ms, self._life.dice.roll)
            self.rows.keep(transaction, resumed)
            return True

        return self.rows.write(go_on)

    def history(self, row_id: str) -> list[list[Any]]:
        # It is kept for a while after the schedule was deleted.
        row = self.rows.get(row_id)
        return [*(self._histories.get(row_id) or []), *(row.history if row is not None else [])]
