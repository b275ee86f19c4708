"""The messages of a request: the transcript, repaired where an interruption left it illegal, and the answer so far.

Providers refuse every later request if a call has no result. So before each request every call has one: its own, or words about what
became of it. Repairs are durable and happen once. A call that waits for a person is left alone; `convert` says so in the request (W-29).

The model is sent all of a conversation, or a summary in place of the older part. The summary is a document of its own
(`actors.chat.chat_store`), so the transcript stays whole for people. A change of a message that it covers drops it in the same commit, and
the model is sent everything again until the conversation is summarised anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure.actors.chat.answer_stream import Finished
from perdure.actors.chat.chat_messages import is_current
from perdure.actors.chat.chat_store import ChatStore, TranscriptSummary
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.convert import CONTINUE, CUT_BY_LENGTH, GO_ON, KeptHistory
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.model import stream_model
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.transcript import Transcript
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.actors.chat.turn_spans import Source
from perdure.actors.chat.watchdog import Stalled, Watchdog
from perdure.actors.code.author_call import tried, tried_now
from perdure.actors.ports import KillPoint
from perdure.ledger import pack, unpack
from perdure.policies import (
    CLIPS,
    STEERED,
    SUMMARY_HEAD,
    SUMMARY_INSTRUCTIONS,
    ContextOverflow,
    Event,
    Failure,
    FailureKind,
    JsonObject,
    Message,
    Part,
    ToolState,
    cut,
    default_repair,
    estimated_tokens,
    is_settled,
    is_tool_part,
    next_delay_ms,
    question_starts,
    repair_transcript,
    retold,
    stalled,
    step_starts,
    steps_of,
    without,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model


_SUMMARY_ID = "summary"


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
        if self._made is None or self._made[0] is not summary:
            parts: list[Part] = [{"type": "text", "text": SUMMARY_HEAD + summary["text"]}]
            self._made = (summary, {"id": _SUMMARY_ID, "role": "user", "parts": parts})
        shown = [self.trimmed(each) for each in messages]
        return [self._made[1], *(each for each in shown if each["parts"])]

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
        # The turn has ended, or waits. None if its message is empty.
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


# ---------------------------------------------------------------- making a conversation shorter
# One that has grown too long for its model: the model is asked for a summary of its older part, and that is kept.
#
#     cut ─► a summary is asked for ─► is anything of it changed? ──no──► one commit: summary, count, events so far
#                     │                        └─ yes: cut again
#                     └─ there is none: the conversation stays as it is
#
# The summary counts from its commit on, for this turn and all later ones. A process that dies before it leaves the conversation as it was,
# and the next life comes here again. The request for the summary belongs to the turn: a cancel of the turn cancels it.


TRIES_MAX: Final = 5
"""How often a summary is asked for: of a model that cannot be reached, or with ever shorter words."""
_CHANGES_MAX: Final = 3
"""How often it is asked for again because what it covers has changed meanwhile."""
_LEARNS_FROM: Final = 1_000
"""Estimated tokens of a request, most of which are messages and not tools or instructions."""
_PROACTIVE, _REACTIVE = "proactive", "reactive"


class _Cut(NamedTuple):
    # The summary lacks its text. `versions` are those of the messages at `positions`.
    covered: list[Message]
    summary: TranscriptSummary
    positions: list[int]
    versions: list[int]


class Compaction:
    """Compacts one conversation, in one life of its agent."""

    def __init__(self, state: ConversationState, history: History) -> None:
        self._state, self._history = state, history
        self._live: LiveTurn | None = None
        self._sizes: dict[str, tuple[Message, int]] = {}
        self._asked, self._ratio = 0, 1.0

    @property
    def _config(self) -> ContextOverflow:
        return ContextOverflow.of(self._state.agent.context_overflow)

    async def ahead(self, live: LiveTurn) -> bool:
        """Shorten the conversation if the next request would be too long. Tried once in vain, it is not tried again in this turn.

        Returns whether it is shorter now.
        """
        most = self._config.max_input_tokens
        if most == float("inf"):
            return False
        self._asked = self._estimate(live)
        if live.turn.keeps_context or self._ratio * self._asked <= most:
            return False
        shorter = await self._shorten(live, _PROACTIVE)
        self._asked = self._estimate(live)
        live.turn.keeps_context = not shorter or self._ratio * self._asked > most
        return shorter

    async def after_refusal(self, live: LiveTurn) -> bool:
        config = self._config
        if not config.reactive or live.turn.compactions >= config.max_retries:
            return False
        return await self._shorten(live, _REACTIVE)

    def counted(self, usage: Mapping[str, int]) -> None:
        # A short request teaches nothing: most of it may be tools and instructions.
        count = usage.get("input_tokens", 0)
        if count and self._asked >= _LEARNS_FROM:
            self._ratio = min(4.0, max(0.5, count / self._asked))

    def _estimate(self, live: LiveTurn) -> int:
        return sum(map(self._size, self._history.request_messages(live)))

    def _size(self, message: Message) -> int:
        known = self._sizes.get(message["id"])
        if known is None or known[0] is not message:
            known = self._sizes[message["id"]] = (message, estimated_tokens(message["parts"]))
        return known[1]

    # shortening

    async def _shorten(self, live: LiveTurn, reason: str) -> bool:
        live.stream.add({"type": "data-status", "transient": True, "data": {"compacting": reason}})
        live.stream.flush()
        summary = None
        for _ in range(_CHANGES_MAX):
            found = self._cut(live)
            if found is None or not (text := await self._text(live, found.covered)):
                break
            if self._state.store.message_versions(found.positions) == found.versions:
                summary = TranscriptSummary({**found.summary, "text": text})
                if reason == _REACTIVE:
                    live.turn.compactions += 1
                    live.stream.mend(replay=True)  # what was said before the refusal is said anew
                self._state.tenant.faults.at(KillPoint.MID_STREAM, "summary")
                live.stream.flush(summary=summary)
                break
        told = {"reason": reason, "shortened": summary is not None, "attempt": live.turn.compactions}
        self._state.emit("chat:context:compacted", live.turn, told)
        return summary is not None

    def _cut(self, live: LiveTurn) -> _Cut | None:
        before, own = self._history.before(live), self._history.view.trimmed(live.stream.message)
        steps = steps_of(own["parts"])
        steps = steps[:-1] if live.stream.is_broken else steps
        first = int(bool(before) and before[0]["id"] == _SUMMARY_ID)
        starts = [*question_starts(before, first), *(len(before) + each for each in step_starts(steps))]
        at = cut([*map(self._size, before), *map(estimated_tokens, steps)], starts, self._config.keep_tokens)
        if at is None:
            return None
        position = self._state.transcript.position
        known = self._state.store.summary()
        after = 0 if known is None else known["after"]
        covered, summary = before[:at], TranscriptSummary(text="", after=after, within="", steps=0, asked="")
        if at >= len(before):
            said = before[first:]
            summary["after"] = max(after, *map(position, (each["id"] for each in said)), 0)
            summary["within"], summary["steps"] = own["id"], at - len(before) + self._history.view.covered_steps(own)
            summary["asked"] = next((each["id"] for each in reversed(said) if each["role"] == "user"), "")
            parts = [part for step in steps[: at - len(before)] for part in step]
            covered = [*covered, {**own, "parts": parts}]
        else:
            summary["after"] = max(after, position(before[at]["id"]) - 1)
        positions = [position(each["id"]) for each in before[first:at]]
        return _Cut(covered, summary, positions, self._state.store.message_versions(positions))

    # the summary

    async def _text(self, live: LiveTurn, covered: list[Message]) -> str:
        self._live = live
        hook = self._state.agent.summarize_messages
        text, problem = await tried(self._state.tenant.bounded(self._state.tenant.call(hook, unpack(pack(covered)))))
        self._live = None
        if problem is None and text is not None and not isinstance(text, str):
            problem = TypeError(f"summarize_messages: {text!r:.200} is {type(text).__name__}, not a text")
        if problem is not None:
            self._state.tenant.trouble("summarize_messages", problem)
            return ""
        return (text or "").strip()

    async def ask_for_summary(self, messages: list[Message]) -> str:
        # Raises `ModelFailed` if there is none.
        clips = iter(CLIPS)
        said = retold(messages, next(clips))
        for tries in range(1, TRIES_MAX + 1):
            text, failure = await self._answer(said)
            if failure is None:
                return text
            shorter = next(clips, None) if failure.kind is FailureKind.CONTEXT_OVERFLOW else None
            if tries == TRIES_MAX or (shorter is None and not failure.is_transient):
                raise ModelFailed(failure)
            if shorter is not None:
                said = retold(messages, shorter)
            else:
                await asyncio.sleep(next_delay_ms(tries, failure, self._state.tenant.dice.roll()) / 1000)
        raise AssertionError("the last try returns or raises")

    async def _answer(self, said: str) -> tuple[str, Failure | None]:
        model, live = await self._state.model(), self._live
        settings = await self._state.tenant.call_hook(self._state.agent.get_model_settings)
        asked: list[Message] = [{"id": _SUMMARY_ID, "role": "user", "parts": [{"type": "text", "text": said}]}]
        heard: list[Part] = []
        source: Source = partial(_request, model, asked, settings)
        if live is not None:
            spans = self._state.spans
            source = spans.observed(live.stream, model, settings, lambda: asked, source, answer=lambda: heard)
        text, watchdog = "", self._state.watchdog(None if live is None else live.turn)
        try:
            async for item in source(watchdog):
                if not isinstance(item, Finished) and item["type"] == "text-delta":
                    text += item["delta"]
                    heard[:] = [{"type": "text", "text": text}]
        except ModelFailed as failed:
            return "", failed.failure
        except Stalled as problem:
            return "", stalled(problem.waited_ms, has_progress=problem.has_begun, is_alive=problem.is_alive)
        return text, None


def _request(
    model: Model, asked: list[Message], settings: dict[str, object] | None, watchdog: Watchdog
) -> AsyncGenerator[Event | Finished]:
    return stream_model(model, asked, instructions=SUMMARY_INSTRUCTIONS, settings=settings, watchdog=watchdog)
