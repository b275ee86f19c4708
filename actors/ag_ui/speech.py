"""What one speaker says, as events of AG-UI: an agent's turn, or one attempt of a child. Pure.

The speaker gives chunks of the AI SDK's UI message stream. Out come events that AG-UI's client accepts in any order of chunks: nothing is
opened twice, nothing is continued that is not open, and `close` ends all that is.

One message of ours becomes several of AG-UI: a message for each text and each reasoning, a message that holds the calls of a step without a
text, and a message for each result. Their ids are made of `stem` and a number, so the same stream gives the same ids again.

AG-UI has no event that takes back what was said. So what is withdrawn (`data-retract`) is told by a snapshot of all messages: `restated`
says that one is due.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, cast

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Message,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TextPart,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
)

from perdure.actors.events.message_parts import RETRACT, Chunk, apply_chunk
from perdure.actors.gateway.bodies import read_json
from perdure.ledger import BadRequest
from perdure.policies import STEERED, Json, Part, steered_message

DENIED: Final = "A person did not allow this call."
TOLD: Final = frozenset({"file", "source-url", "source-document"})
Kind = Literal["text", "reasoning"]


class Speech:
    """What one speaker has said so far.

    Args:
        stem: begins the ids of its messages.
        subagent: the id under which a child's events are told; None for the agent itself.
        given: what the client has already. A result that is among it is not told again: the client would show it twice.
    """

    def __init__(self, stem: str, subagent: str | None = None, given: Iterable[Message] = ()) -> None:
        self.stem, self._tag = stem, subagent
        self._results = {each.tool_call_id: each for each in given if isinstance(each, ToolMessage)}
        self.parts: list[Part] = []
        self.restated = False
        self._messages: list[tuple[int, Message]] = []  # each with the part that it began with
        self._prose: dict[tuple[Kind, str], str] = {}  # open texts, and their messages
        self._calls: dict[str, bool] = {}  # whether arguments were sent, for calls that are open
        self._holder = ""  # the message that holds the calls of this step
        self._step, self._steps = "", 0

    @property
    def messages(self) -> list[Message]:
        return [message for _, message in self._messages]

    def say(self, chunk: Chunk) -> list[BaseEvent]:
        kind = str(chunk.get("type"))
        before = self.parts
        found = list(self._told(kind, chunk))
        self.parts = apply_chunk(before, chunk)
        if kind == RETRACT and self.parts is not before:
            found += self._withdraw(len(self.parts))
        return found

    def close(self) -> list[BaseEvent]:
        found = self._close_said()
        if self._step:
            found.append(StepFinishedEvent(step_name=self._step, subagent_run_id=self._tag))
            self._step = ""
        return found

    def call_name(self, call_id: str) -> str:
        # A child's calls must not be taken for those of others.
        return call_id if self._tag is None else f"{self.stem}-{call_id}"

    # the chunks

    def _told(self, kind: str, chunk: Chunk) -> Iterator[BaseEvent]:
        prose, _, what = kind.partition("-")
        if prose in ("text", "reasoning") and what in ("start", "delta", "end"):
            yield from self._prose_told("text" if prose == "text" else "reasoning", what, chunk)
        elif kind == "start-step":
            yield from self.close()
            self._steps += 1
            self._step, self._holder = f"step-{self._steps}", ""
            yield StepStartedEvent(step_name=self._step, subagent_run_id=self._tag)
        elif kind == "finish-step":
            yield from self.close()
        elif kind.startswith("tool-"):
            yield from self._call_told(kind, str(chunk.get("toolCallId") or ""), chunk)
        elif kind in TOLD:
            yield CustomEvent(name=kind, value=dict(chunk), subagent_run_id=self._tag)
        elif kind == STEERED:
            yield from self._steered(cast("Part", chunk))
        elif kind.startswith("data-") and kind != RETRACT:
            value = {name: chunk[name] for name in ("id", "data") if name in chunk}
            yield CustomEvent(name=kind, value=value, subagent_run_id=self._tag)

    def _prose_told(self, kind: Kind, what: str, chunk: Chunk) -> Iterator[BaseEvent]:
        key, delta = (kind, str(chunk.get("id"))), chunk.get("delta")
        if what == "end":
            if key in self._prose:
                yield from self._end(kind, self._prose.pop(key))
            return
        if what == "start" and key in self._prose:
            yield from self._end(kind, self._prose.pop(key))
        if key not in self._prose:
            yield from self._begin(kind, key)
        if what == "delta" and isinstance(delta, str):
            message = self._found(self._prose[key])
            assert isinstance(message, AssistantMessage | ReasoningMessage)
            message.content = (message.content or "") + delta
            content = TextMessageContentEvent if kind == "text" else ReasoningMessageContentEvent
            yield content(message_id=message.id, delta=delta, subagent_run_id=self._tag)

    def _begin(self, kind: Kind, key: tuple[Kind, str]) -> Iterator[BaseEvent]:
        new = self._prose[key] = f"{self.stem}-{len(self._messages)}"
        if kind == "text":
            self._holder = self._holder or new
            self._keep(AssistantMessage(id=new, content="", subagent_run_id=self._tag))
            yield TextMessageStartEvent(message_id=new, role="assistant", subagent_run_id=self._tag)
        else:
            self._keep(ReasoningMessage(id=new, content="", subagent_run_id=self._tag))
            yield ReasoningStartEvent(message_id=new, subagent_run_id=self._tag)
            yield ReasoningMessageStartEvent(message_id=new, role="reasoning", subagent_run_id=self._tag)

    def _end(self, kind: Kind, message_id: str) -> Iterator[BaseEvent]:
        if kind == "text":
            yield TextMessageEndEvent(message_id=message_id, subagent_run_id=self._tag)
        else:
            yield ReasoningMessageEndEvent(message_id=message_id, subagent_run_id=self._tag)
            yield ReasoningEndEvent(message_id=message_id, subagent_run_id=self._tag)

    def _steered(self, part: Part) -> Iterator[BaseEvent]:
        # A person has said it, in the middle of what the speaker says.
        message = steered_message(part)
        if message is None:
            return
        new, text = message["id"], "".join(each["text"] for each in message["parts"] if each["type"] == "text")
        self._keep(UserMessage(id=new, content=text, subagent_run_id=self._tag))
        yield TextMessageStartEvent(message_id=new, role="user", subagent_run_id=self._tag)
        if text:
            yield TextMessageContentEvent(message_id=new, delta=text, subagent_run_id=self._tag)
        yield TextMessageEndEvent(message_id=new, subagent_run_id=self._tag)

    # calls

    def _call_told(self, kind: str, call_id: str, chunk: Chunk) -> Iterator[BaseEvent]:
        name = chunk.get("toolName")
        if self._call(call_id) is None:
            if not call_id or not isinstance(name, str) or not name:
                return
            yield from self._call_begun(call_id, name)
        if kind == "tool-input-delta" and call_id in self._calls:
            yield from self._argued(call_id, str(chunk.get("inputTextDelta") or ""))
        elif kind == "tool-input-available":
            yield from self._call_ended(call_id, chunk.get("input"))
        elif kind in ("tool-input-error", "tool-output-error"):
            yield from self._result(call_id, str(chunk.get("errorText") or ""))
        elif kind == "tool-output-denied" or (kind == "tool-approval-response" and chunk.get("approved") is False):
            yield from self._result(call_id, DENIED)
        elif kind == "tool-output-available":
            output = chunk.get("output")
            yield from self._result(call_id, output if isinstance(output, str) else json.dumps(output))

    def _call_begun(self, call_id: str, name: str) -> Iterator[BaseEvent]:
        if not self._holder:
            self._holder = f"{self.stem}-{len(self._messages)}"
            self._keep(AssistantMessage(id=self._holder, subagent_run_id=self._tag))
        holder, told = self._found(self._holder), self.call_name(call_id)
        assert isinstance(holder, AssistantMessage)
        function = FunctionCall(name=name, arguments="")
        holder.tool_calls = [*(holder.tool_calls or ()), ToolCall(id=told, function=function)]
        self._calls[call_id] = False
        yield ToolCallStartEvent(
            tool_call_id=told, tool_call_name=name, parent_message_id=holder.id, subagent_run_id=self._tag
        )

    def _argued(self, call_id: str, text: str) -> Iterator[BaseEvent]:
        call = self._call(call_id)
        assert call is not None
        self._calls[call_id] = True
        call.function.arguments += text
        yield ToolCallArgsEvent(tool_call_id=call.id, delta=text, subagent_run_id=self._tag)

    def _call_ended(self, call_id: str, given: object = None) -> Iterator[BaseEvent]:
        if call_id not in self._calls:
            return
        if not self._calls[call_id] and given is not None:
            yield from self._argued(call_id, json.dumps(given))
        del self._calls[call_id]
        yield ToolCallEndEvent(tool_call_id=self.call_name(call_id), subagent_run_id=self._tag)

    def _result(self, call_id: str, content: str) -> Iterator[BaseEvent]:
        yield from self._call_ended(call_id)
        told = self.call_name(call_id)
        results = (each for each in self.messages if isinstance(each, ToolMessage))
        known = next((each for each in results if each.tool_call_id == told), None)
        if known is None and told in self._results:
            known = self._results[told].model_copy()
            self._keep(known)
        if known is not None:
            if not _says(known, content):
                self.restated, known.content, known.error = True, content, None
            return
        result = ToolMessage(id=f"{told}-result", tool_call_id=told, content=content, subagent_run_id=self._tag)
        self._keep(result)
        yield ToolCallResultEvent(
            message_id=result.id, tool_call_id=told, content=content, role="tool", subagent_run_id=self._tag
        )

    # its own list

    def _keep(self, message: Message) -> None:
        self._messages.append((len(self.parts), message))

    def _found(self, message_id: str) -> Message | None:
        return next((each for each in self.messages if each.id == message_id), None)

    def _call(self, call_id: str) -> ToolCall | None:
        told = self.call_name(call_id)
        holders = [each for each in self.messages if isinstance(each, AssistantMessage)]
        return next((call for each in holders for call in each.tool_calls or () if call.id == told), None)

    def _withdraw(self, kept: int) -> Iterator[BaseEvent]:
        # A result stays with its call.
        yield from self._close_said()
        calls = {self.call_name(str(part["toolCallId"])) for part in self.parts if "toolCallId" in part}
        before = self._messages
        self._messages = []
        for part, message in before:
            if isinstance(message, ToolMessage):
                if message.tool_call_id in calls:
                    self._messages.append((part, message))
                continue
            held = list(getattr(message, "tool_calls", None) or ())
            if held:
                assert isinstance(message, AssistantMessage)
                message.tool_calls = [each for each in held if each.id in calls] or None
            if part < kept or getattr(message, "tool_calls", None):
                self._messages.append((part, message))
        self._holder = self._holder if self._found(self._holder) else ""
        self.restated = True

    def _close_said(self) -> list[BaseEvent]:
        found: list[BaseEvent] = []
        for (kind, _), message_id in self._prose.items():
            found += self._end(kind, message_id)
        self._prose.clear()
        for call_id in list(self._calls):
            found += self._call_ended(call_id)
        return found


def text_of(content: str | Sequence[object]) -> str:
    if isinstance(content, str):
        return content
    return "".join(each.text for each in content if isinstance(each, TextPart))


def value_of(message: ToolMessage) -> Json:
    """The result of a front-end tool: what its text is in JSON, else the text."""
    text = text_of(message.content)
    try:
        return read_json(text.encode())
    except BadRequest:
        return text


def _says(message: ToolMessage, content: str) -> bool:
    # However its JSON is written.
    value = value_of(message)
    return content in (message.error, text_of(message.content), value if isinstance(value, str) else json.dumps(value))
