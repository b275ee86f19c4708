"""The scripted provider without a network: it takes requests, decides the reply to each, and keeps the log.

The socket server and the simulated transport are subclasses. Nothing here waits or reads a clock: every call says what time it is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import BaseModel

from perdure.scenarios.provider.events import StreamFailure, Usage, dumped, frames
from perdure.scenarios.provider.faults import (
    Act,
    Fault,
    FaultKind,
    FaultPlan,
    Pace,
    ResponseHead,
    Rule,
    perform,
    refusal,
)
from perdure.scenarios.provider.script import OpenQuestion, Script, answer, read

SHOWN_MAX: Final = 200
ROLES: Final = ("system", "developer", "user", "assistant", "tool")


class SeenRequest(BaseModel):
    """One request.

    A request with `problems` is illegal and gets a 400. `fault` is that of the plan. `sizes` are the lengths of the frames of the whole
    reply. `ended` is `whole`; the fault that ended it; `gone`, if the client left; or None while it
    is open.
    """

    number: int
    at_ms: float
    body: Any
    problems: list[str] = []
    asks: str | None = None
    results: int = 0
    fault: Fault | None = None
    status: int | None = None
    sizes: list[int] = []
    sent: int = 0
    ended: str | None = None
    ended_at_ms: float | None = None

    @property
    def is_legal(self) -> bool:
        return not self.problems


class Counters(BaseModel):
    connections: int = 0
    requests: int = 0
    illegal: int = 0
    open: int = 0
    open_most: int = 0
    refused: int = 0
    ended: dict[str, int] = {}


class ScriptedProvider:
    """Answers by `script`, at `pace`. `settle` is called after everything that happens."""

    def __init__(self, script: Script | None = None, plan: FaultPlan | None = None, pace: Pace | None = None) -> None:
        self.script, self.pace = script or Script(), pace or Pace()
        self.records: list[SeenRequest] = []
        self.connections = self.open = self.open_most = 0
        self.refused = 0  # connections; only the simulation sees one
        self._begin(plan or FaultPlan())

    def _begin(self, plan: FaultPlan) -> None:
        self.plan = plan
        self._used: Counter[int] = Counter()
        self._planned = 0  # requests since the plan was set
        self._dark_since_ms: float | None = None

    def set_plan(self, plan: FaultPlan) -> None:
        """Fail by this plan from now on. Its numbers count from the next request."""
        self._begin(plan)
        self.settle()

    def settle(self) -> None:
        """For a subclass that must react."""

    # requests

    def connected(self) -> None:
        self.connections += 1
        self.settle()

    def receive(self, raw: bytes, at_ms: float) -> tuple[int, tuple[Act, ...]]:
        """Take a request, log it, and decide the reply. Returns the request's number, and the acts."""
        body, trouble = _parsed(raw)
        record = SeenRequest(number=len(self.records) + 1, at_ms=at_ms, body=body, problems=trouble or problems(body))
        found = OpenQuestion() if record.problems else read(self.script, body["messages"])
        if not record.problems and self.script.prefill == "refuse" and body["messages"][-1]["role"] == "assistant":
            record.problems.append("the last message is the assistant's; this model takes no prefill")
        self._planned += 1
        if not record.problems:
            record.asks = found.question.asks if found.question else None
            record.results = sum(map(len, found.results.values()))
            record.fault = self._fault_of(record)
        acts = self._acts(record, body)
        record.status = next((act.status for act in acts if isinstance(act, ResponseHead)), None)
        self.records.append(record)
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        self.settle()
        return record.number, acts

    def _acts(self, record: SeenRequest, body: Any) -> tuple[Act, ...]:
        if record.problems:
            told = f"illegal request {record.number}: " + "; ".join(record.problems)
            return refusal(400, StreamFailure(message=told, type="invalid_request_error"))
        events = answer(self.script, body["messages"], record.number)
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        said = [event for event in events if wants_usage or not isinstance(event, Usage)]
        spoken = frames(said, f"chatcmpl-{record.number:06}", str(body.get("model", "scripted")))
        record.sizes = [len(frame) for frame in spoken]
        return perform(spoken, record.fault, self.pace)

    def _fault_of(self, record: SeenRequest) -> Fault | None:
        for index, rule in enumerate(self.plan.rules):
            is_left = rule.times is None or self._used[index] < rule.times
            if is_left and rule.fault.kind is not FaultKind.REFUSED and self._fits(rule, record):
                self._used[index] += 1
                return rule.fault
        return None

    def _fits(self, rule: Rule, record: SeenRequest) -> bool:
        return (
            rule.number in (None, self._planned)
            and rule.results in (None, record.results)
            and (rule.asks is None or (record.asks is not None and rule.asks in record.asks))
        )

    def ended(self, number: int, how: str, sent: int, at_ms: float) -> None:
        record = self.records[number - 1]
        record.ended, record.sent, record.ended_at_ms = how, sent, at_ms
        self.open -= 1
        self.settle()

    # the door

    def is_shut(self, at_ms: float) -> bool:
        index = self._refusal()
        if index is None:
            return False
        if self._dark_since_ms is None and not self.open:
            self._dark_since_ms = at_ms
        until_ms = self.shut_until_ms()
        if until_ms is None or at_ms < until_ms:
            return True
        self._end_refusal(index)
        return False

    def shut_until_ms(self) -> float | None:
        """When the refusal ends by itself, if that is known."""
        index = self._refusal()
        if index is None or self._dark_since_ms is None:
            return None
        lasts_ms = self.plan.rules[index].fault.duration_ms
        return None if lasts_ms is None else self._dark_since_ms + lasts_ms

    def open_door(self) -> None:
        index = self._refusal()
        if index is not None:
            self._end_refusal(index)

    def _end_refusal(self, index: int) -> None:
        self._used[index] += 1
        self._dark_since_ms = None
        self.settle()

    def _refusal(self) -> int | None:
        coming = self._planned + 1
        for index, rule in enumerate(self.plan.rules):
            if rule.fault.kind is FaultKind.REFUSED and rule.number == coming and not self._used[index]:
                return index
        return None

    # the log

    def log(self, since: int = 0) -> list[SeenRequest]:
        return self.records[max(0, since) :]

    def counters(self) -> Counters:
        return Counters(
            connections=self.connections,
            requests=len(self.records),
            illegal=sum(not record.is_legal for record in self.records),
            open=self.open,
            open_most=self.open_most,
            refused=self.refused,
            ended=Counter(record.ended for record in self.records if record.ended),
        )


