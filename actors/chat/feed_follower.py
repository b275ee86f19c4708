"""Following the feed of a conversation from wherever the caller is.

The follower asks the agent for the events from a number on, again and again, and each answer is held open for some seconds while there is
nothing new. It asks for more only when its consumer has taken what came, so a slow consumer delays no other and costs no memory.

A follower does not keep its agent awake for ever. When nothing was said for a minute and no turn is under way, the follower asks the
supervisor each second whether the agent is awake, and lets it sleep. It looks again

    when the agent has slept and woken    at once, because somebody else has woken it
    when it has not slept in that time    as before, because somebody else keeps it awake
    when it has slept through a pause     briefly, in case something was written between the last look and the sleep. The pause doubles
                                          from ten seconds to ten minutes

and each event ends the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, Protocol

from perdure.actors.chat.feed import HOLD_S, FeedEvent, FeedPage
from perdure.ledger import check_whole

REST_AFTER_S: Final = 60.0
LOOK_S: Final = 1.0
PAUSE_S, PAUSE_MOST_S = 10.0, 600.0


class FeedCaller(Protocol):
    """How a follower reaches its agent."""

    async def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the agent."""

    @property
    def idle_s(self) -> float:
        """After how long without work the agent is put to sleep."""

    async def is_awake(self) -> bool:
        """Whether the agent is awake. The question does not wake it."""


async def follow_feed(caller: FeedCaller, first: int = 0) -> AsyncGenerator[FeedEvent, None]:
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

    def __init__(self, caller: FeedCaller) -> None:
        self.hold_s = HOLD_S
        self._caller, self._loop = caller, asyncio.get_running_loop()
        self._first_pause_s = self._pause_s = max(PAUSE_S, 2 * caller.idle_s)
        self._told_at_s = self._loop.time()

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
