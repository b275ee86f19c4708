"""Doors: where agents live, so that who follows one asks its host, and not the supervisor each time.

A *watching* method changes nothing, and is asked again and again: for the next events of an answer, or the next state. Its answers, and
those of some other methods, tell the door of the agent: its host and its life there. The next question goes to that door, which takes two
ways between processes instead of four, and nothing of the supervisor. Whoever finds nobody there, or learns nothing for whatever reason,
asks the supervisor as ever, who wakes the agent and says what is wrong.

A door that nobody has come out of for a while is not used: the host behind it may have been given up, and not know. So an answer that was
held open for long says nothing about where the agent is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from perdure.actors.link.messages import Plain
from perdure.actors.ports import Courier
from perdure.ledger import HostUnavailable, pack, unpack

WATCHING, TELLS_DOOR = "watching", "tells_door"
"""How such methods are marked (`agent.exposing`)."""
FRESH_S: Final = 5.0
KNOWN_MAX: Final = 1_000


class Door(NamedTuple):
    """A life of an agent on a host; of nobody if the host is empty."""

    host: str = ""
    incarnation: int = 0


class Look(NamedTuple):
    """A question for a life of an agent: a watching method, and its arguments as those of a call."""

    agent_id: str
    incarnation: int
    method: str
    body: bytes


class Seen(NamedTuple):
    """The answer: as that of a call, or that nobody is here."""

    is_here: bool
    ok: bool
    value: Plain


NOBODY: Final = Seen(is_here=False, ok=False, value=None)


class Doors:
    """The doors that one caller knows."""

    def __init__(self, courier: Callable[[], Courier]) -> None:
        self._courier = courier
        self._known: dict[str, tuple[Door, float]] = {}

    async def ask(self, agent: str, method: str, body: bytes, otherwise: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer of a watching method: of the agent's host, or of what is done otherwise."""
        asked_s = asyncio.get_running_loop().time()
        told = await self._seen(agent, method, body)
        return self._learned(agent, await otherwise() if told is None else told, asked_s)

    async def told(self, agent: str, otherwise: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer of another method that tells the door."""
        asked_s = asyncio.get_running_loop().time()
        return self._learned(agent, await otherwise(), asked_s)

    async def _seen(self, agent: str, method: str, body: bytes) -> bytes | None:
        door, until_s = self._known.get(agent, (Door(), 0.0))
        if not door.host or asyncio.get_running_loop().time() >= until_s:
            return None
        try:
            frame = await self._courier().look(door.host, pack(Look(agent, door.incarnation, method, body)))
        except HostUnavailable:
            seen = NOBODY
        else:
            seen = Seen(*unpack(frame))
        if seen.ok:
            return bytes(seen.value)
        self._known.pop(agent, None)
        return None

    def _learned(self, agent: str, told: bytes, asked_s: float) -> bytes:
        """Remember the door. Returns the answer without it."""
        answer, *door = unpack(told)
        self._known.pop(agent, None)
        self._known[agent] = Door(*door), asked_s + FRESH_S
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return bytes(answer)


def mark_of(agent_class: object, method: str) -> str:
    """How a method is marked; empty for all others."""
    return str(getattr(getattr(agent_class, method, None), "__perdure_door__", ""))


def with_door(answer: bytes, door: Door) -> bytes:
    """An answer that tells the door."""
    return pack((answer, *door))


def without_door(answer: bytes) -> bytes:
    """The same answer for somebody who may come through the ancestors alone."""
    return with_door(unpack(answer)[0], Door())
