"""One run of AG-UI: a turn and the runs of its calls, as one legal sequence of events. Pure.

    RUN_STARTED  STATE_SNAPSHOT  … what is said …  RUN_FINISHED (success, interrupt, cancelled) or RUN_ERROR

Whatever is open when the end comes is closed before it. A child's run is a subagent: each attempt has an id of its own, because what an
attempt has said is not continued by the next. Progress and milestones of a run are one activity message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, cast
from urllib.parse import quote, unquote

from ag_ui.core import (
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TextPart,
    TokenUsage,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UserMessage,
)

from perdure.actors.chat.turn import TurnPage
from perdure.actors.events.message_parts import CALL_ENDS, RETRACT, Chunk, apply_chunk, chunks_of
from perdure.actors.events.reducer import FoldedEvent as RunEvent
from perdure.actors.events.reducer import RunAsks, SentFrame
from perdure.actors.gateway.bodies import read_json
from perdure.ledger import LAST_EVENTS, BadRequest
from perdure.policies import STEERED, Json, Part, TurnStatus, open_calls, steered_message, tool_name

# ---------------------------------------------------------------- what one speaker says
# The speaker is an agent in its turn, or one attempt of a child. It gives chunks of the AI SDK's UI message stream. Out come events that
# AG-UI's client accepts in any order of chunks: nothing is opened twice, nothing is continued that is not open, and `close` ends all that
# is.
#
# One message of ours becomes several of AG-UI: a message for each text and each reasoning, a message that holds the calls of a step without
# a text, and a message for each result. Their ids are made of `stem` and a number, so the same stream gives the same ids again.
#
# AG-UI has no event that takes back what was said. So what is withdrawn (`data-retract`) is told by a snapshot of all messages: `restated`
# says that one is due.


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
    # The result of a front-end tool: what its text is in JSON, else the text.
    text = text_of(message.content)
    try:
        return read_json(text.encode())
    except BadRequest:
        return text


def _says(message: ToolMessage, content: str) -> bool:
    # However its JSON is written.
    value = value_of(message)
    return content in (message.error, text_of(message.content), value if isinstance(value, str) else json.dumps(value))


# ---------------------------------------------------------------- runs


ANSWERS: Final = CALL_ENDS | {"tool-approval-response"}
VERSION: Final = "1.0"
ACTIVITY: Final = "perdure.run"
ASK: Final = "perdure.ask"
APPROVAL: Final = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


class AgUiRun:
    """The events of one run.

    Args:
        thread_id, run_id: as the client names them.
        given: the messages that the client has, for snapshots.
        fronted: the names of the tools that came with the request: the front end executes them after the run.
    """

    def __init__(self, thread_id: str, run_id: str, given: Sequence[Message] = (), fronted: Iterable[str] = ()) -> None:
        self._thread_id, self._run_id = thread_id, run_id
        self._given, self._fronted = list(given), frozenset(fronted)
        self._speech = Speech(run_id)
        self._request_id, self._calls, self._is_told = "", frozenset[str](), True
        self._children: dict[str, _Child] = {}
        self._usage: list[TokenUsage] = []
        self._state: Mapping[str, object] | None = None
        self._is_behind = False  # events were skipped, and what they have opened is not closed yet

    def begin(self, parent_run_id: str | None = None) -> list[BaseEvent]:
        return [
            RunStartedEvent(
                thread_id=self._thread_id, run_id=self._run_id, protocol_version=VERSION, parent_run_id=parent_run_id
            )
        ]

    def replaced(self, messages: Sequence[Message]) -> list[BaseEvent]:
        self._given = list(messages)
        return [MessagesSnapshotEvent(messages=self._given)]

    def state(self, now: Mapping[str, object]) -> list[BaseEvent]:
        before, self._state = self._state, dict(now)
        if before is None:
            return [StateSnapshotEvent(snapshot=dict(now))]
        changes = changes_of(before, now)
        return [StateDeltaEvent.model_validate({"delta": changes})] if changes else []

    # the turn

    def follow(self, request_id: str, calls: frozenset[str] = frozenset()) -> None:
        # With `calls` an earlier run of the client was told the events before the first answer to one of them.
        self._request_id, self._calls, self._is_told = request_id, calls, not calls

    def event(self, event: Mapping[str, object]) -> list[BaseEvent]:
        kind, own = event["type"], f"{self._request_id}-answer"
        if kind == "start":
            stem = own if event.get("messageId") == own else self._request_id
            self._speech = Speech(stem, given=self._given)
        self._is_told = self._is_told or (kind in ANSWERS and event.get("toolCallId") in self._calls)
        if self._is_told:
            return self._said(event)
        self._speech.say(event)
        self._is_behind = True
        return []

    def _said(self, chunk: Mapping[str, object]) -> list[BaseEvent]:
        self._catch_up()
        usage = chunk.get("usage") if chunk.get("type") == "finish-step" else None
        if isinstance(usage, Mapping):
            read, written = usage.get("input_tokens"), usage.get("output_tokens")
            cached = usage.get("cache_read_tokens")
            self._usage.append(TokenUsage(input_tokens=read, output_tokens=written, cached_input_tokens=cached))
        found = self._speech.say(chunk)
        if self._speech.restated:
            self._speech.restated = False
            found.append(MessagesSnapshotEvent(messages=self._all_messages()))
        return found

    def _catch_up(self) -> None:
        # What was open when the earlier run ended was closed then.
        if self._is_behind:
            self._speech.close()
            self._is_behind = self._speech.restated = False

    def knows(self, call_id: str) -> bool:
        return self._is_told and any(part.get("toolCallId") == call_id for part in self._speech.parts)

    # children

    def frame(self, frame: SentFrame, *, is_agent: bool) -> list[BaseEvent]:
        # Runs of functions are no subagents.
        run_id, event = str(frame["run_id"]), frame["event"]
        child = self._children.get(run_id)
        if child is None:
            child = self._children[run_id] = _Child(run_id, frame.get("parent_tool_call_id"), is_agent=is_agent)
        return child.told(event)

    # the end

    def close(self, why: str | None = None) -> list[BaseEvent]:
        # `why` says why children end by an error; else those under way go on without this run.
        self._catch_up()
        found = [event for child in self._children.values() for event in child.close(why)]
        return found + self._speech.close()

    def succeeded(self) -> list[BaseEvent]:
        return self._finished(RunFinishedSuccessOutcome())

    def cancelled(self) -> list[BaseEvent]:
        return self._finished(RunFinishedCancelledOutcome(), "the turn was cancelled")

    def failed(self, message: str, code: str) -> list[BaseEvent]:
        usage = self._usage or None
        return [*self.close(message), RunErrorEvent(message=message or "no reason is known", code=code, usage=usage)]

    def over(self, end: TurnPage) -> list[BaseEvent]:
        match end["status"]:
            case TurnStatus.PARKED:
                return self.parked()
            case TurnStatus.COMPLETED:
                return self.succeeded()
            case TurnStatus.ABORTED:
                return self.cancelled()
            case _:
                return self.failed(end["error"], end["reason"] or end["status"])

    def parked(self) -> list[BaseEvent]:
        # If all that the turn waits for are tools of the front end, that executes them and begins another run.
        waiting = open_calls(self._speech.parts)
        if not waiting:
            return self.succeeded()
        if all(tool_name(part) in self._fronted and part.get("state") != "approval-requested" for part in waiting):
            ids = [str(part["toolCallId"]) for part in waiting]
            return self._finished(RunFinishedSuccessOutcome(pending_tool_call_ids=ids))
        return self._finished(
            RunFinishedInterruptOutcome(interrupts=[interrupt(self._request_id, each) for each in waiting])
        )

    def _finished(self, outcome: RunFinishedOutcome, why: str | None = None) -> list[BaseEvent]:
        end = RunFinishedEvent(
            thread_id=self._thread_id, run_id=self._run_id, outcome=outcome, usage=self._usage or None
        )
        return [*self.close(why), end]

    def _all_messages(self) -> list[Message]:
        own = {message.id: message for message in self._speech.messages}
        stem = f"{self._speech.stem}-"
        kept = [each for each in self._given if each.id in own or not each.id.startswith(stem)]
        known = {each.id for each in kept}
        return [own.get(each.id, each) for each in kept] + [each for each in own.values() if each.id not in known]


class _Child:
    def __init__(self, run_id: str, call_id: str | None, *, is_agent: bool) -> None:
        self._run_id, self._call_id, self._is_agent = run_id, call_id, is_agent
        self._name, self._attempt = "", 1
        self._speech: Speech | None = None
        self._milestones: list[dict[str, object]] = []
        self._content: dict[str, object] = {"runId": run_id, "milestones": self._milestones}
        self._asks = RunAsks()
        self._is_over = False

    def told(self, event: RunEvent) -> list[BaseEvent]:
        # A question of its run is told as a row of the inbox: the newest of each `ask_id` counts.
        tag = self._tag if self._speech is not None else None
        asked = [CustomEvent(name=ASK, value=row, subagent_run_id=tag) for row in self._asks.take(event)]
        return [*asked, *self._said(event)]

    def _said(self, event: RunEvent) -> list[BaseEvent]:
        kind = event["kind"]
        if kind == "started":
            display = event.get("display") or {}
            self._name = str(display.get("name") or event["agent_type"].rpartition(":")[2].rpartition(".")[2])
            return self._begin()
        if kind == "attempt" and event["attempt"] > self._attempt:
            ended = self._ended(f"attempt {self._attempt} was lost, and another one follows")
            self._attempt = event["attempt"]
            return ended + self._begin()
        if kind == "retried":
            self._attempt += 1
            self._is_over = False
            return self._begin()
        if kind == "chunk" and self._speech is not None:
            return [told for each in chunks_of(event["body"]) for told in self._speech.say(each)]
        if kind in ("progress", "milestone"):
            return self._activity(event)
        if kind in LAST_EVENTS and not self._is_over:
            self._is_over = True
            words = {"error": event.get("error"), "aborted": event.get("reason") or "cancelled", "cleared": "cleared"}
            return self._ended(words.get(kind) and str(words[kind]), event.get("output", event.get("summary")))
        return []

    def close(self, why: str | None) -> list[BaseEvent]:
        if why is not None or self._speech is None:
            return self._ended(why)
        tag = self._tag
        closed = self._speech.close()
        self._speech = None
        return [*closed, SubagentFinishedEvent(subagent_run_id=tag, outcome=SubagentFinishedSuspendedOutcome())]

    @property
    def _tag(self) -> str:
        return f"{self._run_id}:{self._attempt}"

    def _begin(self) -> list[BaseEvent]:
        if not self._is_agent or self._speech is not None:
            return []
        self._speech = Speech(self._tag, self._tag)
        return [SubagentStartedEvent(subagent_run_id=self._tag, name=self._name, parent_tool_call_id=self._call_id)]

    def _ended(self, problem: str | None, result: object = None) -> list[BaseEvent]:
        if self._speech is None:
            return []
        closed, tag = self._speech.close(), self._tag
        self._speech = None
        if problem is not None:
            return [*closed, SubagentErrorEvent(subagent_run_id=tag, message=problem or "no reason is known")]
        return [*closed, SubagentFinishedEvent(subagent_run_id=tag, result=result)]

    def _activity(self, event: RunEvent) -> list[BaseEvent]:
        known = {name: value for name, value in event.items() if name not in ("kind", "milestone_sequence")}
        if event["kind"] == "milestone":
            self._milestones.append(known)
        else:
            self._content["progress"] = known
        tag = self._tag if self._speech is not None else None
        content = json.loads(json.dumps(self._content))
        told = f"{self._tag}-progress"
        return [
            ActivitySnapshotEvent(
                message_id=told, activity_type=ACTIVITY, content=content, replace=True, subagent_run_id=tag
            )
        ]


def interrupt(request_id: str, part: Part) -> Interrupt:
    call_id, name = str(part["toolCallId"]), tool_name(part)
    if part.get("state") == "approval-requested":
        words, reason, schema = f"May {name} be called?", "tool_call", APPROVAL
    else:
        words, reason, schema = f"{name} is to be executed by the client; the payload is its result.", "client_tool", {}
    return Interrupt(
        id=interrupt_id(request_id, call_id),
        reason=reason,
        message=words,
        tool_call_id=call_id,
        response_schema=schema or None,
        metadata={"toolName": name, "input": part.get("input")},
    )


def interrupt_id(request_id: str, call_id: str) -> str:
    return f"{quote(request_id, safe='')}/{quote(call_id, safe='')}"


def interrupt_of(text: str) -> tuple[str, str] | None:
    request_id, slash, call_id = text.partition("/")
    return (unquote(request_id), unquote(call_id)) if slash and request_id and call_id else None


def changes_of(before: Mapping[str, object], now: Mapping[str, object]) -> list[dict[str, object]]:
    # As a JSON patch of the keys of the state.
    gone: list[dict[str, object]] = [{"op": "remove", "path": _pointer(name)} for name in before if name not in now]
    return gone + [
        {"op": "replace" if name in before else "add", "path": _pointer(name), "value": value}
        for name, value in now.items()
        if name not in before or before[name] != value
    ]


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")
