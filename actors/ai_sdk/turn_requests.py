"""What a client of the AI SDK asks for, made into a turn of its chat agent (client protocols B.1 and B.5). Pure.

The client sends its whole view of the conversation. Only its last message counts, because the transcript is the agent's:

    a new message of the user       a turn. Sent again, it is the same turn, unless that failed: then it is tried once more. With other
                                    content it is refused, lest either be lost without a word
    one with a `messageId`          it takes the place of that message, and of all that follows it
    `regenerate-message`            another answer in place of one; if its question was edited, one to what that says now
    an answer of the assistant      the client's results and approvals in it are taken, if its stored message waits for exactly these.
                                    The turn goes on in the same message, and the client is told what comes after what it has

Who replaces something has left the turns behind that write it, so these are cancelled. A message that comes while a turn is under way
waits its turn, or what the agent's `message_concurrency` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from perdure.actors.ai_sdk.chunks import Children, Chunk, Translator, settled
from perdure.actors.chat.followers import is_last, is_newest
from perdure.actors.chat.stream import merged
from perdure.actors.chat.turn import TurnPage, TurnStanding, TurnTold
from perdure.actors.gateway.chat_turns import (
    UNDER_WAY,
    CallAnswer,
    ChatTurns,
    Deciding,
    answer_turns,
    is_edited,
    is_other,
    was_sent,
)
from perdure.actors.gateway.refusals import NotNow
from perdure.ledger import BadRequest, ConflictingRequest, request_of
from perdure.policies import Event, Message, Part, ToolState, TurnPlan, TurnStatus

SUBMIT, REGENERATE = "submit-message", "regenerate-message"
OWN: Final = frozenset({"id", "messages", "trigger", "messageId", "clientTools"})
"""The fields of a request that the protocol knows; the others are the author's, as metadata of the turn."""
ROLES: Final = ("user", "assistant")
"""Whose messages a client may send. One of the system would be instructions of whoever may chat."""
REPLACED: Final = "replaced by the client"
FAILED: Final = frozenset({TurnStatus.ERROR, TurnStatus.ABORTED, TurnStatus.SKIPPED})
EDITED: Final = "to edit it send its id as messageId too, which deletes what follows; else send another id"


@dataclass(frozen=True)
class TurnRequest:
    """A checked request of a client. With `is_once` a message whose id is known is that message, and other content no edit of it."""

    trigger: str
    messages: list[Mapping[str, object]]
    message_id: str | None
    options: dict[str, object] = field(default_factory=dict)
    is_once: bool = False

    @classmethod
    def of(cls, body: Mapping[str, object], *, is_once: bool = False) -> TurnRequest:
        trigger, messages, message_id = body.get("trigger", SUBMIT), body.get("messages"), body.get("messageId")
        if trigger not in (SUBMIT, REGENERATE):
            raise BadRequest("trigger", f"{trigger!r:.200} is neither {SUBMIT} nor {REGENERATE}")
        if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
            raise BadRequest("messages", "is not a list of messages")
        if not messages and trigger == SUBMIT:
            raise BadRequest("messages", "is empty")
        role = messages[-1].get("role") if messages else None
        if trigger == SUBMIT and role not in ROLES:
            words = (
                f"{role!r:.200} is not one of {', '.join(ROLES)}; what the agent is told to be is its author's to say"
            )
            raise BadRequest(f"messages[{len(messages) - 1}].role", words)
        if message_id is not None and not isinstance(message_id, str):
            raise BadRequest("messageId", f"{message_id!r:.200} is not a text")
        metadata = {name: value for name, value in body.items() if name not in OWN}
        options: dict[str, object] = {"metadata": metadata} if metadata else {}
        if body.get("clientTools") is not None:
            options["client_tools"] = body["clientTools"]
        return cls(trigger, messages, message_id, options, is_once)

    @property
    def last(self) -> Mapping[str, object]:
        return self.messages[-1] if self.messages else {}


