"""The storage of one agent: what its author, its host and its transactions use.

The log or the database is `AgentFile`'s, the fold of our records is `Records`'. One lock, `committing`, orders what becomes durable: the
search for conflicts, the commit and the fold in memory are one step for all threads. Statements of open transactions run
beside it, each transaction on its own cursor.

A commit is one frame of the log; in a database, the author's statements, which ran already, and at most one of ours. The first
statement that needs tables makes a database of the log. What is committed keeps its numbers, so no open transaction notices. A crash
before the commit returns leaves all of it or nothing. A crash after it and before the caller hears of it leaves all of it; if the work is
repeated, its mail is found in the inbox. An error that is no conflict ends the handle, because memory might no longer match the file.

A conflict is what `Transaction` depends on and another commit changed since: keys of ours by their version, rows of the
author's by DuckDB, and where DuckDB is blind (`ledger.storage.sql`) by the tables that were updated and deleted from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from threading import RLock
from typing import Any, Final

import duckdb

from perdure.ledger.duckdb_format import is_damage
from perdure.ledger.errors import BadRequest, StaleIncarnation, StorageConflict, StorageError
from perdure.ledger.secret import plain_without_secrets
from perdure.ledger.storage.agent_database import AgentDatabase
from perdure.ledger.storage.agent_file import AgentFile
from perdure.ledger.storage.agent_state import State
from perdure.ledger.storage.records import INBOX, RESULT, STEP, Records, Row, step_key
from perdure.ledger.storage.sql import OVER, Change, Parameters, SqlCursor, SqlScript, collide, is_conflict, script_of
from perdure.ledger.storage.transaction import Transaction, bound_to

TRIES_MAX: Final = 50  # of a text that is a transaction of its own
IN_VAIN_MAX: Final = 3  # of those, while no other such text was in its way
PAUSE_S: Final = 0.001


class Storage:
    """One agent's storage, for one incarnation. Made by `AgentStorages.open`. Every method may be called from any thread."""

    def __init__(self, file: AgentFile) -> None:
        self.agent_id = file.agent_id
        self.incarnation = file.incarnation or 0
        self.state = State(self)
        self.guard: Callable[[], None] = lambda: None  # raises in code that may not use it any more
        self.file = file
        self.committing = RLock()
        self._again = RLock()
        self._under_way: set[object] = set()  # texts that are transactions of their own
        self._records: Records | None = None
        self._open: set[Transaction] = set()
        self._changed: dict[Change, int] = {}

    # ------------------------------------------------------------------ what authors use

    @property
    def exists(self) -> bool:
        return self.file.kept is not None

    def sql(self, query: str, parameters: Parameters = None) -> list[tuple[Any, ...]]:
        """Run SQL and return the rows of its last statement, to which the parameters belong (`$1`, `?` or `$name`).

        Inside `transaction()` it runs there, and sees one snapshot. Outside, a text that writes is a durable transaction of
        its own, which is run again if another one was first. Errors in the SQL are DuckDB's own. A statement that agents may not use
        (`ledger.storage.sql`), and a parameter that DuckDB does not take, are `BadRequest`.
        """
        script, parameters = script_of(plain_without_secrets(query)), plain_without_secrets(parameters)
        transaction = self.current()
        if transaction is not None:
            return transaction.run(script, parameters)
        self.check()
        if script.empty:
            return []
        if script.only_reads or (script.selects_only and not self.exists):
            return self.ask(script, parameters)
        try:
            return self._run_alone(script, parameters)
        except StorageConflict:  # nothing was written, and it depends on nothing that was read before
            with self._again:  # one after the other, lest they overtake each other
                return self._run_again(script, parameters)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Everything in this block becomes durable together when the block ends, or not at all when it raises.

        Works in async code and threads: the context that entered the block, and what it spawns, share the transaction. A
        block inside a block joins the outer one; if the inner one raises, the outer one can no longer commit. Raises
        `StorageConflict` at the end, or at a statement, if another transaction wrote the same rows or state keys first.
        """
        outer = self.current()
        if outer is None:
            with self._alone() as own, own.active():
                yield own
            return
        finished = False
        try:
            yield outer
            finished = True
        finally:
            if not finished:
                outer.condemn(
                    StorageError(self.agent_id, "a nested transaction failed, so the one around it cannot commit")
                )

    @contextmanager
    def brief(self) -> Iterator[Transaction]:
        """`transaction()` for a write or two that wait for nothing. No other commit comes between, so it is overtaken by none."""
        with self.committing, self.transaction() as transaction:
            yield transaction

    def begin(self) -> Transaction:
        """Open a transaction that is bound to no context until `with transaction.active():`. Commit it, or roll it back."""
        self.check()
        transaction = Transaction(self)
        self._open.add(transaction)
        return transaction

    # ------------------------------------------------------------------ what the host uses

    @property
    def sequence(self) -> int:
        """How far the storage has come for every later life, as far as this life has looked: 0 without a storage, more with each record of
        ours. What an author writes by SQL alone does not count by itself."""
        return self._records.durable if self._records is not None and self.exists else 0

    def known_inbox(self, mail_ids: Iterable[str]) -> set[str]:
        records = self.records()
        return {mail_id for mail_id in mail_ids if records.version((INBOX, mail_id))}

    def inbox(self) -> dict[str, int]:
        """All handled mails that were not forgotten, with the numbers of their rows. After a crash, some forgotten ones are back."""
        records = self.records()
        return {mail_id: records.version((INBOX, mail_id)) for mail_id in records.keys(INBOX)}

    def forget_inbox(self, mail_ids: Iterable[str]) -> None:
        """Forget these mails, because the ledger will not deliver them again. Durable with the next commit or a clean close."""
        with self.committing:
            records = self.records()
            gone = {mail_id: number for mail_id in mail_ids if (number := records.version((INBOX, mail_id)))}
            records.forget((INBOX, mail_id) for mail_id in gone)
            self.file.disk.witness(self.agent_id, gone)

    def outbox(self) -> list[tuple[int, bytes]]:
        """The requests that were committed and are not done yet, by number. Numbers only rise, with gaps."""
        with self.committing:
            return sorted(self.records().outbox.items())

    def forget_outbox(self, numbers: Iterable[int]) -> None:
        """Forget these requests: they are done. Durable with the next commit or a clean close; a crash before that brings them back."""
        with self.committing:
            self.records().forget_outbox(numbers)

    def save_result(self, run_id: str, body: bytes) -> None:
        """Keep a run's result, in the current transaction or durably at once. The last one counts."""
        with self.transaction() as transaction:
            transaction.save_result(run_id, body)

    def result(self, run_id: str) -> bytes | None:
        return self.bodies(RESULT, [run_id]).get(run_id)

    def steps(self, run_id: str) -> dict[str, bytes]:
        prefix = step_key(run_id, "")
        transaction = self.current()
        collected = transaction.collected(STEP) if transaction else {}
        keys = [key for key in (*self.records().keys(STEP), *collected) if key.startswith(prefix)]
        return {key.removeprefix(prefix): body for key, body in self.bodies(STEP, keys).items()}

    def document(self, kind: str, key: str) -> bytes | None:
        return self.bodies(kind, [key]).get(key)

    def documents(self, kind: str, prefix: str = "") -> dict[str, bytes]:
        transaction = self.current()
        collected = transaction.collected(kind) if transaction else {}
        keys = sorted(key for key in {*self.records().keys(kind), *collected} if key.startswith(prefix))
        return self.bodies(kind, keys)

    def checkpoint(self) -> None:
        with self.committing:
            self.check()
            kept = self.file.kept
            if kept is not None:
                with self.file.unbroken():
                    kept.sweep(self.records())
                    kept.secure()

    def close(self) -> None:
        """End this life cleanly: open transactions roll back, and the file is closed, the long log of a database after a checkpoint.
        Idempotent."""
        with self.committing:
            if self.file.ended:
                return
            for transaction in list(self._open):
                transaction.condemn(StaleIncarnation(self.agent_id, OVER))
                transaction.over = True
                if transaction.lane is not None:
                    transaction.lane.shut()
            with suppress(StorageError), self.file.unbroken():  # it ends itself; what was acknowledged is safe
                if self._records is not None and self.file.kept is not None:
                    self.file.kept.rest(self._records)
            self.file.end(StaleIncarnation(self.agent_id, OVER), checkpoint=True)

    def snapshot(self, path: Path) -> None:
        """Write a consistent copy of what is committed into a new file, for `AgentStorages.restore`."""
        with self.committing:
            self.check()
            if not self.exists:
                raise BadRequest("agent_id", f"{self.agent_id} has no storage: it never wrote anything")
            if path.exists():
                raise BadRequest("path", f"{path} exists")
            database = self.file.database(self.records())
            with self.file.unbroken():
                database.sweep(self.records())
            self.file.disk.export(self.agent_id, database.name, path)

    # ------------------------------------------------------------------ for transactions, state and the storages of a process

    def check(self) -> None:
        self.file.check()

    def current(self) -> Transaction | None:
        self.guard()
        return bound_to(self)

    def records(self) -> Records:
        records = self._records
        if records is None or self.file.ended:
            with self.committing:
                self.check()
                records = self._records
                records = self._records = records or self.file.load()
        return records

    def database(self) -> SqlCursor:
        # The caller has the commit lock.
        with self._looking_again():
            return self.file.database(self.records()).borrow()

    def ask(self, script: SqlScript, parameters: Parameters) -> list[tuple[Any, ...]]:
        # The script only reads, and runs in no transaction.
        constants = self.constants(script, parameters)
        if constants is not None:
            return constants
        with self.committing:
            database = self.file.database(self.records())
        lane = database.borrow()
        try:
            return lane.run(script.parsed, parameters)
        except duckdb.Error as problem:
            if not self._is_damaged(problem):
                raise
            raise self.file.broken(problem) from problem
        finally:
            database.give_back(lane)

    def constants(self, script: SqlScript, parameters: Parameters) -> list[tuple[Any, ...]] | None:
        """The answer to a query while there are no tables: it looks into an empty database. None if it asks for what is not in there, and
        there is a storage."""
        if self.file.is_database:
            return None
        with self.file.empty() as lane:
            try:
                return lane.run(script.parsed, parameters)
            except duckdb.CatalogException:
                if self.exists:
                    return None
                raise

    def refusal(self, problem: duckdb.Error, transaction: Transaction) -> StorageError | None:
        """The error that a failed statement means: a conflict, or the end of the handle; None if the author's SQL is at fault.

        A duplicate key is a conflict when another commit came between, for DuckDB enforces keys beyond the snapshot: run
        again, the work sees the row.
        """
        overtaken = transaction.snapshot is not None and self.records().clock != transaction.snapshot
        if is_conflict(problem) or (overtaken and isinstance(problem, duckdb.ConstraintException)):
            return StorageConflict(self.agent_id, f"another transaction was first: {problem}")
        if isinstance(problem, duckdb.FatalException | duckdb.InternalException) or self._is_damaged(problem):
            return self.file.broken(problem)
        return None

    def _is_damaged(self, problem: duckdb.Error) -> bool:
        # A file of the author's that the SQL reads may be damaged, too.
        is_ours = not isinstance(problem, duckdb.IOException) or str(self.file.disk.directory) in str(problem)
        return is_ours and is_damage(problem)

    def commit(self, transaction: Transaction) -> None:
        """Make a transaction durable, or raise and leave nothing of it."""
        with self.committing:
            try:
                transaction.check()
                records = self.records()
                rows = transaction.rows()
                before = self.file.disk.log_bytes(self.agent_id) if transaction.alters else 0
                if rows or transaction.writes_sql:
                    self._refuse_conflicts(transaction, records)
                    self._write(transaction, records, records.claim(rows))
            finally:
                self.abandon(transaction)
            if rows or transaction.writes_sql:
                altered = transaction.alters and self.file.disk.log_bytes(self.agent_id) > before
                self._tidy(records, altered=altered)  # a table that is there already is not made again

    def once_durable(self, job: Callable[[], None]) -> None:
        self.file.disk.once_durable(job)

    def abandon(self, transaction: Transaction) -> None:
        transaction.over = True
        self._open.discard(transaction)
        lane, transaction.lane = transaction.lane, None
        if lane is not None and isinstance(self.file.kept, AgentDatabase):
            lane.rollback()
            self.file.kept.give_back(lane, keep=not transaction.alters)

    # ------------------------------------------------------------------ inside

    def _run_alone(self, script: SqlScript, parameters: Parameters) -> list[tuple[Any, ...]]:
        this = object()
        self._under_way.add(this)
        try:
            with self._alone() as own:
                return own.run(script, parameters)
        finally:
            self._under_way.discard(this)

    def _run_again(self, script: SqlScript, parameters: Parameters) -> list[tuple[Any, ...]]:
        # Another such text is about to commit. A transaction that an author has opened may last, and may be of this very thread.
        in_vain = 0
        for _ in range(TRIES_MAX - 1):
            has_others = bool(self._under_way)
            try:
                return self._run_alone(script, parameters)
            except StorageConflict:
                in_vain += not (has_others or self._under_way)
                if in_vain == IN_VAIN_MAX:
                    raise
            time.sleep(PAUSE_S)
        return self._run_alone(script, parameters)

    @contextmanager
    def _alone(self) -> Iterator[Transaction]:
        transaction = self.begin()
        try:
            yield transaction
            if not transaction.over:
                transaction.commit()
        finally:
            transaction.rollback()

    def bodies(self, kind: str, keys: list[str]) -> dict[str, bytes]:
        # The bodies are those that the current transaction sees.
        transaction = self.current()
        collected = transaction.collected(kind) if transaction else {}
        found = {key: body for key in keys if (body := collected.get(key)) is not None}
        with self.committing:
            records = self.records()
            numbers = {records.version((kind, key)): key for key in keys if key not in collected}
            numbers.pop(0, None)
            if numbers and self.file.kept is not None:
                with self.file.unbroken("read"):
                    rows = self.file.kept.bodies(list(numbers))
                found |= {numbers[number]: body for number, body in rows}
        return {key: found[key] for key in keys if key in found}

    @contextmanager
    def _looking_again(self) -> Iterator[None]:
        # If another process has created the storage meanwhile, this write must be run again.
        existed = self.exists
        try:
            yield
        except StorageConflict:
            if not existed:
                self._records = None
            raise

    def _refuse_conflicts(self, transaction: Transaction, records: Records) -> None:
        since = transaction.snapshot
        for key, seen in transaction.seen.items():
            now = records.version(key)
            if now != seen or (since is not None and now >= since):
                raise StorageConflict(self.agent_id, f"another transaction was first: it changed {' '.join(key)!r}")
        if since is None:
            return
        later = [change for change, clock in self._changed.items() if clock >= since]
        for change, other in product(transaction.changes, later):
            if collide(change, other):
                raise StorageConflict(self.agent_id, f"another transaction was first: {other[0]} of rows of {other[1]}")

    def _write(self, transaction: Transaction, records: Records, rows: list[Row]) -> None:
        with self._looking_again(), self.file.unbroken():
            try:
                with self.file.durable():
                    self.file.write(records.clock, rows, transaction.lane)
                    self._changed |= dict.fromkeys(transaction.changes, records.clock)
                    records.committed(rows)
            except duckdb.TransactionException as problem:
                if not is_conflict(problem):
                    raise
                raise StorageConflict(self.agent_id, f"another transaction was first: {problem}") from problem

    def _tidy(self, records: Records, *, altered: bool) -> None:
        # The commit is durable, so nothing here may fail it, nor what is read next.
        if not self._open:
            records.purge()
        try:
            self.file.tidy(records, altered=altered)
        except (duckdb.Error, OSError) as problem:
            for transaction in list(self._open):
                if transaction.lane is not None:
                    transaction.condemn(
                        StorageConflict(self.agent_id, f"the disk refused what came before ({problem})")
                    )
                    transaction.lane = None  # it is shut with the others
            self.file.open_again(problem)
        except StaleIncarnation:
            raise
        except StorageError:
            return
