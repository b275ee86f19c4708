"""The turns of one chat agent, as every front end begins, finds and answers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from perdure.actors.chat.feed_follower import FeedCaller
from perdure.actors.chat.turn import TurnPage, TurnTold
from perdure.actors.gateway.problems import NotNow
from perdure.policies import Message, Part, ToolState

LOOK: Final = 20
"""How many of the newest messages are looked through before all are asked for."""


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


class ChatTurns:
    """The turns of one chat agent."""

    def __init__(self, caller: FeedCaller) -> None:
        self._call = caller.call

    async def begin(
        self,
        trigger: str,
        messages: Sequence[Mapping[str, object]] | None,
        request_id: str,
        options: Mapping[str, object],
    ) -> TurnPage:
        """Have a turn accepted, or find it, and get its first page. Raises `TurnDropped`."""
        page: TurnPage = await self._accepted("_perdure_begin_turn", trigger, messages, request_id, options)
        return page

    async def accept(
        self,
        trigger: str,
        messages: Sequence[Mapping[str, object]] | None,
        request_id: str,
        options: Mapping[str, object],
    ) -> None:
        """Have a turn accepted, or find it, for somebody who follows the conversation. Raises `TurnDropped`."""
        await self._accepted("_perdure_accept_turn", trigger, messages, request_id, options)

    async def _accepted(self, method: str, *turn: object) -> Any:
        told = await self._call(method, *turn)
        if told["reason"] == "dropped":
            raise TurnDropped(told["error"])
        return told

    async def known(self, request_id: str) -> TurnTold | None:
        told: TurnTold | None = await self._call("inspect_turn", request_id)
        return told

    async def newest(self, fits: Callable[[TurnTold], bool]) -> TurnTold | None:
        turns: list[TurnTold] = await self._call("list_turns")
        return next((each for each in reversed(turns) if fits(each)), None)

    async def message(self, fits: Callable[[Message], bool]) -> Message | None:
        for limit in (LOOK, None):
            messages: list[Message] = await self._call("get_messages", limit)
            found: Message | None = next(filter(fits, reversed(messages)), None)
            if found is not None:
                return found
        return None

    async def answer(self, given: CallAnswer) -> bool:
        """Answer a call. Returns whether it waited for that: the first answer counts."""
        if given.approved is None:
            was_waited_for: bool = await self._call("resolve_tool_call", given.call_id, given.output, given.error)
        else:
            was_waited_for = await self._call("respond_to_approval", given.call_id, given.approved, given.reason)
        return was_waited_for
