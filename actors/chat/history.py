"""The messages of a request: the transcript, repaired where an interruption left it illegal, and the answer so far.

Providers refuse every later request if a call has no result. So before each request every call has one: its own, or words about what
became of it. Repairs are durable and happen once. A call that waits for a person is left alone; `convert` says so in the request (W-29).

The model is sent all of a conversation, or a summary in place of the older part. The summary is a document of its own
(`actors.chat.chat_store`), so the transcript stays whole for people. A change of a message that it covers drops it in the same commit, and
the model is sent everything again until the conversation is summarised anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from perdure.actors.chat.chat_messages import is_current
from perdure.actors.chat.chat_store import ChatStore, TranscriptSummary
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.convert import CONTINUE, CUT_BY_LENGTH, GO_ON, KeptHistory
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.transcript import Transcript
from perdure.actors.chat.turn import Turn
from perdure.actors.code.author_call import tried_now
from perdure.policies import (
    STEERED,
    SUMMARY_HEAD,
    JsonObject,
    Message,
    Part,
    ToolState,
    default_repair,
    is_settled,
    is_tool_part,
    repair_transcript,
    steps_of,
    without,
)

SUMMARY_ID = "summary"


class ContextView:
    """What the model is sent of one conversation. What is made for a request is the same object for the next one, so it is written once
    (`KeptHistory`)."""

    def __init__(self, store: ChatStore, transcript: Transcript) -> None:
        self._store, self._transcript = store, transcript
        self._made: tuple[TranscriptSummary, Message] | None = None
        self._trimmed: tuple[Message, int, Message] | None = None

    @property
    def is_whole(self) -> bool:
        return self._store.summary() is None

    def uncovered(self, messages: list[Message]) -> list[Message]:
        current, summary = [each for each in messages if is_current(each)], self._store.summary()
        if summary is None:
            return current
        kept, after, position = (summary["within"], summary["asked"]), summary["after"], self._transcript.position
        return [each for each in current if each["id"] in kept or position(each["id"]) > after]

    def shown(self, messages: list[Message]) -> list[Message]:
        summary = self._store.summary()
        if summary is None:
            return messages
        shown = [self.trimmed(each) for each in messages]
        return [self._summary_message(summary), *(each for each in shown if each["parts"])]

    def check(self, own: Message) -> None:
        # `own` is the answer that is being given.
        summary = self._store.summary()
        if summary is None or not summary["within"]:
            return
        partly = own if own["id"] == summary["within"] else self._transcript.get(summary["within"])
        if partly is None or len(steps_of(partly["parts"])) < summary["steps"]:
            self._store.forget_summary()

    def covered_steps(self, message: Message) -> int:
        summary = self._store.summary()
        return 0 if summary is None or message["id"] != summary["within"] else summary["steps"]

    def trimmed(self, message: Message) -> Message:
        """A message without the steps that the summary covers. What people said in them stays, as the question does. The very same object
        if there are none."""
        known, steps = self._trimmed, self.covered_steps(message)
        if not steps:
            return message
        if known is None or known[0] is not message or known[1] != steps:
            found = steps_of(message["parts"])
            steered = [part for step in found[:steps] for part in step if part["type"] == STEERED]
            kept = [*steered, *(part for step in found[steps:] for part in step)]
            known = self._trimmed = (message, steps, {**message, "parts": kept})
        return known[2]

    def _summary_message(self, summary: TranscriptSummary) -> Message:
        if self._made is None or self._made[0] is not summary:
            said: Message = {
                "id": SUMMARY_ID,
                "role": "user",
                "parts": [{"type": "text", "text": SUMMARY_HEAD + summary["text"]}],
            }
            self._made = (summary, said)
        return self._made[1]


class History:
    """Writes the messages of requests and of ended turns."""

    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self._legal: dict[str, None] = {}  # messages that were found in order, in this life
        self.kept = KeptHistory()
        self.view = ContextView(state.store, state.transcript)

    def repaired_part(self, part: Part) -> object:
        new, problem = tried_now(lambda: self._state.agent.repair_interrupted_tool_part(part))
        if problem is not None:
            self._state.tenant.trouble("repair_interrupted_tool_part", problem)
        return default_repair(part) if problem is not None else new

    def request_messages(self, live: LiveTurn) -> list[Message]:
        before, own = self.before(live), self.view.trimmed(live.stream.message)
        return [*before, own] if own["parts"] else before

    def before(self, live: LiveTurn) -> list[Message]:
        self.view.check(live.stream.message)
        before = self.view.uncovered(self._state.transcript.before(live.turn.message_id))
        if self._mend(before, live.turn):
            before = [self._state.transcript.get(each["id"]) or each for each in before]
        return self.view.shown(before)

    def call_ids(self, live: LiveTurn) -> set[str]:
        parts = [*live.stream.parts, *(part for each in self._state.transcript.messages for part in each["parts"])]
        return {part["toolCallId"] for part in parts if "toolCallId" in part}

    def last_word(self, live: LiveTurn) -> str:
        if not live.turn.continues or any(part["type"] != "step-start" for part in live.stream.own_parts):
            return CONTINUE
        continued = self._state.transcript.get(live.turn.continues)
        cut_off = {} if continued is None else continued.get("metadata", {})
        return CUT_BY_LENGTH if cut_off.get("finishReason") == "length" else GO_ON

    def continued(self, message: Message, live: LiveTurn) -> list[Part]:
        """The parts of an answer that a turn continues. A call without a result is settled there, and never begun: only the turn
        that asked for it may begin it. A call that waits for its client is left alone (C-1167…C-1169)."""
        spared = {part["toolCallId"] for part in live.waiting(message["parts"])}
        self._mend([message], live.turn, spared)
        return list((self._state.transcript.get(message["id"]) or message)["parts"])

    def _mend(self, messages: list[Message], turn: Turn, spared: AbstractSet[str] = frozenset()) -> bool:
        # Repaired and durable before the request is sent.
        fresh = [each for each in messages if each["id"] not in self._legal]
        if not fresh:
            return False
        begun = [turn for turn in self._state.open.values() if turn.attempt]  # their own turns settle these calls
        open_parts = [part for turn in begun for part in self._state.stream_of(turn).parts if _is_open(part)]
        waiting = spared | {part["toolCallId"] for part in open_parts}
        repaired = repair_transcript(
            fresh, should_repair=lambda part: part["toolCallId"] not in waiting, repair_part=self.repaired_part
        )
        changed = [each for each in repaired.messages if each["id"] in repaired.changed_ids]
        if changed:
            placed = self._state.transcript.placed(changed)
            self._state.store.write(messages=placed)
            self._state.transcript.put(placed)
            payload = {
                "removedToolCalls": repaired.removed_tool_calls,
                "normalizedInputs": repaired.normalized_inputs,
                "toolCallIds": list(repaired.tool_call_ids),
            }
            self._state.emit("chat:transcript:repaired", turn, payload, channel="transcript")
        held = {each["id"] for each in repaired.messages if any(_is_open(part) for part in each["parts"])}
        self._legal |= {each["id"]: None for each in repaired.messages if each["id"] not in held}
        return bool(changed)

    def forget(self) -> None:
        self._legal.clear()
        self.kept = KeptHistory()

    def changed(self, message_ids: Iterable[str]) -> None:
        for each in message_ids:
            self._legal.pop(each, None)

    def final_message(self, stream: Stream, *, is_over: bool) -> Message | None:
        """The assistant's message of a turn that has ended, or waits; None if it is empty."""
        parts = [_closed(part) for part in stream.parts] if is_over else stream.parts
        if is_over and any(_is_open(part) for part in parts):
            message: Message = {**stream.message, "parts": parts}
            parts = repair_transcript([message], repair_part=self.repaired_part).messages[0]["parts"]
        if all(part["type"] == "step-start" for part in parts):
            return None
        known = self._state.transcript.get(stream.turn.message_id)
        told: JsonObject = {} if stream.turn.metadata is None else {"turn": stream.turn.metadata}
        if stream.finish_reason not in ("", "stop", "tool_call"):
            told["finishReason"] = stream.finish_reason
        before = {} if known is None else known.get("metadata", {})
        metadata = {**{name: value for name, value in before.items() if name != "finishReason"}, **told}
        message = {**stream.message, "parts": parts}
        return {**message, "metadata": metadata} if metadata else message


def _is_open(part: Part) -> bool:
    return is_tool_part(part) and not is_settled(part)


def _closed(part: Part) -> Part:
    # An unfinished text is done, and an allowed call that has not begun never will.
    if part.get("state") == "streaming":
        return {**without(part, "id"), "state": "done"}
    if part.get("state") == ToolState.APPROVAL_RESPONDED:
        return {**part, "state": ToolState.INPUT_AVAILABLE.value}
    return part
