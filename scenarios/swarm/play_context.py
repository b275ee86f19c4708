"""What a part of a story is given: a client, a die, and somewhere to complain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from perdure import Agent, Client
from perdure.scenarios.testing.laboratory import PASSING

TRIES_MAX = 200
OFTEN, SELDOM = 0.3, 0.1


@dataclass
class PlayContext:
    """What one play of a story knows: its die (the same in both plays), whether it waits, and what it saw go wrong."""

    client: Client
    die: Random
    patient: bool
    tag: str = ""
    meddled: dict[str, None] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    heard: dict[str, int] = field(default_factory=dict)

    def expect(self, fine: object, complaint: str) -> None:
        if not fine:
            self.complaints.append(complaint)

    async def persist(self, ask: Callable[[], Awaitable[object]]) -> Any:
        """Ask until there is an answer: calls may be interrupted, and a batch may be refused for a moment. None if there never is one."""
        for _ in range(TRIES_MAX):
            try:
                return await ask()
            except PASSING:
                await asyncio.sleep(0.05)
        self.expect(False, "a call was interrupted for ever")
        return None

    async def call(self, agent_class: type[Agent], name: str, method: str, *args: object) -> Any:
        return await self.persist(partial(self.client.call, agent_class, name, method, args, {}))


Part = Callable[[PlayContext], Awaitable[None]]
