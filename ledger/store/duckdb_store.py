"""The ledger on disk: facts, payloads and the snapshot in one DuckDB file, with a journal beside it.

What is true when a method returns, and which crash each step survives:

- `append`: the commit is in the journal, then in DuckDB's synchronised log. A death between both leaves the journal ahead, and the next
  boot appends the commit; it may do so, because an unanswered commit may or may not have happened.
- `checkpoint`: one transaction replaces records, removes forgotten runs, and moves the mark (up to where snapshot and seals reach);
  then DuckDB folds its log into its file; then the journal begins anew. A death between any two of these leaves more facts after the
  mark, or frames before it, than necessary, and both are harmless.
- `boot`: follows the chain from the mark, compares with the journal, mends what the journal can mend, and says so. If something cannot
  be mended, it refuses and leaves every file as it was found, so a second start sees the same.

A store that failed once refuses every further use: after a failed commit DuckDB may show rows that are not durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from perdure.ledger.errors import BadRequest, LedgerDamaged, LedgerError, LedgerUnwritable
from perdure.ledger.store.assessment import Assessment, assess
from perdure.ledger.store.duckdb_file import (
    DATABASE,
    DOCTOR,
    JOURNAL,
    MISSING,
    WAL,
    Evidence,
    Lock,
    connect,
    get,
    prepare,
    put,
    put_mark,
    told,
    transact,
)
from perdure.ledger.store.duckdb_tables import (
    FACT,
    Inserter,
    boot_records,
    by_key,
    ended_counts,
    ended_runs,
    family_runs,
    forget,
    replace,
)
from perdure.ledger.store.journal import Journal, commits, scan
from perdure.ledger.store.memory_store import TABLES, forget_bounds
from perdure.ledger.store.seals import GENESIS, NOTHING, Mark, extend, seal, seal_anew
from perdure.ledger.store.store import Boot, FactRow, First, Payload, Record

_END = 2**62
_WORLD = (duckdb.IOException, duckdb.FatalException, duckdb.InternalException, duckdb.OutOfMemoryException)


class DuckDBStore:
    """A `Store` in one directory. With `repair`, what cannot be verified is cut off instead of refused (see `integrity.repair`)."""

    _inserter: Inserter  # of the connection that the boot has made

    log_max = 4_096  # commits in DuckDB's log before it is folded in; reading back as many takes a fifth of a second

    def __init__(self, path: Path, *, fsync: bool = True, repair: bool = False) -> None:
        self.path = path
        self._fsync = fsync
        self._repair = repair
        self._lock: Lock | None = None
        self._con: duckdb.DuckDBPyConnection | None = None
        self._journal = Journal(path / JOURNAL, fsync=fsync)
        self._refusal: LedgerError | None = None
        self._mark, self._anchor, self._tally = GENESIS, GENESIS, NOTHING
        self._snapshot_seq = 0
        self._log = 0

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

    def append(self, rows: list[FactRow], payloads: list[Payload]) -> None:
        """Make a group durable with one statement, or three when it has payloads."""
        con = self._ready()
        if not rows and not payloads:
            return
        commit = seal(self._mark, rows, payloads)
        with self._fatal():
            self._journal.append(commit)
            self._inserter.insert(commit)
            self._mark, self._tally, self._log = commit.after, self._tally.plus(commit.tally), self._log + 1
            if self._log >= self.log_max:
                self._fold_log(con)

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        """Bring the snapshot up to date, seal what was written since the last one, and begin the journal anew."""
        con = self._ready()
        if not self._snapshot_seq <= upto_seq <= self._mark.seq:
            raise AssertionError(f"a snapshot up to {upto_seq} between {self._snapshot_seq} and {self._mark.seq}")

        def work() -> None:
            self._settle(con, upto_seq)
            forget(con, forget_bounds(upto_seq, records, forgotten))
            for table in TABLES:
                replace(con, table, [record for record in records if record.table == table])
            put(con, "snapshot", meta)

        with self._fatal():
            transact(con, work)
            self._fold_log(con)
            self._journal.begin(self._mark)
            self._snapshot_seq, self._anchor, self._tally = upto_seq, self._mark, NOTHING

    def records(self, table: str, keys: list[str]) -> list[Record]:
        """The snapshot's records under these keys, in their order."""
        con = self._ready()
        with self._fatal():
            found = {record.key: record for record in by_key(con, table, list(set(keys)))}
        return [found[key] for key in dict.fromkeys(keys) if key in found]

    def ended_runs(
        self,
        parent: str | None,
        statuses: list[str] | None,
        older_than_ms: float | None,
        limit: int,
        first: First = "oldest",
    ) -> list[Record]:
        """The snapshot's runs that are not live, oldest or newest request first."""
        con = self._ready()
        with self._fatal():
            return ended_runs(con, parent, statuses, older_than_ms, limit, first)

    def family_runs(self, agent: str, limit: int) -> list[Record]:
        """The snapshot's runs that an agent or its descendants requested, and that are not live."""
        con = self._ready()
        with self._fatal():
            return family_runs(con, agent, limit)

    def facts(
        self, subject: str, after_frame: int = -1, *, frames_only: bool = False, limit: int = 100_000
    ) -> list[FactRow]:
        """A run's facts in order; only the stretches where they can be are read, as far as the snapshot knows the run."""
        con = self._ready()
        frames = "AND frame > $5" if frames_only else "AND $5::INTEGER IS NOT NULL"
        query = f"SELECT {FACT} FROM facts WHERE subject = $1 AND seq BETWEEN $2 AND $3 {frames} ORDER BY seq LIMIT $4"
        rows: list[FactRow] = []
        with self._fatal():
            for first_seq, last_seq in self._stretches(con, subject):
                answer = con.execute(query, [subject, first_seq, last_seq, limit - len(rows), after_frame])
                rows += [FactRow(*row) for row in answer.fetchall()]
        return rows

    def payload(self, run_id: str, part: str) -> bytes | None:
        """A large input or output."""
        con = self._ready()
        query = "SELECT body FROM payloads WHERE run_id = $1 AND part = $2 AND seq BETWEEN $3 AND $4 ORDER BY seq DESC LIMIT 1"
        with self._fatal():
            for first_seq, last_seq in [*self._stretches(con, run_id)[::-1], (0, _END)]:
                row = con.execute(query, [run_id, part, first_seq, last_seq]).fetchone()
                if row is not None:
                    return bytes(row[0])
        return None

    def rows(self, query: str, parameters: list[object]) -> list[tuple[object, ...]]:
        """Answer one SELECT in a read-only transaction, on a connection that cannot open other files."""
        with self._ready().cursor() as cursor:
            try:
                kinds = [statement.type for statement in cursor.extract_statements(query)]
                if kinds != [duckdb.StatementType.SELECT]:
                    raise BadRequest("query", "one SELECT statement is answered here, and nothing else")
                cursor.execute("USE ledger")
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                return cursor.execute(query, parameters).fetchall()
            except _WORLD as problem:
                self._refusal = told(self.path, problem)
                raise self._refusal from problem
            except duckdb.Error as problem:
                raise BadRequest("query", str(problem).partition("\n")[0]) from problem

    def close(self) -> None:
        """Release the directory. A healthy log is written into the file first, so that the next start has nothing to replay."""
        if self._con is not None and self._refusal is None:
            with suppress(duckdb.Error):
                self._con.execute("CHECKPOINT")
        self._release()

    def _boot(self) -> Boot:
        findings: list[str] = []
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.path)
        evidence = Evidence(self.path)
        log = self.path / WAL
        replayed = log.exists() and log.stat().st_size > 0
        created = not (self.path / DATABASE).exists()
        if created and (self.path / JOURNAL).exists() and scan(self.path / JOURNAL).base != GENESIS:
            raise LedgerDamaged(str(self.path), MISSING, DOCTOR)
        con = self._con = self._open(evidence, findings)
        fresh = prepare(con, self.path)
        found = assess(con, self.path)
        findings += found.plan.findings
        if found.loss and not self._repair:
            self._release()
            evidence.put_back()
            if created:
                (self.path / DATABASE).unlink()
            raise LedgerDamaged(str(self.path), found.loss, DOCTOR)
        self._snapshot_seq, self._anchor = found.snapshot_seq, found.anchor
        self._mark, self._tally = found.recent.mark, found.recent.tally
        if fresh or replayed or findings or found.recent.tally.items or found.recent.problem or self._repair:
            con = self._mend(evidence, found, findings)
        else:
            self._journal.resume()
        self._inserter = Inserter(con)
        records, ended = boot_records(con, found.facts), ended_counts(con)
        return Boot(get(con, "snapshot"), records, found.facts, findings, ended)

    def _open(self, evidence: Evidence, findings: list[str]) -> duckdb.DuckDBPyConnection:
        """Open the file; if its log cannot be read, set both aside and open it without. The journal has what the log had."""
        try:
            return connect(self.path, fsync=self._fsync)
        except duckdb.Error as problem:
            refusal, words = told(self.path, problem), str(problem).partition("\n")[0]
            if not isinstance(refusal, LedgerDamaged) or not (self.path / WAL).exists():
                raise refusal from problem
        evidence.copy(DATABASE)
        findings.append(f"DuckDB cannot read its log ({words}); it was set aside as {evidence.move(WAL)}")
        try:
            return connect(self.path, fsync=self._fsync)
        except duckdb.Error:
            evidence.put_back()
            raise refusal from None

    def _mend(self, evidence: Evidence, found: Assessment, findings: list[str]) -> duckdb.DuckDBPyConnection:
        """Append from the journal what the database lacks, and begin this life with everything sealed and in the file itself.

        Whatever does not verify is copied aside first; then facts that do not verify give way to the journal's.
        """
        con = self._con or connect(self.path, fsync=self._fsync)
        if found.scanned.flaws and (self.path / JOURNAL).exists():
            findings.append(f"the journal as it was is kept as {evidence.copy(JOURNAL)}")
        if found.recent.problem or self._repair:
            con.close()
            kept = [evidence.copy(name) for name in (DATABASE, WAL)]
            findings.append(
                f"{found.recent.problem or 'repair'}: the files as they were are kept as {' and '.join(kept)}"
            )
            con = self._con = connect(self.path, fsync=self._fsync)
            for table in ("facts", "payloads"):
                con.execute(f"DELETE FROM {table} WHERE seq > $1", [self._mark.seq])
        elif len(found.plan.replay) > 1 and (self.path / WAL).exists():
            findings.append(f"the log as it was is kept as {evidence.copy(WAL)}")
        inserter = Inserter(con)
        for commit in commits(self.path / JOURNAL, found.plan.replay):
            inserter.insert(commit)
            self._mark, self._tally = commit.after, self._tally.plus(commit.tally)
            found.facts.extend(commit.rows)
        if found.loss:
            findings.append(f"given up: {found.loss}")
        transact(con, lambda: self._settle(con, self._snapshot_seq))
        self._fold_log(con)
        self._journal.begin(self._mark)
        self._anchor, self._tally = self._mark, NOTHING
        return con

    def _settle(self, con: duckdb.DuckDBPyConnection, snapshot_seq: int) -> None:
        """Seal everything up to the last commit, inside the caller's transaction."""
        if self._repair:
            self._mark = Mark(max(self._mark.seq, snapshot_seq), self._mark.digest)
            seal_anew(con, self._mark.seq)
        elif self._tally != NOTHING:
            extend(con, self._anchor.seq + 1, self._mark.seq, self._tally)
        put_mark(con, snapshot_seq, self._mark)

    def _stretches(self, con: duckdb.DuckDBPyConnection, run_id: str) -> list[tuple[int, int]]:
        """Where the facts of a run can be: between its record's first and last fact, and after the snapshot."""
        row = con.execute("SELECT first_seq, last_seq FROM runs WHERE run_id = $1", [run_id]).fetchone()
        recent = (self._snapshot_seq + 1, _END)
        if row is not None and None not in row:
            return [(row[0], row[1]), (max(row[1], self._snapshot_seq) + 1, _END)]
        born = con.execute(
            "SELECT 1 FROM facts WHERE subject = $1 AND frame = 0 AND seq >= $2 LIMIT 1", [run_id, recent[0]]
        ).fetchone()
        return [recent] if born else [(0, _END)]

    def _fold_log(self, con: duckdb.DuckDBPyConnection) -> None:
        con.execute("CHECKPOINT")
        self._log = 0

    def _ready(self) -> duckdb.DuckDBPyConnection:
        if self._refusal is not None:
            raise self._refusal
        if self._con is None:
            raise LedgerError(str(self.path), "the ledger is not open", "boot it first")
        return self._con

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """Refuse every further use of the store if this block does not end well, whatever the cause: an error, an interrupt, a bug."""
        self._refusal = LedgerUnwritable(
            str(self.path), "an earlier commit did not end", "start again from what is durable"
        )
        try:
            yield
        except (duckdb.Error, OSError) as problem:
            self._refusal = told(self.path, problem)
            raise self._refusal from problem
        self._refusal = None

    def _release(self) -> None:
        self._journal.close()
        if self._con is not None:
            with suppress(duckdb.Error):
                self._con.close()
        self._con = None
        if self._lock is not None:
            self._lock.release()
        self._lock = None
