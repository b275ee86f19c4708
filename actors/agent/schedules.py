"""What an author's agent can do with time: schedules, and a queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from perdure.actors.host.tenant import Tenant
from perdure.actors.jobs.callback_rows import Row
from perdure.actors.jobs.occurrence import Past, QueuedItem, Schedule
from perdure.actors.jobs.schedule_requests import (
    chosen_statuses,
    chosen_types,
    every,
    queued,
    retries_of,
    span_of,
    timed,
)
from perdure.ledger import check_whole, unpack
from perdure.policies import PastOutcome, Retries

LISTED_MAX = 1_000


class KeepsSchedules:
    """Schedules and the queue of an agent.

    A callback is a method of the agent, by its name or itself. It is called as `callback(payload, occurrence)` inside one transaction of
    the agent's storage, which also consumes the occurrence. So what it does to the storage, and what it asks for (runs, fibers,
    submissions, other schedules), happens exactly once, however often the process dies. It should be short, for nobody sees what it
    writes until it returns, and other work on the same rows has it called again: long work belongs into a fiber or a run that it starts.

    A callback that raises is tried again with growing pauses (`retry`; else `callback_retry` of the class; else `Limits`). When its tries
    are used up a recurring schedule goes on with its next occurrence and keeps the failure in its history; everything else is *parked*:
    it stays, with its error, until it is retried or cancelled. Nothing is dropped silently.

    Every method may be used in async and in sync code, and in a transaction, with which it takes effect; else it is durable on return.
    """

    callback_retry: ClassVar[Retries | dict[str, Any] | None] = None
    _perdure: Tenant

    def schedule(
        self,
        when: datetime | float | str,
        callback: str | Callable[..., Any],
        payload: Any = None,
        *,
        key: str | None = None,
        time_zone: str = "UTC",
        catch_up: str = "once",
        overlap: str = "skip",
        retry: Retries | dict[str, Any] | None = None,
        jitter_ms: float = 0,
        schedule_id: str | None = None,
    ) -> Schedule:
        """Have a callback called at a time: an aware datetime, a number of seconds from now, or a cron text of five fields.

        It is never called early; a time that is past runs at once. What becomes of a cron schedule on days when clocks are changed, of
        ticks that were missed (`catch_up`) and of those that come while the callback is at work (`overlap`) is told in `policies.schedule`.

        With a `key` the same request finds the schedule that exists, whatever time it names; one with other content is a
        `ConflictingRequest`. The key is free again when the schedule is done. A cron schedule needs no key: the same text, zone, callback
        and payload are the same schedule, which takes over the other arguments of the latest request. So it may be asked for in `on_start`.

        Args:
            payload: plain data.
            time_zone: in which a cron text is read; a name of the tz database.
            retry: a `Retries`, or a dictionary of its fields.
            jitter_ms: each call is later than its time by up to so much, by the dice.
            schedule_id: instead of a key.

        Raises `BadRequest`, naming the field; then nothing was written.
        """
        tenant = self._perdure
        told: dict[str, Any] = {"key": key, "retry": retry, "schedule_id": schedule_id, "time_zone": time_zone}
        told |= {"catch_up": catch_up, "overlap": overlap, "jitter_ms": jitter_ms}
        schedules = tenant.schedules
        return self._told(schedules.add(timed(tenant, when, callback, payload, tenant.now_ms(), told)))

    def schedule_every(
        self,
        interval_s: float,
        callback: str | Callable[..., Any],
        payload: Any = None,
        *,
        key: str | None = None,
        catch_up: str = "once",
        overlap: str = "skip",
        retry: Retries | dict[str, Any] | None = None,
        jitter_ms: float = 0,
        schedule_id: str | None = None,
    ) -> Schedule:
        """Have a callback called each so many seconds, for the first time after one interval. The times do not drift.

        The same interval, callback and payload are the same schedule, as for cron texts.
        """
        tenant = self._perdure
        told: dict[str, Any] = {"key": key, "retry": retry, "schedule_id": schedule_id}
        told |= {"catch_up": catch_up, "overlap": overlap, "jitter_ms": jitter_ms}
        schedules = tenant.schedules
        return self._told(schedules.add(every(tenant, interval_s, callback, payload, tenant.now_ms(), told)))

    def cancel_schedule(self, schedule_id: str) -> bool:
        """Delete a schedule. If its callback is just being called, that has no effect. False if there is none."""
        return self._perdure.schedules.cancel(str(schedule_id))

    def pause_schedule(self, schedule_id: str) -> bool:
        """Let a schedule rest until it is resumed. Whether it rests now: False for one that is parked or does not exist."""
        return self._perdure.schedules.pause(str(schedule_id))

    def resume_schedule(self, schedule_id: str) -> bool:
        """End a pause. Ticks that came meanwhile are passed over; a single time that came runs at once. False if it was not paused."""
        return self._perdure.schedules.resume(str(schedule_id))

    def retry_schedule(self, schedule_id: str) -> bool:
        """Try a parked schedule again now, with all its tries, or one that waits for its next try. False if it is neither."""
        return self._perdure.schedules.retry(str(schedule_id))

    def get_schedule(self, schedule_id: str) -> Schedule | None:
        """A schedule, or None."""
        row = self._perdure.schedules.rows.get(str(schedule_id))
        return None if row is None else self._told(row)

    def list_schedules(
        self,
        type: str | list[str] | None = None,
        callback: str | None = None,
        status: str | list[str] | None = None,
        between: tuple[Any, Any] | None = None,
        limit: int = 100,
        cursor: int = 0,
    ) -> list[Schedule]:
        """Schedules, in the order in which they were made.

        Args:
            between: two instants, both inclusive, within which it is called next (milliseconds, aware datetimes, or None for an open end).
            limit: at most so many, up to 1,000.
            cursor: only those after this one: the `number` of the last one of the page before.
        """
        types, statuses, (first, last) = chosen_types(type), chosen_statuses(status), span_of(between)
        most, found = check_whole("limit", limit, most=LISTED_MAX), []
        for row in self._perdure.schedules.rows.in_order():
            fits = (
                row.kind in types
                and row.status in statuses
                and row.number > cursor
                and callback in (None, row.callback)
            )
            if fits and (between is None or (row.ready_at_ms is not None and first <= row.ready_at_ms <= last)):
                found.append(row)
        return [self._told(row) for row in found[:most]]

    def schedule_history(self, schedule_id: str) -> list[Past]:
        """The last tries of a schedule's callback, and what was dropped, the oldest first. Of one that is gone it is kept for a while."""
        names = ("scheduled_at_ms", "began_at_ms", "ended_at_ms", "attempt", "missed", "outcome", "error")
        found = [dict(zip(names, each, strict=False)) for each in self._perdure.schedules.history(str(schedule_id))]
        return [
            Past(**(each | {"outcome": PastOutcome(each["outcome"]), "error": each["error"] or None})) for each in found
        ]

    def _told(self, row: Row) -> Schedule:
        return Schedule(
            schedule_id=row.id,
            type=row.kind,
            callback=row.callback,
            payload=unpack(row.payload),
            status=row.status,
            next_at_ms=row.ready_at_ms,
            cron=row.cron or None,
            time_zone=row.time_zone or None,
            interval_ms=row.interval_ms or None,
            catch_up=row.catch_up,
            overlap=row.overlap,
            jitter_ms=row.jitter_ms,
            retry=retries_of(self._perdure, row),
            key=row.key or None,
            attempt=row.attempt,
            error=row.error or None,
            created_at_ms=row.created_at_ms,
            number=row.number,
        )

    # the queue

    def queue(
        self,
        callback: str | Callable[..., Any],
        payload: Any = None,
        *,
        key: str | None = None,
        retry: Retries | dict[str, Any] | None = None,
    ) -> QueuedItem:
        """Have a callback called as soon as those that were queued before are done: in order, one at a time.

        An item that fails, or is parked, holds up nobody. With a `key` the same request finds the item that waits; one with other content
        is a `ConflictingRequest`.
        """
        tenant = self._perdure
        told = {"key": key, "retry": retry}
        line = tenant.callback_queue
        return self._item(line.add(queued(tenant, callback, payload, tenant.now_ms(), told)))

    def dequeue(self, item_id: str) -> bool:
        """Delete an item. If it is just being done, that has no effect. False if there is none."""
        return self._perdure.callback_queue.drop_one(str(item_id))

    def dequeue_all(self, callback: str | None = None) -> int:
        """Delete all items, or those of one callback. Returns how many there were."""
        return self._perdure.callback_queue.drop(lambda row: callback in (None, row.callback))

    def list_queue(self, callback: str | None = None, status: str | list[str] | None = None) -> list[QueuedItem]:
        """The items that are not done yet, in their order."""
        statuses, rows = chosen_statuses(status), self._perdure.callback_queue.rows.in_order()
        return [self._item(row) for row in rows if callback in (None, row.callback) and row.status in statuses]

    def retry_queued(self, item_id: str) -> bool:
        """Try a parked item again now, with all its tries, or one that waits for its next try. False if it is neither."""
        return self._perdure.callback_queue.retry(str(item_id))

    def _item(self, row: Row) -> QueuedItem:
        return QueuedItem(
            item_id=row.id,
            callback=row.callback,
            payload=unpack(row.payload),
            status=row.status,
            next_at_ms=row.ready_at_ms,
            retry=retries_of(self._perdure, row),
            key=row.key or None,
            attempt=row.attempt,
            error=row.error or None,
            queued_at_ms=row.created_at_ms,
            number=row.number,
        )
