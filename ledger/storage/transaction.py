"""One transaction on one agent's storage: everything in it becomes durable at once, or nothing does.

It costs nothing until something happens in it. The first SQL statement borrows a cursor and opens DuckDB's transaction there;
state, inbox, outbox, results and steps are only collected, and `Storage` writes them as one statement when it commits. A crash
at any line before the commit loses the whole; DuckDB's log makes the commit itself one step.

A transaction that cannot commit is *doomed*, and raises at its next use: after a failed statement (DuckDB would let the
commit succeed and store nothing), and after a nested block that raised (there are no savepoints, so its half would be kept).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from threading import RLock
from typing import Any, Protocol

import duckdb

from perdure.ledger.errors import StorageError
from perdure.ledger.secret import plain_without_secrets
from perdure.ledger.storage.records import INBOX, KEYS, OUTBOX, RESULT, STATE, STEP, Key, Records, Row, step_key
from perdure.ledger.storage.sql import Change, Parameters, SqlCursor, SqlScript, script_of

_bound: ContextVar[tuple[Transaction, ...]] = ContextVar("perdure_transactions", default=())


class TransactionStorage(Protocol):
    @property
    def agent_id(self) -> str: ...
    @property
    def committing(self) -> RLock: ...
    def check(self) -> None: ...
    def guard(self) -> None: ...
    def records(self) -> Records: ...
    def constants(self, script: SqlScript, parameters: Parameters) -> list[tuple[Any, ...]] | None:
        """The answer to a query that asks for nothing in the storage; None if there are tables that it may ask for."""

    def database(self) -> SqlCursor:
        """A cursor for a transaction; creates the storage, or makes a database of it."""

    def refusal(self, problem: duckdb.Error, transaction: Transaction) -> StorageError | None:
        """What a failed statement means, or None if it is the author's own mistake."""

    def commit(self, transaction: Transaction) -> None: ...
    def once_durable(self, job: Callable[[], None]) -> None:
        """Do this when what was committed is durable: at once, or when what this thread commits together is."""

    def abandon(self, transaction: Transaction) -> None: ...


def bound_to(storage: object) -> Transaction | None:
    """The transaction of this storage in the current context.

    After its block, a transaction is bound to nothing: a task that was spawned inside and outlives the block works without it. One that
    ended inside its block stays bound and refuses, because what follows in the block must not become durable piece by piece.
    """
    for transaction in reversed(_bound.get()):
        if transaction.storage is storage and transaction.entered:
            return transaction
    return None


def unbound() -> Context:
    """The current context without its transactions: for work that is started inside a transaction and is no part of it."""
    context = copy_context()
    context.run(_bound.set, ())
    return context


