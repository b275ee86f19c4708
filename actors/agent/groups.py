"""What an agent is and has beside the daily verbs of `Agent`: the runtime's part of it (`Hosted`), and the groups of what is done rarely
with its fibers, schedules, queue, sub-agents and storage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from perdure.actors.agent.exposing import exposed, watching
from perdure.actors.host.tenant import Tenant
from perdure.actors.jobs.callback_rows import SCHEDULE_TYPES, CallbackRow, Past, QueuedItem, Schedule
from perdure.actors.jobs.fiber import FiberInspection
from perdure.actors.jobs.schedule_requests import retries_of, span_of
from perdure.actors.life.family import SubAgentInfo
from perdure.actors.life.results import RunInfo, RunResult
from perdure.actors.tasks import Pending
from perdure.ledger import check_id, check_ms, check_whole, check_words, unpack_value
from perdure.policies import CallbackStatus, Json, PastOutcome

LISTED_MAX = 1_000


class Hosted:
    """The runtime's part of an agent."""

    _perdure: Tenant
    _perdure_recalls_results: ClassVar[bool] = (
        False  # whether `run`, entered after its end, gives the same result at once
    )
    _perdure_apart: ClassVar[bool] = False  # whether its runs are never placed on the host of the agent that asked
    _perdure_relays: ClassVar[bool] = False  # whether what its runs report is reported of the asking child's run too
    _perdure_held: ClassVar[bool] = True  # whether its runs wait for a place among those of the agent that asked

    def _perdure_woken(self) -> None:
        """Resume the work of an earlier life. Called after `on_start` if the agent has a storage."""

    def _perdure_answered_fiber(self, run: RunInfo, result: RunResult[Any]) -> None:
        self._perdure.fibers.answered(run, result)

    @watching
    async def _perdure_state(self) -> dict[str, Any]:
        return self._perdure.state_watch.present()

    @watching
    async def _perdure_watch_state(self, version: Any, edition: Any, hold_s: float) -> Any:
        return await self._perdure.state_watch.page(version, edition, hold_s)

    @exposed(repeatable=True)
    async def _perdure_set_state(self, state: Json) -> Any:
        return self._perdure.state_watch.replace(state)

    @exposed
    async def _perdure_cancel_scheduled(self, row_id: str, is_queued: bool) -> None:
        # It is told by those who look after the directory.
        if is_queued:
            self._perdure.callback_queue.drop_one(row_id)
        else:
            self._perdure.schedules.cancel(row_id)

    @exposed
    async def _perdure_begin_stream(self, method: str, arguments: bytes) -> str:
        return self._perdure.call_streams.begin(method, arguments)

    @exposed
    async def _perdure_next_of_stream(self, stream_id: str) -> Any:
        return await self._perdure.call_streams.next(stream_id)

    @exposed
    async def _perdure_end_stream(self, stream_id: str) -> None:
        await self._perdure.call_streams.end(stream_id)


class _Group:
    __slots__ = ("_perdure",)

    def __init__(self, tenant: Tenant) -> None:
        self._perdure = tenant


class FiberGroup(_Group):
    """More about the fibers of one agent."""

    __slots__ = ()

    def start(self, requests: Sequence[Mapping[str, object]]) -> list[FiberInspection]:
        """Accept many fibers in one commit, all or none. A request has the arguments of `start_fiber`, except those for waiting."""
        fibers = self._perdure.fibers
        asked = [fibers.requests.named(fibers.requests.from_plain(each)) for each in requests]
        return [fibers.store.inspected(fiber, accepted=is_new) for fiber, is_new in fibers.requests.accept(asked)]

    def wait(self, fiber_id: str, timeout_ms: float | None = None) -> Pending[FiberInspection]:
        """Wait until a fiber has ended, at most `timeout_ms`. Returns its `FiberInspection`; await it in async code."""
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        return self._perdure.bridge(self._perdure.fibers.waiters.settled(fiber_id, timeout_ms))

    def send(self, fiber_id: str, event: str, value: object = None, event_id: str | None = None) -> None:
        """Send an event to a fiber of this agent, which takes it by `fiber.wait_for(event)`: exactly once, in the order of the calls.

        Durable on return, or with the open transaction. One that comes before the wait waits for it; what the body has not taken when the
        fiber ends is withdrawn. The same `event_id` is the same event each time. Without one, code that is entered again sends the same.
        Raises `EventRefused` for a fiber that has ended, or has `Limits.events_max` events that it has not taken, and `BadRequest` for one
        that is not known.
        """
        self._perdure.fibers.send(fiber_id, event, value, event_id)


