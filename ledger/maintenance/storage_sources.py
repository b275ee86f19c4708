"""Where the storages of agents are copied from, to be looked at (`looking`): their files in a directory, or what a bucket has of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perdure.ledger.errors import LedgerDamaged, StorageLost
from perdure.ledger.maintenance.copies import copy_storage
from perdure.ledger.maintenance.listing import list_storages
from perdure.ledger.storage.after_power_cut import redo
from perdure.ledger.storage.file_disk import place_of, stored_below
from perdure.ledger.storage.patches import MAIN
from perdure.ledger.storage.this_machine import boot_id
from perdure.policies import INFINITY

if TYPE_CHECKING:
    from perdure.ledger.store.bucket_store import BucketStore  # which brings what reaches buckets with it


class StorageSource(Protocol):
    """The storages of one ledger. Each has a place, which is a word for it; `name` says where all of them are."""

    @property
    def name(self) -> str: ...

    def places(self, bytes_max: float = INFINITY) -> list[str]:
        """Those of all storages that are not larger. Those that were written last come first."""

    def place_of(self, agent_id: str) -> str:
        """Where the storage of an agent is, if it has one."""

    def below(self, agent_id: str) -> int:
        """How many storages there are of what descends from an agent."""

    def copy(self, place: str, target: Path) -> bool:
        """Copy a storage to `target`, and what belongs to it beside it. Returns whether there is one. Raises `StorageError`, `OSError`."""


class DirectorySource:
    """The files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def name(self) -> str:
        return str(self._directory)

    def places(self, bytes_max: float = INFINITY) -> list[str]:
        if not self._directory.is_dir():
            return []
        found = list_storages(self._directory).storages
        stamps = {place: [stamp for stamp in each if stamp is not None] for place, each in found.items()}
        small = [place for place, each in stamps.items() if sum(size for _, size, _ in each) <= bytes_max]
        return sorted(small, key=lambda place: -max(written_ns for _, _, written_ns in stamps[place]))

    def place_of(self, agent_id: str) -> str:
        redo(self._directory, boot_id())
        return place_of(agent_id)

    def below(self, agent_id: str) -> int:
        return stored_below(self._directory, agent_id)

    def copy(self, place: str, target: Path) -> bool:
        return copy_storage(self._directory / place, target) is not None


class BucketSource:
    """The storages of a ledger in a bucket, which has been opened; their places are the addresses of their agents."""

    def __init__(self, store: BucketStore) -> None:
        self._store = store

    @property
    def name(self) -> str:
        return self._store.url

    def places(self, bytes_max: float = INFINITY) -> list[str]:
        return [agent for agent, size in self._store.newest_storages().items() if size <= bytes_max]

    def place_of(self, agent_id: str) -> str:
        return agent_id

    def below(self, agent_id: str) -> int:
        return sum(each != agent_id for each in self._store.storages_of(agent_id))

    def copy(self, place: str, target: Path) -> bool:
        """As that of every source."""
        try:
            image = self._store.storage(place)
        except LedgerDamaged as damage:
            raise StorageLost(place, f"{damage.path}: {damage.problem}. {damage.advice}") from damage
        if image is None or MAIN not in image.files:
            return False
        for old in target.parent.glob(f"{target.name}*"):
            old.unlink()
        for ending, content in image.files.items():
            target.with_name(target.name + ending).write_bytes(content)
        return True
