"""What an author sees of schedules and of the queue: frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.policies import CallbackStatus, PastOutcome, Retries


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """What a callback is called for.

    Its effects in the agent's storage, and on other agents, happen once. What it does outside of Perdure (an HTTP call, say) may happen
    again after a death: `delivery_id` stays the same for all tries of one occurrence, so that the other side can tell.

    Args:
        schedule_id: the schedule, or the item of the queue.
        scheduled_at_ms: the time that it was for, which is earlier than now.
        attempt: 1 for the first try.
        missed: how many more ticks were folded into it, because the agent could not run them when they were due.
    """

    schedule_id: str
    scheduled_at_ms: int
    attempt: int
    missed: int
    delivery_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A schedule of an agent, as it stands.

    `waiting` for its time; `retrying`, after its callback failed; `paused`; or `parked`: it will not be tried again unless somebody says
    so (`schedules.retry`), and `error` says why.

    Args:
        type: `scheduled` for an instant, `delayed` by a number of seconds, `cron`, or `interval`.
        next_at_ms: when its callback is called next; None if it is paused or parked.
        attempt: how many tries of the current occurrence have failed.
        number: rises with each schedule of the agent; the cursor of `schedules.list`.
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
    """An item of an agent's queue that has not been done yet. The statuses are those of a schedule; it cannot be paused."""

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
        outcome: `completed`; `failed`, with the `error`; `parked`, failed for good; or `skipped`: nothing was called.
        missed: how many ticks were folded into it; of a skipped one how many were dropped.
    """

    scheduled_at_ms: int
    began_at_ms: int
    ended_at_ms: int
    attempt: int
    missed: int
    outcome: PastOutcome
    error: str | None