class ScheduleGroup(_Group):
    """The schedules of one agent."""

    __slots__ = ()

    def get(self, schedule_id: str) -> Schedule | None:
        """Return a schedule, or None."""
        row = self._perdure.schedules.rows.get(str(schedule_id))
        return None if row is None else shown_schedule(self._perdure, row)

    def cancel(self, schedule_id: str) -> bool:
        """Delete a schedule, and roll back a call of its callback that is under way. Returns False if there is none."""
        return self._perdure.schedules.cancel(str(schedule_id))

    def pause(self, schedule_id: str) -> bool:
        """Suspend a schedule until it is resumed. Returns False if it is parked or does not exist."""
        return self._perdure.schedules.pause(str(schedule_id))

    def resume(self, schedule_id: str) -> bool:
        """End a pause. Ticks of the pause are skipped; a single time that has passed is due at once. Returns False if it was not paused."""
        return self._perdure.schedules.resume(str(schedule_id))

    def retry(self, schedule_id: str) -> bool:
        """Retry now a schedule that is parked, with all its tries, or that waits for its next try. Returns False if it is neither."""
        return self._perdure.schedules.rows.try_again(str(schedule_id))

    def history(self, schedule_id: str) -> Sequence[Past]:
        """Return the last tries of a callback, and what was dropped, oldest first. It is kept for a while after the schedule is gone."""
        names = ("scheduled_at_ms", "began_at_ms", "ended_at_ms", "attempt", "missed", "outcome", "error")
        found = [dict(zip(names, each, strict=False)) for each in self._perdure.schedules.history(str(schedule_id))]
        return [
            Past(**(each | {"outcome": PastOutcome(each["outcome"]), "error": each["error"] or None})) for each in found
        ]

    def list(
        self,
        type: str | Sequence[str] | None = None,
        callback: str | None = None,
        status: str | Sequence[str] | None = None,
        between: tuple[object, object] | None = None,
        limit: int = 100,
        cursor: int = 0,
    ) -> Sequence[Schedule]:
        """Return schedules, in the order of their creation.

        Args:
            between: two instants, both inclusive, within which it is called next (milliseconds, aware datetimes, or None for an open end).
            limit: at most so many, up to 1,000.
            cursor: only those after this one: the `number` of the last one of the page before.
        """
        types, statuses = check_words("type", type, SCHEDULE_TYPES), check_words("status", status, CallbackStatus)
        first, last = span_of(between)
        most, found = check_whole("limit", limit, most=LISTED_MAX), []
        for row in self._perdure.schedules.rows.in_order():
            fits = (
                row.kind in types
                and row.status in statuses
                and row.number > cursor
                and callback in (None, row.callback)
            )
            if fits and (between is None or (row.next_at_ms is not None and first <= row.next_at_ms <= last)):
                found.append(row)
        return [shown_schedule(self._perdure, row) for row in found[:most]]


class QueueGroup(_Group):
    """The items that one agent has queued and not done yet."""

    __slots__ = ()

    def drop(self, item_id: str) -> bool:
        """Delete an item, and roll back a call of its callback that is under way. Returns False if there is none."""
        return self._perdure.callback_queue.drop_one(str(item_id))

    def drop_all(self, callback: str | None = None) -> int:
        """Delete all items, or those of one callback. Returns how many there were."""
        return self._perdure.callback_queue.drop(lambda row: callback in (None, row.callback))

    def retry(self, item_id: str) -> bool:
        """Retry now an item that is parked, with all its tries, or that waits for its next try. Returns False if it is neither."""
        return self._perdure.callback_queue.rows.try_again(str(item_id))

    def list(self, callback: str | None = None, status: str | Sequence[str] | None = None) -> Sequence[QueuedItem]:
        """Return the items that are not done yet, in their order."""
        statuses, rows = check_words("status", status, CallbackStatus), self._perdure.callback_queue.rows.in_order()
        return [
            shown_item(self._perdure, row)
            for row in rows
            if callback in (None, row.callback) and row.status in statuses
        ]


