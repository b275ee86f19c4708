"""How a supervisor comes to rest before it is stopped on purpose: nothing new begins, and idle agents leave at once.

What is at work goes on meanwhile, and what is cut off in the end goes on in its next attempt. Nothing of this is durable: the wish holds
for a few seconds and is said again and again, so that a supervisor goes on as before if the one that wanted to stop it has changed its
mind, or died.
"""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.actors.link.messages import Passivate
from perdure.actors.supervisor.sessions import Sessions
from perdure.ledger import View

WISH_S: Final = 5.0  # for so long the wish holds


class Drain:
    """Of one supervisor life."""

    def __init__(self, view: View, sessions: Sessions) -> None:
        self._view, self._sessions = view, sessions
        self._until_s = float("-inf")

    @property
    def is_on(self) -> bool:
        return asyncio.get_running_loop().time() < self._until_s

    def ask(self) -> dict[str, int]:
        """Begin nothing new for a while, and have idle agents leave. Says how many agents are at work, and how many wait for their runs."""
        self._until_s = asyncio.get_running_loop().time() + WISH_S
        for session in self._sessions.by_peer.values():
            if session.is_host:
                session.say(Passivate(begin_nothing_s=WISH_S))
        here = [agent for host in self._view.hosts.values() for agent in host.tenants]
        waiting = sum(bool(self._view.awaiting.get(agent)) for agent in here)
        return {"at_work": len(here) - waiting, "waiting": waiting}
