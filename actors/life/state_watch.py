"""An author's say in an agent's `state`: a change can be refused before it is written, and is told of when it is durable.

Others watch the state from outside: each asks for the state that differs from what it has seen, and is answered when there is one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypedDict

from perdure.actors.code.author_call import tried
from perdure.actors.life.life import Life
from perdure.ledger import BadRequest, digest_of, pack, unpack
from perdure.ledger.storage.cabinet import State

HOLD_S: Final = 10.0


class StatePage(TypedDict):
    """The state, its version (empty if there is none), and whether the asker had seen another one."""

    state: dict[str, Any]
    version: str
    is_news: bool


class StateWatch:
    """Asks and tells one life of an agent about its state."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._telling = False
        self._waiting: set[asyncio.Future[None]] = set()

    def begin(self, state: State) -> None:
        """From now on, as far as the author has the hooks."""
        life = self._life
        validate = life.agent.validate_state if life.overrides("validate_state") else None
        state.watch(validate, self._changed)

    async def page(self, seen: str | None, hold_s: float) -> StatePage:
        """The state, as soon as its version is not the one that was seen, or after `hold_s`."""
        found = self._now(seen)
        if found["is_news"] or hold_s <= 0:
            return found
        try:
            async with asyncio.timeout(min(hold_s, HOLD_S)):
                while not found["is_news"]:
                    await self._change()
                    found = self._now(seen)
        except TimeoutError:
            pass
        return self._now(seen)

    def replace(self, state: object) -> str:
        """Put another state in the place of the present one, if the author lets it pass. Returns its version."""
        if not isinstance(state, dict):
            raise BadRequest("state", f"{state!r:.200} is {type(state).__name__}; the state of an agent is an object")
        self._life.storage.state.replace(state)
        return version_of(state)

    def _now(self, seen: str | None) -> StatePage:
        state = dict(self._life.storage.state) if self._life.has_storage else {}
        version = version_of(state)
        return {"state": state, "version": version, "is_news": version != seen}

    async def _change(self) -> None:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(changed)
        try:
            await changed
        finally:
            self._waiting.discard(changed)

    def _changed(self) -> None:
        self._life.on_loop(self._soon)

    def _soon(self) -> None:
        """Changes of one turn of the loop are told as one."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        if not self._life.overrides("on_state_changed"):
            return
        if not self._telling and not self._life.is_leaving:
            self._telling = True
            self._life.spawn(self._tell())

    async def _tell(self) -> None:
        """Tell the author's hook; what it raises changes nothing."""
        self._telling = False
        life = self._life
        _, problem = await tried(life.call(life.agent.on_state_changed, dict(life.storage.state)))
        if problem is not None:
            life.trouble("on_state_changed", problem)


def version_of(state: dict[str, Any]) -> str:
    """The version of a state: the same for equal states, in every life."""
    return digest_of(pack(sorted(unpack(pack(state)).items()))) if state else ""
