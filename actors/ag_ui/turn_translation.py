"""Serving one run of AG-UI: which turn it is, and its events as they come.

    what the request brings                      what becomes of it
    resume                                       the calls of a parked turn are answered, and that turn is told from there on
    results of front-end tools at the end        the same
    a run that is known                          its turn is told from the beginning
    messages of the user at the end, new ones    a new turn
    the same, but known here                     the turn under way that answers them, else another answer to them
    none of these                                the conversation, and the turn under way, if there is one

A refusal is a RUN_ERROR, because the client has begun its run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    DeveloperMessage,
    FileSource,
    Message,
    RunAgentInput,
    SystemMessage,
    TextPart,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from ag_ui.encoder import EventEncoder
from pydantic import ValidationError

from perdure.actors.ag_ui.client_ids import turn_id
from perdure.actors.ag_ui.run_events import AgUiRun, interrupt_id, interrupt_of, waiting_calls
from perdure.actors.ag_ui.speech import Speech, text_of, value_of
from perdure.actors.gateway.backend import Backend, Reached, asked
from perdure.actors.gateway.call_runs import CallRuns, Framed
from perdure.actors.gateway.problems import is_known, told
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest, PerdureError, of_json
from perdure.policies import TURN_ENDED, Event, Json, JsonObject, Part, TurnStatus, says_nothing
from perdure.policies import Message as OurMessage

# ---------------------------------------------------------------- requests
# What a request of AG-UI asks of a chat agent, in our words; and our messages in AG-UI's. Pure.


def input_of(body: bytes) -> RunAgentInput:
    """The request in a body. Raises `BadRequest`, naming the field."""
    try:
        return RunAgentInput.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadRequest(".".join(map(str, first["loc"])) or "body", of_json(first["msg"])) from None


def asking(given: RunAgentInput) -> list[JsonObject]:
    """The messages at the end that an agent is to answer, as ours."""
    found: list[JsonObject] = []
    for at in range(len(given.messages) - 1, -1, -1):
        message = given.messages[at]
        if not isinstance(message, UserMessage | SystemMessage | DeveloperMessage):
            break
        found.insert(0, message_of(f"messages[{at}]", message))
    return found if any(each["role"] == "user" for each in found) else []


def earlier(given: RunAgentInput) -> list[JsonObject]:
    """What was said before these, as ours: texts alone."""
    found = []
    for at, message in enumerate(given.messages[: len(given.messages) - len(asking(given))]):
        if isinstance(message, UserMessage | SystemMessage | DeveloperMessage) or (
            isinstance(message, AssistantMessage) and message.content
        ):
            said = message_of(f"messages[{at}]", message)
            found += [] if says_nothing(said) else [said]
    return found


def answers(given: RunAgentInput) -> dict[str, ToolMessage]:
    """The results of front-end tools that came since the last answer, by their calls."""
    found: dict[str, ToolMessage] = {}
    for message in reversed(given.messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            found[message.tool_call_id] = message
    return found


def message_of(field: str, message: UserMessage | SystemMessage | DeveloperMessage | AssistantMessage) -> JsonObject:
    """A message as ours. Raises `BadRequest` for content that nobody here could read."""
    role = "system" if message.role == "developer" else message.role
    content = message.content
    texts = [TextPart(text=content)] if isinstance(content, str) else content or []
    parts = [_part(f"{field}.content[{at}]", each) for at, each in enumerate(texts)]
    return {"id": message.id, "role": role, "parts": parts}


def _part(field: str, part: Any) -> JsonObject:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    source = part.source
    if isinstance(source, FileSource):
        raise BadRequest(field, "names a file at a provider; send its data, or a link")
    kind = source.mime_type or {"image": "image/*", "audio": "audio/*", "video": "video/*"}.get(part.type, "text/plain")
    url = source.value if isinstance(source, UrlSource) else f"data:{kind};base64,{source.value}"
    return {"type": "file", "mediaType": kind, "url": url}


def client_tools(given: RunAgentInput) -> list[dict[str, object]]:
    """The front end's tools, as ours."""
    nothing = {"type": "object", "properties": {}}
    return [
        {"name": each.name, "description": each.description, "parameters": each.parameters or nothing}
        for each in given.tools or ()
    ]


def metadata(given: RunAgentInput) -> Json:
    """What stays with the turn for its author: `active_turn.metadata["agUi"]`."""
    context = [{"description": each.description, "value": each.value} for each in given.context or ()]
    props = {"state": given.state, "context": context or None, "forwardedProps": given.forwarded_props or None}
    found: JsonObject = {name: value for name, value in props.items() if value not in (None, {})}
    return {"agUi": {"runId": given.run_id, **found}}


# ours in AG-UI's words


