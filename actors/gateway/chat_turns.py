"""The turns of one chat agent, as every front end begins, replaces, finds, answers and cancels them.

A front end makes a `TurnPlan` of what its client has sent, and tells the client what the pages of the turn say: no more than this module
and `TurnFollower` stands between its words and the agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Generator, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.chat_messages import as_messages, for_storage, trusted_with
from perdure.actors.chat.conversation import TRIGGERS
from perdure.actors.chat.followers import Caller
from perdure.actors.chat.turn import STEER, SteerReceipt, TurnPage, TurnTold, text_in
from perdure.actors.code.signatures import bound
from perdure.actors.gateway.backend import Reached
from perdure.actors.gateway.refusals import Forbidden, NotNow
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.life.handle import Method
from perdure.ledger import BEGAN_BY, BadRequest, PerdureError, TooLarge, digest_of, request_of
from perdure.policies import Message, Part, ToolState, TurnPlan, TurnStatus, is_settled, is_tool_part

LOOK: Final = 20
"""How many of the newest messages are looked through before all are asked for."""
PAGE: Final = 200
ANSWERING: Final = ("resolve_tool_call", "respond_to_approval")
DELETING: Final = "delete_messages"
UNDER_WAY: Final = [str(TurnStatus.ACCEPTED), str(TurnStatus.RUNNING)]


T = TypeVar("T")
Deciding = Generator[tuple[Callable[..., Awaitable[Any]], *tuple[object, ...]], Any, T]
"""What a front end decides about the turns of an agent, without IO: what has to be known or done for it is yielded, as a method of
`ChatTurns` with its arguments, and what that returns or raises comes back."""


class TurnDropped(NotNow):
    """A turn is under way, and the agent takes no messages meanwhile."""


class CallAnswer(NamedTuple):
    """What a client says to a call that waits: whether it is approved; or else what it came to, which is an error if there is one."""

    call_id: str
    output: object = None
    error: str | None = None
    approved: bool | None = None
    reason: str | None = None

    def fits(self, part: Part) -> bool:
        if part.get("state") == ToolState.APPROVAL_REQUESTED:
            return self.approved is not None
        return self.approved is None


def turn_id(agent_id: str, given: str) -> str:
    # Clients make such ids, so that of one agent's turn must not reach a run of another's.
    return f"{given}.{blake2b(agent_id.encode(), digest_size=6).hexdigest()}"


def answer_turns(call_ids: Iterable[str]) -> tuple[str, ...]:
    """How the turns are called which answers to calls of imported messages have begun, which no turn has written."""
    return tuple(f"answer-{digest_of(call_id.encode())}-" for call_id in call_ids)


class ChatTurns:
    """The turns of one chat agent. `who` asks for them, and answers in them, by this channel; what only looks at them needs nobody."""

    def __init__(self, caller: Caller, who: Principal | None = None, channel: str = "") -> None:
        self._who, self._channel = who or Principal(), channel
        self._call, self._new_id = caller.call, caller.token
        self._asker = {} if who is None or not who.began_by else {BEGAN_BY: who.began_by}

    # asking for them

    async def begin(self, plan: TurnPlan, request_id: str, options: Mapping[str, object]) -> TurnPage:
        """Have a turn accepted, or find it, and get its first page. Raises `TurnDropped`."""
        page: TurnPage = await self._accepted("_perdure_begin_turn", plan, request_id, options)
        return page

    async def begin_first(
        self, plans: Iterable[TurnPlan], request_id: str, options: Mapping[str, object]
    ) -> TurnPage | None:
        # A plan whose `instead_of` the agent does not have is passed over. None if no plan is left.
        for plan in plans:
            try:
                return await self.begin(plan, request_id, options)
            except BadRequest as problem:
                if problem.field != "instead_of":
                    raise
        return None

    async def accept(self, plan: TurnPlan, request_id: str, options: Mapping[str, object]) -> None:
        # Its caller follows the conversation, so it returns no page. Raises `TurnDropped`.
        await self._accepted("_perdure_accept_turn", plan, request_id, options)

    async def _accepted(self, method: str, plan: TurnPlan, request_id: str, options: Mapping[str, object]) -> Any:
        replaced = {"instead_of": plan.instead_of} if plan.instead_of else {}
        told = await self._call(
            method, plan.trigger, plan.messages or None, request_id, {**options, **replaced, **self._asker}
        )
        if told["reason"] == "dropped":
            raise TurnDropped(told["error"])
        return told

    # those that exist

    async def decided(self, deciding: Deciding[T]) -> T:
        step: Callable[[], Any] = partial(next, deciding)
        while True:
            try:
                method, *given = step()
            except StopIteration as end:
                decision: T = end.value
                return decision
            try:
                step = partial(deciding.send, await method(self, *given))
            except PerdureError as problem:
                step = partial(deciding.throw, problem)

    async def standing(self, request_id: str = "") -> Any:
        return await self._call("_perdure_standing", request_id)

    async def known(self, request_id: str) -> TurnTold | None:
        told: TurnTold | None = await self._call("inspect_turn", request_id)
        return told

    async def newest(self, fits: Callable[[TurnTold], bool]) -> TurnTold | None:
        turns: list[TurnTold] = await self._call("list_turns")
        return next((each for each in reversed(turns) if not each["steers"] and fits(each)), None)

    async def under_way(self) -> list[TurnTold]:
        turns: list[TurnTold] = await self._call("list_turns", UNDER_WAY)
        return turns

    async def steer(self, message: object) -> SteerReceipt:
        # A message with an id is known by it: sent again, it is the same.
        given = message.get("id") if isinstance(message, Mapping) else None
        request_id = request_of(given) if isinstance(given, str) and given else self._new_id()
        told: SteerReceipt = await self._call("_perdure_accept_turn", STEER, message, request_id, self._asker)
        return told

    async def cancel(self, request_id: str, reason: str = "cancelled") -> bool:
        was_open: bool = await self._call("cancel_chat", request_id, reason)
        return was_open

    async def cancel_under_way(self, reason: str) -> bool:
        # Turns that wait for a person stay.
        # The last one first, so that none begins meanwhile.
        turns = [each for each in await self.under_way() if each["trigger"] in TRIGGERS]
        for each in reversed(turns):
            await self.cancel(each["request_id"], reason)
        return bool(turns)

    async def cancel_all(self, reason: str) -> int:
        count: int = await self._call("cancel_all_chats", reason)
        return count

    # messages, and calls in them

    async def messages(self, limit: int | None = None, before: str | None = None) -> list[Message]:
        found: list[Message] = await self._call("get_messages", limit, before)
        return found

    async def transcript(self) -> list[Message]:
        # It is read in pages, of which none is too large for an answer.
        pages: list[list[Message]] = []
        before, most = None, PAGE
        while True:
            try:
                page = await self.messages(most, before)
            except TooLarge:
                if most == 1:
                    raise
                most //= 2
                continue
            pages.append(page)
            if len(page) < most:
                return [message for each in reversed(pages) for message in each]
            before = page[0]["id"]

    async def message(self, message_id: str) -> Message | None:
        return await self._found(lambda each: each["id"] == message_id)

    async def holder(self, call_ids: Container[str]) -> Message | None:
        return await self._found(lambda each: any(part.get("toolCallId") in call_ids for part in each["parts"]))

    async def _found(self, fits: Callable[[Message], bool]) -> Message | None:
        newest = await self.messages(LOOK)
        found = next(filter(fits, reversed(newest)), None)
        if found is None and len(newest) == LOOK:
            found = next(filter(fits, reversed(await self.transcript())), None)
        return found

    async def answer(self, given: CallAnswer) -> bool:
        # The first answer counts: returns whether the call waited for this one.
        is_result = given.approved is None
        said = (given.output, given.error) if is_result else (given.approved, given.reason)
        method, by = _answering(self._who, self._channel, "resolve_tool_call" if is_result else "respond_to_approval")
        was_waited_for: bool = await self._call(method, *by, given.call_id, *said)
        return was_waited_for

    async def answer_in(self, message: Message, given: Iterable[CallAnswer]) -> list[CallAnswer]:
        # Returns the answers that counted.
        return [each for each in fitting(message, given) if await self.answer(each)]


def fitting(message: Message, given: Iterable[CallAnswer]) -> list[CallAnswer]:
    # Only calls that wait for such an answer are answered.
    calls = {part["toolCallId"]: part for part in message["parts"] if is_tool_part(part) and not is_settled(part)}
    return [each for each in given if each.call_id in calls and each.fits(calls[each.call_id])]


def asked_by(
    who: Principal, channel: str, reached: Reached, method: str, args: Sequence[object], more: Mapping[str, object]
) -> tuple[Method, Sequence[object]]:
    """What is called where somebody calls an agent's exposed method by its name, and with which arguments by place.

    To be allowed to chat is not all that a chat agent's own methods need. By `add_messages` and its like a client could tell the model what
    to do, or have calls made that nobody has approved (`trusted_with`): `Forbidden`. And an answer to a call is that of whoever asks, as
    is what is deleted. A method that an author has put in their place is code of the agent as any other."""
    agent_class = reached.agent_class
    if issubclass(agent_class, ChatAgent):
        _check_written(who, method, args, more)
        if method in (*ANSWERING, DELETING) and getattr(agent_class, method) is getattr(ChatAgent, method):
            bound(getattr(agent_class, method), args, more, lambda _shape, _name, value: value, agent_class, method)
            is_answer, may_delete = method != DELETING, Scope.ADMIN in who.scopes
            method, by = _answering(who, channel, method) if is_answer else (f"_perdure_{method}", (may_delete,))
            args = [*by, *args]
    function: Method = getattr(reached.handle, method)
    return function, args


def _answering(who: Principal, channel: str, method: str) -> tuple[str, tuple[object, ...]]:
    # The same method by a gateway, and what it takes before its arguments.
    by = who.answerer()
    return f"_perdure_{method}", ([by.name, sorted(by.groups), by.is_operator, by.is_admin], channel)


def _check_written(who: Principal, method: str, args: Sequence[object], more: Mapping[str, object]) -> None:
    if not hasattr(ChatAgent, method) or Scope.ADMIN in who.scopes:
        return
    given = args[0] if args else more.get("messages", more.get("message"))
    written = given if isinstance(given, list) else [given]
    for what in filter(None, (trusted_with(each) for each in written if isinstance(each, Mapping))):
        raise Forbidden(f"{who.name} has not the scope {Scope.ADMIN.value!r}, which {what} needs")


# A message that is known is known by its id, and is never another one: what either says would be lost without a word.


def is_other(sent: Mapping[str, object], held: Message) -> bool:
    (came,) = as_messages([sent], new_id=str)
    return for_storage(came)["parts"] != held["parts"]


def is_edited(sent: Mapping[str, object]) -> Deciding[bool]:
    """Whether a client shows a message of its user with other content than is held. Who asks for another answer to it asks for one to
    that."""
    if sent.get("role") != "user" or not isinstance(sent.get("id"), str):
        return False
    held: Message | None = yield ChatTurns.message, sent["id"]
    return held is not None and held["role"] == "user" and is_other(sent, held)


def was_sent(held: Message) -> str:
    return f"{held['id']} was sent before, and says {text_in(held['parts'])!r:.200}"
