"""What an agent keeps of its fibers, as documents of its storage, and how their rows move.

    fiber        <fiber id>            the row (`actors.jobs.fiber`)
    fiber_open   <fiber id>            stands until the fiber is settled, so that a life finds what it owes
    fiber_key    <idempotency key>     the fiber of this key
    fiber_input  <fiber id>            the input of its body
    fiber_stash  <fiber id>            [how often it stashed, the value]
    fiber_step   <fiber id> <name>     the result of a finished step
    fiber_event  <fiber id> <number>   an event that its body has not taken; its name follows the number
    fiber_heard  <fiber id> <event>    it was sent, so the same one is not sent again

Every transition is one transaction, or part of the open one. It depends on the row that it read, so the later of two that meet is done
again. Rows in memory are trusted by their version.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from perdure.actors.code.author_call import tried
from perdure.actors.events.observability import Channel, emit
from perdure.actors.jobs.fiber import Fiber, FiberInspection, FiberPage
from perdure.actors.jobs.job_spans import FiberSpans
from perdure.actors.jobs.schedule_requests import instant
from perdure.actors.life.documents import Documents, RememberedDocuments
from perdure.actors.life.life import Life
from perdure.actors.life.waits import SentEvent
from perdure.ledger import (
    BadRequest,
    EventRefused,
    Kept,
    StorageError,
    check_whole,
    check_words,
    pack,
    pack_value,
    taken_out,
    unpack,
)
from perdure.ledger.storage.agent_storages import Transaction
from perdure.ledger.storage.records import (
    FIBER,
    FIBER_CARE,
    FIBER_EVENT,
    FIBER_HEARD,
    FIBER_INPUT,
    FIBER_KEY,
    FIBER_OPEN,
    FIBER_STASH,
    FIBER_STEP,
)
from perdure.policies import (
    FIBER_CLEANED,
    FIBER_SETTLED,
    UNSET,
    Drop,
    Enter,
    FiberEvent,
    FiberResult,
    FiberStatus,
    Json,
    Settle,
    SettledFiber,
    outlived,
)

T = TypeVar("T")
Job = Callable[[Transaction], object]
AT_HAND_BYTES_MAX = 4096
REST_S_MAX = 0.01
AT_ONCE_MAX = 100  # so that nobody waits long for the loop


class FiberStore:
    """The fibers of one agent, as they are durable.

    Attributes:
        rows: the fibers. Open ones are kept in memory.
        spans: tells of the attempts where telemetry is on.
        told: is called on the loop with every row that has become durable.
    """

    def __init__(self, life: Life, told: Callable[[Fiber], None]) -> None:
        self._life, self._told = life, told
        self._own: Transaction | None = None
        self.rows = RememberedDocuments(life, FIBER, Fiber.load, Fiber.body, attrgetter("is_open"))
        self.spans = FiberSpans(life, self.rows)
        self._open = Documents(life, FIBER_OPEN, bytes, bytes)
        self._keys: Documents[str] = Documents(life, FIBER_KEY)
        self._inputs = Documents(life, FIBER_INPUT, bytes, bytes)
        self._stashes: Documents[list[Any]] = Documents(life, FIBER_STASH)
        self._steps = _OfFibers(life, FIBER_STEP)
        self._events = _OfFibers(life, FIBER_EVENT)
        self._heard = _OfFibers(life, FIBER_HEARD)
        self._inputs_at_hand: dict[str, bytes] = {}
        self._number = 0

    # rows

    def change(self, job: Callable[[Transaction], T]) -> T:
        """Do this in the open transaction, or in one of its own that is durable on return. Nobody else moves a fiber meanwhile."""
        joined = self._life.transaction
        if joined is not None:
            return job(joined)
        with self._life.storage.brief() as transaction:
            self._own = transaction
            try:
                return job(transaction)
            finally:
                self._own = None

    def next_number(self, least: int = 0) -> int:
        self._number = max(self._number + 1, self._life.now_ms(), least)
        return self._number

    def put(self, transaction: Transaction, fiber: Fiber) -> Fiber:
        fiber_id = fiber.fiber_id
        self.spans.moves(transaction, fiber_id, fiber)
        self.rows.put(transaction, fiber_id, fiber)
        if fiber.is_settled:
            self._open.drop(transaction, fiber_id)
        elif not self._open.stands(fiber_id):
            self._open.put(transaction, fiber_id, b"")
        # A person may let an interrupted fiber be entered again, so it keeps its input and its steps.
        if fiber.is_settled and fiber.status != FiberStatus.INTERRUPTED:
            self._drop_work(transaction, fiber_id)
        transaction.then(partial(self._committed, fiber, is_own=transaction is self._own))
        return fiber

    def put_new(self, transaction: Transaction, fiber: Fiber, body: bytes | None) -> Fiber:
        if fiber.idempotency_key:
            self._keys.put(transaction, fiber.idempotency_key, fiber.fiber_id)
        if body is not None:
            self._inputs.put(transaction, fiber.fiber_id, body)
            if len(body) <= AT_HAND_BYTES_MAX:
                transaction.then(partial(self._inputs_at_hand.__setitem__, fiber.fiber_id, body))
        return self.put(transaction, fiber)

    def drop(self, transaction: Transaction, fiber: Fiber) -> None:
        # Its id and its key are free again.
        fiber_id = fiber.fiber_id
        self.spans.moves(transaction, fiber_id, None)
        self._drop_work(transaction, fiber_id)
        if fiber.idempotency_key:
            self._keys.drop(transaction, fiber.idempotency_key)
        for documents in (self._stashes, self._open, self.rows):
            documents.drop(transaction, fiber_id)
        self._heard.drop_all(transaction, fiber_id)
        transaction.then(partial(self.rows.forget, fiber_id))

    def _drop_work(self, transaction: Transaction, fiber_id: str) -> None:
        self._inputs.drop(transaction, fiber_id)
        self._steps.drop_all(transaction, fiber_id)
        self._events.drop_all(transaction, fiber_id)
        transaction.then(partial(self._forget_input, fiber_id))

    def _forget_input(self, fiber_id: str) -> None:
        self._inputs_at_hand.pop(fiber_id, None)

    def _committed(self, fiber: Fiber, *, is_own: bool) -> None:
        # A transaction of its own was committed under the storage's lock, so nobody wrote the row in between.
        if is_own:
            self.rows.remember(fiber.fiber_id, fiber)
        else:
            self.rows.forget(fiber.fiber_id)
        self._life.on_loop(partial(self._told, fiber))

    # transitions

    def move(
        self, transaction: Transaction, fiber: Fiber, verdict: Enter | Settle | Drop, result: FiberResult | None = None
    ) -> None:
        """Apply a verdict, with the snapshot and the metadata of its result."""
        now_ms, most = self._life.now_ms(), self._life.limits.error_chars_max
        if isinstance(verdict, Drop):
            self.drop(transaction, fiber)
            return
        if isinstance(verdict, Enter):
            due_at_ms = now_ms + verdict.after_ms if verdict.after_ms else 0
            error = fiber.error if result is None else result.error
            moved = fiber.after(FiberEvent.RETRIED, now_ms, due_at_ms=due_at_ms, error=error and error[:most])
        else:
            error = verdict.error and verdict.error[:most]
            event = FiberEvent(verdict.status)
            moved = fiber.after(event, now_ms, due_at_ms=0, is_recovering=False, error=error)
        if moved is None:
            return
        if result is not None and result.snapshot is not UNSET:
            self.stash(transaction, fiber.fiber_id, result.snapshot)
        if result is not None and result.metadata is not UNSET:
            moved = moved.but(metadata=Kept(pack_value("metadata", result.metadata)))
        self.put(transaction, moved)

    def emit(self, name: str, fiber: Fiber, payload: Mapping[str, object]) -> None:
        told = {"fiber_id": fiber.fiber_id, "fiber_name": fiber.name, "managed": fiber.is_managed, **payload}
        emit(Channel.FIBER, name, agent=self._life.agent_id, payload=told, at_ms=self._life.now_ms())

    def emit_after(self, transaction: Transaction, name: str, fiber: Fiber, payload: Mapping[str, object]) -> None:
        transaction.then(partial(self.emit, name, fiber, payload))

    # reading

    def find(self, fiber_id: str) -> Fiber | None:
        # As the current transaction sees it, which depends on it from now on.
        transaction = self._life.transaction
        if transaction is not None:
            self.rows.depend_on(transaction, fiber_id)
        return self.rows.get(fiber_id)

    def is_open(self, fiber_id: str) -> bool:
        # Whether it goes on by itself, as far as is committed.
        return self._open.version(fiber_id) > 0

    def open_ids(self) -> list[str]:
        return self._open.keys()

    def inspect(self, fiber_id: str) -> FiberInspection | None:
        fiber = self.find(fiber_id)
        return None if fiber is None or not fiber.is_managed else self.inspected(fiber)

    def inspected(self, fiber: Fiber, *, accepted: bool = False) -> FiberInspection:
        snapshot = None if accepted and not fiber.attempt else self.stashed(fiber.fiber_id)[1]
        return fiber.shown(self._life.incarnation, snapshot, accepted=accepted)

    def id_of_key(self, key: str) -> str | None:
        # The current transaction depends on it.
        transaction = self._life.transaction
        if transaction is not None:
            self._keys.depend_on(transaction, key)
        return self._keys.get(key)

    def input(self, fiber: Fiber) -> bytes | None:
        # A small one is at hand for the first attempt.
        at_hand = self._inputs_at_hand.pop(fiber.fiber_id, None)
        if at_hand is not None or not fiber.input_bytes:
            return at_hand
        return self._inputs.get(fiber.fiber_id)

    def fetch_inputs(self, fibers: Iterable[Fiber]) -> None:
        # These fibers will be entered soon: one statement reads what would take one each.
        small = [each.fiber_id for each in fibers if 0 < each.input_bytes <= AT_HAND_BYTES_MAX]
        self._inputs_at_hand |= self._inputs.some(small)

    def stashed(self, fiber_id: str) -> tuple[int, Json]:
        times, value = self._stashes.get(fiber_id) or (0, None)
        return times, taken_out(value)

    def stash(self, transaction: Transaction, fiber_id: str, value: Json) -> None:
        self._stashes.put(transaction, fiber_id, [self.stashed(fiber_id)[0] + 1, Kept(pack_value("snapshot", value))])

    # steps

    def steps(self, fiber_id: str) -> dict[str, bytes]:
        return self._steps.all(fiber_id)

    def pending_step(self, fiber_id: str, name: str) -> bytes | None:
        # The open transaction may still roll back.
        transaction = self._life.transaction
        return None if transaction is None else transaction.own((FIBER_STEP, _key(fiber_id, name)))

    def save_step(self, transaction: Transaction, fiber_id: str, name: str, body: bytes) -> None:
        self._steps.put(transaction, fiber_id, name, body)

    # events

    def send(self, transaction: Transaction, fiber: Fiber, event_id: str, name: str, body: bytes) -> SentEvent | None:
        """Keep an event for a fiber until its body takes it; None if the same one was sent before. Raises `EventRefused`."""
        if self._heard.stands(transaction, fiber.fiber_id, event_id):
            return None
        words, most = f"event {name!r} was not sent", self._life.limits.events_max
        if fiber.is_settled:
            raise EventRefused("fiber_id", f"fiber {fiber.fiber_id!r} has ended as {fiber.status}, so {words}")
        if self._events.count(transaction, fiber.fiber_id) >= most:
            said = f"fiber {fiber.fiber_id!r} has {most} events that it has not taken (events_max), so {words}"
            raise EventRefused("fiber_id", f"{said}. Send it again when the fiber has taken some")
        last = self._events.last(fiber.fiber_id)  # the clock may have been set back since
        number = self.next_number(1 + int(last.partition(" ")[0] or 0))
        self._heard.put(transaction, fiber.fiber_id, event_id, b"")
        self._events.put(transaction, fiber.fiber_id, _event_key(number, name), pack([event_id, body]))
        return SentEvent(event_id, name, self._life.agent_id, body, number)

    def has_come(self, fiber: Fiber) -> bool:
        return any(key.partition(" ")[2] in (fiber.awaited or ()) for key in self._events.names(fiber.fiber_id))

    def events(self, fiber_id: str) -> list[SentEvent]:
        found = [(*key.partition(" "), *unpack(body)) for key, body in sorted(self._events.all(fiber_id).items())]
        return [
            SentEvent(event_id, name, self._life.agent_id, body, int(number))
            for number, _, name, event_id, body in found
        ]

    def took(self, transaction: Transaction, fiber_id: str, event: SentEvent) -> None:
        self._events.drop(transaction, fiber_id, _event_key(event.seq, event.name))


class _OfFibers:
    """The documents of one kind of which a fiber may have many, each under a name. Threads and the loop look at them."""

    def __init__(self, life: Life, kind: str) -> None:
        self._life, self._documents = life, Documents(life, kind, bytes, bytes)
        self._lock = Lock()
        self._names: dict[str, set[str]] | None = None

    def names(self, fiber_id: str) -> list[str]:
        # Those of what is committed.
        if self._names is None:
            self._read_names()
        with self._lock:
            assert self._names is not None
            return list(self._names.get(fiber_id, ()))

    def _read_names(self) -> None:
        # A life reads all keys once. What is committed meanwhile is noted after that.
        with self._life.storage.committing, self._lock:
            if self._names is None:
                self._names = {}
                for key in self._documents.versions():
                    owner, _, name = key.partition("\0")
                    self._names.setdefault(owner, set()).add(name)

    def all(self, fiber_id: str) -> dict[str, bytes]:
        found = self._documents.some(_key(fiber_id, name) for name in self.names(fiber_id))
        return {key.partition("\0")[2]: body for key, body in found.items()}

    def last(self, fiber_id: str) -> str:
        return max(self.names(fiber_id), default="")

    def count(self, transaction: Transaction, fiber_id: str) -> int:
        # Those that this transaction adds count, too.
        own = transaction.collected(self._documents.kind)
        added = sum(body is not None for key, body in own.items() if key.startswith(_key(fiber_id, "")))
        return len(self.names(fiber_id)) + added

    def stands(self, transaction: Transaction, fiber_id: str, name: str) -> bool:
        # Of two transactions that find none and put one, the later is a conflict.
        self._documents.depend_on(transaction, _key(fiber_id, name))
        return self._documents.stands(_key(fiber_id, name))

    def put(self, transaction: Transaction, fiber_id: str, name: str, body: bytes) -> None:
        self._documents.put(transaction, _key(fiber_id, name), body)
        transaction.then(partial(self._note, fiber_id, name))

    def _note(self, fiber_id: str, name: str) -> None:
        with self._lock:
            if self._names is not None:
                self._names.setdefault(fiber_id, set()).add(name)

    def drop(self, transaction: Transaction, fiber_id: str, name: str) -> None:
        self._documents.drop(transaction, _key(fiber_id, name))
        transaction.then(partial(self._forget, fiber_id, {name}))

    def drop_all(self, transaction: Transaction, fiber_id: str) -> None:
        own = transaction.collected(self._documents.kind)
        added = {key.partition("\0")[2] for key in own if key.startswith(_key(fiber_id, ""))}
        names = added.union(self.names(fiber_id))
        for name in names:
            self._documents.drop(transaction, _key(fiber_id, name))
        transaction.then(partial(self._forget, fiber_id, names))

    def _forget(self, fiber_id: str, names: set[str]) -> None:
        with self._lock:
            left = (self._names or {}).get(fiber_id, set())
            left -= names
            if self._names is not None and not left:
                self._names.pop(fiber_id, None)


class GroupCommit:
    """Commits together the transitions that many tasks make at the same time: the cost of a commit is the statement, not its rows.

    Args:
        is_patient: whether there is much work that nobody waits for. Then the loop is left to others for as long as each commit took.
    """

    def __init__(self, life: Life, store: FiberStore, is_patient: Callable[[], bool]) -> None:
        self._life, self._store, self._is_patient = life, store, is_patient
        self._waiting: deque[tuple[Job, asyncio.Future[Any]]] = deque()
        self._is_busy = False

    async def __call__(self, job: Callable[[Transaction], T]) -> T:
        """Do this in a transaction with others; durable on return. It must not raise: that would fail the others too."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, done))
        if not self._is_busy:
            self._is_busy = True
            self._life.spawn(self._commit_all())
        return await done

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            begun_s = loop.time()
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), AT_ONCE_MAX))]
            results, problem = await tried(self._commit([job for job, _ in group]))
            for place, (_, done) in enumerate(group):
                if done.done():
                    continue
                if results is not None:
                    done.set_result(results[place])
                else:
                    lost = StorageError(self._life.agent_id, "nothing was committed")
                    done.set_exception(lost if problem is None else problem)
            await asyncio.sleep(min(REST_S_MAX, loop.time() - begun_s) if self._is_patient() else 0)
        self._is_busy = False

    async def _commit(self, jobs: list[Job]) -> list[object]:
        return self._store.change(lambda transaction: [job(transaction) for job in jobs])


