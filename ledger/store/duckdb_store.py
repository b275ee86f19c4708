"""The ledger on disk: a journal, which is the commit, and a DuckDB file, which follows it.

What is true when a method returns, and which crash each step survives:

- `append`: the commit is in the journal and synchronised. DuckDB does not have it yet.
- `follow`: DuckDB has every commit, in memory. Its file has not changed, so a death loses nothing but this work.
- `checkpoint`: DuckDB has everything up to a mark in its own file, with the records as they were then. A new segment of the journal is
  begun before, the metadata blocks that DuckDB overwrites are saved before (`block_guard`), and the journal's old segments are dropped
  after. A death between any two of these leaves more in the journal than necessary, and that is harmless.
- `boot`: the file up to its mark, and the journal after it. What is damaged is mended if a second copy has it, kept, and told. If facts
  are missing, it refuses and leaves every file as it was found, so a second start sees the same.

One thread may be in `append` and another in `follow` or `checkpoint`: a commit does not wait for DuckDB, unless that is far behind. Any
thread may read meanwhile, on a connection of its own (`Readers`), and finds in the backlog what DuckDB lacks. Only `rows` waits for DuckDB
to catch up. `known_among` is answered from memory (`key_filter`). A store that failed once refuses every further use.

A commit leaves the backlog after DuckDB has it. So a reader that takes the backlog first and looks into DuckDB afterwards finds every fact:
what is before the first commit of the backlog in DuckDB, everything else in the backlog.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, RLock

import duckdb

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.errors import BadRequest, DirectoryElsewhere, LedgerDamaged, LedgerError, LedgerUnwritable
from perdure.ledger.in_place import Misplaced, OpenFile, opened, refuse_misplaced
from perdure.ledger.store.batches import expand_rows
from perdure.ledger.store.duckdb_file import (
    DATABASE,
    DOCTOR,
    MEMORY_MAX_MB,
    MISSING,
    WAL,
    KeptEvidence,
    connect,
    create,
    get,
    is_short_of_memory,
    put,
    put_mark,
    told,
    transact,
)
from perdure.ledger.store.duckdb_tables import (
    END,
    PIECE_BYTES,
    Inserter,
    boot_records,
    by_key,
    facts_of,
    family_runs,
    forget,
    frames_of,
    payload_of,
    read,
    read_counts,
    replace,
    runs_of,
    settled_before,
    wanted_runs,
    write_counts,
)
from perdure.ledger.store.journal import SEGMENT, Journal
from perdure.ledger.store.journal_scan import Assessment, assess, commits, has_everything, has_segments
from perdure.ledger.store.key_filter import KeyFilter, filter_after, new_keys, read_filter
from perdure.ledger.store.lock import Lock
from perdure.ledger.store.memory_store import forget_bounds
from perdure.ledger.store.seals import GENESIS, NOTHING, Commit, extend, seal, seal_anew
from perdure.ledger.store.store import Boot, FactRow, First, Payload, Record, Row, Wanted

_SLICE = 1_000  # facts that DuckDB takes in one transaction: 2 µs each, and 10 in one of a hundred thousand
_TRIES, _READS_S = 3, 10  # once again if DuckDB's memory is used up, each when nobody reads, or after so long
_LEFT = (
    "put the directory back at this path, or open it where it is now. Nothing more is acknowledged here; what was asked for last may or may"
    " not stand in what was moved"
)
_WORLD = (duckdb.IOException, duckdb.FatalException, duckdb.InternalException)


class DuckDBStore:
    """A `Store` in one directory. With `repair`, what cannot be verified is cut off instead of refused (see `integrity.repair`)."""

    _inserter: Inserter  # of the connection that the boot has made
    _database: OpenFile  # of that connection
    carries_storages = False
    is_followed = False
    # bytes in the journal before the database's file takes them in; reading back as many takes a second
    journal_max = 64 << 20
    # bytes that DuckDB may lack: they are in memory, so that a commit waits for it then
    behind_max = 128 << 20

    def __init__(self, path: Path, *, fsync: bool = True, repair: bool = False) -> None:
        self.path = path
        self._fsync, self._repair = fsync, repair
        self._lock: Lock | None = None
        self._con: duckdb.DuckDBPyConnection | None = None
        self._journal = Journal(path, fsync=fsync)
        self._guard = BlockGuard(path / DATABASE, fsync=fsync)
        self._refusal: LedgerError | None = None
        self._mark = GENESIS  # of what is durable
        self._backlog: deque[Commit] = deque()  # what DuckDB lacks of it, in order
        # Bytes of commits: those that were made, of these those that DuckDB has, and of these those that its file lacks.
        self._made, self._taken, self._unwritten = 0, 0, 0
        self._readers = Readers()
        self._archive = RLock()  # of the connection and what follows
        self._followed, self._anchor, self._tally = GENESIS, GENESIS, NOTHING
        self._snapshot_seq = 0
        self._filter: KeyFilter | None = None
        self._ended: Counter[str] = Counter()  # the snapshot's runs that are not live, by status

    def boot(self) -> Boot:
        """Open the directory, verify and mend what the last life left, and read what a start needs."""
        if self._refusal is not None:
            raise self._refusal
        self.close()
        try:
            return self._boot()
        except (duckdb.Error, OSError) as problem:
            self._release()
            raise told(self.path, problem) from problem
        except BaseException:
            self._release()
            raise

    def append(self, rows: Sequence[Row], payloads: list[Payload]) -> None:
        self._ready()
        if not rows and not payloads:
            return
        commit = seal(self._mark, rows, payloads)
        with self._fatal():
            self._make_durable(commit)
            self._refuse_misplaced(after_write=True)
            self._mark = commit.after
            self._is_to_follow(commit)
        if self._made - self._taken > self.behind_max:
            with self._archived():  # which has caught up
                ...

    def _is_to_follow(self, commit: Commit) -> None:
        self._made += commit.size
        self._backlog.append(commit._replace(parts=[]))

    def _make_durable(self, commit: Commit) -> None:
        self._journal.append(commit)

    def look(self) -> None:
        self._ready()
        with self._fatal():
            self._refuse_misplaced(after_write=False)

    def _refuse_misplaced(self, *, after_write: bool) -> None:
        # What was written to files that lie nowhere, or elsewhere, is not durable here. A commit looks only at what it was written to: each
        # call of the system costs the thread its turn.
        assert self._lock is not None, "it is held while the ledger is open"
        try:
            self._journal.look(waits=after_write)
            if not after_write:
                self._lock.look()
                refuse_misplaced(self._database)
        except Misplaced as problem:
            raise DirectoryElsewhere(str(self.path.parent), str(problem), _LEFT) from problem

    def follow(self) -> None:
        # `_archived` has caught up by now. What is left to do is to keep the journal small.
        with self._archived() as con:
            if self._journal.size > self.journal_max:
                self._fold(con)

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        """Bring the snapshot up to date, seal what was written since the last one, and put everything into the database's own file."""
        if not self._snapshot_seq <= upto_seq <= self._mark.seq:
            raise AssertionError(f"a snapshot up to {upto_seq} between {self._snapshot_seq} and {self._mark.seq}")
        with self._archived() as con:
            transact(con, lambda: self._settle(con))  # what is forgotten is taken out of a seal
            self._ended.subtract(
                transact(con, lambda: forget(con, forget_bounds(upto_seq, records, forgotten), self._snapshot_seq))
            )
            new = new_keys(self._filter, records)
            self._ended.update(replace(con, "runs", records, new))
            replace(con, "agents", records, new)
            replace(con, "mail", records)
            transact(con, lambda: put(con, "snapshot", meta))
            transact(con, lambda: write_counts(con, upto_seq, self._ended))
            self._filter = filter_after(con, self._filter, upto_seq)
            self._snapshot_seq = upto_seq
            self._fold(con)

    def records(self, table: str, keys: list[str]) -> list[Record]:
        # in the order of the keys
        with self._reading() as con:
            found = {record.key: record for record in by_key(con, table, list(set(keys)))}
        return [found[key] for key in dict.fromkeys(keys) if key in found]

    def known_among(self, keys: Iterable[str]) -> list[str]:
        self._ready()
        return [key for key in keys if self._filter is None or key in self._filter]

    def wanted_runs(self, wanted: Wanted, limit: int, first: First = "newest") -> list[Record]:
        with self._reading() as con:
            return wanted_runs(con, wanted, limit, first)

    def family_runs(self, agent: str, limit: int) -> list[Record]:
        with self._reading() as con:
            return family_runs(con, agent, limit)

    def settled_before(self, before_ms: float, after: tuple[int, str], limit: int) -> list[Record]:
        with self._reading() as con:
            return settled_before(con, before_ms, after, limit)

    def runs_of(self, agents: list[str], limit: int) -> list[Record]:
        with self._reading() as con:
            return runs_of(con, agents, limit)

    def agents(self, after: str, limit: int) -> list[Record]:
        with self._reading() as con:
            return read(con, "agents", "agent_id > $1 ORDER BY agent_id LIMIT $2", [after, limit])

    def facts(
        self, subject: str, after_frame: int = -1, *, frames_only: bool = False, limit: int = 100_000
    ) -> list[FactRow]:
        # Only the stretches where the facts can be are read, as far as the snapshot knows the run.
        backlog, after = tuple(self._backlog), after_frame if frames_only else None
        with self._reading() as con:
            rows = facts_of(con, subject, self._snapshot_seq, _end_before(backlog), after, limit)
        late = _facts_in(backlog, {subject})
        rows += [row for row in late if not frames_only or (row.frame is not None and row.frame > after_frame)]
        return rows[:limit]

    def frames(self, subjects: list[str], first_seq: int, last_seq: int) -> list[FactRow]:
        backlog = tuple(self._backlog)
        with self._reading() as con:
            rows = frames_of(con, subjects, first_seq, min(last_seq, _end_before(backlog)))
        late = _facts_in(backlog, set(subjects))
        return rows + [row for row in late if row.frame is not None and first_seq <= row.seq <= last_seq]

    def payload(self, run_id: str, part: str) -> bytes | None:
        late = [payload for commit in tuple(self._backlog) for payload in commit.payloads]
        if found := [each.body for each in late if (each.run_id, each.part) == (run_id, part)]:
            return found[-1]
        with self._reading() as con:
            return payload_of(con, run_id, part, self._snapshot_seq)

    def rows(self, query: str, parameters: list[object]) -> list[tuple[object, ...]]:
        """Answer one SELECT in a read-only transaction, on a connection that cannot open other files."""
        with self._archived() as con, con.cursor() as cursor:
            try:
                kinds = [statement.type for statement in cursor.extract_statements(query)]
                if kinds != [duckdb.StatementType.SELECT]:
                    raise BadRequest("query", "one SELECT statement is answered here, and nothing else")
                cursor.execute("USE ledger")
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                return cursor.execute(query, parameters).fetchall()
            except _WORLD:
                raise
            except duckdb.Error as problem:
                if is_damage(problem):
                    raise
                raise BadRequest("query", str(problem).partition("\n")[0]) from problem

    def close(self) -> None:
        # What a healthy life has written is put into the database's file, so that the next start need not read the
        # journal.
        if self._con is not None and self._refusal is None and self._journal.size:
            with suppress(LedgerError), self._archived() as con:
                self._fold(con)
        self._release()

    def _boot(self) -> Boot:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.path)
        self._fill()
        evidence = KeptEvidence(self.path)
        findings = self._made_ready()
        con = self._con = connect(self.path, fsync=self._fsync)
        self._database = opened(self.path / DATABASE)
        found = assess(con, self.path)
        if found.plan.loss and not self._repair:
            raise LedgerDamaged(str(self.path), found.plan.loss, DOCTOR)
        findings += found.plan.findings
        replayed = [commit._replace(parts=[]) for commit in commits(found.plan.replay)]
        self._snapshot_seq, self._tally = found.snapshot_seq, NOTHING
        self._anchor = self._followed = found.mark
        self._mark = replayed[-1].after if replayed else found.mark
        self._backlog.extend(replayed)
        self._made, self._taken, self._unwritten = sum(commit.size for commit in replayed), 0, 0
        segments = dict.fromkeys(found.scanned.segments, 0) if self._repair else found.scanned.segments
        self._journal.resume(segments, self._mark, found.plan.replay[-1] if replayed else None)
        if self._repair:
            for table in ("facts", "batches", "payloads"):
                con.execute(f"DELETE FROM {table} WHERE seq > $1", [found.mark.seq])
        self._inserter = Inserter(con)
        self._filter = read_filter(con, self._snapshot_seq, findings)
        if findings or self._repair:
            findings += self._mended(con, evidence, found)
        rows = found.rows + [row for commit in replayed for row in commit.rows]
        self._ended = read_counts(con, self._snapshot_seq)
        return Boot(get(con, "snapshot"), boot_records(con, rows), rows, findings, dict(self._ended))

    def _fill(self) -> None:
        # Bring the files up to what is durable elsewhere.
        ...

    def _made_ready(self) -> list[str]:
        # Before the attach: the file of a new ledger or of a whole journal, and what a checkpoint has torn.
        findings: list[str] = []
        if not (self.path / DATABASE).exists():
            if has_segments(self.path):
                if not has_everything(self.path):
                    raise LedgerDamaged(str(self.path), MISSING, DOCTOR)
                findings = [f"{MISSING}; it is built anew from the journal, which has every commit"]
            create(self.path, fsync=self._fsync)
        self._guard.mend()
        (self.path / WAL).unlink(missing_ok=True)
        return findings

    def _mended(self, con: duckdb.DuckDBPyConnection, evidence: KeptEvidence, found: Assessment) -> list[str]:
        # Copies of what does not verify are kept, and this life begins with everything sealed and in the database's file.
        names = list(found.scanned.damaged)
        if self._repair:
            names = [DATABASE, *(f"{SEGMENT}{number}" for number in found.scanned.segments)]
        kept = [evidence.copy(name) for name in names if (self.path / name).exists()]
        self._fold(con)
        findings = [f"the files as they were are kept as {' and '.join(kept)}"] if kept else []
        return findings + ([f"given up: {found.plan.loss}"] if found.plan.loss else [])

    def _catch_up(self, con: duckdb.DuckDBPyConnection) -> None:
        most, tries = PIECE_BYTES, _TRIES
        while self._backlog:
            group = self._next_slice(most)
            try:
                self._inserter.insert(group)
            except duckdb.Error as problem:
                if not (tries and is_short_of_memory(problem)):
                    raise
                with suppress(duckdb.Error):  # a commit that fails has undone everything
                    con.rollback()
                most, tries = 1, tries - 1
                self._readers.wait()
                continue
            self._follow_to(con, group)

    def _follow_to(self, con: duckdb.DuckDBPyConnection, group: list[Commit]) -> None:
        for commit in group:
            self._backlog.popleft()
            self._tally = self._tally.plus(commit.tally)
            self._taken += commit.size
            self._unwritten += commit.size
        self._followed = group[-1].after
        if self._unwritten > self.journal_max:  # what its file lacks, DuckDB has in memory
            self._write_file(con)

    def _next_slice(self, most: int) -> list[Commit]:
        # By index, because another thread may add to the backlog meanwhile.
        group: list[Commit] = []
        upto = self._backlog[0].before.seq + _SLICE
        while len(group) < len(self._backlog) and (not group or (group[-1].after.seq < upto and most > 0)):
            group.append(self._backlog[len(group)])
            most -= group[-1].size
        return group

    def _fold(self, con: duckdb.DuckDBPyConnection) -> None:
        # Everything is sealed, in the database's own file, and dropped from the journal.
        self._journal.roll()
        self._catch_up(con)
        self._write_file(con)
        self._journal.drop(self._dropped_upto())

    def _write_file(self, con: duckdb.DuckDBPyConnection) -> None:
        transact(con, lambda: self._settle(con))
        with self._guard.around(con, "ledger"):
            con.execute("CHECKPOINT")
        self._unwritten = 0

    def _dropped_upto(self) -> int:
        # The journal need not have what is up to this fact.
        return self._followed.seq

    def _settle(self, con: duckdb.DuckDBPyConnection) -> None:
        # The caller has a transaction open.
        if self._repair:
            seal_anew(con, self._followed.seq)
        elif self._tally != NOTHING:
            extend(con, self._anchor.seq + 1, self._followed.seq, self._tally)
        put_mark(con, self._snapshot_seq, self._followed)
        self._inserter.note_group()
        self._anchor, self._tally = self._followed, NOTHING

    def _ready(self) -> duckdb.DuckDBPyConnection:
        if self._refusal is not None:
            raise self._refusal
        if self._con is None:
            raise LedgerError(str(self.path), "the ledger is not open", "boot it first")
        return self._con

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        # No reader waits for another. The snapshot is brought up to date in several steps: of runs that it has not
        # reached yet it is as it was.
        con = self._ready()
        with self._fatal(), self._readers.reading(con) as reader:
            yield reader

    @contextmanager
    def _archived(self) -> Iterator[duckdb.DuckDBPyConnection]:
        # DuckDB lacks nothing that is durable in here, and only one thread at a time is.
        con = self._ready()
        with self._archive, self._fatal():
            self._catch_up(con)
            yield con

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        # If this block does not end well, every further use of the store is refused, whatever the cause: an error, an
        # interrupt, a bug.
        try:
            yield
        except BadRequest:
            raise
        except (duckdb.Error, OSError) as problem:
            self._refusal = told(self.path, problem)
            raise self._refusal from problem
        except LedgerError as problem:
            self._refusal = problem
            raise
        except BaseException:
            self._refusal = LedgerUnwritable(
                str(self.path), "an earlier commit did not end", "start again from what is durable"
            )
            raise

    def _release(self) -> None:
        with self._archive:  # another thread may be at work still
            self._journal.close()
            self._backlog.clear()
            self._readers.close()
            self._filter = None
            if self._con is not None:
                with suppress(duckdb.Error):
                    self._con.close()
            self._guard.close()
            if self._lock is not None:
                self._lock.release()
            self._con = self._lock = None


