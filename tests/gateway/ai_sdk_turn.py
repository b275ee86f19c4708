"""Random turns as a chat agent streams them: broken connections, withdrawn parts, calls in every state, text of every kind."""

from __future__ import annotations

import random
from typing import Any

from perdure.actors.events.message_parts import RETRACT, apply_chunk
from perdure.policies import Event, Part

WORDS = ("", "Hello", " there", "\n\ndata: [DONE]\n\n", "ü€😀", "\u2028\u0085", '{"type":"error"}', "a" * 200, '\t\\"')
ENDS: tuple[Event, ...] = (
    {"type": "finish"},
    {"type": "abort", "reason": "cancelled"},
    {"type": "error", "errorText": ""},
)
REASONS = ("stop", "tool_call", "length", "content_filter", "error", "interrupted", "something else")
VALUES: tuple[Any, ...] = (None, "", "ok", 0, [], {}, {"deep": [{"ü": None}]}, "😀" * 50)


class RandomTurn:
    """One turn, event by event, from a seed. Keeps the message as the agent does."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.events: list[Event] = []
        self.parts: list[Part] = []
        self._calls = 0
        self._add({"type": "start", "messageId": "the-answer"})
        for _ in range(self._dice.randint(1, 5)):
            self._step()
        self._add(self._dice.choice(ENDS))

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self.parts = apply_chunk(self.parts, event)

    def _step(self) -> None:
        begins = len(self.parts)
        self._add({"type": "start-step"})
        for _ in range(self._dice.randint(0, 5)):
            self._dice.choice((self._text, self._text, self._thought, self._call, self._extra, self._status))()
            if self._dice.random() < 0.15:
                self._break(begins)
                return
        self._add({"type": "finish-step", "finishReason": self._dice.choice(REASONS), "usage": {"output": 3}})
        for part in self.parts[begins:]:
            if "toolCallId" in part:
                self._settle(part)

    def _prose(self, kind: str, *, ends: bool) -> None:
        name = f"{kind}-{len(self.parts)}"
        self._add({"type": f"{kind}-start", "id": name})
        for _ in range(self._dice.randint(0, 4)):
            self._add({"type": f"{kind}-delta", "id": name, "delta": self._dice.choice(WORDS)})
        if ends:
            self._add({"type": f"{kind}-end", "id": name, "providerMetadata": {"perdure": {"id": "x"}}})

    def _text(self) -> None:
        self._prose("text", ends=self._dice.random() < 0.8)

    def _thought(self) -> None:
        self._prose("reasoning", ends=self._dice.random() < 0.8)

    def _call(self, *, is_cut: bool = False) -> None:
        self._calls += 1
        call: Any = {"toolCallId": f"call-{self._calls}", "toolName": self._dice.choice(("add", "ask_user", "sché"))}
        if is_cut or self._dice.random() < 0.7:
            self._add({"type": "tool-input-start", **call})
            self._add({"type": "tool-input-delta", "toolCallId": call["toolCallId"], "inputTextDelta": '{"a":'})
        if not is_cut:
            hosted: Any = {"providerExecuted": True} if self._dice.random() < 0.2 else {}
            self._add({"type": "tool-input-available", **call, "input": {"a": self._dice.choice(VALUES)}, **hosted})

    def _settle(self, part: Part) -> None:
        about: Any = {"toolCallId": part["toolCallId"]}
        way = self._dice.randrange(6)
        if way >= 3:
            self._add({"type": "tool-approval-request", **about, "approvalId": f"ask-{part['toolCallId']}"})
            self._add({"type": "tool-approval-response", **about, "approved": way != 5, "reason": "so"})
        if way == 0:
            self._add({"type": "tool-output-error", **about, "errorText": self._dice.choice(WORDS)})
        elif way == 1:
            self._add({"type": "tool-input-error", **about, "errorText": "cut off"})
        elif way != 5:
            self._add({"type": "tool-output-available", **about, "output": self._dice.choice(VALUES)})

    def _extra(self) -> None:
        extras: tuple[Any, ...] = (
            {"type": "file", "mediaType": "image/png", "url": "data:,x"},
            {"type": "source-url", "sourceId": "s", "url": "https://e.example", "title": "ü"},
            {"type": "source-url", "sourceId": "s", "url": "https://e.example"},
            {"type": "data-notice", "id": "notice", "data": {"n": self._dice.randrange(9)}},
            {"type": "data-output", "id": "output", "data": self._dice.choice(VALUES)},
        )
        self._add(self._dice.choice(extras))

    def _status(self) -> None:
        told: tuple[Any, ...] = (
            {"type": "data-status", "transient": True, "data": {"waitingFor": ["call-1"]}},
            {"type": "data-attempt", "transient": True, "data": {"attempt": 2}},
            {"type": "data-interrupted", "transient": True, "data": {"attempt": 1, "text": "said so far"}},
            {"type": "something-new", "data": {}},
        )
        self._add(self._dice.choice(told))

    def _break(self, begins: int) -> None:
        """The connection breaks, and what cannot be kept is withdrawn."""
        self._dice.choice((self._thought, lambda: self._call(is_cut=True), lambda: None))()
        kept = self._dice.randint(begins, len(self.parts))
        if self._dice.random() < 0.1:
            kept = 0
        if kept <= begins:
            self._add({"type": RETRACT, "data": {"parts": kept, "step": True}, "transient": True})
            return
        if kept < len(self.parts):
            self._add({"type": RETRACT, "data": {"parts": kept, "step": False}, "transient": True})
        self._add({"type": "finish-step", "finishReason": "interrupted"})

    def batches(self, seed: int) -> list[list[Event]]:
        """The events as a follower may get them."""
        dice, found, at = random.Random(seed), [], 0
        while at < len(self.events):
            size = dice.choice((1, 1, 2, 5, 40))
            found.append(self.events[at : at + size])
            at += size
        return found
