"""The child of a tool call: a run in a host of its own, so that it outlives the provider's connection and the agent that asked.

What the function raised is part of the run's result, because the end of the call is known then. A run that itself ends in an error means
that the process died during the call, and the outcome is unknown.

An approval's id names the asker: the call itself before it begins, or the run of it that finds out that it needs one. A run that asks did
nothing else, and is over. What is approved is a second run, under an id of its own, which is told so. A run may also defer its call. Then
the call waits for a result that comes from elsewhere, and has no second run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Required, cast

from perdure.actors.agent.agent import Agent
from perdure.actors.chat.tool_schema import ToolContext
from perdure.actors.chat.tools import Returned, Tool, find_tool
from perdure.actors.chat.toolsets import ApprovalWanted, ResultLater, ToldToModel, find_library_tool, is_library_tool
from perdure.actors.code.author_call import in_words, text_of, tried, tried_now
from perdure.actors.life.asks import TimeLimit
from perdure.actors.life.life import Life
from perdure.actors.life.run_context import RunContext
from perdure.actors.tasks import self_cancelled
from perdure.ledger import BadRequest, derived_run_id
from perdure.policies import Event, Json, JsonObject, Part

END_BYTES: Final = 64
"""So much is in the end of a call besides its result."""
RAISED, REFUSED, TIMED_OUT, UNAPPROVED, DEFERRED = "raised", "refused", "timed_out", "unapproved", "deferred"


class ToolEnd(Returned, total=False):
    """How a call ended: with what it returned; or with the words of `error` and its kind: `raised`, `refused` (never ran), `timed_out`,
    `unapproved` (it asks for approval) or `deferred` (its result comes from elsewhere); then `descriptor` says more."""

    ok: Required[bool]
    kind: str
    error: str
    descriptor: JsonObject


class ToolRun(Agent):
    """One call of a tool that may happen at most once."""

    attempts_max: ClassVar[int | None] = 1
    _perdure_relays: ClassVar[bool] = True
    _perdure_apart: ClassVar[bool] = True

    async def run(self, call: dict[str, Any], run: RunContext) -> dict[str, Any]:
        """Execute a call: `{tool, input, call_id, key, timeout_ms?, approved?}`. `tool` is the reference of the function."""
        context = ToolContext(
            call_id=call["call_id"],
            run_id=run.run_id,
            attempt=run.attempt,
            idempotency_key=call["key"],
            report_progress=run.report_progress,
            asked_to_stop=lambda: run.is_cancelled,
            approved=call.get("approved", False),
            asks=run.ask,
        )
        find = find_library_tool if is_library_tool(call["tool"]) else find_tool
        tool, problem = tried_now(lambda: find(call["tool"], self._perdure.code_dir))
        if tool is None or problem is not None:
            return {
                "ok": False,
                "kind": REFUSED,
                "error": in_words(LookupError(call["tool"]) if problem is None else problem),
            }
        return dict(await execute(self._perdure, tool, call["input"], context, call.get("timeout_ms")))

    def get_agent_tool_summary(self, end: JsonObject, run: RunContext) -> str:
        """What `perdure ps` shows of a call that is over."""
        return "" if end["ok"] else str(end["error"])


class RepeatableToolRun(ToolRun):
    """One call of a tool that may be executed again: it is pure, or idempotent under its key."""

    attempts_max = None


async def execute(life: Life, tool: Tool, given: object, context: ToolContext, timeout_ms: float | None) -> ToolEnd:
    """Execute a tool's function within its time limit, and return how it ended. While it waits for people its time stands still."""
    job, refusal = tried_now(lambda: tool.bound(given, context))
    if job is None or refusal is not None:
        return {"ok": False, "kind": REFUSED, "error": text_of(refusal)}
    try:
        async with TimeLimit(timeout_ms / 1000 if timeout_ms else None):
            value, problem = await tried(life.bounded(life.call_in_turn(job) if tool.in_turn else life.call(job)))
    except asyncio.CancelledError:
        if life.is_leaving or context.asked_to_stop():
            raise
        value, problem = None, self_cancelled()  # the tool cancelled itself
    except TimeoutError:
        words = f"The call did not return within {timeout_ms:g} ms and was stopped; what it had done by then stands."
        return {"ok": False, "kind": TIMED_OUT, "error": words}
    if isinstance(problem, ApprovalWanted):
        return {"ok": False, "kind": UNAPPROVED, "error": "It asks for approval.", "descriptor": problem.descriptor}
    if isinstance(problem, ResultLater):
        return {"ok": False, "kind": DEFERRED, "error": "Its result comes later.", "descriptor": problem.descriptor}
    if isinstance(problem, ToldToModel):
        return {"ok": False, "kind": RAISED, "error": text_of(problem)}
    if problem is None:
        value, problem = tried_now(lambda: tool.returned(value, life.limits.output_bytes_max - END_BYTES))
    if problem is not None:
        life.log("tool", f"call {context.call_id} of tool {tool.name}", problem, context.run_id)
        return {"ok": False, "kind": REFUSED if isinstance(problem, BadRequest) else RAISED, "error": in_words(problem)}
    return cast("ToolEnd", {"ok": True, **cast("Returned", value)})


# ---------------------------------------------------------------- ids of runs, and approvals


def approval_request(call_id: str, asker: str, descriptor: Mapping[str, Json]) -> Event:
    # `asker` is the call or its run; `descriptor` says more of the call.
    event: Event = {"type": "tool-approval-request", "toolCallId": call_id, "approvalId": _id_of(asker)}
    return {**event, "approvalDescriptor": dict(descriptor)} if descriptor else event


def put_off(call_id: str, run_id: str, end: ToolEnd) -> Event:
    # The run could not settle the call, which waits for an approval, or for a result that somebody brings later.
    descriptor = end.get("descriptor", {})
    if end.get("kind") == UNAPPROVED:
        return approval_request(call_id, run_id, descriptor)
    told: JsonObject = {"toolCallId": call_id, "runId": run_id, "about": descriptor}
    return {"type": "data-deferred", "id": f"deferred-{call_id}", "data": told}


def is_approved(part: Part | None) -> bool:
    return part is not None and part.get("approval", {}).get("approved") is True


def run_ids(turn_origin: str, call_id: str) -> tuple[str, str]:
    # The second one is approved. Both ids are the same in every life of the turn, and no other turn's (`Turn.origin`).
    first, second = (derived_run_id(turn_origin, "tool", call_id, number) for number in range(2))
    return first, second


def first_run_id(turn_origin: str, call_id: str) -> str:
    # It is the call's idempotency key too.
    return run_ids(turn_origin, call_id)[0]


def call_run_id(turn_origin: str, call_id: str, part: Part | None) -> str:
    first, second = run_ids(turn_origin, call_id)
    was_asked_by_run = part is not None and part.get("approval", {}).get("id") == _id_of(first)
    return second if was_asked_by_run else first


def _id_of(asker: str) -> str:
    return f"approval-{asker}"
