"""One life of an agent on its storage: it wakes on what is there, or creates it, and ends.

A storage is a log (`agent_log`) until its author uses SQL, and a database (`agent_database`) from then on. Both have the same name on the
disk, so there is never a doubt which of them counts: the database takes the place of the log in one step, when everything that is
committed is in it, under the same numbers. A death before that leaves the log and a staged file that is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Final

import duckdb

from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.errors import WAY_OUT, StorageError, StorageLost
from perdure.ledger.in_place import Misplaced, misplaced
from perdure.ledger.storage.agent_database import AgentDatabase, insertion, signing
from perdure.ledger.storage.agent_log import AgentLog
from perdure.ledger.storage.disk import Disk, overtaken
from perdure.ledger.storage.log_file import LogFile
from perdure.ledger.storage.log_format import LogHead, log_of_rows
from perdure.ledger.storage.records import SCHEMA_VERSION, Records, Row
from perdure.ledger.storage.sql import SqlCursor

DONE: Final = "tidied up behind its last commit, which is durable"
MENDS: Final = "the agent's next call opens it again by itself"


class AgentFile:
    """The storage of one incarnation, or none yet. Without an incarnation it is only looked at, and not taken.

    `holder` is the process's `AgentStorages`; `on_end` is told once when this ends.
    """

    def __init__(
        self,
        disk: Disk,
        holder: object,
        agent_id: str,
        incarnation: int | None,
        on_write: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self.disk = disk
        self.agent_id = agent_id
        self.incarnation = incarnation
        self.kept: AgentLog | AgentDatabase | None = None
        self.finding = ""  # what there is to tell of the file
        self._holder = holder
        self._on_write = on_write
        self._on_end = on_end
        self._ended: StorageError | None = None
        self._ending = RLock()
        self._empty_lanes: set[SqlCursor] = set()

    @property
    def ended(self) -> bool:
        return self._ended is not None

    @property
    def is_database(self) -> bool:
        return isinstance(self.kept, AgentDatabase)

    def check(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)

    def wake(self) -> None:
        try:
            file = self.disk.open_log(self.agent_id, self._holder)
            if file is None:
                self._attach()
                return
            log = self._log(file)
            self._keep(log, lambda: log.open(self.incarnation))
            self.finding = log.finding
        except (duckdb.Error, OSError) as problem:
            raise self._lost(problem) or StorageError(
                self.agent_id, f"its storage cannot be opened: {problem}"
            ) from problem

    def load(self) -> Records:
        if self.kept is None:
            return Records()
        with self.unbroken("read"):
            return self.kept.load()

    def write(self, number: int, rows: list[Row], lane: SqlCursor | None) -> None:
        if self.kept is not None:
            self.kept.write(number, rows, lane)
            return
        self._refuse_overtaken()  # the first rows make a log
        head = LogHead(self.agent_id, SCHEMA_VERSION, self.incarnation or 0, 1)
        content = log_of_rows(head, enumerate(rows, number))
        log = self._log(self.disk.create_log(self.agent_id, self._holder, content))
        self._keep(log, partial(log.begin, content))

    def database(self, records: Records) -> AgentDatabase:
        """The database, which is made if there is none: of the log with these records, or a new one.

        If another process has made a storage meanwhile, this raises `StorageConflict`: the caller has to look again.
        """
        if self.kept is None:
            self._refuse_overtaken()
            self._attach()
        elif isinstance(self.kept, AgentLog):
            self._transform(self.kept, records)
        assert isinstance(self.kept, AgentDatabase)
        return self.kept

    def tidy(self, records: Records, *, altered: bool) -> None:
        if isinstance(self.kept, AgentDatabase):
            self.kept.tidy(records, altered=altered)
        elif self.kept is not None and self.kept.tidy(records):
            self.database(records)  # the log has grown too long

    def open_again(self, problem: duckdb.Error | OSError) -> None:
        """Behind a commit that is durable the disk refused something: what is kept of the files is dropped, and they are opened anew. If
        they cannot be, this life ends. What others have open here is shut by then."""
        assert self.kept is not None, "it was written to"
        if not self.disk.keeps_files or self._lost(problem) is not None:
            self.broken(problem, DONE)
            return
        kept, self.kept = self.kept, None
        kept.end(checkpoint=False)
        try:
            self.wake()
        except StorageError:
            self.broken(problem, DONE)

    @contextmanager
    def durable(self) -> Iterator[None]:
        # The two kill points of every write are here.
        self._on_write("before")
        self.check()
        yield
        self.disk.wrote(self.agent_id, self.incarnation or 0)
        self._on_write("after")
        self.check()

    @contextmanager
    def unbroken(self, what: str = "written") -> Iterator[None]:
        # What the disk refuses ends this life.
        try:
            yield
        except (duckdb.Error, OSError) as problem:
            raise self.broken(problem, what) from problem

    @contextmanager
    def empty(self) -> Iterator[SqlCursor]:
        # It stands in an empty database of no agent.
        with self._ending:
            self.check()
            lane = self.disk.lane(self.agent_id, None)
            self._empty_lanes.add(lane)
        try:
            yield lane
        finally:
            lane.shut()
            self._empty_lanes.discard(lane)

    def broken(self, problem: Exception, what: str = "written") -> StorageError:
        # Nothing may be read after a failed write, because memory may differ from the file.
        told = f"it could not be {what} ({problem}); what was committed before is safe. Make room or repair the disk; {MENDS}"
        told = misplaced(problem) if isinstance(problem, Misplaced) else told
        reason = self._lost(problem) or StorageError(self.agent_id, told)
        self.end(reason)
        return reason

    def _lost(self, problem: Exception) -> StorageLost | None:
        if not is_damage(problem):
            return None
        said = str(problem).partition("\n")[0]
        return StorageLost(self.agent_id, f"its database is damaged ({said}). {WAY_OUT}")

    def end(self, reason: StorageError, *, checkpoint: bool = False) -> None:
        """Let go of what is kept, and refuse all further use with this reason. Idempotent.

        With `checkpoint` a database's log is brought into it first, if the disk lets it be; if not, it stays beside it.
        """
        with self._ending:
            if self._ended is not None:
                return
            self._ended = reason
        for lane in list(self._empty_lanes):
            lane.shut()
        if self.kept is not None:
            self.kept.end(checkpoint=checkpoint)
        self._on_end()

    def _refuse_overtaken(self) -> None:
        if self.disk.has(self.agent_id):
            self.wake()
            raise overtaken(self.agent_id)

    def _log(self, file: LogFile) -> AgentLog:
        file.lost = self.broken
        return AgentLog(file, self.durable, partial(self.disk.release, self.agent_id))

    def _attach(self) -> None:
        name = self.disk.attach(self.agent_id, self._holder)
        self.finding = self.disk.take_finding(self.agent_id)
        database = AgentDatabase(self.disk, self.agent_id, name, self.durable)
        self._keep(database, lambda: database.open(self.incarnation))

    def _keep(self, kept: AgentLog | AgentDatabase, open_it: Callable[[], None]) -> None:
        # What cannot be opened is let go of, and so is everything if this life has ended meanwhile.
        is_kept = False
        try:
            open_it()
            with self._ending:
                self.check()
                self.kept = kept
                is_kept = True
        finally:
            if not is_kept:
                kept.end(checkpoint=False)

    def _transform(self, log: AgentLog, records: Records) -> None:
        staged = self.disk.stage(self.agent_id, self._holder, blank=True)
        is_published = False
        try:
            self._fill(staged, log, records)
            with self.unbroken(), self.durable():
                with log.file.held():  # no life may end, and no later one begin, before the database has its place
                    self._publish(staged)
                    is_published = True
                    log.file.shut()
                records.swept(list(records.garbage))
        finally:
            if not is_published:
                self.disk.discard(self.agent_id, staged)
        with self.unbroken("read"):
            self._attach()

    def _publish(self, staged: str) -> None:
        # After an error it is unknown which of them has the name, so nothing more may be written to the log.
        try:
            self.disk.publish(self.agent_id, staged, over=True)
        except StorageError as problem:
            raise self.broken(problem) from problem

    def _fill(self, staged: str, log: AgentLog, records: Records) -> None:
        # If this fails, the log is as it was.
        lane = self.disk.lane(self.agent_id, staged)
        try:
            lane.begin()
            lane.run(*signing(self.agent_id, log.incarnation, SCHEMA_VERSION, records.clock))
            if rows := list(log.living(records)):
                lane.run(*insertion(rows))
            lane.commit()
        except (duckdb.Error, OSError) as problem:
            raise StorageError(self.agent_id, f"it could not become a database: {problem}") from problem
        finally:
            lane.shut()
