"""One agent's database while it is attached: its creation, its owner, its cursors, its end.

`meta` holds the agent's id (a file under a wrong name is found out), the latest incarnation (a lower one is refused) and the
version of the schema. A new database has its tables already (`ledger.storage.file_disk`), so the log never begins with table definitions,
which is where DuckDB's replay is weakest; `meta` is filled by the first commit of all. A death before that leaves a storage
without an owner, which the next opening takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from threading import RLock
from typing import Any

import duckdb

from perdure.ledger.errors import StaleIncarnation, StorageConflict, StorageError
from perdure.ledger.storage.disk import Disk
from perdure.ledger.storage.records import Records, Row
from perdure.ledger.storage.sql import Lane
from perdure.ledger.storage.statements import Bound, everything, owner, signing, taking

SCHEMA_VERSION = 1
_LANES_IDLE_MAX = 4


class AgentFile:
    """The attached database of one incarnation, or none yet. `holder` is the cabinet; `on_end` is told once when this ends."""

    def __init__(
        self,
        disk: Disk,
        holder: object,
        agent_id: str,
        incarnation: int,
        on_write: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self.disk = disk
        self.agent_id = agent_id
        self.incarnation = incarnation
        self.database: str | None = None
        self.clock = 1
        self.finding = ""  # what the disk has to tell of the file
        self._is_signed = True
        self._holder = holder
        self._on_write = on_write
        self._on_end = on_end
        self._ended: StorageError | None = None
        self._ending = RLock()
        self._idle: list[Lane] = []
        self._lanes: set[Lane] = set()

    @property
    def ended(self) -> bool:
        """Whether this life is over."""
        return self._ended is not None

    def check(self) -> None:
        """Refuse if this life is over."""
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)

    def wake(self) -> None:
        """Attach the database on the disk and take it for this incarnation."""
        self._attach()

    def create(self) -> None:
        """Create the storage for the first write. If another process was faster, raise `StorageConflict`: the caller has to look again."""
        appeared = self.disk.has(self.agent_id)
        self._attach()
        if appeared:
            raise StorageConflict(self.agent_id, "another process created the storage meanwhile")

    @contextmanager
    def durable(self, lane: Lane, last: Bound | None = None) -> Iterator[None]:
        """Commit a lane's transaction with one last statement, which without a transaction is one of its own (that saves 0.3 ms).

        The body is what follows in memory. The two kill points of every write are here.
        """
        self._on_write("before")
        self.check()
        if not self._is_signed:
            lane.begin()
            lane.run(*signing(self.agent_id, self.incarnation, SCHEMA_VERSION))
        if last is not None:
            lane.run(*last)
        lane.commit()
        self._is_signed = True
        yield
        self._on_write("after")
        self.check()

    def load(self) -> Records:
        """Read and fold the records."""
        records = Records(self.clock)
        lane = self.borrow()
        try:
            stored = sorted(lane.run(*everything()), key=itemgetter(0))
        except duckdb.Error as problem:
            raise self.broken(problem, "read") from problem
        records.load((number, Row(kind, key, body)) for number, kind, key, body in stored)
        self.give_back(lane)
        return records

    def borrow(self) -> Lane:
        """A cursor in this database for one transaction or one query; before the database exists, a cursor in an empty one."""
        self.check()
        if self._idle:
            with suppress(IndexError):  # another thread took the last one
                return self._idle.pop()
        with self._ending:
            self.check()
            lane = self.disk.lane(self.agent_id, self.database)
            self._lanes.add(lane)
        return lane

    def give_back(self, lane: Lane, *, keep: bool = True) -> None:
        """Take back the cursor of a transaction or a query that is over."""
        if keep and lane.database is not None and len(self._idle) < _LANES_IDLE_MAX:
            self._idle.append(lane)
            return
        lane.shut()
        self._lanes.discard(lane)

    def secure(self) -> None:
        """Checkpoint. It is put off, without an error, while an open transaction of the agent prevents it."""
        if self.database is None:
            return
        try:
            self.disk.secure(self.agent_id, self.database)
        except duckdb.TransactionException:
            return
        except (duckdb.Error, OSError) as problem:
            raise self.broken(problem) from problem

    def broken(self, problem: Exception, what: str = "written") -> StorageError:
        """End this life after a failed write. Nothing may be read after it, because memory may differ from the file."""
        reason = StorageError(
            self.agent_id,
            f"it could not be {what} ({problem}); what was committed before is safe. "
            "Make room or repair the disk, then open the storage again",
        )
        self.end(reason)
        return reason

    def end(self, reason: StorageError, *, checkpoint: bool = False) -> None:
        """Close every cursor, detach the database, and refuse all further use with this reason. Idempotent.

        With `checkpoint` the log is brought into the database first, if the disk lets it be; if not, it stays beside it.
        """
        with self._ending:
            if self._ended is not None:
                return
            self._ended = reason
        for lane in list(self._lanes):
            lane.shut()
        self._idle.clear()
        self._lanes.clear()
        if self.database is not None:
            self.disk.detach(self.agent_id, self.database, checkpoint=checkpoint)
        self._on_end()

    def _attach(self) -> None:
        database = self.disk.attach(self.agent_id, self._holder)
        self.finding = self.disk.take_finding(self.agent_id)
        lane = self.disk.lane(self.agent_id, database)
        try:
            if self.disk.take_blank(database):
                self._is_signed = False
            else:
                self.clock = self._take(lane)
            with self._ending:
                self.check()
                self.database = database
                self._lanes.add(lane)
                self._idle.append(lane)
        except duckdb.Error as problem:
            raise StorageError(self.agent_id, f"its storage cannot be opened: {problem}") from problem
        finally:
            if self.database is None:
                lane.shut()
                self.disk.detach(self.agent_id, database, checkpoint=False)

    def _take(self, lane: Lane) -> int:
        """Check that the database is this agent's, or nobody's yet, and refuse earlier lives from now on. Returns the clock."""
        try:
            meta = lane.run(*owner())
        except duckdb.CatalogException as problem:
            raise StorageError(self.agent_id, "the database in its place is no storage of an agent") from problem
        self._is_signed = bool(meta)
        return self._taken(lane, meta[0]) if meta else 1

    def _taken(self, lane: Lane, meta: tuple[Any, ...]) -> int:
        agent_id, incarnation, version = meta[:3]
        if version > SCHEMA_VERSION:
            raise StorageError(
                self.agent_id, f"a newer Perdure wrote it (schema {version}, this one knows {SCHEMA_VERSION})"
            )
        if agent_id != self.agent_id:
            raise StorageError(
                self.agent_id, f"the file in its place is the storage of {agent_id!r}; put each back under its name"
            )
        if incarnation > self.incarnation:
            raise StaleIncarnation(self.agent_id, f"incarnation {incarnation} has taken over from {self.incarnation}")
        if incarnation < self.incarnation:
            with self.durable(lane, taking(self.incarnation)):
                pass
        return int(meta[3])
