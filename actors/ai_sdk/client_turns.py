"""What a client of the AI SDK asks for, made into a turn of its chat agent (client protocols B.1 and B.5).

The client sends its whole view of the conversation. Only its last message counts, because the transcript is the agent's:

    a new message of the user       a turn. Sent again, it is the same turn, unless that failed: then it is tried once more
    one with a `messageId`          it takes the place of that message, and of all that follows it
    `regenerate-message`            another answer in place of one
    an answer of the assistant      the client's results and approvals in it are taken, if its stored message waits for exactly these.
                                    The turn goes on in the same message, and the client is told what comes after what it has

Who replaces something has left the turns behind that write it, so these are cancelled. A message that comes while a turn is under way waits
its turn, or what the agent's `message_concurrency` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.actors.ai_sdk.chunks import Children, Chunk, Translator, settled
from perdure.actors.chat.followers import is_last, is_newest
from perdure.actors.chat.stream import merged
from perdure.actors.chat.turn import TurnPage, TurnTold
from perdure.actors.events.message_parts import CALL_ENDS
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.gateway.chat_turns import UNDER_WAY, CallAnswer, ChatTurns
from perdure.actors.gateway.problems import NotNow, problem_text
from perdure.actors.gateway.security import Principal
from perdure.actors.gateway.turn_follower import Framed, TurnFollower
from perdure.actors.life.handle import address_of
from perdure.ledger import (
    AgentUnreachable,
    BadRequest,
    ConflictingRequest,
    PerdureError,
    Standalone,
    digest_of,
    request_of,
)
from perdure.policies import Event, Message, Part, ToolState, TurnPlan, TurnStatus

SUBMIT, REGENERATE = "submit-message", "regenerate-message"
OWN: Final = frozenset({"id", "messages", "trigger", "messageId", "clientTools"})
"""The fields of a request that the protocol knows; the others are the author's, as metadata of the turn."""
REPLACED: Final = "replaced by the client"
FORGOTTEN: Final = "The conversation was cleared, and this answer with it."
CANNOT_FOLLOW: Final = "The answer cannot be followed at the moment, and goes on: {}"


@dataclass(frozen=True)
class TurnRequest:
    """A checked request of a client."""

    trigger: str
    messages: list[Mapping[str, object]]
    message_id: str | None
    options: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Mapping[str, object]) -> TurnRequest:
        """The request in a body. Raises `BadRequest`, which names the field."""
        trigger, messages, message_id = body.get("trigger", SUBMIT), body.get("messages"), body.get("messageId")
        if trigger not in (SUBMIT, REGENERATE):
            raise BadRequest("trigger", f"{trigger!r:.200} is neither {SUBMIT} nor {REGENERATE}")
        if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
            raise BadRequest("messages", "is not a list of messages")
        if not messages and trigger == SUBMIT:
            raise BadRequest("messages", "is empty")
        if message_id is not None and not isinstance(message_id, str):
            raise BadRequest("messageId", f"{message_id!r:.200} is not a text")
        metadata = {name: value for name, value in body.items() if name not in OWN}
        options: dict[str, object] = {"metadata": metadata} if metadata else {}
        if body.get("clientTools") is not None:
            options["client_tools"] = body["clientTools"]
        return cls(trigger, messages, message_id, options)

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
        """The chunks of a page and of those before it, once it is the newest: so nobody is told what was withdrawn by then."""
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


