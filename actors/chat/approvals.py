"""Approvals of calls, and the run that a call has.

An approval's id names the asker: the call itself before it begins, or the run of it that finds out that it needs one. A run that asks did
nothing else, and is over. What is approved is a second run, under an id of its own, which is told so.

A run may also defer its call. Then the call waits for a result that comes from elsewhere, and has no second run.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.actors.chat.tool_run import UNAPPROVED, ToolEnd
from perdure.ledger import derived_run_id
from perdure.policies import Event, Json, JsonObject, Part


def approval_request(call_id: str, asker: str, descriptor: Mapping[str, Json]) -> Event:
    """The event by which a call waits for a person. `asker` is the call or its run; `descriptor` says more of the call."""
    event: Event = {"type": "tool-approval-request", "toolCallId": call_id, "approvalId": _id_of(asker)}
    return {**event, "approvalDescriptor": dict(descriptor)} if descriptor else event


def put_off(call_id: str, run_id: str, end: ToolEnd) -> Event:
    """The event by which a call waits whose run could not settle it: for an approval, or for a result that somebody brings later."""
    descriptor = end.get("descriptor", {})
    if end.get("kind") == UNAPPROVED:
        return approval_request(call_id, run_id, descriptor)
    told: JsonObject = {"toolCallId": call_id, "runId": run_id, "about": descriptor}
    return {"type": "data-deferred", "id": f"deferred-{call_id}", "data": told}


def is_approved(part: Part | None) -> bool:
    return part is not None and part.get("approval", {}).get("approved") is True


def run_ids(request_id: str, call_id: str) -> tuple[str, str]:
    # The second one is approved. Both ids are the same in every life of the turn.
    first, second = (derived_run_id(request_id, "tool", call_id, number) for number in range(2))
    return first, second


def first_run_id(request_id: str, call_id: str) -> str:
    # It is the call's idempotency key too.
    return run_ids(request_id, call_id)[0]


def call_run_id(request_id: str, call_id: str, part: Part | None) -> str:
    first, second = run_ids(request_id, call_id)
    was_asked_by_run = part is not None and part.get("approval", {}).get("id") == _id_of(first)
    return second if was_asked_by_run else first


def _id_of(asker: str) -> str:
    return f"approval-{asker}"
