"""Calls without a result of their own: what the model is told, the evidence, and results that come late.

The evidence of a call with an unknown outcome is in the transcript, with the call. Before a turn begins, the ledger is asked about each
such run. A late result is added to the transcript as a correction, once (case A17). Until then the same call is not made again blindly
(`policies.repeats`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from perdure.actors.chat.chat_store import ChatStore
from perdure.actors.chat.tools import Tool
from perdure.actors.chat.transcript import Transcript, told_of
from perdure.actors.life.results import RunResult
from perdure.ledger import Status
from perdure.policies import (
    JsonObject,
    Message,
    NoResult,
    OurMetadata,
    Part,
    RepeatGuard,
    caution,
    correction,
    stop_text,
    tool_name,
)

TOOK_EFFECT = (
    "The call of {tool} died before it could answer, but a check of what it touches shows that it took effect. Its result is lost; do "
    "not issue it again."
)
NO_EFFECT = (
    "The call of {tool} died before it could answer, and a check of what it touches shows that it took no effect. Issue it again if it is "
    "still needed."
)


def evidence_of(part: Part, run_id: str, result: RunResult | None, at_ms: int) -> OurMetadata:
    """The evidence of a call with an unknown outcome. It is kept with the call, and found there when a result comes late."""
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


def died(part: Part, tool: Tool, evidence: OurMetadata, probed: object) -> str:
    """What the model is told of a call that died. `probed` is the author's probe: True, False, or None for unknown."""
    if isinstance(probed, bool):
        return (TOOK_EFFECT if probed else NO_EFFECT).format(tool=tool.name)
    return caution(
        NoResult.STILL_RUNNING if evidence["stillRunning"] else NoResult.DIED,
        tool.name,
        part["toolCallId"],
        effect=tool.effect,
        ended_by="its process was lost",
        evidence=evidence["evidence"],
        idempotency_key=evidence["runId"],
    )


def aborted(part: Part, *, began: bool, is_question: bool) -> str:
    why = NoResult.UNANSWERED if is_question else NoResult.ABORTED if began else NoResult.ABORTED_BEFORE
    return caution(why, tool_name(part), part["toolCallId"])


class LostCalls:
    """The calls of one conversation with an unknown outcome. Durable; consulted before every call."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store
        self._known: RepeatGuard | None = None

    @property
    def _guard(self) -> RepeatGuard:
        if self._known is None:
            self._known = RepeatGuard.of_rows(self._store.guard())
        return self._known

    def _keep(self, guard: RepeatGuard) -> None:
        if guard != self._guard:
            self._known = guard
            self._store.keep_guard(guard.as_rows())

    def refusal(self, tool: Tool, given: object) -> str | None:
        """What the model is told if the call would repeat a lost one; None if the call may begin."""
        loss = self._guard.blocked(tool.name, given, tool.effect)
        if loss is None:
            return None
        self._keep(self._guard.stopped(loss))
        return stop_text(loss)

    def settled(self, part: Part, tool: Tool) -> None:
        if told_of(part).get("outcome") == "unknown":
            self._keep(self._guard.lost(tool.name, part.get("input"), part["toolCallId"]))
        else:
            succeeded = part.get("state") == "output-available"
            self._keep(self._guard.settled(part["toolCallId"], tool.effect, succeeded=succeeded))

    def found(self, call_id: str) -> None:
        self._keep(self._guard.settled(call_id, "once", succeeded=True))

    def approved(self, tool: Tool, given: object) -> None:
        self._keep(self._guard.approved(tool.name, given))

    def forget(self) -> None:
        self._known = None

    def user_spoke(self) -> None:
        self._keep(self._guard.user_spoke())


# --- results that come late ------------------------------------------------------------------------------------------

Inspect = Callable[[str], Awaitable[Mapping[str, object] | None]]


async def late_results(transcript: Transcript, lost: LostCalls, inspect: Inspect) -> list[Message]:
    """The corrections that are due, as messages. `inspect` asks the ledger about a run."""
    found = []
    for call_id, evidence in list(transcript.uncertain.items()):
        message_id = f"correction-{evidence['runId']}"
        if message_id in transcript:
            continue
        told = await inspect(evidence["runId"])
        # A run that ended in another way says nothing of what the call has done.
        if told is not None and told["status"] == Status.COMPLETED:
            lost.found(call_id)
            found.append(_correction(message_id, call_id, evidence, told))
    return found


def _correction(message_id: str, call_id: str, evidence: OurMetadata, told: Mapping[str, object]) -> Message:
    output = told.get("output")
    if isinstance(output, dict) and "ok" in output:
        output = output.get("output") if output["ok"] else output.get("error")
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
    words = correction(evidence["tool"], call_id, text)
    metadata: JsonObject = {"source": "late-result", "runId": evidence["runId"]}
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": words}], "metadata": metadata}
