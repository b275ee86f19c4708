"""What those who observe are told of a fact: its name on the `agent_tool` channel, whose it is, and its payload.

A happening belongs to the parent of its run, or to the child where no parent asked. Its payload stands beside its name in
`observability.EventType`; a `reason` is always typed, and prose is under `error` (spec W-40).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from perdure.actors.events.observability import EventType
from perdure.ledger import (
    AttemptLost,
    FactRow,
    MailFailed,
    Run,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunRequested,
    View,
    decode,
)
from perdure.policies import JsonObject

MAIL_FAILED: Final = "MailFailed"


class Happening(NamedTuple):
    """Something that happened, and to whom."""

    type: EventType
    agent: str
    payload: JsonObject


def happening_of(row: FactRow, view: View) -> Happening | None:
    """What a fact is to those who observe, or None if it is nothing to them. The view has it folded already."""
    if row.kind == MAIL_FAILED:
        return _of_mail(cast("MailFailed", decode(row.kind, row.body)), view)
    told, run = _TOLD.get(row.kind), view.runs.get(row.subject)
    if told is None or run is None:
        return None
    type, payload = told
    fact = decode(row.kind, row.body)
    always = {
        "run_id": run.run_id,
        "agent_type": run.agent_type,
        "attempt": getattr(fact, "attempt", run.attempt),
    }
    return Happening(type, run.parent or run.child, always | payload(fact, run, row.at_ms))


def _of_mail(fact: MailFailed, view: View) -> Happening | None:
    mail = view.mail.get(fact.mail_id)
    run = view.runs.get(mail.run_id) if mail is not None else None
    if mail is None or run is None:
        return None
    type = EventType.AGENT_TOOL_PARKED if fact.retry_at_ms is None else EventType.AGENT_TOOL_DELIVERY_FAILED
    payload: JsonObject = {
        "run_id": mail.run_id,
        "agent_type": run.agent_type,
        "mail_id": mail.mail_id,
        "kind": mail.slot,
        "handler": mail.handler,
        "tries": mail.attempts,
        "error": fact.error,
    }
    return Happening(type, mail.recipient, payload)


Payload = Callable[[Any, Run, int], JsonObject]


def _dispatched(_fact: RunRequested, run: Run, _at_ms: int) -> JsonObject:
    return {"detached": not run.is_awaited, "parent_tool_call_id": run.options.get("tool_call")}


def _completed(_fact: RunCompleted, run: Run, at_ms: int) -> JsonObject:
    return {"status": "completed", "elapsed_ms": at_ms - run.requested_at_ms, "error": ""}


def _failed(fact: RunFailed, run: Run, at_ms: int) -> JsonObject:
    return {"status": "error", "elapsed_ms": at_ms - run.requested_at_ms, "error": fact.error}


def _lost(fact: AttemptLost, run: Run, at_ms: int) -> JsonObject:
    return {"status": str(run.status), "elapsed_ms": at_ms - run.requested_at_ms, "error": fact.cause}


def _gave_up(fact: RunInterrupted, _run: Run, _at_ms: int) -> JsonObject:
    return {"reason": fact.reason, "child_still_running": fact.child_still_running, "error": fact.error}


_TOLD: dict[str, tuple[EventType, Payload]] = {
    "RunRequested": (EventType.AGENT_TOOL_DISPATCHED, _dispatched),
    "AttemptStarted": (EventType.AGENT_TOOL_ATTEMPT, lambda fact, *_: {"host_id": fact.host_id}),
    "RunStarted": (EventType.AGENT_TOOL_STARTED, lambda _fact, run, _: {"host_id": run.host_id}),
    "AttemptLost": (EventType.AGENT_TOOL_RECOVERY_ROW, _lost),
    "RunReattached": (EventType.AGENT_TOOL_RECOVERY_REATTACH, lambda *_: {}),
    "RunCompleted": (EventType.AGENT_TOOL_FINISHED, _completed),
    "RunFailed": (EventType.AGENT_TOOL_FINISHED, _failed),
    "RunAborted": (EventType.AGENT_TOOL_CANCELLED, lambda fact, *_: {"error": fact.reason}),
    "RunInterrupted": (EventType.AGENT_TOOL_GAVE_UP, _gave_up),
    "MilestoneReached": (
        EventType.AGENT_TOOL_MILESTONE,
        lambda fact, *_: {"name": fact.name, "milestone_sequence": fact.number},
    ),
    "RunCleared": (EventType.AGENT_TOOL_CLEARED, lambda _fact, run, _: {"status": str(run.status)}),
}
