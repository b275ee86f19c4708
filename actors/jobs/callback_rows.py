"""The rows of schedules and of the queue, as documents of the agent's storage.

    schedule          <schedule id>   one schedule, with the end of its history
    schedule_history  <schedule id>   the history of one that is gone
    queued            <item id>       one item of the queue

A row is never changed in place: a transaction that has read one and writes another *depends* on what it read, so of two that change the
same row the later one is run again and sees what the first one did. That is all the locking there is. It is why a schedule that was
cancelled, paused or changed while its callback was at work has not been run: the callback's transaction finds that it was overtaken.

Rows are kept in memory under the version that they were read with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from perdure.actors.events.observability import Channel, emit
from perdure.actors.life.life import Life
from perdure.actors.life.one_transaction import CONFLICTS_MAX
from perdure.ledger import StorageConflict, pack, unpack
from perdure.ledger.storage.cabinet import SCHEDULE, Transaction

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A callback that is due at some time. `kind` is the type of a schedule, or `queued`.

    `tick_ms` is the time that the next occurrence is for, `due_at_ms` when its callback is called: later by the jitter, or by the pause
    after a failure. `attempt` counts the failures of that occurrence, whose first try began at `began_at_ms` and folded in `missed` ticks.
    `is_named` if its author gave it an id or a key. `retry` is what the author said of it; the rest is as the class or the runtime has it.
    `losses` counts the lives of the agent that may have been ended by the callback.
    """

    id: str
    number: int
    kind: str
    callback: str
    payload: bytes
    retry: list[float | None]
    created_at_ms: int
    tick_ms: int
    due_at_ms: int
    key: str = ""
    is_named: bool = False
    cron: str = ""
    time_zone: str = ""
    interval_ms: int = 0
    first_ms: int = 0
    catch_up: str = "once"
    overlap: str = "skip"
    jitter_ms: int = 0
    status: str = "waiting"
    attempt: int = 0
    began_at_ms: int = 0
    missed: int = 0
    losses: int = 0
    error: str = ""
    history: list[list[Any]] = field(default_factory=list)

    @property
    def ready_at_ms(self) -> int | None:
        """When its callback is to be called, if at all."""
        return self.due_at_ms if self.status in ("waiting", "retrying") else None

    @property
    def is_recurring(self) -> bool:
        """Whether it has another tick after this one."""
        return self.kind in ("cron", "interval")

    @property
    def delivery_id(self) -> str:
        """The occurrence that it waits for, to the world outside."""
        return f"{self.id}#{self.number}!{self.tick_ms}"

    def afresh(self, tick_ms: int, due_at_ms: int) -> Row:
        """The row, waiting for an occurrence of which nothing was tried."""
        return replace(
            self, tick_ms=tick_ms, due_at_ms=due_at_ms, status="waiting", attempt=0, began_at_ms=0, missed=0, losses=0, error=""
        )  # fmt: skip

    def body(self) -> bytes:
        """As it is kept; what has its default is left out."""
        return pack({name: value for name, value in vars(self).items() if name in _NEEDED or value != _DEFAULTS[name]})

    @classmethod
    def load(cls, body: bytes) -> Row:
        """Read a row. What another version has added is not known here."""
        return cls(**{name: value for name, value in unpack(body).items() if name in _NAMES})


_NAMES = frozenset(each.name for each in fields(Row))
_NEEDED = frozenset(("id", "number", "kind", "callback", "payload", "retry", "created_at_ms", "tick_ms", "due_at_ms"))
_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Row)} | {"history": []}


