"""The event of a fact on the `agent_tool` channel: its name, its agent and its payload.

The agent is the parent of the run, or the child if no parent asked. `observability.EventType` lists the payloads. A `reason` is always
typed, and prose is under `error` (spec W-40).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from perdure.actors.events.observability import EventType
from perdure.ledger import FactRow, MailFailed, Run, View, decode
from perdure.policies import JsonObject

MAIL_FAILED: Final = "MailFailed"


class Happening(NamedTuple):
    """An event, and the agent that it is about."""

    type: EventType
    agent: str
    payload: JsonObject


def happening_of(row: FactRow, view: View) -> Happening | None:
    """The event of a fact that the view has folded, or None if it has none."""
    if row.kind == MAIL_FAILED:
        return _of_mail(cast("MailFailed", decode(row.kind, row.body)), view)
    told, run = _TOLD.get(row.kind), view.runs.get(row.subject)
    if told is None or run is None:
        return None
    type, payload = told
    fact = decode(row.kind, row.body)
    attempt = getattr(fact, "attempt", run.attempt)
    always = {"run_id": run.run_id, "agent_type": run.agent_type, "attempt": attempt}
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


def _ended(status: str, error: Callable[[Any], str]) -> Payload:
    """The payload of an end, or of a lost attempt; without a `status`, that of the run."""
    return lambda fact, run, at_ms: {
        "status": status or str(run.status),
        "elapsed_ms": at_ms - run.requested_at_ms,
        "error": error(fact),
    }


_TOLD: dict[str, tuple[EventType, Payload]] = {
    "RunRequested": (
        EventType.AGENT_TOOL_DISPATCHED,
        lambda _fact, run, _: {
            "detached": not run.is_awaited,
            "parent_tool_call_id": run.options.get("tool_call"),
        },
    ),
    "AttemptStarted": (EventType.AGENT_TOOL_ATTEMPT, lambda fact, *_: {"host_id": fact.host_id}),
    "RunStarted": (EventType.AGENT_TOOL_STARTED, lambda _fact, run, _: {"host_id": run.host_id}),
    "AttemptLost": (EventType.AGENT_TOOL_RECOVERY_ROW, _ended("", attrgetter("cause"))),
    "RunReattached": (EventType.AGENT_TOOL_RECOVERY_REATTACH, lambda *_: {}),
    "RunCompleted": (EventType.AGENT_TOOL_FINISHED, _ended("completed", lambda _: "")),
    "RunFailed": (EventType.AGENT_TOOL_FINISHED, _ended("error", attrgetter("error"))),
    "RunAborted": (EventType.AGENT_TOOL_CANCELLED, lambda fact, *_: {"error": fact.reason}),
    "RunInterrupted": (
        EventType.AGENT_TOOL_GAVE_UP,
        lambda fact, *_: {
            "reason": fact.reason,
            "child_still_running": fact.child_still_running,
            "error": fact.error,
        },
    ),
    "MilestoneReached": (
        EventType.AGENT_TOOL_MILESTONE,
        lambda fact, *_: {"name": fact.name, "milestone_sequence": fact.number},
    ),
    "RunParked": (EventType.AGENT_TOOL_UNFIT, lambda fact, *_: {"error": fact.error}),
    "RunRetried": (EventType.AGENT_TOOL_RETRIED, lambda *_: {}),
    "RunCleared": (EventType.AGENT_TOOL_CLEARED, lambda _fact, run, _: {"status": str(run.status)}),
}