@dataclass
class Following:
    """A turn, and how its client is told of it.

    Attributes:
        retells: whether the client comes back, and is told again what has happened already.
    """

    request_id: str
    translator: Translator
    opening: TurnPage | None = None
    retells: bool = False
    children: Children = field(default_factory=Children)
    events: list[Event] = field(default_factory=list)  # of pages that are not translated yet

    def chunks(self, page: TurnPage) -> list[Chunk]:
        # Pages are told together once the newest is there, so that nobody is told what was withdrawn by then.
        self.events += page["events"]
        if not is_newest(page):
            return []
        events = merged(self.events)
        chunks = self.translator.chunks(settled(events) if self.retells else events)
        self.events, self.retells = [], False
        if not self.translator.is_over and is_last(page):  # its stream has no end of its own
            is_parked = page["status"] == TurnStatus.PARKED
            chunks += self.translator.paused() if is_parked else self.translator.failed(page["error"])
        return chunks


class AskedTurns:
    """Decides which turn a client of one major is told, and from where on. `new_id` names turns that it has no name for."""

    def __init__(self, major: int, new_id: Callable[[], str]) -> None:
        self._major, self._new_id = major, new_id

    def begin(self, request: TurnRequest) -> Deciding[Following]:
        if request.trigger == REGENERATE:
            return (yield from self._regenerate(request))
        if request.last.get("role") == "assistant":
            return (yield from self._go_on(request))
        if request.message_id is not None:
            yield ChatTurns.cancel_under_way, REPLACED
            return (yield from self._anew(request, in_place_of(request.last, request.message_id)))
        return (yield from self._submit(request))

    # messages of the user

    def _submit(self, request: TurnRequest) -> Deciding[Following]:
        plan, message_id = TurnPlan("chat", [request.last]), request.last.get("id")
        if not isinstance(message_id, str):
            return (yield from self._anew(request, [plan]))
        request_id = request_of(message_id)
        try:
            told: TurnPage = yield ChatTurns.begin, plan, request_id, request.options
        except ConflictingRequest as problem:
            if not request.is_once:
                return (yield from self._again(request, message_id))
            if problem.field != "request_id":
                raise
            words = f"{message_id} was asked with other content; attach to it by its id, or ask under another one"
            raise ConflictingRequest("message_id", words) from problem
        if not told["accepted"] and told["status"] in FAILED and not request.is_once:
            return (yield from self._again(request, message_id))
        return Following(request_id, Translator(self._major), told)

    def _again(self, request: TurnRequest, message_id: str) -> Deciding[Following]:
        # A message that is known. Nothing but a failed answer to it is taken away from who does not ask for that by `messageId`.
        standing = yield ChatTurns.standing, request_of(message_id)
        known: TurnStanding | None = standing["known"]
        held: Message | None = (
            next((each for each in known["waiting"] if each["id"] == message_id), None) if known else None
        )
        if held is None:
            held = yield ChatTurns.message, message_id
        field = f"messages[{len(request.messages) - 1}].id"
        if held is not None and is_other(request.last, held):
            raise ConflictingRequest(field, f"{was_sent(held)}; {EDITED}")
        ids = [each for each, _role in standing["messages"]]
        behind = set(ids[ids.index(message_id) + 1 :]) if message_id in ids else set()
        if known is not None:
            is_answered = held is not None and known["status"] not in FAILED and known["message_id"] in ids
            if is_answered or known["status"] in UNDER_WAY:
                return (yield from self.from_start(known))
            behind.discard(known["message_id"])
        if behind:
            raise ConflictingRequest(
                field, f"{message_id} is followed by what another answer would take away; {EDITED}"
            )
        return (yield from self._anew(request, in_place_of(request.last, message_id)))

    def _regenerate(self, request: TurnRequest) -> Deciding[Following]:
        was_under_way: bool = yield ChatTurns.cancel_under_way, REPLACED
        newest: list[Message] = yield ChatTurns.messages, 1
        answer = request.message_id or (newest[-1]["id"] if newest and newest[-1]["role"] == "assistant" else None)
        is_asked_otherwise = was_under_way or (yield from is_edited(request.last))
        plans = [] if answer is None or is_asked_otherwise else [TurnPlan("regenerate", instead_of=answer)]
        if request.last.get("role") == "user" and isinstance(request.last.get("id"), str):
            plans += in_place_of(request.last, str(request.last["id"]))
        return (yield from self._anew(request, plans))

    def _anew(self, request: TurnRequest, plans: list[TurnPlan]) -> Deciding[Following]:
        request_id = self._new_id()
        told: TurnPage | None = yield ChatTurns.begin_first, plans, request_id, request.options
        if told is None:
            raise BadRequest("messages", "there is no answer to give again, and the last message is none of the user's")
        return Following(request_id, Translator(self._major), told)

    # answers of the client

    def _go_on(self, request: TurnRequest) -> Deciding[Following]:
        message = request.last
        message_id = str(request.message_id or message.get("id"))
        given = message.get("parts") or []
        if not isinstance(given, list):
            raise BadRequest("messages", f"the parts of the last one are {type(given).__name__}, not a list")
        parts = [each for each in given if isinstance(each, Mapping)]
        said = [answer for each in parts if (answer := answer_of(each)) is not None]
        stored = yield from _stored(message_id)
        accepted: list[CallAnswer] = yield ChatTurns.answer_in, stored, said
        begun = answer_turns(each.call_id for each in accepted)
        turn: TurnTold | None = yield (
            ChatTurns.newest,
            lambda each: each["message_id"] == message_id or each["request_id"].startswith(begun),
        )
        if turn is None or (turn["status"] in (TurnStatus.ABORTED, TurnStatus.ERROR) and not accepted):
            raise NotNow(f"the message {message_id!r:.80} waits for no answer of a client")
        translator = Translator(
            self._major,
            base=(yield from _base(turn)),
            retells_base=False,
            steps_known=sum(each.get("type") == "step-start" for each in parts),
            answered=frozenset(str(each["toolCallId"]) for each in parts if "toolCallId" in each),
        )
        return Following(turn["request_id"], translator)

    def from_start(self, turn: TurnTold) -> Deciding[Following]:
        translator = Translator(self._major, base=(yield from _base(turn)))
        return Following(turn["request_id"], translator, retells=True)


