"""What an agent keeps of its fibers, as documents of its storage.

    fiber        <fiber id>            the row (`actors.jobs.fiber`)
    fiber_open   <fiber id>            stands while it is not settled, so that a life knows at once what it owes
    fiber_key    <idempotency key>     the fiber that it stands for
    fiber_input  <fiber id>            what its body is given
    fiber_stash  <fiber id>            [how often it stashed, the value]
    fiber_step   <fiber id> <name>     what a finished step gave

Every transition is one transaction, or part of the one that is open; it depends on the row that it saw, so of two that meet one is done
again. Rows in memory are trusted by their version: what another transaction committed meanwhile is read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from perdure.actors.jobs.fiber import Fiber, FiberInspection
from perdure.actors.life.life import Life
from perdure.ledger import pack, unpack
from perdure.ledger.storage.cabinet import (
    FIBER,
    FIBER_INPUT,
    FIBER_KEY,
    FIBER_OPEN,
    FIBER_STASH,
    FIBER_STEP,
    Transaction,
)

T = TypeVar("T")
AT_HAND_BYTES_MAX = 4096


class FiberStore:
    """The fibers of one agent, as they are durable.

    Args:
        told: is called on the loop with every row that has become durable.
    """

    def __init__(self, life: Life, told: Callable[[Fiber], None]) -> None:
        self._life, self._told = life, told
        self._own: Transaction | None = None
        self._rows: dict[str, tuple[int, Fiber]] = {}  # open ones, with the version of their row
        self._inputs: dict[str, bytes] = {}
        self._steps: dict[str, set[str]] | None = None
        self._number = 0

    @property
    def is_empty(self) -> bool:
        """Whether the agent never wrote anything."""
        return not self._life.has_storage

    # transactions

    def change(self, job: Callable[[Transaction], T]) -> T:
        """Do this in the open transaction, or in one of its own that is durable on return. Nobody else moves a fiber meanwhile."""
        joined = self._life.transaction
        if joined is not None:
            return job(joined)
        storage = self._life.storage
        with storage.committing, storage.transaction() as transaction:
            self._own = transaction
            try:
                return job(transaction)
            finally:
                self._own = None

    def next_number(self) -> int:
        """The place of a new fiber among the others."""
        self._number = max(self._number + 1, self._life.now_ms())
        return self._number

    def put(self, transaction: Transaction, fiber: Fiber) -> Fiber:
        """The row is to be this one. When it is over for good, what only its body needed goes."""
        fiber_id = fiber.fiber_id
        transaction.put(FIBER, fiber_id, fiber.body())
        is_open = self._stands(transaction, FIBER_OPEN, fiber_id)
        if fiber.is_settled and is_open:
            transaction.put(FIBER_OPEN, fiber_id, None)
        elif not fiber.is_settled and not is_open:
            transaction.put(FIBER_OPEN, fiber_id, b"")
        if fiber.is_settled and fiber.status != "interrupted":
            self._drop_work(transaction, fiber_id)
        transaction.then(partial(self._committed, fiber, is_own=transaction is self._own))
        return fiber

    def put_new(self, transaction: Transaction, fiber: Fiber, body: bytes | None = None) -> Fiber:
        """Accept a fiber, with the input of its body."""
        if fiber.idempotency_key:
            transaction.put(FIBER_KEY, fiber.idempotency_key, pack(fiber.fiber_id))
        if body is not None:
            transaction.put(FIBER_INPUT, fiber.fiber_id, body)
            if len(body) <= AT_HAND_BYTES_MAX:
                transaction.then(partial(self._inputs.__setitem__, fiber.fiber_id, body))
        return self.put(transaction, fiber)

    def drop(self, transaction: Transaction, fiber: Fiber) -> None:
        """Delete a fiber with all that belongs to it; its id and its key are free again."""
        fiber_id = fiber.fiber_id
        self._drop_work(transaction, fiber_id)
        if fiber.idempotency_key:
            transaction.put(FIBER_KEY, fiber.idempotency_key, None)
        for kind in (FIBER_STASH, FIBER_OPEN, FIBER):
            if self._stands(transaction, kind, fiber_id):
                transaction.put(kind, fiber_id, None)
        transaction.then(partial(self._dropped, fiber_id))

    def _dropped(self, fiber_id: str) -> None:
        self._rows.pop(fiber_id, None)

    def _drop_work(self, transaction: Transaction, fiber_id: str) -> None:
        if self._stands(transaction, FIBER_INPUT, fiber_id):
            transaction.put(FIBER_INPUT, fiber_id, None)
        for name in self._step_names(fiber_id):
            transaction.put(FIBER_STEP, f"{fiber_id}\0{name}", None)
        transaction.then(partial(self._forget_work, fiber_id))

    def _stands(self, transaction: Transaction, kind: str, key: str) -> bool:
        if transaction.has_put((kind, key)):
            return transaction.own((kind, key)) is not None
        return self._life.storage.records().version((kind, key)) > 0

    def _may_stand(self, kind: str, key: str) -> bool:
        """Whether it is worth to ask for a document."""
        transaction = self._life.transaction
        is_put = transaction is not None and transaction.has_put((kind, key))
        return is_put or self._life.storage.records().version((kind, key)) > 0

    def is_open(self, fiber_id: str) -> bool:
        """Whether something is still to come of a fiber, as far as is committed."""
        return self._life.storage.records().version((FIBER_OPEN, fiber_id)) > 0

    def _committed(self, fiber: Fiber, *, is_own: bool) -> None:
        """What was committed here, with nobody in between, is what memory may trust."""
        if is_own and not fiber.is_settled:
            self._rows[fiber.fiber_id] = (self._version(fiber.fiber_id), fiber)
        else:
            self._rows.pop(fiber.fiber_id, None)
        self._life.on_loop(partial(self._told, fiber))

    def _version(self, fiber_id: str) -> int:
        return self._life.storage.records().version((FIBER, fiber_id))

    # reading

    def find(self, fiber_id: str) -> Fiber | None:
        """A fiber, as the current transaction sees it, which from now on depends on it."""
        if self.is_empty:
            return None
        transaction = self._life.transaction
        if transaction is not None:
            transaction.depend_on((FIBER, fiber_id))
            if transaction.has_put((FIBER, fiber_id)):
                body = transaction.own((FIBER, fiber_id))
                return None if body is None else Fiber.load(body)
        version = self._version(fiber_id)
        known = self._rows.get(fiber_id)
        if known is not None and known[0] == version:
            return known[1]
        body = self._life.storage.bodies(FIBER, [fiber_id]).get(fiber_id) if version else None
        if body is None:
            return None
        fiber = Fiber.load(body)
        if fiber.is_open and self._version(fiber_id) == version:
            self._rows[fiber_id] = (version, fiber)
        return fiber

    def find_many(self, fiber_ids: Iterable[str]) -> list[Fiber]:
        """Those of these that exist, with one question; open ones are at hand from then on."""
        if self.is_empty:
            return []
        storage = self._life.storage
        with storage.committing:
            found = [Fiber.load(body) for body in storage.bodies(FIBER, list(fiber_ids)).values()]
            if self._life.transaction is None:
                self._rows |= {each.fiber_id: (self._version(each.fiber_id), each) for each in found if each.is_open}
        return found

    def inspect(self, fiber_id: str) -> FiberInspection | None:
        """A managed fiber as its author may see it."""
        fiber = self.find(fiber_id)
        return None if fiber is None or not fiber.is_managed else self.inspected(fiber)

    def inspected(self, fiber: Fiber, *, accepted: bool = False) -> FiberInspection:
        """A fiber as its author may see it."""
        snapshot = None if accepted and not fiber.attempt else self.stashed(fiber.fiber_id)[1]
        return fiber.shown(self._life.incarnation, snapshot, accepted=accepted)

    def id_of_key(self, key: str) -> str | None:
        """The fiber that was accepted under an idempotency key; the current transaction depends on it."""
        if self.is_empty:
            return None
        transaction = self._life.transaction
        if transaction is not None:
            transaction.depend_on((FIBER_KEY, key))
        if not self._may_stand(FIBER_KEY, key):
            return None
        body = self._life.storage.document(FIBER_KEY, key)
        return None if body is None else str(unpack(body))

    def ids(self) -> list[str]:
        """All fibers, whether they are over or not."""
        return [] if self.is_empty else self._life.storage.records().keys(FIBER)

    def open_ids(self) -> list[str]:
        """The fibers that are not settled."""
        return [] if self.is_empty else self._life.storage.records().keys(FIBER_OPEN)

    def input(self, fiber: Fiber) -> bytes | None:
        """What its body is given, or None. A small one is at hand for its first attempt."""
        at_hand = self._inputs.pop(fiber.fiber_id, None)
        if at_hand is not None:
            return at_hand
        return self._life.storage.document(FIBER_INPUT, fiber.fiber_id) if fiber.input_bytes else None

    def fetch_inputs(self, fibers: Iterable[Fiber]) -> None:
        """Have the small inputs of these at hand, with one question: they will soon be entered."""
        small = [each.fiber_id for each in fibers if 0 < each.input_bytes <= AT_HAND_BYTES_MAX]
        if small:
            self._inputs |= self._life.storage.bodies(FIBER_INPUT, small)

    def stashed(self, fiber_id: str) -> tuple[int, Any]:
        """How often a fiber stashed, and what last."""
        body = None
        if not self.is_empty and self._may_stand(FIBER_STASH, fiber_id):
            body = self._life.storage.document(FIBER_STASH, fiber_id)
        if body is None:
            return 0, None
        times, value = unpack(body)
        return times, value

    def stash(self, transaction: Transaction, fiber_id: str, value: Any) -> None:
        """Keep a value in place of the one before."""
        transaction.put(FIBER_STASH, fiber_id, pack([self.stashed(fiber_id)[0] + 1, value]))

    # steps

    def _step_names(self, fiber_id: str) -> set[str]:
        """The finished steps of a fiber. All keys are looked at once in a life."""
        if self._steps is None:
            self._steps = {}
            for key in self._life.storage.records().keys(FIBER_STEP):
                owner, _, name = key.partition("\0")
                self._steps.setdefault(owner, set()).add(name)
        return self._steps.get(fiber_id, set())

    def _forget_work(self, fiber_id: str) -> None:
        self._inputs.pop(fiber_id, None)
        if self._steps is not None:
            self._steps.pop(fiber_id, None)

    def steps(self, fiber_id: str) -> dict[str, bytes]:
        """What the finished steps of a fiber gave."""
        keys = [f"{fiber_id}\0{name}" for name in self._step_names(fiber_id)]
        found = self._life.storage.bodies(FIBER_STEP, keys) if keys else {}
        return {key.partition("\0")[2]: body for key, body in found.items()}

    def pending_step(self, fiber_id: str, name: str) -> bytes | None:
        """What a step gave in the transaction that is open, which may still roll back."""
        transaction = self._life.transaction
        return None if transaction is None else transaction.own((FIBER_STEP, f"{fiber_id}\0{name}"))

    def save_step(self, transaction: Transaction, fiber_id: str, name: str, body: bytes) -> None:
        """Keep what a step gave."""
        names = self._step_names(fiber_id)
        transaction.put(FIBER_STEP, f"{fiber_id}\0{name}", body)
        assert self._steps is not None
        transaction.then(partial(self._steps.setdefault(fiber_id, names).add, name))
