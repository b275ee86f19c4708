"""The background work of agents, from the records of their storages: fibers, schedules with the queue, and turns, each as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from perdure.actors.chat.turn import Turn
from perdure.actors.jobs.callback_rows import Row
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.life.migration import FIRST
from perdure.ledger import unpack
from perdure.ledger.keeping.looking import Looked
from perdure.ledger.storage.cabinet import FIBER, QUEUED, SCHEDULE, STATE, TURN, VERSION
from perdure.policies import CallbackStatus, FiberStatus, JsonObject, TurnStatus

Told = JsonObject

NOT_AWAKE: Final = -1
_OF_AUTHORS: Final = ("snapshot", "accepted")  # what is not read, and what is of the call that begins a fiber
RECORDS_OF_WORK: Final = (FIBER, SCHEDULE, QUEUED, TURN)


def version_in(found: Looked) -> int:
    """The version of what the agent keeps (`class Till(Agent, version=2)`)."""
    kept = found.records[VERSION].get("")
    return FIRST if kept is None else int(unpack(kept))


def state_in(found: Looked) -> Told:
    """The state of the agent."""
    return {key: unpack(body) for key, body in found.records[STATE].items()}


def fibers_in(found: Looked, life: int) -> list[Told]:
    """Its fibers, as its author sees them in this life; `NOT_AWAKE` if there is none."""
    rows = [Fiber.load(body) for body in found.records[FIBER].values()]
    failed = (FiberStatus.ERROR, FiberStatus.INTERRUPTED)
    return [
        {
            "agent": found.agent_id,
            **{name: value for name, value in asdict(row.shown(life, None)).items() if name not in _OF_AUTHORS},
            "method": row.fn_name or None,
            "is_settled": row.is_settled,
            "is_failed": row.is_settled and row.status in failed,
        }
        for row in rows
    ]


def schedules_in(found: Looked) -> list[Told]:
    """Its schedules, and the items of its queue."""
    rows = [Row.load(body) for kind in (SCHEDULE, QUEUED) for body in found.records[kind].values()]
    failing = (CallbackStatus.RETRYING, CallbackStatus.PARKED)
    return [
        {
            "agent": found.agent_id,
            "id": row.id,
            "key": row.key,
            "kind": str(row.kind),
            "callback": row.callback,
            "status": str(row.status),
            "attempt": row.attempt,
            "due_at_ms": row.next_at_ms,
            "cron": row.cron,
            "created_at_ms": row.created_at_ms,
            "error": row.error or None,
            "is_failed": row.status in failing,
        }
        for row in rows
    ]


def turns_in(found: Looked) -> list[Told]:
    """The turns of its chat."""
    rows = [Turn.load(body) for body in found.records[TURN].values()]
    return [
        {
            "agent": found.agent_id,
            "request_id": row.request_id,
            "trigger": row.trigger,
            "status": str(row.status),
            "attempt": row.attempt,
            "accepted_at_ms": row.accepted_at_ms,
            "started_at_ms": row.started_at_ms or None,
            "ended_at_ms": row.ended_at_ms or None,
            "waits_for_a_person": row.status == TurnStatus.PARKED,
            "reason": row.reason or None,
            "error": row.error or None,
            "is_settled": row.is_over,
            "is_failed": row.status in (TurnStatus.ERROR, TurnStatus.INTERRUPTED),
        }
        for row in rows
    ]


KINDS_OF_WORK: Final[dict[str, Callable[[Looked, int], list[Told]]]] = {
    "fibers": fibers_in,
    "schedules": lambda found, _life: schedules_in(found),
    "turns": lambda found, _life: turns_in(found),
}
"""What each kind of background work is told by; of a storage, and of the life of the agent that is awake."""