def _stored(message_id: str) -> Deciding[Message]:
    found: Message | None = yield ChatTurns.message, message_id
    if found is None:
        raise NotNow(f"no message is known as {message_id!r:.80}")
    return found


def _base(turn: TurnTold) -> Deciding[list[Part]]:
    return (yield from _stored(turn["message_id"]))["parts"][: turn["base"]] if turn["base"] else []


def in_place_of(message: Mapping[str, object], message_id: str) -> list[TurnPlan]:
    # A message of the user takes the place of another, or is a new one if that is not known.
    return [TurnPlan("chat", [message], message_id), TurnPlan("chat", [message])]


def answer_of(part: Mapping[str, object]) -> CallAnswer | None:
    call_id, state, approval = str(part.get("toolCallId")), part.get("state"), part.get("approval")
    if state == ToolState.APPROVAL_RESPONDED and isinstance(approval, Mapping):
        reason = approval.get("reason") if isinstance(approval.get("reason"), str) else None
        approved = approval.get("approved")
        return CallAnswer(call_id, approved=approved, reason=reason) if isinstance(approved, bool) else None
    if state == ToolState.OUTPUT_ERROR and not part.get("preliminary"):
        return CallAnswer(call_id, error=str(part.get("errorText") or "The client's tool failed."))
    is_output = state == ToolState.OUTPUT_AVAILABLE and not part.get("preliminary")
    return CallAnswer(call_id, part.get("output")) if is_output else None
