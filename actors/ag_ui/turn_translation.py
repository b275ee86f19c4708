"""A request of AG-UI: what it brings, which turn is told for it, and in which words. Pure.

    what the request brings                      what becomes of it
    resume                                       the calls of a parked turn are answered, and that turn is told from there on
    results of front-end tools at the end        the same; if no turn has made these calls, one that they begin
    a run that is known                          its turn is told from the beginning
    messages of the user at the end, new ones    a new turn
    the same, but known here                     the turn under way that answers them, else another answer to them; refused with other words
    none of these                                the conversation, and the turn under way, if there is one

A refusal is a RUN_ERROR, because the client has begun its run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

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
from perdure.actors.chat.turn import TurnTold, text_in
from perdure.actors.events.message_parts import events_of
from perdure.actors.gateway.bodies import message_in, parsed_object
from perdure.actors.gateway.chat_turns import (
    CallAnswer,
    ChatTurns,
    Deciding,
    answer_turns,
    fitting,
    is_other,
    turn_id,
    was_sent,
)
from perdure.actors.gateway.turn_follower import Framed
from perdure.ledger import BadRequest, ConflictingRequest, of_json
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

ENCODER: Final = EventEncoder()

# ---------------------------------------------------------------- requests
# What a request of AG-UI asks of a chat agent, in our words; and our messages in AG-UI's.


def input_of(body: bytes) -> RunAgentInput:
    with _in_words():
        return RunAgentInput.model_validate_json(body)


@contextmanager
def _in_words(*place: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        raise BadRequest(".".join(map(str, (*place, *first["loc"]))) or "body", of_json(first["msg"])) from None


def _said(given: RunAgentInput) -> list[tuple[int, Message]]:
    # Each message with its place. A client writes none of the system, or whoever may chat could tell the model what to do. They are passed
    # over and not refused, because front ends such as CopilotKit send one with every request.
    system = SystemMessage | DeveloperMessage
    return [(at, each) for at, each in enumerate(given.messages) if not isinstance(each, system)]


def asking(given: RunAgentInput) -> list[JsonObject]:
    # The messages at the end that an agent is to answer.
    found: list[JsonObject] = []
    for at, message in reversed(_said(given)):
        if not isinstance(message, UserMessage):
            break
        found.insert(0, message_of(f"messages[{at}]", message))
    return found


def earlier(given: RunAgentInput) -> list[JsonObject]:
    # What was said before the messages of `asking`: texts alone.
    said = _said(given)
    before = said[: len(said) - len(asking(given))]
    spoken = ((at, each) for at, each in before if isinstance(each, UserMessage | AssistantMessage) and each.content)
    found = [message_of(f"messages[{at}]", each) for at, each in spoken]
    return [each for each in found if not says_nothing(each)]


def planned(messages: list[JsonObject], known: Sequence[OurMessage]) -> TurnPlan:
    # A new turn, or another one in place of the answer to the last message that is known.
    # What was said in the middle of an answer is a part of that answer here.
    said_in = [(each["id"], said) for each in known for part in each["parts"] if (said := steered_message(part))]
    steered = {said["id"]: answer for answer, said in said_in}
    _refuse_others(messages, {each["id"]: each for each in (*known, *(said for _, said in said_in))})
    new = [message for message in messages if message["id"] not in steered]
    if not new:
        return TurnPlan("regenerate", instead_of=steered[str(messages[-1]["id"])])
    places = {message["id"]: at for at, message in enumerate(known)}
    follows = known[places.get(str(new[-1]["id"]), len(known)) + 1 :]
    if follows and follows[0]["role"] == "assistant":
        return TurnPlan("regenerate", instead_of=follows[0]["id"])
    return TurnPlan("submission", new)


def _refuse_others(messages: Iterable[JsonObject], held: Mapping[str, OurMessage]) -> None:
    # A client that was told the conversation has the text of a message, and not its files.
    for sent in messages:
        there = held.get(str(sent["id"]))
        if there is None or sent["parts"] == [{"type": "text", "text": text_in(there["parts"])}]:
            continue
        if is_other(sent, there):
            raise ConflictingRequest("messages", f"{was_sent(there)}; say something else under another id")


def steering(body: bytes) -> Json:
    # The message is a text, or a message of AG-UI's user.
    given = message_in(parsed_object(body))
    if not isinstance(given, dict):
        return given
    with _in_words("message"):
        return message_of("message", UserMessage.model_validate({"role": "user", **given}))


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


def message_of(field: str, message: UserMessage | AssistantMessage) -> JsonObject:
    texts = [TextPart(text=message.content)] if isinstance(message.content, str) else message.content or []
    parts = [_part(f"{field}.content[{at}]", each) for at, each in enumerate(texts)]
    return {"id": message.id, "role": message.role, "parts": parts}


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
    kind = UserMessage if message["role"] == "user" else SystemMessage
    return [kind(id=message["id"], content=text_in(message["parts"]))]


# ---------------------------------------------------------------- decisions


class Decision(NamedTuple):
    """What becomes of a request: what is done, in this order, and which turn is told then.

    Attributes:
        request_id: names the turn; empty if there is none to tell.
        calls: with these it is told from the first answer to one of them on; else from its beginning.
        answers: what the calls that wait are answered by.
        earlier: the messages that the conversation begins with.
        plan: how the turn is begun.
        shown: the conversation, if it is told before the turn.
    """

    request_id: str
    calls: frozenset[str] = frozenset()
    answers: Sequence[CallAnswer] = ()
    earlier: Sequence[JsonObject] = ()
    plan: TurnPlan | None = None
    shown: Sequence[OurMessage] | None = None


def encoded(events: Iterable[BaseEvent]) -> bytes:
    return "".join(ENCODER.encode(each) for each in events).encode()


class AgUiRequest:
    """One request: what it brings, and the events of its run. Raises `BadRequest` for a body that is none."""

    encoded = staticmethod(encoded)

    def __init__(self, body: bytes) -> None:
        self.given = given = input_of(body)
        self.run = AgUiRun(given.thread_id, given.run_id, given.messages, (each.name for each in given.tools or ()))

    def options(self) -> dict[str, object]:
        tools = client_tools(self.given)
        return {"metadata": metadata(self.given)} | ({"client_tools": tools} if tools else {})

    def begun(self) -> list[BaseEvent]:
        return self.run.begin(self.given.parent_run_id)

    def decided(self, agent_id: str) -> Deciding[Decision]:
        if self.given.resume:
            return (yield from _resumed(self.given.resume))
        if executed := (yield from _executed(self.given)):
            return executed
        request_id = turn_id(agent_id, self.given.run_id)
        if (yield ChatTurns.known, request_id) is not None:
            return Decision(request_id)
        if messages := asking(self.given):
            return (yield from _asked(self.given, request_id, messages))
        turn: TurnTold | None = yield ChatTurns.newest, _is_open
        known: list[OurMessage] = yield (ChatTurns.transcript,)
        shown = [each for each in known if turn is None or each["id"] != turn["message_id"]]
        return Decision("" if turn is None else turn["request_id"], shown=shown)

    def opened(self, decision: Decision) -> list[BaseEvent]:
        shown = [] if decision.shown is None else self.run.replaced(conversation(decision.shown))
        if not decision.request_id:
            return shown + self.run.succeeded()
        self.run.follow(decision.request_id, decision.calls)
        return shown

    def framed(self, framed: Framed) -> list[BaseEvent]:
        is_known = self.run.knows(str(framed.frame.get("parent_tool_call_id")))
        return self.run.frame(framed.frame, is_agent=framed.is_agent) if is_known else []


def _is_open(turn: TurnTold) -> bool:
    return turn["status"] not in TURN_ENDED


def _asked(given: RunAgentInput, request_id: str, messages: list[JsonObject]) -> Deciding[Decision]:
    known: list[OurMessage] = yield (ChatTurns.transcript,)
    plan = planned(messages, known)
    if plan.instead_of:
        turn = yield ChatTurns.newest, lambda each: _is_open(each) and each["message_id"] == plan.instead_of
        if turn is not None:
            return Decision(turn["request_id"])
    return Decision(request_id, plan=plan, earlier=() if known else earlier(given))


def _executed(given: RunAgentInput) -> Deciding[Decision | None]:
    said = answers(given)
    held: OurMessage | None = (yield ChatTurns.holder, said) if said else None
    if held is None or asking(given):
        return None
    turn: TurnTold | None = yield ChatTurns.newest, lambda each: each["message_id"] == held["id"]
    if turn is None:
        return (yield from _imported(held, said))
    is_parked = turn["status"] == TurnStatus.PARKED
    return Decision(turn["request_id"], frozenset(said), fitting(held, said.values()) if is_parked else ())


# No turn has written the message of these calls: an answer begins one.
def _imported(held: OurMessage, said: dict[str, CallAnswer]) -> Deciding[Decision | None]:
    yield ChatTurns.answer_in, held, said.values()
    begun = answer_turns(said)
    turn: TurnTold | None = yield ChatTurns.newest, lambda each: each["request_id"].startswith(begun)
    return None if turn is None else Decision(turn["request_id"], frozenset(said))


def _resumed(resume: Iterable[ResumeEntry]) -> Deciding[Decision]:
    # A person answers all that a turn waits for, and nothing else.
    said = {each.interrupt_id: each for each in resume}
    named = [found for key in said if (found := interrupt_of(key)) is not None]
    turns, calls = {turn for turn, _ in named}, frozenset(call for _, call in named)
    if len(turns) != 1 or len(named) < len(said):
        raise BadRequest("resume", "names interrupts that are not of one run of this thread")
    request_id = turns.pop()
    turn: TurnTold | None = yield ChatTurns.known, request_id
    if turn is None:
        raise BadRequest("resume", "names a run that this thread does not know")
    message: OurMessage | None = yield ChatTurns.message, turn["message_id"]
    parts = [] if message is None else message["parts"]
    waiting = open_calls(parts) if turn["status"] == TurnStatus.PARKED else []
    if not waiting:
        # The same answers were given before: whoever asks again is told what came of them.
        if message is not None and not calls <= {part.get("toolCallId") for part in parts}:
            raise BadRequest("resume", "names a call that the run has not made")
        return Decision(request_id, calls)
    open_ids = {interrupt_id(request_id, str(part["toolCallId"])): part for part in waiting}
    if open_ids.keys() != said.keys():
        missing, foreign = open_ids.keys() - said.keys(), said.keys() - open_ids.keys()
        wrong = f"leaves {sorted(missing)} open" if missing else f"answers {sorted(foreign)}, which are not open"
        raise BadRequest("resume", wrong)
    return Decision(request_id, calls, [answer_of(part, said[key]) for key, part in open_ids.items()])


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