class SubAgentGroup(_Group):
    """The sub-agents of one agent."""

    __slots__ = ()

    def has(self, agent_class: type | str, name: str) -> bool:
        """Return whether that sub-agent is known."""
        return any(each.name == name for each in self._perdure.family.children(agent_class))

    def list(self, agent_class: type | str | None = None) -> Sequence[SubAgentInfo]:
        """Return the known sub-agents, in the order of their creation; optionally of one class, given itself or by its type name."""
        return self._perdure.family.children(agent_class)

    def abort(self, agent_class: type, name: str, reason: str = "aborted") -> Awaitable[None]:
        """End the lives of a sub-agent and its descendants. Pending calls raise `AgentAborted`.

        Durable on return. Storage stays; the next call, mail or alarm wakes the agent again.
        """
        return self._perdure.bridge(self._perdure.family.abort(agent_class, name, reason))

    def delete(self, agent_class: type, name: str) -> None:
        """Delete a sub-agent and its descendants: storages, runs, alarms and mail. Does nothing if it does not exist.

        Durable on return, or with the open transaction. The same name then means a new sub-agent.
        """
        self._perdure.family.delete(agent_class, name)


class OwnStorage(_Group):
    """The storage of one agent as a whole. What lies in it is reached by `sql`, `state` and `transaction` of `Agent`."""

    __slots__ = ()

    def snapshot(self, path: str | Path) -> None:
        """Write a consistent copy of the agent's storage to a file of its own."""
        self._perdure.storage.snapshot(Path(path))

    def restore(self, path: str | Path) -> None:
        """Take a snapshot as this agent's storage; only before anything was written to it. With a bucket it has 256 MB at most."""
        self._perdure.restore(Path(path))

    def durable(self) -> Awaitable[None]:
        """Wait until everything that this agent has written is durable, so that others may be told of it.

        With a directory it is at once. With a bucket a write returns before it is there; what Perdure itself passes on waits for it, and
        so does `await run.step(…)`. What you send yourself right after a write does not.
        """
        return self._perdure.bridge(self._perdure.services.until_durable())

    def fork(self, name: str) -> Awaitable[None]:
        """Give a new agent of this class a copy of what is committed in this agent's storage: tables, state and messages.

        Durable when it was awaited; it is there wholly or not at all. With a directory it is at once. With a bucket a copy has 256 MB at
        most. Raises `BadRequest` if that agent has a storage or is at work, and `TooLarge`.
        """
        return self._perdure.fork(name)


def shown_schedule(tenant: Tenant, row: CallbackRow) -> Schedule:
    return Schedule(
        **_shown(tenant, row),
        schedule_id=row.id,
        type=row.kind,
        cron=row.cron or None,
        time_zone=row.time_zone or None,
        interval_ms=row.interval_ms or None,
        catch_up=row.catch_up,
        overlap=row.overlap,
        jitter_ms=row.jitter_ms,
        created_at_ms=row.created_at_ms,
    )


def shown_item(tenant: Tenant, row: CallbackRow) -> QueuedItem:
    return QueuedItem(**_shown(tenant, row), item_id=row.id, queued_at_ms=row.created_at_ms)


def _shown(tenant: Tenant, row: CallbackRow) -> dict[str, Any]:
    return {
        "callback": row.callback,
        "payload": unpack_value(row.payload),
        "status": row.status,
        "next_at_ms": row.next_at_ms,
        "retry": retries_of(tenant, row),
        "key": row.key or None,
        "attempt": row.attempt,
        "error": row.error or None,
        "number": row.number,
    }
