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

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    ContentPart,
    DeveloperMessage,
    FileSource,
    Message,
    ResumeEntry,
    RunAgentInput,
    SystemMessage,
    TextPart,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from ag_ui.encoder import EventEncoder
from pydantic import ValidationError

from perdure.actors.ag_ui.run_events import AgUiRun, Speech, interrupt_id, interrupt_of, value_of
from perdure.actors.chat.followers import TurnPages, is_last
from perdure.actors.chat.turn import TurnPage, TurnTold
from perdure.actors.events.message_parts import CALL_ENDS, events_of
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.gateway.bodies import message_in, parsed_object
from perdure.actors.gateway.chat_turns import CallAnswer, ChatTurns, TurnDropped, turn_id
from perdure.actors.gateway.problems import is_known, told
from perdure.actors.gateway.security import Principal
from perdure.actors.gateway.turn_follower import Framed, TurnFollower
from perdure.ledger import BadRequest, PerdureError, of_json
from perdure.policies import (
    TURN_ENDED,
    Json,
    JsonObject,
    Part,
    TurnPlan,
    TurnStatus,
    open_calls,
    says_nothing,
    steered_message,
)
from perdure.policies import Message as OurMessage

# ---------------------------------------------------------------- requests
# What a request of AG-UI asks of a chat agent, in our words; and our messages in AG-UI's. Pure.


def input_of(body: bytes) -> RunAgentInput:
    try:
        return RunAgentInput.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadRequest(".".join(map(str, first["loc"])) or "body", of_json(first["msg"])) from None


def asking(given: RunAgentInput) -> list[JsonObject]:
    # The messages at the end that an agent is to answer.
    found: list[JsonObject] = []
    for at in range(len(given.messages) - 1, -1, -1):
        message = given.messages[at]
        if not isinstance(message, UserMessage | SystemMessage | DeveloperMessage):
            break
        found.insert(0, message_of(f"messages[{at}]", message))
    return found if any(each["role"] == "user" for each in found) else []


def earlier(given: RunAgentInput) -> list[JsonObject]:
    # What was said before the messages of `asking`: texts alone.
    found = []
    for at, message in enumerate(given.messages[: len(given.messages) - len(asking(given))]):
        if isinstance(message, UserMessage | SystemMessage | DeveloperMessage) or (
            isinstance(message, AssistantMessage) and message.content
        ):
            said = message_of(f"messages[{at}]", message)
            found += [] if says_nothing(said) else [said]
    return found


def planned(messages: list[JsonObject], known: Sequence[OurMessage]) -> TurnPlan:
    # A new turn, or another one in place of the answer to the last message that is known.
    # What was said in the middle of an answer is a part of that answer here.
    steered = {said["id"]: each["id"] for each in known for part in each["parts"] if (said := steered_message(part))}
    new = [message for message in messages if message["id"] not in steered]
    if not new:
        return TurnPlan("regenerate", instead_of=steered[str(messages[-1]["id"])])
    messages, places = new, {message["id"]: at for at, message in enumerate(known)}
    follows = known[places.get(str(messages[-1]["id"]), len(known)) + 1 :]
    if follows and follows[0]["role"] == "assistant":
        return TurnPlan("regenerate", instead_of=follows[0]["id"])
    return TurnPlan("submission", messages)


def steering(body: bytes) -> Json:
    # The message is a text, or a message of AG-UI's user.
    given = message_in(parsed_object(body))
    if not isinstance(given, dict):
        return given
    try:
        return message_of("message", UserMessage.model_validate({"role": "user", **given}))
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadRequest(".".join(["message", *map(str, first["loc"])]), of_json(first["msg"])) from None


def answers(given: RunAgentInput) -> dict[str, CallAnswer]:
    # Only those that came since the last answer.
    found: dict[str, CallAnswer] = {}
    for message in reversed(given.messages):
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            call_id, error = message.tool_call_id, message.error or None
            found[call_id] = CallAnswer(call_id, None if error else value_of(message), error)
    return found


def message_of(field: str, message: UserMessage | SystemMessage | DeveloperMessage | AssistantMessage) -> JsonObject:
    role = "system" if message.role == "developer" else message.role
    content = message.content
    texts = [TextPart(text=content)] if isinstance(content, str) else content or []
    parts = [_part(f"{field}.content[{at}]", each) for at, each in enumerate(texts)]
    return {"id": message.id, "role": role, "parts": parts}


def _part(field: str, part: ContentPart) -> JsonObject:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    source = part.source
    if isinstance(source, FileSource):
        raise BadRequest(field, "names a file at a provider; send its data, or a link")
    kind = source.mime_type or {"image": "image/*", "audio": "audio/*", "video": "video/*"}.get(part.type, "text/plain")
    url = source.value if isinstance(source, UrlSource) else f"data:{kind};base64,{source.value}"
    return {"type": "file", "mediaType": kind, "url": url}


