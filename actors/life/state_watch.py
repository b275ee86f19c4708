"""The hooks for an agent's `state` (`validate_state` before a change, `on_state_changed` after it), and watching it from outside.

A watcher asks for a state that differs from what it has seen, and is answered when there is one. Only a state that fits into an answer can
be watched, so a larger one is not taken from outside either.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypedDict

from perdure.actors.code.author_call import tried
from perdure.actors.life.life import Life
from perdure.ledger import TooLarge, digest_of, pack_value, unpack_value
from perdure.ledger.storage.agent_storages import State

HOLD_S: Final = 10.0  # at most, an answer is held open while there is no news
PAGE_BYTES: Final = 256  # at most, of a page besides the state


class StatePage(TypedDict):
    """The state, its version (empty if there is none), the life of the agent and how many changes it has seen, and whether the asker has
    missed anything: another state now, or others in between."""

    state: dict[str, object]
    version: str
    edition: tuple[int, int]
    is_news: bool


class StateWatch:
    """Calls the hooks for the state of one life of an agent, and answers watchers from outside."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._is_notifying = False
        self._changes = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def begin(self, state: State) -> None:
        life = self._life
        validate = life.agent.validate_state if life.overrides("validate_state") else None
        state.watch(validate, self._changed)

    async def page(self, version: str | None, edition: list[int] | None, hold_s: float) -> StatePage:
        """The state, as soon as the asker has missed anything since a version and edition, or after `hold_s`."""
        found = self._now(version, edition)
        if found["is_news"] or hold_s <= 0:
            return found
        try:
            async with asyncio.timeout(min(hold_s, HOLD_S)):
                while not found["is_news"]:
                    await self._change()
                    found = self._now(version, edition)
        except TimeoutError:
            pass
        return self._now(version, edition)

    def replace(self, state: Any) -> tuple[int, int]:
        """Put another state in the place of the present one, if the author lets it pass. Returns the edition that it has. Raises `TooLarge`
        for one that could not be watched."""
        if isinstance(state, dict):
            self._packed(state)
        self._life.storage.state.replace(state)
        return self._life.incarnation, self._changes

    def present(self) -> dict[str, object]:
        state = self._state()
        self._packed(state)
        return state

    def _state(self) -> dict[str, object]:
        return dict(self._life.storage.state) if self._life.has_storage else {}

    def _packed(self, state: dict[str, object]) -> bytes:
        body, most = pack_value("state", state), self._life.limits.output_bytes_max - PAGE_BYTES
        if len(body) > most:
            raise TooLarge(
                "state", f"has {len(body)} bytes encoded; one that is read or set from outside may have {most}"
            )
        return body

    def _now(self, seen: str | None, edition: list[int] | None) -> StatePage:
        state = self._state()
        version, life = version_of(self._packed(state)), self._life.incarnation
        has_moved = edition is not None and edition[0] == life and edition[1] != self._changes
        is_news = version != seen or has_moved
        return {"state": state, "version": version, "edition": (life, self._changes), "is_news": is_news}

    async def _change(self) -> None:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(changed)
        try:
            await changed
        finally:
            self._waiting.discard(changed)

    def _changed(self) -> None:
        self._changes += 1
        self._life.on_loop(self._notify_soon)

    def _notify_soon(self) -> None:
        # changes of one turn of the loop are reported as one
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        if not self._life.overrides("on_state_changed"):
            return
        if not self._is_notifying and not self._life.is_leaving:
            self._is_notifying = True
            self._life.spawn(self._notify())

    async def _notify(self) -> None:
        self._is_notifying = False
        life = self._life
        _, problem = await tried(life.call_in_turn(life.agent.on_state_changed, dict(life.storage.state)))
        if problem is not None:
            life.trouble("on_state_changed", problem)


def version_of(packed: bytes) -> str:
    # The same for equal states, in every life. Empty for an empty state.
    items = sorted(unpack_value(packed).items())
    return digest_of(pack_value("state", items)) if items else ""
