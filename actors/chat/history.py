"""What the model is told of the conversation: the transcript, repaired where an interruption left it illegal, and the answer so far.

A call without a result makes providers refuse every later request, so before each request every call has one: its own, or words about
what became of it. Repairs are durable and happen once; what waits for a person is left alone, and `convert` says so in the request (W-29).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import cast

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.turn import Turn
from perdure.actors.code.author_call import tried_now
from perdure.policies import (
    Event,
    JsonObject,
    Message,
    Part,
    ToolState,
    TurnStatus,
    default_repair,
    is_settled,
    is_tool_part,
    repair_transcript,
    tool_name,
    without,
)

STRUCTURE = frozenset({"step-start"})


class History:
    """Writes the messages of requests and of ended turns."""

    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self._legal: dict[str, None] = {}  # messages that were found in order, in this life

    def repaired_part(self, part: Part) -> object:
        """The author's repair; if it raises, the default one."""
        repair = cast("Callable[[Part], object]", self._state.agent.repair_interrupted_tool_part)
        new, problem = tried_now(lambda: repair(part))
        if problem is not None:
            self._state.tenant.trouble("repair_interrupted_tool_part", problem)
        return default_repair(part) if problem is not None else new

    def request_messages(self, live: LiveTurn) -> list[Message]:
        """The messages of the next request, every call with its result."""
        before = self._state.transcript.before(live.turn.message_id)
        self._mend(before, live.turn)
        repaired = [self._state.transcript.get(each["id"]) or each for each in before]
        own = live.stream.message
        return [*repaired, own] if own["parts"] else repaired

    def continued(self, message: Message, live: LiveTurn) -> list[Part]:
        """The parts of an answer that a turn goes on with. A call without a result is settled there, and never begun: only the turn that
        asked for it may do that. What its client has to answer is left to be answered (C-1167…C-1169)."""
        spared = {part["toolCallId"] for part in message["parts"] if live.toolbox.is_for_person(part)}
        self._mend([message], live.turn, spared)
        mended = self._state.transcript.get(message["id"]) or message
        return list(mended["parts"])

    def _mend(self, messages: list[Message], turn: Turn, spared: AbstractSet[str] = frozenset()) -> None:
        """Repair what an interruption left behind; durable before the request is sent."""
        fresh = [each for each in messages if each["id"] not in self._legal]
        if not fresh:
            return
        waiting = self._waiting_calls() | spared
        repaired = repair_transcript(
            fresh,
            should_repair=lambda part: part["toolCallId"] not in waiting,
            repair_part=self.repaired_part,
        )
        changed = [each for each in repaired.messages if each["id"] in repaired.changed_ids]
        if changed:
            placed = self._state.transcript.placed(changed)
            self._state.store.write(messages=placed)
            for position, each in placed:
                self._state.transcript.put(position, each)
            payload = {
                "removedToolCalls": repaired.removed_tool_calls,
                "normalizedInputs": repaired.normalized_inputs,
                "toolCallIds": list(repaired.tool_call_ids),
            }
            self._state.emit("chat:transcript:repaired", turn, payload, channel="transcript")
        held = {each["id"] for each in repaired.messages if any(_is_open(part) for part in each["parts"])}
        self._legal |= {each["id"]: None for each in repaired.messages if each["id"] not in held}

    def _waiting_calls(self) -> set[str]:
        """The calls of open turns: their own turns settle them."""
        return {
            part["toolCallId"]
            for turn in self._state.open.values()
            if turn.attempt
            for part in self._state.stream_of(turn).parts
            if is_tool_part(part) and not is_settled(part)
        }

    def forget(self) -> None:
        """The conversation was forgotten."""
        self._legal.clear()

    def changed(self, message_id: str) -> None:
        """A message was replaced."""
        self._legal.pop(message_id, None)

    def final_message(self, stream: Stream, *, is_over: bool) -> Message | None:
        """The assistant's message of a turn that has ended, or waits; None if it says nothing."""
        parts = [_given_up(_closed(part)) for part in stream.parts] if is_over else stream.parts
        if is_over and any(_is_open(part) for part in parts):
            message: Message = {**stream.message, "parts": parts}
            parts = repair_transcript([message], repair_part=self.repaired_part).messages[0]["parts"]
        if all(part["type"] in STRUCTURE for part in parts):
            return None
        known = self._state.transcript.get(stream.turn.message_id)
        told: JsonObject = {} if stream.turn.metadata is None else {"turn": stream.turn.metadata}
        metadata = {**({} if known is None else known.get("metadata", {})), **told}
        message = {**stream.message, "parts": parts}
        return {**message, "metadata": metadata} if metadata else message

    def retold(self, turn: Turn) -> list[Event]:
        """The stream of an ended turn whose own was dropped, told again from its message."""
        message = self._state.transcript.get(turn.message_id)
        events: list[Event] = [{"type": "start", "messageId": turn.message_id}]
        for number, part in enumerate(message["parts"] if message is not None else ()):
            events += _retold(part, f"part-{number}")
        last: Event = {"type": _LAST.get(turn.status, "error")}
        if last["type"] == "error":
            last["errorText"] = turn.error
        return [*events, last]


_LAST = {TurnStatus.COMPLETED: "finish", TurnStatus.ABORTED: "abort"}


def _is_open(part: Part) -> bool:
    return is_tool_part(part) and not is_settled(part)


def _given_up(part: Part) -> Part:
    """A call that somebody had allowed, of a turn that is over: nobody is left who would begin it."""
    return (
        {**part, "state": ToolState.INPUT_AVAILABLE.value}
        if part.get("state") == ToolState.APPROVAL_RESPONDED
        else part
    )


def _closed(part: Part) -> Part:
    """A text that was still being written is as long as it is."""
    if part.get("state") != "streaming":
        return part
    return {**without(part, "id"), "state": "done"}


def _retold(part: Part, part_id: str) -> list[Event]:
    kind = part["type"]
    if kind in ("text", "reasoning"):
        return [
            {"type": f"{kind}-start", "id": part_id},
            {"type": f"{kind}-delta", "id": part_id, "delta": part.get("text", "")},
            {"type": f"{kind}-end", "id": part_id},
        ]
    if kind == "step-start":
        return [{"type": "start-step"}]
    if not is_tool_part(part):
        return [cast("Event", part)]
    call_id, name, state = part["toolCallId"], tool_name(part), part.get("state")
    begun: Event = {
        "type": "tool-input-available",
        "toolCallId": call_id,
        "toolName": name,
        "input": part.get("input"),
    }
    if state == ToolState.OUTPUT_AVAILABLE:
        return [begun, {"type": "tool-output-available", "toolCallId": call_id, "output": part.get("output")}]
    if state == ToolState.OUTPUT_ERROR:
        return [begun, {"type": "tool-output-error", "toolCallId": call_id, "errorText": part.get("errorText", "")}]
    if state == ToolState.OUTPUT_DENIED:
        return [begun, {"type": "tool-output-denied", "toolCallId": call_id}]
    return [begun]
