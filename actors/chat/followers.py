"""Following a conversation, or one turn of it, from wherever the caller is.

The follower asks the agent for the events from a number on, again and again, and each answer is held open for some seconds while there is
nothing new. It asks for more only when its consumer has taken what came, so a slow consumer delays no other and costs no memory. A new life
of the agent answers as well as the old one, so no death ends the following.

A follower of a conversation does not keep its agent awake for ever. When nothing was said for a minute and no turn is under way, it asks
the supervisor each second whether the agent is awake, and lets it sleep. It looks again

    when the agent has slept and woken    at once, because somebody else has woken it
    when it has not slept in that time    as before, because somebody else keeps it awake
    when it has slept through a pause     briefly, in case something was written between the last look and the sleep. The pause doubles
                                          from ten seconds to ten minutes

and each event ends the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Protocol

from perdure.actors.chat.feed import HOLD_S, FeedEvent, FeedPage
from perdure.actors.chat.turn import TurnPage
from perdure.actors.ports import Threads
from perdure.ledger import LedgerError, SupervisorUnreachable, check_whole
from perdure.policies import TURN_ENDED, TurnStatus

REST_AFTER_S: Final = 60.0
LOOK_S: Final = 1.0
PAUSE_S, PAUSE_MOST_S = 10.0, 600.0
AGAIN_S: Final = 1.0


class Caller(Protocol):
    """How a follower reaches its agent. Sync callbacks run on `threads`."""

    threads: Threads

    def token(self) -> str:
        """A new identifier."""

    async def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the agent."""

    @property
    def idle_s(self) -> float:
        """After how long without work the agent is put to sleep."""

    async def is_awake(self) -> bool:
        """Whether the agent is awake. The question does not wake it."""


async def follow_feed(caller: Caller, first: int = 0) -> AsyncGenerator[FeedEvent, None]:
    """The events of a conversation from a number on, without an end. The first look wakes the agent."""
    check_whole("first", first, 0)
    rest = Rest(caller)
    while True:
        page: FeedPage = await caller.call("_perdure_feed", first, rest.hold_s)
        first = page["next"]
        for event in page["events"]:
            yield event
        await rest.after(is_resting=page["is_resting"])


class Rest:
    """When the follower looks next, and how long an answer may be held open."""

    def __init__(self, caller: Caller) -> None:
        self.hold_s = HOLD_S
        self._caller, self._loop = caller, asyncio.get_running_loop()
        self._first_pause_s = self._pause_s = max(PAUSE_S, 2 * caller.idle_s)
        self._told_at_s = self._loop.time()

    async def ask(self, method: str, *args: object) -> Any:
        """Ask the agent, again and again while the supervisor is away or the ledger refuses."""
        while True:
            try:
                return await self._caller.call(method, *args, self.hold_s)
            except (SupervisorUnreachable, LedgerError):
                await asyncio.sleep(AGAIN_S)

    async def after(self, *, is_resting: bool) -> None:
        """Wait until it is time for the next look. `is_resting`: the agent has said nothing new, and nothing is under way."""
        if not is_resting:
            self._told_at_s, self._pause_s, self.hold_s = self._loop.time(), self._first_pause_s, HOLD_S
        elif self._loop.time() - self._told_at_s >= REST_AFTER_S:
            is_used = await self._is_used()
            self.hold_s = HOLD_S if is_used else 0.0
            self._pause_s = self._first_pause_s if is_used else min(self._pause_s * 2, PAUSE_MOST_S)

    async def _is_used(self) -> bool:
        """Wait for a pause, or until the agent has slept and woken. Returns whether somebody else keeps it awake."""
        until_s, has_slept = self._loop.time() + self._pause_s, False
        while self._loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            is_awake = await self._caller.is_awake()
            if has_slept and is_awake:
                return True
            has_slept = has_slept or not is_awake
        return not has_slept


class TurnPages:
    """The events of one turn, page by page.

    Args:
        call: calls a method of the agent.
        first: the number of the first event that is wanted.
        opening: the first page, if it came with the acceptance.
        awaits_people: whether a page is held back while the turn waits for a person.
    """

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        request_id: str,
        first: int = 0,
        opening: TurnPage | None = None,
        *,
        awaits_people: bool = True,
    ) -> None:
        self.next_event = first
        self._call, self._request_id, self._opening, self._awaits_people = call, request_id, opening, awaits_people

    async def next(self) -> TurnPage:
        page, self._opening = self._opening, None
        if page is None:
            asked = self._request_id, self.next_event
            page = await self._call("_perdure_follow_turn", *asked, awaits_people=self._awaits_people)
        self.next_event = page["next"]
        return page


def is_newest(page: TurnPage) -> bool:
    """Whether a page has come to the end of what is durable."""
    return page["next"] >= page["next_event"] or not page["events"]


def is_last(page: TurnPage) -> bool:
    """Whether nothing follows a page, or only after a person has answered."""
    return page["next"] >= page["next_event"] and page["status"] in (*TURN_ENDED, TurnStatus.PARKED)
