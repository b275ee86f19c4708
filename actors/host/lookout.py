"""The questions that other processes ask a host itself (`link.doors`): taken together, and answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from perdure.actors.link.doors import Look, LookFrame, Seen
from perdure.actors.link.held import Held
from perdure.ledger import pack, unpack

LEFT_AFTER_S: Final = 60.0
SEEN_MAX: Final = 100
"""How many calls are remembered, so that one that comes twice is passed over."""


Tell = Callable[[bytes | None], None]
"""Takes the answer to a question; None if the asker is to ask the supervisor."""


class Lookout:
    """Takes questions for one host.

    Args:
        begin: begins to answer one, and has the answer told once.
    """

    def __init__(self, begin: Callable[[Look, Tell], None]) -> None:
        self._begin = begin
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
            self._begin(Look(*look), partial(asker.tell, number))
        if call == max(asker.calls):
            asker.held.release()
            if not asker.told:
                await asker.held.hold()
        for each in [each for each, one in self._askers.items() if now_s - one.seen_s > LEFT_AFTER_S]:
            del self._askers[each]
        return pack(asker.take())


class _Asker:
    """A process that asks."""

    def __init__(self) -> None:
        self.calls: deque[int] = deque(maxlen=SEEN_MAX)
        self.seen_s = 0.0
        self.told: list[Seen] = []
        self.held = Held()

    def tell(self, number: int, value: bytes | None) -> None:
        """There is an answer to the question of this number."""
        self.told.append(Seen(number, value))
        self.held.release()

    def take(self) -> list[Seen]:
        """All answers that there are."""
        told, self.told = self.told, []
        return told