def _end_before(backlog: Sequence[Commit]) -> int:
    # DuckDB has every fact up to this one, if it lacked these commits at most.
    return backlog[0].before.seq if backlog else END


def _facts_in(backlog: Sequence[Commit], subjects: set[str]) -> list[FactRow]:
    return expand_rows((row for commit in backlog for row in commit.rows), subjects)


class Readers:
    """Connections that read what DuckDB has committed, beside the one that writes: as many as there are threads that read at once.

    No reader waits for another, or until DuckDB has caught up. While DuckDB writes its file, a reader may wait for it: 0.8 s for 100,000
    new runs. A question that needs too much memory is refused, and ends nothing.
    """

    def __init__(self) -> None:
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._at_work = 0
        self._changed = Condition()

    @contextmanager
    def reading(self, con: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for this block alone. `con` is the one that writes. Raises `BadRequest` if what is asked needs too much memory."""
        with self._changed:
            if self._idle:
                reader = self._idle.pop()
            else:
                reader = con.cursor()
                reader.execute("USE ledger")
            self._at_work += 1
        try:
            yield reader
        except duckdb.OutOfMemoryException as problem:
            with suppress(duckdb.Error):
                reader.rollback()
            words = f"needs more memory than a ledger uses ({MEMORY_MAX_MB} MB); ask for fewer at once"
            raise BadRequest("question", words) from problem
        finally:
            reader.complete()  # see `first_row`
            with self._changed:
                self._at_work -= 1
                self._idle.append(reader)
                self._changed.notify_all()

    def wait(self) -> None:
        # Until a moment when none reads, and has memory.
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work, _READS_S)

    def close(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work)
            for reader in self._idle:
                reader.close()
            self._idle.clear()