class ClientTurns:
    """The turns that one client, of one principal and one major, asks of one chat agent."""

    def __init__(self, backend: Backend, reached: Reached, who: Principal, major: int) -> None:
        self._backend, self._reached, self._major = backend, reached, major
        self._call, self._new_id, self.turns = (
            reached.caller.call,
            reached.caller.token,
            ChatTurns(reached.caller, who, "ai-sdk"),
        )

    async def begin(self, request: TurnRequest) -> Following:
        """The turn that does what is wished. Raises a `PerdureError` if there can be none."""
        if request.trigger == REGENERATE:
            return await self._regenerate(request)
        if request.last.get("role") == "assistant":
            return await self._go_on(request)
        if request.message_id is not None:
            await self.turns.cancel_under_way(REPLACED)
            return await self._anew(request, in_place_of(request.last, request.message_id))
        return await self._submit(request)

    async def resume(self) -> Following | None:
        """The turn that is being played, or comes next, or has ended just now, from its start; None if there is none.

        An agent that has never been is not brought to life by the question.
        """
        address = address_of(self._reached.handle)
        assert address is not None
        existing = address._replace(standalone=Standalone.NEVER)
        try:
            standing: Any = await (await self._backend.client()).caller.call(existing, "_perdure_standing", (), {})
        except AgentUnreachable:
            return None
        turn: TurnTold | None = standing["resumable"]
        return None if turn is None else await self._from_start(turn)

    async def chunks(self, following: Following) -> AsyncGenerator[list[Chunk], None]:
        """The chunks of a turn, from its start to its end, or until it waits for a person. What fails is told as the last chunk. There may
        be no chunk in a batch."""
        async with TurnFollower(self._backend, self._reached, following.request_id, following.opening) as follower:
            while not following.translator.is_over:
                yield await self._next(following, follower)

    async def _next(self, following: Following, follower: TurnFollower) -> list[Chunk]:
        clock, children = asyncio.get_running_loop().time, following.children
        try:
            item = await follower.next(children.due_in_s(clock()))
        except PerdureError as problem:
            is_gone = isinstance(problem, BadRequest) and problem.field == "request_id"
            return following.translator.failed(FORGOTTEN if is_gone else CANNOT_FOLLOW.format(problem_text(problem)))
        if item is not None and not isinstance(item, Framed):
            closed = await self._asks_before(item, following, follower)
            chunks = following.chunks(item)
            for call_id in following.translator.open_calls:
                await follower.runs.follow(call_id)
            return closed + chunks
        told: list[Chunk] = []
        if item is not None:
            told = children.asks(item, following.translator)
            children.take(item, clock())
        return told + (children.chunks(following.translator) if children.due_in_s(clock()) == 0 else [])

    async def _asks_before(self, page: TurnPage, following: Following, follower: TurnFollower) -> list[Chunk]:
        # What a run asked is closed before the result of its call: the answer may end with that, and nothing is told afterwards.
        children, found = following.children, list[Chunk]()
        for event in page["events"]:
            call_id = str(event.get("toolCallId") or "")
            if event["type"] in CALL_ENDS and children.is_asking(call_id):
                while (framed := await follower.said_before(call_id)) is not None:
                    found += children.asks(framed, following.translator)
        return found

    async def messages(self, limit: int | None, before: str | None) -> list[Message]:
        """The conversation, without the answers that are being written: to resume tells these from their start."""
        found: list[Message] = await self._call("get_messages", limit, before)
        written = {each["message_id"] for each in await self.turns.under_way()}
        return [each for each in found if each["id"] not in written]

    # messages of the user

    async def _submit(self, request: TurnRequest) -> Following:
        plan, message_id = TurnPlan("chat", [request.last]), request.last.get("id")
        if not isinstance(message_id, str):
            return await self._anew(request, [plan])
        request_id = request_of(message_id)
        try:
            told = await self.turns.begin(plan, request_id, request.options)
        except ConflictingRequest as problem:
            known = await self.turns.known(request_id)
            if problem.field != "request_id" or known is None:
                raise
            if known["status"] in UNDER_WAY:
                return await self._from_start(known)
            return await self._anew(request, in_place_of(request.last, message_id))
        failed = (TurnStatus.ERROR, TurnStatus.ABORTED, TurnStatus.SKIPPED)
        if not told["accepted"] and told["status"] in failed:
            return await self._anew(request, in_place_of(request.last, message_id))
        return Following(request_id, Translator(self._major), told)

    async def _regenerate(self, request: TurnRequest) -> Following:
        was_under_way = await self.turns.cancel_under_way(REPLACED)
        newest = await self._call("get_messages", 1)
        answer = request.message_id or (newest[-1]["id"] if newest and newest[-1]["role"] == "assistant" else None)
        plans = [] if answer is None or was_under_way else [TurnPlan("regenerate", instead_of=answer)]
        if request.last.get("role") == "user" and isinstance(request.last.get("id"), str):
            plans += in_place_of(request.last, str(request.last["id"]))
        return await self._anew(request, plans)

    async def _anew(self, request: TurnRequest, plans: list[TurnPlan]) -> Following:
        request_id = self._new_id()
        told = await self.turns.begin_first(plans, request_id, request.options)
        if told is None:
            raise BadRequest("messages", "there is no answer to give again, and the last message is none of the user's")
        return Following(request_id, Translator(self._major), told)

    # answers of the client

    async def _go_on(self, request: TurnRequest) -> Following:
        message = request.last
        message_id = str(request.message_id or message.get("id"))
        given = message.get("parts") or []
        if not isinstance(given, list):
            raise BadRequest("messages", f"the parts of the last one are {type(given).__name__}, not a list")
        parts = [each for each in given if isinstance(each, Mapping)]
        said = [answer for each in parts if (answer := answer_of(each)) is not None]
        accepted = await self.turns.answer_in(await self._stored(message_id), said)
        # An answer to a call of an imported message, which no turn has written, has begun a turn of its own.
        begun = tuple(f"answer-{digest_of(each.call_id.encode())}-" for each in accepted)
        turn = await self.turns.newest(
            lambda each: each["message_id"] == message_id or (bool(begun) and each["request_id"].startswith(begun))
        )
        if turn is None or (turn["status"] in (TurnStatus.ABORTED, TurnStatus.ERROR) and not accepted):
            raise NotNow(f"the message {message_id!r:.80} waits for no answer of a client")
        translator = Translator(
            self._major,
            base=await self._base(turn),
            retells_base=False,
            steps_known=sum(each.get("type") == "step-start" for each in parts),
            answered=frozenset(str(each["toolCallId"]) for each in parts if "toolCallId" in each),
        )
        return Following(turn["request_id"], translator)

    async def _stored(self, message_id: str) -> Message:
        found = await self.turns.message(message_id)
        if found is None:
            raise NotNow(f"no message is known as {message_id!r:.80}")
        return found

    # turns that exist

    async def _from_start(self, turn: TurnTold) -> Following:
        return Following(turn["request_id"], Translator(self._major, base=await self._base(turn)), retells=True)

    async def _base(self, turn: TurnTold) -> list[Part]:
        if not turn["base"]:
            return []
        stored = await self._stored(turn["message_id"])
        return stored["parts"][: turn["base"]]


def in_place_of(message: Mapping[str, object], message_id: str) -> list[TurnPlan]:
    """A message of the user takes the place of another, or is a new one if that is not known."""
    return [TurnPlan("chat", [message], message_id), TurnPlan("chat", [message])]


def answer_of(part: Mapping[str, object]) -> CallAnswer | None:
    """What a part of the client's message says to its call; None if it answers nothing."""
    call_id, state, approval = str(part.get("toolCallId")), part.get("state"), part.get("approval")
    if state == ToolState.APPROVAL_RESPONDED and isinstance(approval, Mapping):
        reason = approval.get("reason") if isinstance(approval.get("reason"), str) else None
        approved = approval.get("approved")
        return CallAnswer(call_id, approved=approved, reason=reason) if isinstance(approved, bool) else None
    if state == ToolState.OUTPUT_ERROR and not part.get("preliminary"):
        return CallAnswer(call_id, error=str(part.get("errorText") or "The client's tool failed."))
    is_output = state == ToolState.OUTPUT_AVAILABLE and not part.get("preliminary")
    return CallAnswer(call_id, part.get("output")) if is_output else None
