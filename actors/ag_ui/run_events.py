"""One run of AG-UI: a turn and the runs of its calls, as one legal sequence of events. Pure.

    RUN_STARTED  STATE_SNAPSHOT  … what is said …  RUN_FINISHED (success, interrupt, cancelled) or RUN_ERROR

Whatever is open when the end comes is closed before it. A child's run is a subagent: each attempt has an id of its own, because what an
attempt has said is not continued by the next. Progress and milestones of a run are one activity message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from ag_ui.core import (
    ActivitySnapshotEvent,
    BaseEvent,
    CustomEvent,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TokenUsage,
)

from perdure.actors.ag_ui.speech import Speech
from perdure.actors.chat.turn import TurnPage
from perdure.actors.events.message_parts import CALL_ENDS, chunks_of
from perdure.actors.events.reducer import FoldedEvent as RunEvent
from perdure.actors.events.reducer import RunAsks, SentFrame
from perdure.ledger import LAST_EVENTS
from perdure.policies import Part, TurnStatus, open_calls, tool_name

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
        """The events of this turn come next. With `calls` an earlier run of the client has told those before the first answer to one."""
        self._request_id, self._calls, self._is_told = request_id, calls, not calls

    def event(self, event: Mapping[str, object]) -> list[BaseEvent]:
        """An event of the turn's stream."""
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
            self._usage.append(used(usage))
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
        """An event of a run that a call of the turn has begun. Runs of functions are no subagents."""
        run_id, event = str(frame["run_id"]), frame["event"]
        child = self._children.get(run_id)
        if child is None:
            child = self._children[run_id] = _Child(run_id, frame.get("parent_tool_call_id"), is_agent=is_agent)
        return child.told(event)

    # the end

    def close(self, why: str | None = None) -> list[BaseEvent]:
        """End all that is open. `why` says why children end by an error; else those under way go on without this run."""
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
        """The turn waits for a person. If all that it waits for are tools of the front end, it executes them and begins another run."""
        waiting = open_calls(self._speech.parts)
        if not waiting:
            return self.succeeded()
        if all(self._is_fronted(part) for part in waiting):
            ids = [str(part["toolCallId"]) for part in waiting]
            return self._finished(RunFinishedSuccessOutcome(pending_tool_call_ids=ids))
        return self._finished(
            RunFinishedInterruptOutcome(interrupts=[interrupt(self._request_id, each) for each in waiting])
        )

    def _is_fronted(self, part: Part) -> bool:
        return tool_name(part) in self._fronted and part.get("state") != "approval-requested"

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
        return [*self._asked(event), *self._said(event)]

    def _asked(self, event: RunEvent) -> list[BaseEvent]:
        # A question of its run, as a row of the inbox: the newest of each `ask_id` counts.
        tag = self._tag if self._speech is not None else None
        return [CustomEvent(name=ASK, value=row, subagent_run_id=tag) for row in self._asks.take(event)]

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
    """The question of a call that waits."""
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
    """The changes that make one state of another, as a JSON patch of its keys."""
    gone: list[dict[str, object]] = [{"op": "remove", "path": _pointer(name)} for name in before if name not in now]
    return gone + [
        {"op": "replace" if name in before else "add", "path": _pointer(name), "value": value}
        for name, value in now.items()
        if name not in before or before[name] != value
    ]


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def used(usage: Mapping[str, Any]) -> TokenUsage:
    return TokenUsage(
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cached_input_tokens=usage.get("cache_read_tokens"),
    )
