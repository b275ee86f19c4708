"""All storages of one process, and which life of which agent may use them.

A storage is created by the first write; an agent that only reads has none. It is a log of the agent's own. When the author first uses SQL
that needs tables, and for copies, it becomes a DuckDB database: the author's tables in schema `main`, ours in schema `perdure`.

Who may write: one process at a time holds a storage (`ledger.storage.disk`), and an incarnation lower than the one that is stored is
refused. After `close` or `crash` a handle is shut: whatever still runs in the old life is interrupted, rolled back, and gets
`StaleIncarnation` at every line.

What a crash leaves: a transaction is one frame of a log, or DuckDB's, so each is there wholly or not at all. During creation: a file under
another name, which the next creation ignores, or a database without an owner, which the next opening takes. During a sweep or a checkpoint:
nothing is lost, they are transactions too. While a log is written anew or becomes a database, during `restore` and `fork`: a staged file
that nobody reads, and that the next try replaces. During `forget`: at worst DuckDB's log without a database, which the next creation moves
aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import RLock

import duckdb

from perdure.ledger.errors import WAY_OUT, BadRequest, StaleIncarnation, StorageError, StorageLost
from perdure.ledger.storage.agent_file import AgentFile
from perdure.ledger.storage.agent_state import State
from perdure.ledger.storage.agent_storage import Storage
from perdure.ledger.storage.disk import Disk, MemoryDisk, StorageLocked
from perdure.ledger.storage.file_disk import FileDisk, stored_below
from perdure.ledger.storage.records import MESSAGE, SCHEMA_VERSION, STATE, refuse_newer
from perdure.ledger.storage.shared_log import CommitPart
from perdure.ledger.storage.sql import OVER
from perdure.ledger.storage.transaction import Transaction, bound_to, unbound

__all__ = [
    "AgentStorages",
    "CommitPart",
    "Disk",
    "FileDisk",
    "MemoryDisk",
    "State",
    "Storage",
    "StorageLocked",
    "Transaction",
    "bound_to",
    "stored_below",
    "unbound",
]


class AgentStorages:
    """All storages of one process.

    `on_write` is called with `"before"` and `"after"` around every durable commit, so that a simulation can kill there: by
    raising, or by calling `crash`.
    """

    def __init__(self, disk: Disk, on_write: Callable[[str], None] | None = None) -> None:
        self.disk = disk
        self._on_write = on_write or (lambda _label: None)
        self._open: dict[str, Storage] = {}
        self._opening = RLock()
        self._over = False

    def open(self, agent_id: str, incarnation: int, reported: int = 0) -> Storage:
        """The storage of an agent for this life of it.

        Creates no file; an existing one is opened, and from now on refuses lower incarnations. Opening the same incarnation
        again returns the same handle; a higher one shuts the old handle. `reported` is the `sequence` that earlier lives have told of.

        Raises `StorageLost` if the storage has not come so far, `StaleIncarnation` if a later life has it, `StorageLocked` if
        another process has it (try again), and `StorageError` with advice if the file is damaged or newer than this version.
        """
        with self._opening:
            self._check(agent_id)
            held = self._open.get(agent_id)
            if held is not None and held.incarnation == incarnation:
                return held
            if held is not None and held.incarnation > incarnation:
                raise StaleIncarnation(agent_id, f"incarnation {held.incarnation} has taken over from {incarnation}")
            if held is not None:
                held.close()
            storage = self._opened(agent_id, incarnation)
            _refuse_loss(storage, reported)
            return storage

    def exists(self, agent_id: str) -> bool:
        return self.disk.has(agent_id)

    def forget(self, agent_id: str) -> None:
        """Delete the storage, whole or damaged; an open handle of it is shut. Idempotent."""
        with self._opening:
            self._check(agent_id)
            held = self._open.get(agent_id)
            if held is not None:
                held.file.end(StaleIncarnation(agent_id, "its storage was deleted"))
            self.disk.erase(agent_id, self)

    def forget_family(self, agent_id: str, *, settle: bool = True) -> None:
        """Delete the storages of an agent and its descendants. None of them may be open. Idempotent.

        They are gone after a power cut too; without `settle`, as soon as `disk.settle` was called, once for many.
        """
        self.disk.erase_descendants(agent_id)
        self.forget(agent_id)
        if settle:
            self.disk.settle()

    def restore(self, agent_id: str, path: Path) -> None:
        """Make a snapshot the storage of an agent that has none.

        Under the id that it was taken from, it restores everything; under another id, what `fork` copies.
        """
        with self._opening:
            self._refuse_taken("agent_id", agent_id)
            if not path.exists():
                raise BadRequest("path", f"{path} does not exist")
            with self.disk.snapshot(agent_id, path) as copy:
                self._plant(agent_id, copy)

    def fork(self, source_id: str, target_id: str) -> None:
        """Copy what is committed in one agent's storage to another agent: tables, state and messages.

        Inbox, outbox, results, steps and turns belong to the runs and the mail of the source, so they are not copied.
        """
        with self._opening:
            self._refuse_taken("target_id", target_id)
            with self._readable(source_id) as database:
                self._plant(target_id, database)

    def copy_out(self, source_id: str, target_id: str, path: Path) -> None:
        """Write what `fork` would give to the other agent into a new file, which is nobody's storage yet."""
        with self._opening, self._readable(source_id) as database:
            self.disk.export(source_id, database, path, partial(self._adopt, target_id))

    def crash(self) -> None:
        """End as if the process had been killed here: open transactions roll back, logs stay as they are, every handle refuses."""
        self._over = True
        for storage in list(self._open.values()):
            storage.file.end(StaleIncarnation(storage.agent_id, "its process died"))

    def close(self) -> None:
        for storage in list(self._open.values()):
            storage.close()
        self._over = True

    def _check(self, agent_id: str) -> None:
        if self._over:
            raise StaleIncarnation(agent_id, OVER)

    def _opened(self, agent_id: str, incarnation: int) -> Storage:
        def ended() -> None:
            if self._open.get(agent_id) is storage:
                del self._open[agent_id]

        file = AgentFile(self.disk, self, agent_id, incarnation, self._on_write, ended)
        storage = Storage(file)
        self._open[agent_id] = storage  # before anything is written, so that a crash in the middle shuts it too
        opened = False
        try:
            if self.disk.has(agent_id):
                file.wake()
            opened = True
        finally:
            if not opened:
                ended()
        return storage

    def _refuse_taken(self, field: str, agent_id: str) -> None:
        self._check(agent_id)
        if agent_id in self._open or self.disk.has(agent_id):
            raise BadRequest(field, f"{agent_id} has a storage already, or is awake")

    @contextmanager
    def _readable(self, agent_id: str) -> Iterator[str]:
        held = self._open.get(agent_id)
        if held is not None and held.exists:
            with held.committing:
                yield held.file.database(held.records()).name
            return
        if not self.disk.has(agent_id):
            raise BadRequest("source_id", f"{agent_id} has no storage: it never wrote anything")
        file = AgentFile(self.disk, self, agent_id, None, self._on_write, lambda: None)
        file.wake()
        try:
            assert file.kept is not None
            yield file.database(file.kept.load()).name
        finally:
            file.end(StaleIncarnation(agent_id, OVER), checkpoint=True)

    def _plant(self, agent_id: str, source: str) -> None:
        staged = self.disk.stage(agent_id, self)
        planted = False
        try:
            self.disk.copy(agent_id, source, staged)
            self._adopt(agent_id, staged)
            self._on_write("before")
            self._check(agent_id)
            self.disk.publish(agent_id, staged)
            self.disk.wrote(agent_id, 0)
            planted = True
        finally:
            if not planted:
                self.disk.discard(agent_id, staged)
            self.disk.release(agent_id)
        self._on_write("after")

    def _adopt(self, agent_id: str, database: str) -> None:
        lane = self.disk.lane(agent_id, database)
        try:
            found = lane.run("SELECT agent_id, schema_version FROM perdure.meta")
            owner, version = found[0] if found else (agent_id, SCHEMA_VERSION)
            refuse_newer(agent_id, version)
            if owner != agent_id:
                lane.run("DELETE FROM perdure.records WHERE kind NOT IN ($1, $2)", [STATE, MESSAGE])
                lane.run("UPDATE perdure.meta SET agent_id = $1, incarnation = 0", [agent_id])
        except duckdb.Error as problem:
            raise StorageError(agent_id, f"the file is no snapshot of an agent: {problem}") from problem
        finally:
            lane.shut()


def _refuse_loss(storage: Storage, reported: int) -> None:
    # The file stays as it is.
    if reported and (not storage.exists or storage.records().durable < reported):
        found = f"it has come to {storage.sequence}" if storage.exists else "there is none"
        what = f"the agent had reported that it came to {reported}, and {found}. {WAY_OUT}"
        lost = StorageLost(storage.agent_id, what)
        storage.file.end(lost)
        raise lost