def conversation(transcript: Iterable[OurMessage]) -> list[Message]:
    """A transcript as messages of AG-UI, with the ids by which its turns were told."""
    return [each for message in transcript for each in _told(message)]


def _told(message: OurMessage) -> Sequence[Message]:
    if message["role"] == "assistant":
        speech = Speech(message["id"])
        for number, part in enumerate(message["parts"]):
            for chunk in _retold(part, f"part-{number}"):
                speech.say(chunk)
        return speech.messages
    text = "".join(part["text"] for part in message["parts"] if part["type"] == "text")
    kind = UserMessage if message["role"] == "user" else SystemMessage
    return [kind(id=message["id"], content=text)]


def _retold(part: Part, part_id: str) -> list[JsonObject]:
    kind = part["type"]
    if kind in ("text", "reasoning"):
        return [
            {"type": f"{kind}-delta", "id": part_id, "delta": part.get("text", "")},
            {"type": f"{kind}-end", "id": part_id},
        ]
    if kind == "step-start":
        return [{"type": "start-step"}]
    if "toolCallId" not in part:
        return []
    call = {"toolCallId": part["toolCallId"], "toolName": part.get("toolName") or kind.removeprefix("tool-")}
    found: list[JsonObject] = [{"type": "tool-input-available", **call, "input": part.get("input")}]
    state = part.get("state")
    if state == "output-available":
        found.append({"type": "tool-output-available", **call, "output": part.get("output")})
    elif state == "output-error":
        found.append({"type": "tool-output-error", **call, "errorText": part.get("errorText", "")})
    elif state == "output-denied":
        found.append({"type": "tool-output-denied", **call})
    return found


# ---------------------------------------------------------------- watch
# A turn and the runs of its calls, followed at once, for one reader who takes what he can.
#
# The queue between is short, so a slow reader stops those who ask. A call's result is told after everything that its run has said.


AT_ONCE: Final = 64
OUTPUTS: Final = frozenset({"tool-output-available", "tool-output-error", "tool-output-denied"})


class StreamedEvent(NamedTuple):
    """An event of the turn's stream."""

    event: Event


class Paused(NamedTuple):
    """Nothing was said for a while, or a call has ended: the agent's state may have changed."""


class TurnFinished(NamedTuple):
    """The turn has ended, or is parked. Nothing follows."""

    status: str
    error: str
    reason: str


Item = StreamedEvent | Framed | Paused | TurnFinished


class TurnWatch:
    """Follows one turn from its first event to its end, or until it waits for a person."""

    def __init__(self, backend: Backend, reached: Reached, request_id: str) -> None:
        self._backend, self._reached, self._request_id = backend, reached, request_id
        self._out: asyncio.Queue[Item] = asyncio.Queue(AT_ONCE)
        self._runs = CallRuns(backend, reached.agent_id, request_id, self._out.put)

    async def items(self) -> AsyncGenerator[Item, None]:
        """Everything, in order. Raises what the agent or the supervisor raised."""
        turn = awaited(self._turn())
        getting = awaited(self._out.get())
        try:
            while True:
                await asyncio.wait({getting, turn, *self._runs.under_way}, return_when=asyncio.FIRST_COMPLETED)
                if turn.done():
                    turn.result()
                self._runs.raise_failures()
                if not getting.done():
                    continue
                item = getting.result()
                getting = awaited(self._out.get())
                yield item
                if isinstance(item, TurnFinished):
                    return
        finally:
            tasks: list[asyncio.Task[object]] = [getting, turn]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._runs.close()

    async def _turn(self) -> None:
        first = 0
        while True:
            told = await asked(self._reached.handle._perdure_follow_turn(self._request_id, first))  # noqa: SLF001 - ours
            for event in told["events"]:
                await self._say(event)
            first = told["next"]
            if first >= told["next_event"] and told["status"] in (*TURN_ENDED, TurnStatus.PARKED):
                await self._out.put(TurnFinished(told["status"], told["error"], told["reason"]))
                await asyncio.Event().wait()  # the reader ends the watch
            await self._out.put(Paused())

    async def _say(self, event: Event) -> None:
        kind, call_id = event["type"], str(event.get("toolCallId") or "")
        if kind in OUTPUTS and call_id:
            await self._runs.told(call_id)
        await self._out.put(StreamedEvent(event))
        if kind == "tool-input-available" and not event.get("providerExecuted"):
            await self._runs.follow(call_id)
        elif kind in OUTPUTS:
            await self._out.put(Paused())


__all__ = ["input_of", "serve"]

ANSWERS = frozenset({"tool-approval-response", "tool-output-available", "tool-output-error", "tool-output-denied"})
ENCODER = EventEncoder()


# ---------------------------------------------------------------- turns


class RunTarget(NamedTuple):
    """The turn of a run. With `calls` it is told from the first answer to one of them on; else from its beginning."""

    request_id: str
    calls: frozenset[str] = frozenset()