def unknown_path(method: str, path: str) -> StreamFailure | None:
    """The error for a request that is not one for a completion; None for one that is."""
    if method == "POST" and path.endswith("/chat/completions"):
        return None
    return StreamFailure(
        message=f"{method} {path}: this server knows POST /v1/chat/completions", type="invalid_request_error"
    )


def _parsed(raw: bytes) -> tuple[Any, list[str]]:
    """A body as plain data; or shortened, with what is wrong with it."""
    try:
        body = json.loads(raw, parse_constant=_no_number)
        if b"\\u" in raw:
            dumped(body).encode()  # half a character can be escaped, but not written
    except (ValueError, RecursionError) as error:
        return repr(raw[:SHOWN_MAX]), [f"the body is no JSON that a server takes: {error}"]
    return body, []


def _no_number(name: str) -> None:
    raise ValueError(f"JSON does not know {name}")


# Whether a request is legal: tool calls and results pair, and everything has the shape that real servers require. The check is strict. Real
# servers refuse some of this with a 400, and an illegal history makes a conversation unusable for ever.


def problems(body: object) -> list[str]:
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return ["`messages` is not a list with at least one message"]
    shape = [*_shape_of_tools(body.get("tools"))]
    if not isinstance(body.get("stream_options"), dict | None):
        shape.append("`stream_options` is not an object")
    for at, message in enumerate(messages):
        shape += (f"messages[{at}]: {problem}" for problem in _shape_of(message))
    return shape or list(_unpaired(messages))


def _shape_of_tools(tools: object) -> Iterator[str]:
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        yield "`tools` is not a list with at least one tool"
        return
    for at, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not _is_text(function.get("name")):
            yield f"tools[{at}]: not a function with a name"


def _shape_of(message: object) -> Iterator[str]:
    if not isinstance(message, dict):
        yield "not an object"
        return
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        yield f"the role is {role!r}; there are {', '.join(ROLES)}"
    if not isinstance(content, str | list | None):
        yield "`content` is neither text nor a list of parts"
    calls = message.get("tool_calls")
    if calls is not None and role != "assistant":
        yield f"`tool_calls` in a message of the {role}"
    elif calls is not None and (not isinstance(calls, list) or not calls):
        yield "`tool_calls` is not a list with at least one call"
    elif calls:
        yield from (problem for call in calls for problem in _shape_of_call(call))
    if not content and not calls and role == "assistant":
        yield "an assistant message with neither content nor tool calls"
    elif (
        not content and not calls and (role != "tool" or content is None)
    ):  # only a tool message may have an empty text
        yield "there is no content"
    if role == "tool" and not _is_text(message.get("tool_call_id")):
        yield "a tool message without `tool_call_id`"


def _shape_of_call(call: object) -> Iterator[str]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        yield "a tool call without a function"
        return
    if not _is_text(call.get("id")):
        yield "a tool call without an id"
    if not _is_text(function.get("name")):
        yield f"tool call {call.get('id')}: the function has no name"
    if not _is_object(function.get("arguments")):
        yield f"tool call {call.get('id')}: the arguments are not a JSON object: {function.get('arguments')!r}"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_object(text: object) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _unpaired(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    # After an assistant message with calls, exactly their results must follow, in any order.
    seen: set[str] = set()
    due: dict[str, None] = {}
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            result_of = message["tool_call_id"]
            if result_of not in due:
                yield f"messages[{at}]: {_orphan(result_of, seen)}"
            due.pop(result_of, None)
            continue
        yield from _missing(at, due)
        due = {}
        for call in message.get("tool_calls") or ():
            if call["id"] in seen:
                yield f"messages[{at}]: the tool call id {call['id']} was used before"
            seen.add(call["id"])
            due[call["id"]] = None
    yield from _missing(len(messages), due)


def _missing(at: int, due: dict[str, None]) -> Iterator[str]:
    if due:
        yield f"messages[{at}]: no tool message right after the call for {', '.join(due)}"


def _orphan(call_id: str, seen: set[str]) -> str:
    if call_id in seen:
        return f"a second or late result for tool call {call_id}"
    return f"a result for tool call {call_id}, which was never made"