def _event_key(number: int, name: str) -> str:
    return f"{number:016d} {name}"


def _key(fiber_id: str, name: str) -> str:
    return f"{fiber_id}\0{name}"


# ---------------------------------------------------------------- records
# The records of fibers: listed by pages, deleted on request or by age.
#
# Questions about many fibers are answered from a catalogue in memory with a few fields of each row. Entries are trusted by the version of
# their row, so nothing has to keep them up to date. The catalogue is read in pieces where nobody waits for it.

LISTED_MAX, DELETED_MAX = 500, 1_000
READ_AT_ONCE = 100  # rows between two turns of the loop
CARE_MS = 86_400_000


class _Entry(NamedTuple):
    version: int
    number: int
    name: str
    status: FiberStatus
    life: int
    settled_at_ms: int
    is_managed: bool
    is_waiting: bool


class FiberRecords:
    """All fibers of one agent, whether they are over or not."""

    def __init__(self, life: Life, store: FiberStore, together: GroupCommit) -> None:
        self._life, self._store, self._together = life, store, together
        self._care_at_ms: Documents[int] = Documents(life, FIBER_CARE)
        self._entries: dict[str, _Entry] = {}
        self._settled: int | None = None
        self._is_caring = False

    # asked by the author

    def page(self, status: str | Sequence[str] | None, name: str | None, limit: int, cursor: str | None) -> FiberPage:
        statuses = check_words("status", status, FiberStatus)
        before = _place(cursor)
        check_whole("limit", limit, most=LISTED_MAX)
        self._read(self._stale())
        found = sorted(
            (entry.number, fiber_id)
            for fiber_id, entry in self._entries.items()
            if entry.is_managed and self._status(entry) in statuses and name in (None, entry.name)
        )
        # One more than is shown tells whether there is another page.
        here = [each for each in reversed(found) if before is None or each < before][: limit + 1]
        rows = self._store.rows.some(each[1] for each in here[:limit])
        shown = tuple(self._store.inspected(rows[fiber_id]) for _, fiber_id in here[:limit] if fiber_id in rows)
        number, last_id = here[limit - 1] if len(here) > limit else (0, "")
        return FiberPage(shown, f"{number}:{last_id}" if last_id else None)

    def delete(self, settled_before: float | datetime | None, status: str | Sequence[str] | None, limit: int) -> int:
        """Delete settled fibers, the longest settled first. Interrupted ones are deleted only if `status` names them."""
        statuses = check_words("status", status, FIBER_SETTLED) if status is not None else frozenset(FIBER_CLEANED)
        before_ms = None if settled_before is None else instant("settled_before", settled_before)
        check_whole("limit", limit, most=DELETED_MAX)
        self._read(self._stale())
        found = sorted(
            (entry.settled_at_ms, fiber_id)
            for fiber_id, entry in self._entries.items()
            if entry.settled_at_ms
            and entry.status in statuses
            and (before_ms is None or entry.settled_at_ms < before_ms)
        )
        return self._drop([fiber_id for _, fiber_id in found[:limit]], statuses)

    def _drop(self, fiber_ids: list[str], statuses: Collection[FiberStatus]) -> int:
        def drop(transaction: Transaction) -> int:
            rows = [self._store.find(fiber_id) for fiber_id in fiber_ids]
            gone = [row for row in rows if row is not None and row.is_settled and row.status in statuses]
            for row in gone:
                self._store.drop(transaction, row)
            return len(gone)

        if not fiber_ids:
            return 0
        dropped = self._store.change(drop)
        self._settled = None
        return dropped

    # the catalogue

    def _status(self, entry: _Entry) -> FiberStatus:
        is_at_work = entry.status == FiberStatus.RUNNING and not entry.is_waiting
        is_cut_off = is_at_work and entry.life != self._life.incarnation
        return FiberStatus.INTERRUPTED if is_cut_off else entry.status

    def _stale(self) -> list[str]:
        # Entries of deleted fibers are removed.
        versions, known = self._store.rows.versions(), self._entries
        if len(versions) < len(known):
            known = self._entries = {each: known[each] for each in versions if each in known}
        return [each for each, version in versions.items() if each not in known or known[each].version != version]

    def _read(self, fiber_ids: list[str]) -> None:
        if not fiber_ids:
            return
        stored = self._store.rows
        with self._life.storage.committing:
            found = {
                fiber_id: _Entry(
                    stored.version(fiber_id),
                    row.number,
                    row.name,
                    row.status,
                    row.life,
                    row.settled_at_ms,
                    row.is_managed,
                    row.is_waiting,
                )
                for fiber_id, row in stored.some(fiber_ids).items()
            }
        for fiber_id in fiber_ids:
            self._entries.pop(fiber_id, None)
        self._entries |= found

    # retention

    def woken(self) -> None:
        if not self._store.rows.keys():
            return
        at_ms = self._care_at_ms.get("")
        if at_ms is None:
            self._store.change(self._care_later)
        elif not 0 < at_ms - self._life.now_ms() <= CARE_MS:  # it is due, or the clock was set back since
            self._care_soon()

    def _care_later(self, transaction: Transaction) -> None:
        interval_ms = min(CARE_MS, self._life.limits.fibers_kept_ms)
        self._care_at_ms.put(transaction, "", int(self._life.now_ms() + interval_ms))

    def settled(self) -> None:
        # The limit has some slack, so that not every end brings a deletion.
        if self._settled is None:
            self._settled = len(self._store.rows.keys()) - len(self._store.open_ids())
        else:
            self._settled += 1
        kept_max = self._life.limits.fibers_kept_max
        if self._settled > kept_max + max(10, kept_max // 10):
            self._care_soon()

    def _care_soon(self) -> None:
        if not self._is_caring:
            self._is_caring = True
            self._life.spawn(self._care())

    async def _care(self) -> None:
        _, problem = await tried(self._prune())
        self._is_caring = False
        if problem is not None and not self._life.is_leaving:
            self._life.trouble("deleting old fibers", problem)

    async def _prune(self) -> None:
        stale = self._stale()
        for first in range(0, len(stale), READ_AT_ONCE):
            self._read(stale[first : first + READ_AT_ONCE])
            await asyncio.sleep(0)
        settled = [
            SettledFiber(fiber_id, entry.status, entry.settled_at_ms)
            for fiber_id, entry in self._entries.items()
            if entry.settled_at_ms
        ]
        old = outlived(settled, self._life.now_ms(), self._life.limits)
        for first in range(0, len(old), READ_AT_ONCE):
            self._drop(old[first : first + READ_AT_ONCE], FIBER_CLEANED)
            await asyncio.sleep(0)
        self._settled = len(settled) - len(old)
        await self._together(self._care_later)


def _place(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    number, _, fiber_id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not number.isdecimal() or not fiber_id:
        raise BadRequest("cursor", f"{cursor!r} is no cursor of a page of fibers")
    return int(number), fiber_id
