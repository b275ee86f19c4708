"""Words about calls that have no result of their own, and the evidence that is kept with them."""

from __future__ import annotations

from typing import Any

from perdure.actors.chat.tools import Tool
from perdure.actors.life.results import RunResult
from perdure.policies import Fate, Remains, caution, tool_name

TOOK_EFFECT = (
    "The call of {tool} died before it could answer, but a check of what it touches shows that it took effect. Its result is lost; do "
    "not issue it again."
)
NO_EFFECT = (
    "The call of {tool} died before it could answer, and a check of what it touches shows that it took no effect. Issue it again if it is "
    "still needed."
)


def evidence_of(part: dict[str, Any], run_id: str, result: RunResult | None, at_ms: int) -> dict[str, Any]:
    """What is known of a call whose outcome is not. It is kept with the call, and found there when a result comes late."""
    still_running = result is not None and result.status == "interrupted" and result.child_still_running is not False
    words = result.error if result is not None else "the agent's own process was lost during the call"
    return {
        "outcome": "unknown",
        "tool": tool_name(part),
        "runId": run_id,
        "toolCallId": part["toolCallId"],
        "lostAtMs": at_ms,
        "stillRunning": still_running,
        "evidence": words,
    }


def died(part: dict[str, Any], tool: Tool, evidence: dict[str, Any], probed: object) -> str:
    """What the model is told of a call that died. `probed` is what the author's probe says: True, False, or nothing known."""
    if probed is True or probed is False:
        return (TOOK_EFFECT if probed else NO_EFFECT).format(tool=tool.name)
    fate = Fate.STILL_RUNNING if evidence["stillRunning"] else Fate.DIED
    return caution(
        fate,
        Remains(
            tool=tool.name,
            call_id=part["toolCallId"],
            effect=tool.effect,
            ended_by="its process was lost",
            lost_at_ms=evidence["lostAtMs"],
            exit_evidence=evidence["evidence"],
            idempotency_key=evidence["runId"],
        ),
    )


def aborted(part: dict[str, Any], *, began: bool, is_question: bool = False) -> str:
    """What the model is told later of a call that a person cancelled. A question is answered by its client, or not at all."""
    remains = Remains(tool=tool_name(part), call_id=part["toolCallId"])
    return caution(Fate.UNANSWERED if is_question else Fate.ABORTED if began else Fate.ABORTED_BEFORE, remains)


def never_ran(part: dict[str, Any], why: str) -> str:
    """What the model is told later of a call that had not begun when its turn ended by itself."""
    return caution(Fate.NEVER_RAN, Remains(tool=tool_name(part), call_id=part["toolCallId"], ended_by=why))


def timed_out(part: dict[str, Any], tool: Tool, words: str, at_ms: int) -> str:
    """What the model is told of a call that was stopped because its time was over."""
    remains = Remains(
        tool=tool.name,
        call_id=part["toolCallId"],
        effect=tool.effect,
        ended_by="its time was over",
        lost_at_ms=at_ms,
        exit_evidence=words,
    )
    return caution(Fate.DIED, remains)
