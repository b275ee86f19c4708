"""Makes a conversation shorter that has grown too long for its model: asks for a summary of its older part, and keeps that.

    cut ─► a summary is asked for ─► is anything of it changed? ──no──► one commit: summary, count, events so far
                    │                        └─ yes: cut again
                    └─ there is none: the conversation stays as it is

The summary counts from its commit on, for this turn and all later ones. A process that dies before it leaves the conversation as it was,
and the next life comes here again. The request for the summary belongs to the turn: a cancel of the turn cancels it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure.actors.chat.answer_stream import Finished
from perdure.actors.chat.chat_store import TranscriptSummary
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.history import SUMMARY_ID, History
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.model import stream_model
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.actors.chat.turn_spans import Source
from perdure.actors.chat.watchdog import Stalled, Watchdog
from perdure.actors.code.author_call import result_of, tried
from perdure.actors.ports import KillPoint
from perdure.ledger import pack, unpack
from perdure.policies import (
    CLIPS,
    SUMMARY_INSTRUCTIONS,
    ContextOverflow,
    Event,
    Failure,
    FailureKind,
    Message,
    Part,
    cut,
    estimated_tokens,
    next_delay_ms,
    question_starts,
    retold,
    stalled,
    step_starts,
    steps_of,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model

TRIES_MAX: Final = 5
"""How often a summary is asked for: of a model that cannot be reached, or with ever shorter words."""
CHANGES_MAX: Final = 3
"""How often it is asked for again because what it covers has changed meanwhile."""
LEARNS_FROM: Final = 1_000
"""Estimated tokens of a request, most of which are messages and not tools or instructions."""
PROACTIVE, REACTIVE = "proactive", "reactive"


class _Cut(NamedTuple):
    """What is to be summarised, and the summary that it will be, but for its text. `versions` are those of the messages at `positions`."""

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
        shorter = await self._shorten(live, PROACTIVE)
        self._asked = self._estimate(live)
        live.turn.keeps_context = not shorter or self._ratio * self._asked > most
        return shorter

    async def after_refusal(self, live: LiveTurn) -> bool:
        config = self._config
        if not config.reactive or live.turn.compactions >= config.max_retries:
            return False
        return await self._shorten(live, REACTIVE)

    def counted(self, usage: Mapping[str, int]) -> None:
        # A short request teaches nothing: most of it may be tools and instructions.
        count = usage.get("input_tokens", 0)
        if count and self._asked >= LEARNS_FROM:
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
        for _ in range(CHANGES_MAX):
            found = self._cut(live)
            if found is None or not (text := await self._text(live, found.covered)):
                break
            if self._state.store.message_versions(found.positions) == found.versions:
                summary = TranscriptSummary({**found.summary, "text": text})
                if reason == REACTIVE:
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
        first = int(bool(before) and before[0]["id"] == SUMMARY_ID)
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
        text, problem = await tried(self._state.tenant.call(hook, unpack(pack(covered))))
        self._live = None
        if problem is None and text is not None and not isinstance(text, str):
            problem = TypeError(f"summarize_messages: {text!r:.200} is {type(text).__name__}, not a text")
        if problem is not None:
            self._state.tenant.trouble("summarize_messages", problem)
            return ""
        return (text or "").strip()

    async def ask_for_summary(self, messages: list[Message]) -> str:
        """A summary of these messages by the agent's model. Raises `ModelFailed` if there is none."""
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
        settings = await result_of(self._state.agent.get_model_settings)
        asked: list[Message] = [{"id": SUMMARY_ID, "role": "user", "parts": [{"type": "text", "text": said}]}]
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
            return "", stalled(problem.waited_ms, has_progress=bool(text))
        return text, None


def _request(
    model: Model, asked: list[Message], settings: dict[str, object] | None, watchdog: Watchdog
) -> AsyncGenerator[Event | Finished]:
    return stream_model(model, asked, instructions=SUMMARY_INSTRUCTIONS, settings=settings, watchdog=watchdog)
