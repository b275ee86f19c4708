"""The transcript of a chat agent, in memory, and the calls in it without a result of their own.

The evidence of a call with an unknown outcome is in the transcript, with the call. Before a turn begins, the ledger is asked about each
such run. A late result is added to the transcript as a correction, once (case A17). Until then the same call is not made again blindly
(`policies.repeats`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import cast

from perdure.actors.chat.chat_messages import for_storage, is_current
from perdure.actors.chat.chat_store import ChatStore
from perdure.actors.chat.tools import Tool
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
    result_apart,
    stop_text,
    told_of,
    tool_name,
)


class Transcript:
    """The messages of one chat agent, in memory. Positions rise for ever and are the keys of the stored messages.

    A position belongs to its message as soon as it was given out. If the transaction of the message fails, the position stays empty.
    `uncertain` holds the evidence of the calls whose outcome is not known.
    """

    def __init__(self, store: ChatStore) -> None:
        self.uncertain: dict[str, OurMetadata] = {}
        self._positions: dict[str, int] = {}
        self._last = 0
        self._messages: dict[str, Message] = {}
        self.put(store.messages())

    @property
    def messages(self) -> list[Message]:
        # Oldest first. Do not change them in place.
        return list(self._messages.values())

    @property
    def leaf(self) -> Message | None:
        return next((each for each in reversed(self._messages.values()) if is_current(each)), None)

    @property
    def newest_user_id(self) -> str:
        found = (each for each in reversed(self._messages.values()) if each["role"] == "user" and is_current(each))
        return next((each["id"] for each in found), "")

    def get(self, message_id: str) -> Message | None:
        return self._messages.get(message_id)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    def placed(self, messages: list[Message]) -> list[tuple[int, Message]]:
        # Each message as it is stored, with its position: its own, or the next free one.
        for message in messages:
            self._positions.setdefault(message["id"], self._last + 1)
            self._last = max(self._last, self._positions[message["id"]])
        return [(self._positions[message["id"]], for_storage(message)) for message in messages]

    def put(self, placed: Iterable[tuple[int, Message]]) -> None:
        # The messages are durable, or are so with the next flush of their turn.
        has_late = False
        for position, message in placed:
            newest = next(reversed(self._messages), None)
            is_new = message["id"] not in self._messages
            has_late |= is_new and newest is not None and position < self._positions[newest]
            self._positions[message["id"]] = position
            self._last = max(self._last, position)
            self._messages[message["id"]] = message
            for part in message["parts"]:
                told = told_of(part)
                if "toolCallId" in part and told.get("outcome") == "unknown" and "runId" in told:
                    self.uncertain[part["toolCallId"]] = told
        if has_late:
            self._messages = dict(sorted(self._messages.items(), key=lambda each: self._positions[each[0]]))

    def since(self, message_id: str) -> list[Message]:
        # This message and all that follow it, without those that were replaced before.
        ids = list(self._messages)
        found = ids[ids.index(message_id) :] if message_id in self._messages else []
        return [self._messages[each] for each in found if is_current(self._messages[each])]

    def position(self, message_id: str) -> int:
        return self._positions[message_id]

    def remove(self, message_ids: Iterable[str]) -> None:
        # Their positions are not given out again.
        for each in message_ids:
            self._messages.pop(each, None)
            self._positions.pop(each, None)

    def positions(self) -> list[int]:
        return list(self._positions.values())

    def clear(self) -> None:
        self._positions.clear()
        self.uncertain.clear()
        self._messages.clear()

    def before(self, message_id: str) -> list[Message]:
        found = self.messages
        return found[: list(self._messages).index(message_id)] if message_id in self._messages else found


# ---------------------------------------------------------------- calls without a result of their own


TOOK_EFFECT = (
    "The call of {tool} died before it could answer, but a check of what it touches shows that it took effect. Its result is lost; do "
    "not issue it again."
)
NO_EFFECT = (
    "The call of {tool} died before it could answer, and a check of what it touches shows that it took no effect. Issue it again if it is "
    "still needed."
)


def evidence_of(part: Part, run_id: str, result: RunResult | None, at_ms: int) -> OurMetadata:
    # The evidence is kept with the call, and found there when a result comes late.
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
    # What the model is told. `probed` is the author's probe: True, False, or None for unknown.
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
        # What the model is told if the call would repeat a lost one; None if the call may begin.
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


async def late_results(
    transcript: Transcript, lost: LostCalls, inspect: Callable[[str], Awaitable[Mapping[str, object] | None]]
) -> list[Message]:
    # The corrections that are due. `inspect` asks the ledger about a run.
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
    output, beside = told.get("output"), list[Part]()
    if isinstance(output, dict) and "ok" in output:
        came = {"output": output.get("output"), "resultProviderMetadata": {"perdure": output.get("beside", {})}}
        output, beside = result_apart(cast("Part", came)) if output["ok"] else (output.get("error"), [])
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
    words = correction(evidence["tool"], call_id, text)
    metadata: JsonObject = {"source": "late-result", "runId": evidence["runId"]}
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": words}, *beside], "metadata": metadata}
