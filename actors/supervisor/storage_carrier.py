"""Storages that the supervisor carries: what hosts commit rides with the facts that speak of it, and a life begins with what is durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.ledger import Store, View
from perdure.ledger.storage.patches import Patch, StorageImage, patch_of


class StorageCarrier:
    """The storages in one supervisor life.

    A patch counts if it comes from the last life that the agent was given, as what that life says does. A host says again what was not
    acknowledged; the number of a patch tells whether it is known already.
    """

    def __init__(self, view: View, store: Store) -> None:
        self._view, self._store = view, store
        self._numbers: dict[str, int] = {}  # of agents that are awake
        self._due: list[Patch] = []

    def take(self, host_id: str, packed: Iterable[bytes]) -> None:
        """Take in what a host has committed. It becomes durable with the facts of this turn."""
        for each in packed:
            patch = patch_of(each)
            life = self._view.agents.get(patch.agent_id)
            if life is None or life.host_id not in ("", host_id) or patch.incarnation not in (0, life.incarnation):
                continue  # a later life has the agent, and began without this
            known = self._known(patch.agent_id)
            if patch.number > known + 1:
                raise AssertionError(f"patch {patch.number} of {patch.agent_id} came after patch {known}")
            if patch.number == known + 1:
                self._numbers[patch.agent_id] = patch.number
                self._due.append(patch)

    def due(self) -> Sequence[Patch]:
        """What is to become durable now."""
        due, self._due = self._due, []
        return due

    def exists(self, agent_id: str) -> bool:
        return agent_id in self._numbers or self._store.has_storage(agent_id)

    def begins(self, agent_id: str) -> StorageImage | None:
        """What a life begins with. It reads the store, on the thread that does so."""
        image = self._store.storage(agent_id)
        self._numbers[agent_id] = 0 if image is None else image.number
        return image

    def delete(self, agent_id: str) -> None:
        """Delete the storages of an agent and its descendants, with what becomes durable next. None of them lives."""
        for each in self._store.storages_of(agent_id):
            self._numbers.pop(each, None)
            self._due.append(Patch(each, 0, 0))

    def ended(self, agents: Iterable[str]) -> None:
        for each in agents:
            life = self._view.agents.get(each)
            if life is None or not life.host_id:
                self._numbers.pop(each, None)

    def _known(self, agent_id: str) -> int:
        known = self._numbers.get(agent_id)
        return self._store.patches_of(agent_id) if known is None else known
