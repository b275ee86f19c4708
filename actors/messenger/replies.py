"""The open replies of one agent: their rows, their order in each thread, and their ends.

Those who deliver them (`deliveries`, `delivery`, `posts`) stand on this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict, Unpack

from perdure.actors.events.observability import Channel, emit
from perdure.actors.host.tenant import Tenant
from perdure.actors.messenger.store import MessengerStore, ReplyRow
from perdure.policies import Outcome, ReplyEvent, ReplyStatus

log = logging.getLogger("perdure.messenger")


class ReplyFields(TypedDict, total=False):
    """The fields of a reply that change together with its status."""

    outcome: str
    problem: str
    request_id: str
    started_at_ms: int
    settled_at_ms: int


class ReplyChanges(ReplyFields, total=False):
    """The fields of a reply that change."""

    status: ReplyStatus
    cancelled: str


class Replies:
    """The replies of one agent that are not over, in one life of it."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant, self.store = tenant, MessengerStore(tenant)
        self.open: dict[str, ReplyRow] = {}
        self._aside: set[str] = set()
        self._waiters: set[asyncio.Future[None]] = set()

    def now_ms(self) -> int:
        """Wall time, in milliseconds since the epoch."""
        return self.tenant.now_ms()

    def roll(self) -> float:
        """A number from 0 to 1 from the host's dice."""
        return self.tenant.dice.roll()

    def join(self, row: ReplyRow) -> None:
        """A reply, or an event that joined it, has become durable."""
        known = self.open.setdefault(row.reply_id, row)
        known.heard, known.ready_at_ms = row.heard, row.ready_at_ms
        self.look()

    async def place_of(self, reply: ReplyRow) -> None:
        """Wait until this reply is the first of its thread, and its burst is over."""
        while reply.cancelled is None and reply.status == ReplyStatus.WAITING:
            left_ms = reply.ready_at_ms - self.now_ms()
            is_first = self._is_first(reply)
            if is_first and left_ms <= 0:
                return
            await self._changed(left_ms / 1000 if is_first else None)

    def _is_first(self, reply: ReplyRow) -> bool:
        before = [
            each
            for each in self.open.values()
            if each.number < reply.number and each.is_of(reply.messenger_id, reply.thread_id)
        ]
        return all(each.reply_id in self._aside for each in before)

    async def _changed(self, timeout_s: float | None) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        await asyncio.wait([waiter], timeout=timeout_s)
        self._waiters.discard(waiter)

    def look(self) -> None:
        """Wake the replies that wait for their place: something has changed."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def step_aside(self, reply: ReplyRow, *, is_aside: bool) -> None:
        """Let the replies behind this one pass, or not, while its turn waits for a person."""
        if is_aside is not (reply.reply_id in self._aside):
            (self._aside.add if is_aside else self._aside.discard)(reply.reply_id)
            self.look()

    # ends

    def change(self, reply: ReplyRow, **fields: Unpack[ReplyChanges]) -> None:
        """Change a reply: in memory only after the commit, which is the open transaction's, or one before return."""
        with self.tenant.storage.transaction() as transaction:
            self.store.keep(replace(reply, **fields))
            transaction.then(lambda: vars(reply).update(fields))

    def move(self, reply: ReplyRow, event: ReplyEvent, **fields: Unpack[ReplyFields]) -> bool:
        """Change a reply by an event, with other values in these fields. Whether the event counted."""
        status = reply.next(event)
        if status is not None:
            self.change(reply, status=status, **fields)
        return status is not None

    def settle(self, reply: ReplyRow, outcome: Outcome, problem: str, kept_max: int) -> None:
        """Settle a reply, and delete the oldest settled ones beyond `kept_max`."""
        ended: ReplyFields = {"outcome": str(outcome), "problem": problem, "settled_at_ms": self.now_ms()}
        if self.move(reply, ReplyEvent.SETTLED, **ended):
            self.tell("messenger:settled", reply, {"outcome": reply.outcome, "error": problem or None})
            self.store.prune(kept_max)
        self._leave(reply)

    def park(self, reply: ReplyRow, problem: str) -> None:
        """Park a reply that cannot be delivered. The replies behind it go on."""
        if self.move(reply, ReplyEvent.PARKED, problem=problem, settled_at_ms=self.now_ms()):
            log.warning(
                "reply %s to thread %s was parked: %s. The turn is over and its answer is kept; retry_delivery(%r) tries again.",
                reply.reply_id,
                reply.thread_id,
                problem,
                reply.reply_id,
            )
            self.tell("messenger:parked", reply, {"error": problem})
        self._leave(reply)

    def _leave(self, reply: ReplyRow) -> None:
        self.open.pop(reply.reply_id, None)
        self._aside.discard(reply.reply_id)
        self.look()

    def tell(self, name: str, reply: ReplyRow, payload: Mapping[str, object]) -> None:
        """Emit an event of the channel."""
        told = {"replyId": reply.reply_id, "messengerId": reply.messenger_id, "threadId": reply.thread_id, **payload}
        emit(Channel.MESSENGER, name, agent=self.tenant.agent_id, payload=told, at_ms=self.now_ms())
