"""The sessions of MCP that are over, in all processes of a gateway. Without the SDK, because a process that has not loaded it yet must hear
of them too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from perdure.actors.gateway_bus import GatewayBus

ENDED: Final = "mcp session"
ENDED_MAX: Final = 10_000


class EndedSessions:
    """The newest sessions that their clients have ended, in all processes of the gateway: by session and principal, since nobody ends that
    of another one. `heard` is called where one was ended in another process."""

    def __init__(self, neighbours: GatewayBus) -> None:
        self.heard: Callable[[str, str], Awaitable[object]] | None = None
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._neighbours = neighbours
        neighbours.on(ENDED, self._hear)

    def __contains__(self, session: tuple[str, str]) -> bool:
        return session in self._known

    def add(self, session: str, name: str) -> None:
        self._note(session, name)
        self._neighbours.tell(ENDED, session, name)

    def _note(self, session: str, name: str) -> None:
        self._known[session, name] = None
        while len(self._known) > ENDED_MAX:
            self._known.popitem(last=False)

    async def _hear(self, session: str, name: str) -> None:
        self._note(session, name)
        if self.heard is not None:
            await self.heard(session, name)