class Transaction:
    """One transaction; made by `Storage.begin`. The fields are for `Storage`, which commits it."""

    def __init__(self, storage: TransactionStorage) -> None:
        self.storage = storage
        self.over = False
        self.entered = 0
        self.doom: StorageError | None = None
        self.lane: SqlCursor | None = None
        self.snapshot: int | None = None  # the clock before the database's snapshot was taken
        self.seen: dict[Key, int] = {}  # the version of every key that this transaction depends on
        self.changes: set[Change] = set()
        self.writes_sql = False
        self.alters = False
        self._records: dict[Key, bytes | None] = {}
        self._outbox: list[bytes] = []
        self._then: list[Callable[[], None]] = []

    @contextmanager
    def active(self) -> Iterator[Transaction]:
        """Let `sql` and `state` of this storage work in this transaction, in this context and in what it spawns."""
        before = _bound.get()
        _bound.set((*before, self))
        self.entered += 1
        try:
            yield self
        finally:
            self.entered -= 1
            _bound.set(before)

    def commit(self) -> None:
        """Make everything durable.

        Raises `StorageConflict` if another transaction was first: then nothing was written, and the work may be done again in
        a new transaction. A `StorageError` that speaks of writing has closed the storage.
        """
        self.storage.commit(self)
        for job in self._then:
            self.storage.once_durable(job)

    def then(self, job: Callable[[], None]) -> None:
        """Call this once everything is durable. After a rollback or a crash it is never called."""
        self._then.append(job)

    def rollback(self) -> None:
        self.storage.abandon(self)

    def sql(self, query: str, parameters: Parameters = None) -> list[tuple[Any, ...]]:
        return self.run(script_of(plain_without_secrets(query)), plain_without_secrets(parameters))

    def record_inbox(self, mail_ids: list[str]) -> None:
        """Record that this transaction handles these mails.

        One that is known already stays so. If another transaction records the same mail meanwhile, the later commit is a
        `StorageConflict`.
        """
        self.check()
        records = self.storage.records()
        for mail_id in mail_ids:
            key = (INBOX, mail_id)
            if self.seen.setdefault(key, records.version(key)) == 0:
                self._records[key] = b""

    def add_outbox(self, body: bytes) -> None:
        self.check()
        self._outbox.append(body)

    def save_result(self, run_id: str, body: bytes) -> None:
        self.put(RESULT, run_id, body)

    def save_step(self, run_id: str, name: str, body: bytes) -> None:
        self.put(STEP, step_key(run_id, name), body)

    # ------------------------------------------------------------------ for the storage

    def check(self) -> None:
        self.storage.check()
        if self.doom is not None:
            raise type(self.doom)(*self.doom.args)
        if self.over:
            self.storage.guard()  # whose code was told to stop hears that
            raise StorageError(self.storage.agent_id, "this transaction has ended; begin another one")

    def condemn(self, reason: StorageError) -> None:
        # From now on it can only roll back. The first reason stays.
        if self.doom is None and not self.over:
            self.doom = reason

    def run(self, script: SqlScript, parameters: Parameters) -> list[tuple[Any, ...]]:
        """Run a script here. A query does not create a storage."""
        self.check()
        if script.empty:
            return []
        succeeded = False
        try:
            rows = self._run(script, parameters)
            succeeded = True
        except duckdb.Error as problem:
            refusal = self.storage.refusal(problem, self)
            if refusal is None:
                raise
            self.condemn(refusal)
            raise refusal from problem
        except StorageError as refusal:
            self.condemn(refusal)
            raise
        finally:
            if not succeeded:
                said = f"a statement of this transaction failed, so it cannot commit: {script.text.strip()[:200]!r}"
                self.condemn(StorageError(self.storage.agent_id, said))
        return rows

    def _run(self, script: SqlScript, parameters: Parameters) -> list[tuple[Any, ...]]:
        constants = self.storage.constants(script, parameters) if script.selects_only else None
        if constants is not None:
            return constants
        lane = self.database()
        self.writes_sql |= not script.only_reads
        self.alters |= script.alters
        self.changes |= script.changes
        return lane.run(script.parsed, parameters)

    def database(self) -> SqlCursor:
        if (lane := self.lane) is not None:
            return lane
        with self.storage.committing:
            if (lane := self.lane) is None:
                lane = self.storage.database()
                self.snapshot = self.storage.records().clock
                lane.begin()
                self.lane = lane
            return lane

    def put(self, kind: str, key: str, body: bytes | None) -> None:
        self.check()
        if kind == STATE or body is None:
            self.depend_on((kind, key))
        self._records[kind, key] = body

    def read_state(self, key: str) -> bytes | None:
        # What this transaction sees. It depends on the value from now on.
        self.check()
        if (STATE, key) in self._records:
            return self._records[STATE, key]
        self.depend_on((STATE, key))
        return self.storage.records().state.get(key)

    def state_keys(self) -> list[str]:
        # What this transaction sees. It depends from now on on there being no other keys.
        self.check()
        self.depend_on(KEYS)
        keys = dict.fromkeys(self.storage.records().state)
        for (kind, key), body in self._records.items():
            if kind == STATE and body is not None:
                keys[key] = None
            elif kind == STATE:
                keys.pop(key, None)
        return list(keys)

    def has_put(self, key: Key) -> bool:
        return key in self._records

    def own(self, key: Key) -> bytes | None:
        return self._records.get(key)

    def collected(self, kind: str) -> dict[str, bytes | None]:
        # None for one that this transaction deletes.
        return {key: body for (of, key), body in self._records.items() if of == kind}

    def rows(self) -> list[Row]:
        rows = [
            Row(kind, key, body)
            for (kind, key), body in self._records.items()
            if body is not None or self.seen.get((kind, key))
        ]
        return [*rows, *(Row(OUTBOX, "", body) for body in self._outbox)]

    def depend_on(self, key: Key) -> None:
        # If anything else changes this key before the commit, that is a `StorageConflict`.
        self.seen.setdefault(key, self.storage.records().version(key))
