"""A carried disk whose storages are nowhere but in what it has carried: every life of an agent begins with files that are made of it."""

from __future__ import annotations

from perdure.ledger.storage.carried_disk import CarriedDisk
from perdure.ledger.storage.patches import MAIN, StorageImage, first_of_copy, image_after, patch_of


class TravellingDisk(CarriedDisk):
    """Plays the supervisor's part, too.

    Attributes:
        images: the storages, by agent.
    """

    images: dict[str, StorageImage]

    def has(self, agent_id: str) -> bool:
        self._arrive()
        return super().has(agent_id) if agent_id in self._holders else agent_id in self.images

    def erase(self, agent_id: str, holder: object) -> None:
        super().erase(agent_id, holder)
        self._arrive()
        self.images.pop(agent_id, None)

    def plant(self, agent_id: str, content: bytes) -> None:
        """Let an agent begin with a copy of another one's storage."""
        self.images[agent_id] = StorageImage(first_of_copy(0.0), {MAIN: content})

    def _hold(self, agent_id: str, holder: object) -> None:
        self._arrive()
        if agent_id not in self._holders:
            self.hold(agent_id, self.images.get(agent_id))
        super()._hold(agent_id, holder)

    def _arrive(self) -> None:
        if not hasattr(self, "images"):
            self.images = {}
        for patch in self.take_patches():
            before = self.images.get(patch.agent_id)
            assert patch.number == (before.number if before else 0) + 1
            image = image_after(before, [patch_of(patch.packed())])
            assert image is not None
            self.images[patch.agent_id] = image