def client_tools(given: RunAgentInput) -> list[dict[str, object]]:
    nothing = {"type": "object", "properties": {}}
    return [
        {"name": each.name, "description": each.description, "parameters": each.parameters or nothing}
        for each in given.tools or ()
    ]


def metadata(given: RunAgentInput) -> Json:
    # What stays with the turn for its author, as `active_turn.metadata["agUi"]`.
    context = [{"description": each.description, "value": each.value} for each in given.context or ()]
    props = {"state": given.state, "context": context or None, "forwardedProps": given.forwarded_props or None}
    found: JsonObject = {name: value for name, value in props.items() if value not in (None, {})}
    return {"agUi": {"runId": given.run_id, **found}}


# ours in AG-UI's words


def conversation(transcript: Iterable[OurMessage]) -> list[Message]:
    # The messages have the ids by which their turns were told.
    return [each for message in transcript for each in _told(message)]


def _told(message: OurMessage) -> Sequence[Message]:
    if message["role"] == "assistant":
        speech = Speech(message["id"])
        for number, part in enumerate(message["parts"]):
            for chunk in events_of(part, f"part-{number}"):
                speech.say(chunk)
        return speech.messages
    text = "".join(part["text"] for part in message["parts"] if part["type"] == "text")
    kind = UserMessage if message["role"] == "user" else SystemMessage
    return [kind(id=message["id"], content=text)]


__all__ = ["input_of", "serve", "steering"]

ENCODER = EventEncoder()


# ---------------------------------------------------------------- turns


class RunTarget(NamedTuple):
    # With `calls` the turn is told from the first answer to one of them on; else from its beginning.
    request_id: str
    calls: frozenset[str] = frozenset()
    opening: TurnPage | None = None


async def serve(
    backend: Backend, reached: Reached, who: Principal, given: RunAgentInput
) -> AsyncGenerator[bytes, None]:
    """The events of a run, encoded. Ends by a terminal event, or by the error of a bug, which cuts the line."""
    run = AgUiRun(given.thread_id, given.run_id, given.messages, (each.name for each in given.tools or ()))
    yield encoded(run.begin(given.parent_run_id))
    try:
        async with aclosing(_Serving(backend, reached, who, given, run).events()) as batches:
            async for piece in (encoded(events) async for events in batches if events):
                yield piece
    except PerdureError as problem:
        if not is_known(problem):
            raise
        words = told(problem)
        yield encoded(run.failed(words["message"], words["type"]))


def encoded(events: Iterable[BaseEvent]) -> bytes:
    return "".join(ENCODER.encode(each) for each in events).encode()