class Rows:
    """The rows of one kind of document, in one life of an agent."""

    def __init__(self, life: Life, kind: str, changed: Callable[[Row], None]) -> None:
        """`changed` is told on the loop, after each commit, of every row that was written."""
        self._life, self.kind, self._changed = life, kind, changed
        self._known: dict[str, tuple[int, Row]] = {}
        self._number = 0

    # reading

    def get(self, row_id: str) -> Row | None:
        """A row, as the current transaction sees it."""
        if not self._life.has_storage:
            return None
        storage, transaction, key = self._life.storage, self._life.transaction, (self.kind, row_id)
        if transaction is not None and transaction.has_put(key):
            own = transaction.own(key)
            return None if own is None else Row.load(own)
        version = storage.records().version(key)
        known = self._known.get(row_id)
        if known is not None and known[0] == version:
            return known[1]
        body = storage.document(self.kind, row_id) if version else None
        if body is None:
            self._known.pop(row_id, None)
            return None
        row = Row.load(body)
        self._known[row_id] = (version, row)
        return row

    def all(self) -> list[Row]:
        """All rows, as the current transaction sees them, in the order in which they were made."""
        if not self._life.has_storage:
            return []
        storage, transaction = self._life.storage, self._life.transaction
        if not self._known and transaction is None:
            self._read_all()
        ids = dict.fromkeys(
            [*storage.records().keys(self.kind), *(transaction.collected(self.kind) if transaction else ())]
        )
        found = [self.get(row_id) for row_id in ids]
        return sorted((row for row in found if row is not None), key=lambda row: row.number)

    def _read_all(self) -> None:
        """With one statement. A row that changes meanwhile is read again when it is asked for."""
        storage = self._life.storage
        records = storage.records()
        versions = {row_id: records.version((self.kind, row_id)) for row_id in records.keys(self.kind)}
        for row_id, body in storage.documents(self.kind).items() if versions else ():
            self._known[row_id] = (versions.get(row_id, 0), Row.load(body))

    def count(self) -> int:
        """How many there are, about."""
        return len(self._life.storage.records().keys(self.kind)) if self._life.has_storage else 0

    # writing

    def number(self) -> int:
        """A number that is greater than those of all rows."""
        with self._life.storage.committing:
            if not self._number:
                self._number = max((row.number for row in self.all()), default=0)
            self._number = max(self._number + 1, self._life.now_ms())
            return self._number

    def write(self, job: Callable[[Transaction], T]) -> T:
        """Change rows in the open transaction, or in one of their own: that one is begun again when it is overtaken."""
        transaction = self._life.transaction
        if transaction is not None:
            return job(transaction)
        for _ in range(CONFLICTS_MAX):
            with suppress(StorageConflict), self._life.storage.transaction() as own:
                return job(own)
        with self._life.storage.transaction() as own:
            return job(own)

    def put(self, transaction: Transaction, row: Row) -> Row:
        """Keep a row in place of what was read under its id."""
        self._write(transaction, row.id, row)
        return row

    def drop(self, transaction: Transaction, row_id: str) -> None:
        """Delete a row."""
        self._write(transaction, row_id, None)

    def _write(self, transaction: Transaction, row_id: str, row: Row | None) -> None:
        transaction.depend_on((self.kind, row_id))
        transaction.put(self.kind, row_id, None if row is None else row.body())
        if row is not None:
            transaction.then(lambda: self._life.on_loop(lambda: self._changed(row)))

    def try_again(self, row_id: str) -> bool:
        """A row that is parked, or waits for its next try, gets all its tries again, from now. Whether there was one."""

        def renew(transaction: Transaction) -> bool:
            row = self.read(transaction, row_id)
            if row is None or row.status not in ("parked", "retrying"):
                return False
            self.put(transaction, row.afresh(row.tick_ms, min(row.due_at_ms, self._life.now_ms())))
            return True

        return self.write(renew)

    def tell(self, transaction: Transaction, what: str, row: Row, payload: dict[str, Any] | None = None) -> None:
        """Have an event told when this is durable, such as `schedule:create` or `queue:error`."""
        domain = "schedule" if self.kind == SCHEDULE else "queue"
        told = {"id": row.id, "callback": row.callback, **(payload or {})}
        address, at_ms = self._life.agent_id, self._life.now_ms()
        transaction.then(lambda: emit(Channel.SCHEDULE, f"{domain}:{what}", agent=address, payload=told, at_ms=at_ms))

    def read(self, transaction: Transaction, row_id: str) -> Row | None:
        """A row that the transaction depends on from now on."""
        transaction.depend_on((self.kind, row_id))
        return self.get(row_id)
