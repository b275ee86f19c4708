"""Data directories that are made by hand: a ledger that knows some agents, and their storages."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from perdure.ledger import FORMAT, FORMAT_FILE, View, keep_word, record_fact, restore
from perdure.ledger.facts import AgentActivated, AgentReleased, Fact
from perdure.ledger.snapshot import dirty_records, meta_of
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.store.duckdb_store import DuckDBStore


def lived(agent: str, incarnation: int, sequence: int) -> list[Fact]:
    """An agent has lived, and reported how far its storage had come."""
    return [AgentActivated(agent, incarnation, "h"), AgentReleased(agent, incarnation, sequence)]


def formatted(data: Path, number: int = FORMAT) -> Path:
    """A directory that says that it is of this format."""
    keep_word(data, FORMAT_FILE, str(number))
    return data


def recorded(data: Path, *facts: Fact, snapshot: bool = False) -> None:
    """Add facts to the ledger of a directory, and take a snapshot."""
    formatted(data)
    with closing(DuckDBStore(data / "ledger", fsync=False)) as store:
        view: View = restore(store.boot())
        if facts:
            store.append([record_fact(view, fact, 1_000) for fact in facts], [])
        if snapshot:
            store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])


def written(data: Path, agent: str, incarnation: int, *values: object, tables: bool = False) -> int:
    """Write values into an agent's storage, one commit for each. Returns how far it has come. With `tables` it is a database."""
    disk = FileDisk(data / "agents")
    agent_storages = AgentStorages(disk)
    storage = agent_storages.open(agent, incarnation)
    if tables:
        storage.sql("CREATE TABLE t (i INTEGER)")
    for value in values:
        storage.state["value"] = value
    sequence = storage.sequence
    agent_storages.close()
    disk.close()
    return sequence


def file_of(data: Path, agent: str) -> Path:
    """The file of an agent's storage."""
    return FileDisk(data / "agents").path_of(agent)
