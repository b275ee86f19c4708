"""The states of watched agents: one follower for each agent and gateway, shared by its watchers.

Only the newest state counts, so a slow watcher misses some and costs no memory. The follower lets its agent fall asleep, as that of a
conversation does.
"""

from __future__ import annotations

from typing import NamedTuple

from perdure.actors.chat.followers import Caller, Rest
from perdure.actors.gateway.shared import Watched
from perdure.actors.life.state_watch import StatePage
from perdure.actors.tasks import awaited


class KnownState(NamedTuple):
    """A state as the gateway was told it. `version` is empty if there is none; `number` counts what the gateway was told. `edition` has the
    life of the agent, and how many changes that life had seen."""

    state: dict[str, object]
    version: str
    number: int
    edition: tuple[int, int] = (0, 0)

    def is_before(self, edition: tuple[int, int]) -> bool:
        """Whether the same life of the agent has had another state since."""
        return self.edition[0] == edition[0] and self.edition[1] < edition[1]


class WatchedState(Watched):
    """The state of one agent as the gateway knows it."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.known = KnownState({}, "", 0)
        self._edition: tuple[int, int] | None = None  # that was told last, which may have had the same state
        self._caller = caller

    async def begin(self) -> None:
        """Read the state, which wakes the agent, and follow it from there. Raises what the call raises."""
        self._take(await self._caller.call("_perdure_watch_state", None, None, 0.0))
        if self._following is None or self._following.done():
            self._following = awaited(self._follow())

    async def after(self, number: int) -> KnownState:
        """Wait until the agent has told of a change after this one: of the same state as before, if others were in between. Raises what
        has ended the following."""
        while self.known.number <= number:
            await self._change()
        return self.known

    def _take(self, page: StatePage) -> None:
        self._edition = page["edition"]
        if page["is_news"]:
            life, changes = page["edition"]
            self.known = KnownState(page["state"], page["version"], self.known.number + 1, (life, changes))
            self._wake()

    async def _follow(self) -> None:
        rest = Rest(self._caller)
        try:
            while True:
                page: StatePage = await rest.ask("_perdure_watch_state", self.known.version, self._edition)
                self._take(page)
                await rest.after(is_resting=not page["is_news"])
        finally:
            self._wake()
