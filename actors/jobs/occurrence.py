"""What an author sees of schedules and of the queue: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.policies import CallbackStatus, PastOutcome, Retries


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """What a callback is called for.

    Its effects in the agent's storage, and on other agents, happen once. Effects outside of Perdure (an HTTP call, say) may happen again
    after a death. `delivery_id` is the same for all tries of one occurrence, so the other side can tell.

    Args:
        schedule_id: the schedule, or the item of the queue.
        scheduled_at_ms: the time that it was for.
        attempt: 1 for the first try.
        missed: how many earlier ticks were folded into it.
    """

    schedule_id: str
    scheduled_at_ms: int
    attempt: int
    missed: int
    delivery_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A schedule of an agent, as it stands.

    `status` is `waiting` for its time, `retrying` after a failure, `paused`, or `parked` until `schedules.retry`; `error` says why.

    Args:
        type: `scheduled` for an instant, `delayed` by a number of seconds, `cron`, or `interval`.
        next_at_ms: when its callback is called next; None if it is paused or parked.
        attempt: how many tries of the current occurrence have failed.
        number: the cursor of `schedules.list`.
    """

    schedule_id: str
    type: str
    callback: str
    payload: Any
    status: CallbackStatus
    next_at_ms: int | None
    cron: str | None
    time_zone: str | None
    interval_ms: int | None
    catch_up: str
    overlap: str
    jitter_ms: int
    retry: Retries
    key: str | None
    attempt: int
    error: str | None
    created_at_ms: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedItem:
    """An item that waits in an agent's queue. Its statuses are those of a schedule, without `paused`."""

    item_id: str
    callback: str
    payload: Any
    status: CallbackStatus
    next_at_ms: int | None
    retry: Retries
    key: str | None
    attempt: int
    error: str | None
    queued_at_ms: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """One try of a schedule's callback, or ticks that were dropped.

    Args:
        outcome: `completed`, `failed`, `parked` (failed for good), or `skipped` (nothing was called).
        missed: how many ticks were folded into it, or dropped if it was skipped.
    """

    scheduled_at_ms: int
    began_at_ms: int
    ended_at_ms: int
    attempt: int
    missed: int
    outcome: PastOutcome
    error: str | None