class _Serving:
    def __init__(self, backend: Backend, reached: Reached, who: Principal, given: RunAgentInput, run: AgUiRun) -> None:
        self._backend, self._reached, self._given, self._run = backend, reached, given, run
        self._call, self._turns = reached.caller.call, ChatTurns(reached.caller, who, "ag-ui")

    async def events(self) -> AsyncGenerator[list[BaseEvent], None]:
        yield await self._state()
        target = await self._target()
        if target is None:
            turn, known = await self._open_turn(), await self._call("get_messages")
            before = [each for each in known if turn is None or each["id"] != turn["message_id"]]
            yield self._run.replaced(conversation(before))
            target = turn and RunTarget(turn["request_id"])
        if target is None:
            yield self._run.succeeded()
            return
        self._run.follow(target.request_id, target.calls)
        async with (
            TurnFollower(self._backend, self._reached, target.request_id, target.opening) as follower,
            aclosing(self._followed(follower)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def _followed(self, follower: TurnFollower) -> AsyncGenerator[list[BaseEvent], None]:
        is_over = False
        while not is_over:
            item = await follower.next()
            if isinstance(item, Framed):
                yield self._framed(item)
            elif item is not None:
                async for piece in self._page(item, follower):
                    yield piece
                is_over = is_last(item)
                yield await self._state() + (self._run.over(item) if is_over else [])

    async def _page(self, page: TurnPage, follower: TurnFollower) -> AsyncGenerator[list[BaseEvent], None]:
        # The result of a call comes after all that its run has said, and may have changed the agent's state.
        for event in page["events"]:
            kind, call_id = event["type"], str(event.get("toolCallId") or "")
            while kind in CALL_ENDS and (framed := await follower.said_before(call_id)) is not None:
                yield self._framed(framed)
            yield self._run.event(event)
            if kind in CALL_ENDS:
                yield await self._state()
            elif kind == "tool-input-available" and not event.get("providerExecuted"):
                await follower.runs.follow(call_id)

    async def _state(self) -> list[BaseEvent]:
        return self._run.state(await self._call("_perdure_state"))

    def _framed(self, framed: Framed) -> list[BaseEvent]:
        is_known = self._run.knows(str(framed.frame.get("parent_tool_call_id")))
        return self._run.frame(framed.frame, is_agent=framed.is_agent) if is_known else []

    # which turn it is

    async def _target(self) -> RunTarget | None:
        if self._given.resume:
            return await self._resumed()
        executed = await self._executed()
        if executed is not None:
            return executed
        request_id = turn_id(self._reached.agent_id, self._given.run_id)
        if await self._turns.known(request_id) is not None:
            return RunTarget(request_id)
        messages = asking(self._given)
        return await self._asked(request_id, messages) if messages else None

    async def _asked(self, request_id: str, messages: list[JsonObject]) -> RunTarget:
        known = await self._call("get_messages")
        if not known and (before := earlier(self._given)):
            await self._call("add_messages", before)
        options: dict[str, object] = {"metadata": metadata(self._given)}
        if tools := client_tools(self._given):
            options["client_tools"] = tools
        plan = planned(messages, known)
        if plan.instead_of and (open_turn := await self._open_turn(plan.instead_of)):
            return RunTarget(open_turn["request_id"])
        try:
            opening = await self._turns.begin(plan, request_id, options)
        except TurnDropped as problem:
            raise BadRequest("messages", str(problem)) from None
        return RunTarget(request_id, opening=opening)

    async def _open_turn(self, message_id: str | None = None) -> TurnTold | None:
        return await self._turns.newest(
            lambda turn: turn["status"] not in TURN_ENDED and message_id in (None, turn["message_id"])
        )

    async def _resumed(self) -> RunTarget:
        # A person answers all that a turn waits for, and nothing else.
        said = {each.interrupt_id: each for each in self._given.resume or ()}
        named = {key: interrupt_of(key) for key in said}
        turns = {each[0] for each in named.values() if each is not None}
        if len(turns) != 1 or None in named.values():
            raise BadRequest("resume", "names interrupts that are not of one run of this thread")
        request_id = turns.pop()
        turn = await self._turns.known(request_id)
        waiting = await self._waiting(turn)
        calls = frozenset(each[1] for each in named.values() if each is not None)
        if not waiting:
            await self._check_answered(turn, calls)
            return RunTarget(request_id, calls)
        open_ids = {interrupt_id(request_id, call_id): part for call_id, part in waiting.items()}
        if open_ids.keys() != said.keys():
            missing, foreign = open_ids.keys() - said.keys(), said.keys() - open_ids.keys()
            wrong = f"leaves {sorted(missing)} open" if missing else f"answers {sorted(foreign)}, which are not open"
            raise BadRequest("resume", wrong)
        for key, part in open_ids.items():
            await self._turns.answer(answer_of(part, said[key]))
        return RunTarget(request_id, calls)

    async def _check_answered(self, turn: TurnTold | None, calls: frozenset[str]) -> None:
        # The same answers were given before: whoever asks again is told what came of them.
        if turn is None:
            raise BadRequest("resume", "names a run that this thread does not know")
        page = await TurnPages(self._call, turn["request_id"]).next()
        if not calls <= {each.get("toolCallId") for each in page["events"]}:
            raise BadRequest("resume", "names a call that the run has not made")

    async def _executed(self) -> RunTarget | None:
        given = answers(self._given)
        if not given:
            return None
        held = await self._turns.holder(given)
        if held is None or asking(self._given):
            return None
        turn = await self._turns.newest(lambda each: each["message_id"] == held["id"])
        if turn is None:
            return None
        if turn["status"] == TurnStatus.PARKED:
            await self._turns.answer_in(held, given.values())
        return RunTarget(turn["request_id"], frozenset(given))

    async def _waiting(self, turn: TurnTold | None) -> dict[str, Part]:
        if turn is None or turn["status"] != TurnStatus.PARKED:
            return {}
        message = await self._turns.message(turn["message_id"])
        return {} if message is None else {str(part["toolCallId"]): part for part in open_calls(message["parts"])}


def answer_of(part: Part, said: ResumeEntry) -> CallAnswer:
    # Raises `BadRequest` for an answer that does not say whether the call is approved.
    call_id, is_resolved = part["toolCallId"], said.status == "resolved"
    if part.get("state") != "approval-requested":
        is_cancelled = None if is_resolved else "The user has cancelled this call."
        return CallAnswer(call_id, said.payload if is_resolved else None, is_cancelled)
    if not is_resolved:
        return CallAnswer(call_id, approved=False, reason="cancelled")
    # a truth, or `{"approved", "reason"?}`; nothing more than `resolved` is a yes
    if isinstance(said.payload, dict):
        approved, reason = said.payload.get("approved", True), said.payload.get("reason")
    else:
        approved, reason = (True if said.payload is None else said.payload), None
    if not isinstance(approved, bool) or not isinstance(reason, str | None):
        raise BadRequest("resume.payload", f"{said.payload!r:.200} does not say whether the call is approved")
    return CallAnswer(call_id, approved=approved, reason=reason)
