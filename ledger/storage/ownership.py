"""Whose a storage is: what stands in a database's `meta` and in a log's head."""

from __future__ import annotations

from typing import Final

from perdure.ledger.errors import StaleIncarnation, StorageError

SCHEMA_VERSION: Final = 1


def refuse_stranger(agent_id: str, incarnation: int, *, owner: str, latest: int, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise StorageError(agent_id, f"a newer Perdure wrote it (schema {version}, this one knows {SCHEMA_VERSION})")
    if owner != agent_id:
        raise StorageError(agent_id, f"the file in its place is the storage of {owner!r}; put each back under its name")
    if latest > incarnation:
        raise StaleIncarnation(agent_id, f"incarnation {latest} has taken over from {incarnation}")
