"""The questions that other processes ask a host itself (`link.doors`): taken together, and answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from perdure.actors.link.doors import Look, LookFrame, Seen
from perdure.actors.link.held import Held
from perdure.actors.tasks import Tasks
from perdure.ledger import pack, unpack

LEFT_AFTER_S: Final = 60.0
SEEN_MAX: Final = 100
"""How many calls are remembered, so that one that comes twice is passed over."""


class Lookout:
    """Takes questions for one host.

    Args:
        answer: answers one, or gives None if the asker is to ask the supervisor.
    """

    def __init__(self, tasks: Tasks, answer: Callable[[Look], Awaitable[bytes | None]]) -> None:
        self._tasks, self._answer = tasks, answer
        self._askers: dict[str, _Asker] = {}

    async def look(self, frame: bytes) -> bytes:
        """Take in the questions of a call, and hold it until there is an answer to any of the asker's, or it calls again."""
        name, call, questions = LookFrame(*unpack(frame))
        now_s = asyncio.get_running_loop().time()
        asker = self._askers.setdefault(name, _Asker())
        if call in asker.calls:
            return pack([])
        asker.calls.append(call)
        asker.seen_s = now_s
        for number, look in questions:
            self._tasks.start(self._see(asker, number, Look(*look)))
        if call == max(asker.calls):
            asker.held.release()
            if not asker.told:
                await asker.held.hold()
        for each in [each for each, one in self._askers.items() if now_s - one.seen_s > LEFT_AFTER_S]:
            del self._askers[each]
        return pack(asker.take())

    async def _see(self, asker: _Asker, number: int, look: Look) -> None:
        asker.tell(Seen(number, await self._answer(look)))


class _Asker:
    """A process that asks."""

    def __init__(self) -> None:
        self.calls: deque[int] = deque(maxlen=SEEN_MAX)
        self.seen_s = 0.0
        self.told: list[Seen] = []
        self.held = Held()

    def tell(self, seen: Seen) -> None:
        """There is an answer."""
        self.told.append(seen)
        self.held.release()

    def take(self) -> list[Seen]:
        """All answers that there are."""
        told, self.told = self.told, []
        return told