async def serve(backend: Backend, reached: Reached, given: RunAgentInput) -> AsyncGenerator[bytes, None]:
    """The events of a run, encoded. Ends by a terminal event, or by the error of a bug, which cuts the line."""
    run = AgUiRun(given.thread_id, given.run_id, given.messages, (each.name for each in given.tools or ()))
    yield encoded(run.begin(given.parent_run_id))
    try:
        async for events in _Serving(backend, reached, given, run).events():
            if events:
                yield encoded(events)
    except PerdureError as problem:
        if not is_known(problem):
            raise
        words = told(problem)
        yield encoded(run.failed(words["message"], words["type"]))


def encoded(events: Iterable[BaseEvent]) -> bytes:
    """Events as they stand on the wire."""
    return "".join(ENCODER.encode(each) for each in events).encode()


class _Serving:
    def __init__(self, backend: Backend, reached: Reached, given: RunAgentInput, run: AgUiRun) -> None:
        self._backend, self._reached, self._given, self._run = backend, reached, given, run
        self._handle = reached.handle
        self._is_told = True

    async def events(self) -> AsyncGenerator[list[BaseEvent], None]:
        yield await self._state()
        target = await self._target()
        if target is None:
            found, target = await self._shown()
            yield found
        if target is None:
            yield self._run.succeeded()
            return
        self._is_told = not target.calls
        items = TurnWatch(self._backend, self._reached, target.request_id).items()
        try:
            async for item in items:
                yield await self._told(item, target)
        finally:
            await items.aclose()

    async def _told(self, item: Item, target: RunTarget) -> list[BaseEvent]:
        match item:
            case StreamedEvent(event):
                self._is_told = self._is_told or self._is_answer(event, target)
                return self._said(event, target)
            case Framed(_, frame, is_agent):
                is_known = self._is_told and self._run.knows(str(frame.get("parent_tool_call_id")))
                return self._run.frame(frame, is_agent=is_agent) if is_known else []
            case TurnFinished():
                return await self._state() + self._over(item, target)
            case _:
                return await self._state()

    async def _state(self) -> list[BaseEvent]:
        return self._run.state(await asked(self._handle._perdure_state()))  # noqa: SLF001 - ours

    def _said(self, event: Event, target: RunTarget) -> list[BaseEvent]:
        if event["type"] == "start":
            own = f"{target.request_id}-answer"
            self._run.turn(own if event.get("messageId") == own else target.request_id)
        if self._is_told:
            return self._run.chunk(event)
        self._run.skip(event)
        return []

    @staticmethod
    def _is_answer(event: Event, target: RunTarget) -> bool:
        return event["type"] in ANSWERS and event.get("toolCallId") in target.calls

    def _over(self, end: TurnFinished, target: RunTarget) -> list[BaseEvent]:
        match end.status:
            case TurnStatus.PARKED:
                return self._run.parked(target.request_id)
            case TurnStatus.COMPLETED:
                return self._run.succeeded()
            case TurnStatus.ABORTED:
                return self._run.cancelled()
            case _:
                return self._run.failed(end.error, end.reason or end.status)

    # which turn it is

    async def _target(self) -> RunTarget | None:
        if self._given.resume:
            return await self._resumed()
        executed = await self._executed()
        if executed is not None:
            return executed
        request_id = turn_id(self._reached.agent_id, self._given.run_id)
        if await asked(self._handle.inspect_turn(request_id)) is not None:
            return RunTarget(request_id)
        messages = asking(self._given)
        return await self._asked(request_id, messages) if messages else None

    async def _asked(self, request_id: str, messages: list[JsonObject]) -> RunTarget:
        """The turn that answers these messages."""
        known = await asked(self._handle.get_messages())
        if not known and (before := earlier(self._given)):
            await asked(self._handle.add_messages(before))
        options: dict[str, object] = {"metadata": metadata(self._given)}
        if tools := client_tools(self._given):
            options["client_tools"] = tools
        places = {message["id"]: at for at, message in enumerate(known)}
        answer = next((each for each in known[places.get(messages[-1]["id"], len(known)) + 1 :]), None)
        if answer is None or answer["role"] != "assistant":
            accept = self._handle.submit_messages(messages, request_id=request_id, **options)
        else:
            for turn in await asked(self._handle.list_turns()):
                if turn["message_id"] == answer["id"] and turn["status"] not in TURN_ENDED:
                    return RunTarget(turn["request_id"])
            options["instead_of"] = answer["id"]
            accept = self._handle._perdure_accept_turn("regenerate", None, request_id, options)  # noqa: SLF001 - ours
        accepted = await asked(accept)
        if accepted["reason"] == "dropped":
            raise BadRequest("messages", accepted["error"])
        return RunTarget(request_id)

    async def _shown(self) -> tuple[list[BaseEvent], RunTarget | None]:
        """The conversation for a client that asks for nothing, and the turn under way."""
        turns = await asked(self._handle.list_turns())
        turn = next((each for each in reversed(turns) if each["status"] not in TURN_ENDED), None)
        known = await asked(self._handle.get_messages())
        before = [each for each in known if turn is None or each["id"] != turn["message_id"]]
        return self._run.replaced(conversation(before)), turn and RunTarget(turn["request_id"])

    # answers to calls

    async def _resumed(self) -> RunTarget:
        """The answers of a person: all that a turn waits for, and nothing else."""
        said = {each.interrupt_id: each for each in self._given.resume or ()}
        named = {key: interrupt_of(key) for key in said}
        turns = {each[0] for each in named.values() if each is not None}
        if len(turns) != 1 or None in named.values():
            raise BadRequest("resume", "names interrupts that are not of one run of this thread")
        request_id = turns.pop()
        waiting = await self._waiting(request_id)
        calls = frozenset(each[1] for each in named.values() if each is not None)
        if not waiting:
            await self._check_answered(request_id, calls)
            return RunTarget(request_id, calls)
        open_ids = {interrupt_id(request_id, call_id): part for call_id, part in waiting.items()}
        if open_ids.keys() != said.keys():
            missing, foreign = open_ids.keys() - said.keys(), said.keys() - open_ids.keys()
            wrong = f"leaves {sorted(missing)} open" if missing else f"answers {sorted(foreign)}, which are not open"
            raise BadRequest("resume", wrong)
        for key, part in open_ids.items():
            await self._answer(part, is_resolved=said[key].status == "resolved", payload=said[key].payload)
        return RunTarget(request_id, calls)

    async def _check_answered(self, request_id: str, calls: frozenset[str]) -> None:
        """The same answers were given before: whoever asks again is told what came of them."""
        if await asked(self._handle.inspect_turn(request_id)) is None:
            raise BadRequest("resume", "names a run that this thread does not know")
        events = (await asked(self._handle._perdure_follow_turn(request_id, 0)))["events"]  # noqa: SLF001 - ours
        if not calls <= {each.get("toolCallId") for each in events}:
            raise BadRequest("resume", "names a call that the run has not made")

    async def _answer(self, part: Part, *, is_resolved: bool, payload: object) -> None:
        call_id = part["toolCallId"]
        if part.get("state") == "approval-requested":
            approved, reason = _verdict(payload) if is_resolved else (False, "cancelled")
            await asked(self._handle.respond_to_approval(call_id, approved, reason))
        elif is_resolved:
            await asked(self._handle.resolve_tool_call(call_id, payload))
        else:
            await asked(self._handle.resolve_tool_call(call_id, error="The user has cancelled this call."))

    async def _executed(self) -> RunTarget | None:
        """What the front end's tools have come to, for the turn that waits for them."""
        given = answers(self._given)
        if not given:
            return None
        known = await asked(self._handle.get_messages())
        held = next((each for each in reversed(known) if given.keys() & _calls(each)), None)
        turns = await asked(self._handle.list_turns())
        turn = next((each for each in reversed(turns) if held and each["message_id"] == held["id"]), None)
        if turn is None or asking(self._given):
            return None
        waiting = await self._waiting(turn["request_id"])
        for call_id, message in given.items():
            if call_id in waiting and waiting[call_id].get("state") != "approval-requested":
                if message.error:
                    await asked(
                        self._handle.resolve_tool_call(call_id, error=message.error or text_of(message.content))
                    )
                else:
                    await asked(self._handle.resolve_tool_call(call_id, value_of(message)))
        return RunTarget(turn["request_id"], frozenset(given))

    async def _waiting(self, request_id: str) -> dict[str, Part]:
        """The calls for which a parked turn waits."""
        turn = await asked(self._handle.inspect_turn(request_id))
        if turn is None or turn["status"] != TurnStatus.PARKED:
            return {}
        known = await asked(self._handle.get_messages())
        parts = [part for message in known if message["id"] == turn["message_id"] for part in message["parts"]]
        return {str(part["toolCallId"]): part for part in waiting_calls(parts)}


def _calls(message: OurMessage) -> set[str]:
    return {part["toolCallId"] for part in message["parts"] if "toolCallId" in part}


def _verdict(payload: object) -> tuple[bool, str | None]:
    """What a person has said of a call: a truth, or `{"approved", "reason"?}`; nothing more than `resolved` is a yes."""
    if isinstance(payload, dict):
        approved, reason = payload.get("approved", True), payload.get("reason")
    else:
        approved, reason = (True if payload is None else payload), None
    if not isinstance(approved, bool) or not isinstance(reason, str | None):
        raise BadRequest("resume.payload", f"{payload!r:.200} does not say whether the call is approved")
    return approved, reason
