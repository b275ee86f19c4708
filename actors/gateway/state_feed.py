"""The states of watched agents: one follower for each agent and gateway, shared by its watchers.

Only the newest state counts, so a slow watcher misses some and costs no memory. The follower lets its agent fall asleep, as that of a
conversation does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from perdure.actors.chat.feed_follower import FeedCaller, Rest
from perdure.actors.tasks import awaited
from perdure.ledger import SupervisorUnreachable

AGAIN_S: Final = 1.0


class WatchedState:
    """The state of one agent as the gateway knows it. `version` is empty while there is none."""

    def __init__(self, caller: FeedCaller) -> None:
        self.state: dict[str, Any] = {}
        self.version = ""
        self._caller = caller
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Read the state, which wakes the agent, and follow it from there. Raises what the call raises."""
        self._take(await self._caller.call("_perdure_watch_state", None, 0.0))
        if self._following is None or self._following.done():
            self._following = awaited(self._follow())

    async def stop(self) -> None:
        """Follow no more."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError, Exception):  # its watchers were told
                await self._following

    async def other_than(self, seen: str) -> str:
        """Wait until there is a state of another version; that version. Raises what has ended the following."""
        while self.version == seen:
            if self._following is not None and self._following.done():
                self._following.result()
            await self._changed.wait()
        return self.version

    def _take(self, page: dict[str, Any]) -> None:
        if page["version"] != self.version:
            self.state, self.version = page["state"], page["version"]
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _follow(self) -> None:
        rest = Rest(self._caller)
        try:
            while True:
                try:
                    page = await self._caller.call("_perdure_watch_state", self.version, rest.hold_s)
                except SupervisorUnreachable:
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._take(page)
                await rest.after(is_resting=not page["is_news"])
        finally:
            self._wake()
