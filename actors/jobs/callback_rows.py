"""The rows of schedules and of the queue, as documents of the agent's storage, and what an author sees of them.

    schedule          <schedule id>   one schedule, with the end of its history
    schedule_history  <schedule id>   the history of one that is gone
    queued            <item id>       one item of the queue

Of two transactions that change the same row, the later one is run again and sees what the first one did. There is no other lock. So the
transaction of a callback conflicts with a cancellation, a pause or a change of its schedule, and does not take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypedDict, TypeVar, Unpack

from perdure.actors.events.observability import Channel, emit
from perdure.actors.life.documents import RememberedDocuments, StoredRow
from perdure.actors.life.life import Life
from perdure.actors.retries import despite_conflicts
from perdure.ledger import BadRequest, ConflictingRequest
from perdure.ledger.storage.agent_storages import Transaction
from perdure.ledger.storage.records import SCHEDULE
from perdure.policies import (
    CALLBACK_DUE,
    CALLBACK_TRANSITIONS,
    CallbackEvent,
    CallbackStatus,
    CatchUp,
    PastOutcome,
    Retries,
    TickOverlap,
)

T = TypeVar("T")


# A type of a schedule, or an item of the queue. The values are stored.
class RowKind(StrEnum):
    SCHEDULED = "scheduled"
    DELAYED = "delayed"
    CRON = "cron"
    INTERVAL = "interval"
    QUEUED = "queued"


SCHEDULE_TYPES = tuple(kind for kind in RowKind if kind is not RowKind.QUEUED)


# Who made a schedule. Of a row of earlier code that is not known, and one that `on_start` let go of is such a row again. The values are
# stored.
class MadeBy(StrEnum):
    UNKNOWN = ""
    ON_START = "on_start"
    ELSEWHERE = "elsewhere"


class RowChanges(TypedDict, total=False):
    due_at_ms: int
    losses: int
    error: str


@dataclass(frozen=True, kw_only=True)
class CallbackRow(StoredRow):
    """A callback that is due at some time.

    Attributes:
        retry: the author's `Retries` for this callback; None takes the class's or the runtime's.
        tick_ms: the time that the next occurrence is for.
        due_at_ms: when the callback is called: later than the tick by the jitter, or by the pause after a failure.
        is_named: whether the author gave it an id or a key.
        attempt: the failures of the occurrence; its first try began at `began_at_ms` and folded in `missed` ticks.
        losses: the lives of the agent that may have been ended by the callback.
        trace: where in a trace it was asked for.
    """

    id: str
    number: int
    kind: RowKind
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
    catch_up: CatchUp = CatchUp.ONCE
    overlap: TickOverlap = TickOverlap.SKIP
    jitter_ms: int = 0
    status: CallbackStatus = CallbackStatus.WAITING
    attempt: int = 0
    began_at_ms: int = 0
    missed: int = 0
    losses: int = 0
    error: str = ""
    history: list[list[object]] = field(default_factory=list)
    trace: str = ""
    made_by: MadeBy = MadeBy.UNKNOWN

    @property
    def ready_at_ms(self) -> int | None:
        """From when its callback may be called; None if it is paused or parked. An item of the queue that was not tried yet waits for its
        turn only, whatever the clock says."""
        is_fresh = self.kind is RowKind.QUEUED and not self.attempt
        return 0 if is_fresh and self.next_at_ms is not None else self.next_at_ms

    @property
    def next_at_ms(self) -> int | None:
        # The same for people: when it is due, or has been since.
        return self.due_at_ms if self.status in CALLBACK_DUE else None

    @property
    def is_recurring(self) -> bool:
        return self.kind in (RowKind.CRON, RowKind.INTERVAL)

    @property
    def delivery_id(self) -> str:
        return f"{self.id}#{self.number}!{self.tick_ms}"

    def after(self, event: CallbackEvent, **changes: Unpack[RowChanges]) -> CallbackRow | None:
        """The row after an event; None if the event is ignored. Raises `IllegalTransition`."""
        status = CALLBACK_TRANSITIONS.next(self.status, event, self.id)
        return None if status is None else replace(self, status=status, **changes)

    def afresh(self, tick_ms: int, due_at_ms: int) -> CallbackRow:
        row = replace(self, tick_ms=tick_ms, due_at_ms=due_at_ms)
        return replace(row, attempt=0, began_at_ms=0, missed=0, losses=0, error="")

    def refuse_conflict(self, asked: CallbackRow, fields: Sequence[str], remedy: str) -> None:
        for name in self.other_fields(asked, fields):
            field = {"kind": "when", "cron": "when", "interval_ms": "interval_s"}.get(name, name)
            # a payload may be private, so it is not shown
            values = "" if name == "payload" else f" ({self._in_words(name)}, not {asked._in_words(name)})"
            named = f"the key {self.key!r}" if self.key else f"the id {self.id!r}"
            raise ConflictingRequest(field, f"{named} exists with another {field}{values}; {remedy}")

    @property
    def words(self) -> str:
        return f"{self.id!r} ({self._in_words('kind')}: {self.callback})"

    def other_fields(self, asked: CallbackRow, fields: Sequence[str]) -> list[str]:
        return [name for name in fields if getattr(self, name) != getattr(asked, name)]

    def _in_words(self, field: str) -> str:
        match field:
            case "kind" | "cron" | "interval_ms":
                every = f"every {self.interval_ms / 1000:g} s" if self.interval_ms else f"{self.kind}, at a single time"
                return repr(self.cron) if self.cron else every
            case "retry":
                return str(dict(zip(("attempts_max", "first_ms", "most_ms"), self.retry, strict=False)))
        return str(getattr(self, field))


class Rows(RememberedDocuments[CallbackRow]):
    """The rows of one kind of document, in one life of an agent.

    Args:
        changed: is called on the loop with every row that was written, after its commit.

    Attributes:
        domain: `schedule` or `queue`.
    """

    def __init__(self, life: Life, kind: str, changed: Callable[[CallbackRow], None]) -> None:
        super().__init__(life, kind, CallbackRow.load, CallbackRow.body)
        self._changed = changed
        self._number = 0
        self.domain = "schedule" if kind == SCHEDULE else "queue"

    def in_order(self) -> list[CallbackRow]:
        transaction = self._life.transaction
        if not self._known and transaction is None:
            found = list(self.some(self.keys()).values())
        else:
            ids = dict.fromkeys([*self.keys(), *(transaction.collected(self.kind) if transaction else ())])
            found = [row for row_id in ids if (row := self.get(row_id)) is not None]
        return sorted(found, key=lambda row: row.number)

    def read(self, transaction: Transaction, row_id: str) -> CallbackRow | None:
        # The transaction depends on it from now on.
        self.depend_on(transaction, row_id)
        return self.get(row_id)

    def number(self) -> int:
        # It is greater than those of all rows.
        with self._life.storage.committing:
            if not self._number:
                self._number = max((row.number for row in self.in_order()), default=0)
            self._number = max(self._number + 1, self._life.now_ms())  # the clock may have been set back
            return self._number

    def write(self, job: Callable[[Transaction], T]) -> T:
        # A transaction of their own is repeated after a conflict.
        transaction = self._life.transaction
        if transaction is not None:
            return job(transaction)

        def alone() -> T:
            with self._life.storage.transaction() as own:
                return job(own)

        return despite_conflicts(alone)

    def add(
        self, asked: CallbackRow, most: int, found: Callable[[Transaction, CallbackRow], CallbackRow]
    ) -> CallbackRow:
        """Keep a new row, or what `found` makes of the one that exists. Durable on return, or with the open transaction."""

        def add(transaction: Transaction) -> CallbackRow:
            known = self.read(transaction, asked.id)
            if known is not None:
                return found(transaction, known)
            if (count := len(self.keys())) >= most:
                raise BadRequest(self.domain, f"this agent has {count} entries, which is the limit")
            self.emit_after(transaction, "create", asked)
            return self.keep(transaction, replace(asked, number=self.number()))

        return self.write(add)

    def keep(self, transaction: Transaction, row: CallbackRow) -> CallbackRow:
        self.depend_on(transaction, row.id)
        self.put(transaction, row.id, row)
        transaction.then(lambda: self._life.on_loop(lambda: self._changed(row)))
        return row

    def try_again(self, row_id: str) -> bool:
        """Give a parked or retrying row all its tries again, from now. Returns whether there was one."""

        def renew(transaction: Transaction) -> bool:
            row = self.read(transaction, row_id)
            renewed = None if row is None else row.after(CallbackEvent.RETRIED)
            if renewed is not None:
                due_at_ms = min(renewed.due_at_ms, self._life.now_ms())
                self.keep(transaction, renewed.afresh(renewed.tick_ms, due_at_ms))
            return renewed is not None

        return self.write(renew)

    def emit_after(
        self, transaction: Transaction, what: str, row: CallbackRow, payload: Mapping[str, object] | None = None
    ) -> None:
        told = {"id": row.id, "callback": row.callback, **(payload or {})}
        address, at_ms = self._life.agent_id, self._life.now_ms()
        transaction.then(
            lambda: emit(Channel.SCHEDULE, f"{self.domain}:{what}", agent=address, payload=told, at_ms=at_ms)
        )


# ---------------------------------------------------------------- what an author sees


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrence:
    """What a callback is called for.

    Its effects in the agent's storage, and on other agents, happen once. Effects outside of Perdure (an HTTP call, say) may happen again
    after a death. `delivery_id` is the same for all tries of one occurrence, so the other side can tell.

    Args:
        schedule_id: the schedule, or the item of the queue.
        scheduled_at_ms: the time that it was for.
        attempt: 1 for the first try.
        missed: how many earlier ticks were folded into it.
    """

    schedule_id: str
    scheduled_at_ms: int
    attempt: int
    missed: int
    delivery_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A schedule of an agent, as it stands.

    `status` is `waiting` for its time, `retrying` after a failure, `paused`, or `parked` until `schedules.retry`; `error` says why.

    Args:
        type: `scheduled` for an instant, `delayed` by a number of seconds, `cron`, or `interval`.
        next_at_ms: when its callback is called next; None if it is paused or parked.
        attempt: how many tries of the current occurrence have failed.
        number: the cursor of `schedules.list`.
    """

    schedule_id: str
    type: str
    callback: str
    payload: Any
    status: CallbackStatus
    next_at_ms: int | None
    cron: str | None
    time_zone: str | None
    interval_ms: int | None
    catch_up: str
    overlap: str
    jitter_ms: int
    retry: Retries
    key: str | None
    attempt: int
    error: str | None
    created_at_ms: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedItem:
    """An item that waits in an agent's queue. Its statuses are those of a schedule, without `paused`."""

    item_id: str
    callback: str
    payload: Any
    status: CallbackStatus
    next_at_ms: int | None
    retry: Retries
    key: str | None
    attempt: int
    error: str | None
    queued_at_ms: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """One try of a schedule's callback, or ticks that were dropped.

    Args:
        outcome: `completed`, `failed`, `parked` (failed for good), or `skipped` (nothing was called).
        missed: how many ticks were folded into it, or dropped if it was skipped.
    """

    scheduled_at_ms: int
    began_at_ms: int
    ended_at_ms: int
    attempt: int
    missed: int
    outcome: PastOutcome
    error: str | None
