"""The replies of one agent: their documents, their order in each thread, and their ends.

    heard    <messenger> <dedupe key>   an accepted event, and its reply; a second delivery finds it here
    reply    <number>                   one answer to one burst of events, from its acceptance to its end
    post     <number> <index>           one visible message of a reply: the intended text, the acknowledged one, and its id

A reply is open until it is settled or parked:

    waiting ──► running ──► settled (answered | empty | apologised | failed | cancelled)
       │           │  ▲
       │           ▼  │ (retry_delivery)
       └────────► parked

Questions with buttons, and presses of them, are replies too (`questions`): they have words and no turn, and keep no order with others.

A `waiting` reply takes in more events. The step to `running` is the commit that asks for the turn. A `post` is written before its request
(`intended`) and after it (`acknowledged`, `message_id`), so the next life knows which requests are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Required, TypedDict, Unpack

from perdure.actors.events.observability import Channel, emit
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.documents import Documents, StoredRow
from perdure.actors.messenger.messenger_events import MessengerEvent
from perdure.actors.telemetry.telemetry import TRACE
from perdure.ledger import digest_of
from perdure.ledger.storage.records import HEARD, POST, REPLY
from perdure.policies import (
    REPLY_OPEN,
    REPLY_TRANSITIONS,
    AttemptSpans,
    Attribute,
    DeliveryOutcome,
    EndedSpan,
    Json,
    JsonObject,
    ReplyEvent,
    ReplyStatus,
    within,
)

log = logging.getLogger("perdure.messenger")


class AskedInThread(TypedDict, total=False):
    """What a message with buttons asks.

    Attributes:
        kind: `approval` of a call of a turn, or `question` of a run.
        text: what is asked, without the outcome.
        labels, values: the answers to choose from.
        outcome: in words; there is none while it is open.
        digest: of what the run asks, as it was shown.
        groups: as which the people of the thread answer.
        people: how those who have answered are recorded, by their ids at the provider.
    """

    kind: Required[str]
    text: str
    labels: list[str]
    values: list[Json]
    outcome: str
    call_id: str
    request_id: str
    ask_id: str
    digest: str
    groups: list[str]
    people: dict[str, str]


class PressedButton(TypedDict):
    # It names the question, the place of the answer there, and who has pressed.
    press_id: str
    question: str
    place: int
    author: str
    name: str
    who: str


@dataclass
class ReplyRow(StoredRow):
    """One answer. Instants are milliseconds since the epoch.

    Attributes:
        number: its place in the conversation.
        key: the first event's key.
        heard: the keys of its events' rows.
        words: the text of a notice, which is posted without a turn; None for an answer.
        fiber_id: the fiber that delivers it.
        cancelled: the reason of its cancellation, or None.
        tries, busy: failed requests to the provider in a row.
        buttons: the labels of its buttons.
        asked: what it asks, if it is a question.
        press: if it is the press of a button; its words are what the presser is told, and None until that is decided.
        approvals: the questions about calls of its turn that need approval, by their ids in the inbox.
    """

    number: int
    messenger_id: str
    thread_id: str
    key: str
    heard: list[str] = field(default_factory=list)
    kind: str = "reply"
    words: str | None = None
    status: ReplyStatus = ReplyStatus.WAITING
    outcome: str = ""
    problem: str = ""
    request_id: str = ""
    fiber_id: str = ""
    cancelled: str | None = None
    tries: int = 0
    busy: int = 0
    round: int = 0
    opened_at_ms: int = 0
    ready_at_ms: int = 0
    started_at_ms: int = 0
    settled_at_ms: int = 0
    trace: str = ""
    buttons: list[str] = field(default_factory=list)
    asked: AskedInThread | None = None
    press: PressedButton | None = None
    approvals: dict[str, str] = field(default_factory=dict)

    @property
    def is_apart(self) -> bool:
        # It keeps no order with the others of its thread.
        return self.asked is not None or self.press is not None

    @property
    def is_asking(self) -> bool:
        # It is a question that is open, as far as is known here.
        return self.asked is not None and "outcome" not in self.asked

    def has_place(self, place: int) -> bool:
        # It is a question that has an answer there.
        return self.asked is not None and place < len(self.asked["values"])

    @property
    def reply_id(self) -> str:
        # Its name for people, and the key of its row.
        return f"{self.number:010d}"

    @property
    def is_open(self) -> bool:
        return self.status in REPLY_OPEN

    def next(self, event: ReplyEvent) -> ReplyStatus | None:
        # None if the event is ignored. Raises `IllegalTransition`.
        return REPLY_TRANSITIONS.next(self.status, event, f"reply {self.reply_id}")

    def is_of(self, messenger_id: str, thread_id: str) -> bool:
        return (self.messenger_id, self.thread_id) == (messenger_id, thread_id)


@dataclass
class PostRow(StoredRow):
    """One visible message.

    Attributes:
        message_id: its id at the provider; empty while none is known.
        intended: the digest of the text that it shall have.
        acknowledged: the digest of the text that the provider has confirmed.
        is_sent: whether a post was sent whose response is not recorded here.
        is_repeated: whether it may be there twice, and says so.
    """

    index: int
    message_id: str = ""
    intended: str = ""
    acknowledged: str = ""
    is_sent: bool = False
    is_repeated: bool = False


# The spans of replies: one from the acceptance of a reply to its end, whichever lives brought it there, and one for each request to the
# provider.
#
#     reply MESSENGER                    below whatever handed the message over
#         fiber perdure:reply            each attempt at the delivery
#             invoke_agent CLASS         the turn
#             post MESSENGER, edit …     each request to the provider, with what went wrong
#
# A reply that a person tries again has a span of its own, with a link to the one before. A request that was under way at a death is not
# told: nobody knows what became of it, and the attempt at the delivery says that its process was lost.
class ReplySpans:
    """Tells of the replies of one agent, in one life of it."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant, self._telemetry = tenant, tenant.services.world.telemetry
        self._requests = 0

    def _rounds(self, reply: ReplyRow) -> AttemptSpans:
        rounds = self._telemetry.attempts(reply.trace, "reply", self._tenant.agent_id, reply.reply_id)
        return rounds._replace(first=0)

    @contextmanager
    def within(self, reply: ReplyRow) -> Iterator[None]:
        if not self._telemetry.is_on:
            yield
            return
        with self._telemetry.entered(self._rounds(reply).place(reply.round)):
            yield

    def ended(self, reply: ReplyRow) -> None:
        if not self._telemetry.is_on:
            return
        error = "" if reply.outcome == DeliveryOutcome.ANSWERED else reply.outcome or str(reply.status)
        told = self._about(reply) | {"perdure.reply.status": reply.outcome or str(reply.status)}
        told |= {"perdure.reply.messages": len(reply.heard)}
        times = reply.ready_at_ms if reply.round else reply.opened_at_ms, reply.settled_at_ms
        name = f"reply {reply.messenger_id}"
        self._telemetry.tell(self._rounds(reply).ended(reply.round, name, times, told, error))

    def asked(self, reply: ReplyRow, what: str, begun_ms: int, error: str) -> None:
        if not self._telemetry.is_on:
            return
        self._requests += 1
        above = TRACE.get() or self._rounds(reply).place(reply.round)
        place = within(above, what, self._tenant.agent_id, reply.reply_id, begun_ms, self._requests)
        times = begun_ms, self._tenant.now_ms()
        name = f"{what} {reply.messenger_id}"
        self._telemetry.tell(EndedSpan(name, place, above.span_id, *times, self._about(reply), (), error, "client"))

    def _about(self, reply: ReplyRow) -> dict[str, Attribute]:
        return {
            "perdure.agent.id": self._tenant.agent_id,
            "perdure.messenger.id": reply.messenger_id,
            "perdure.reply.id": reply.reply_id,
        }


class AcceptedEvent(TypedDict):
    event: JsonObject
    reply: str


class ReplyFields(TypedDict, total=False):
    # These fields change together with the status.
    outcome: str
    problem: str
    request_id: str
    started_at_ms: int
    settled_at_ms: int


class ReplyChanges(ReplyFields, total=False):
    status: ReplyStatus
    cancelled: str
    words: str
    buttons: list[str]
    asked: AskedInThread
    approvals: dict[str, str]


class Replies:
    """The replies of one agent, in one life of it.

    Attributes:
        open: those that are not over.
        rows: those that are stored, by their ids.
        spans: tells of them where telemetry is on.
    """

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.spans = ReplySpans(tenant)
        self.open: dict[str, ReplyRow] = {}
        self._aside: set[str] = set()
        self._over_s: dict[str, float] = {}  # when the burst of a reply is over, by the clock that nobody sets
        self._waiters: set[asyncio.Future[None]] = set()
        self._heard: Documents[AcceptedEvent] = Documents(tenant, HEARD)
        self.rows = Documents(tenant, REPLY, ReplyRow.load, ReplyRow.body)
        self._posts = Documents(tenant, POST, PostRow.load, PostRow.body)

    # documents

    def heard(self, event: MessengerEvent) -> AcceptedEvent | None:
        return self._heard.get(heard_key(event))

    def events(self, reply: ReplyRow) -> list[MessengerEvent]:
        rows = self._heard.some(reply.heard)
        return [MessengerEvent.model_validate(rows[key]["event"]) for key in reply.heard if key in rows]

    def all(self) -> list[ReplyRow]:
        return list(self.rows.all().values())

    def posts(self, reply: ReplyRow) -> dict[int, PostRow]:
        return {row.index: row for row in self._posts.all(f"{reply.reply_id}\0").values()}

    def keep(self, reply: ReplyRow, event: MessengerEvent | None = None) -> None:
        # `event` is one that joined the reply. Durable on return, or with the open transaction.
        with self.tenant.storage.transaction() as transaction:
            self.rows.put(transaction, reply.reply_id, reply)
            if event is not None:
                row = AcceptedEvent(event=event.model_dump(mode="json"), reply=reply.reply_id)
                self._heard.put(transaction, heard_key(event), row)

    def keep_post(self, reply: ReplyRow, post: PostRow) -> None:
        with self.tenant.storage.transaction() as transaction:
            self._posts.put(transaction, _post_key(reply, post.index), post)

    def forget_post(self, reply: ReplyRow, index: int) -> None:
        with self.tenant.storage.transaction() as transaction:
            self._posts.drop(transaction, _post_key(reply, index))

    def _prune(self, kept: int) -> None:
        known = len(self.rows.keys())
        if known <= kept + kept // 10:  # some slack, so that not every end brings a deletion
            return
        with self.tenant.storage.transaction() as transaction:
            settled = [each for each in self.all() if each.status == ReplyStatus.SETTLED and not each.is_asking]
            for reply in settled[: known - kept]:
                for index in self.posts(reply):
                    self._posts.drop(transaction, _post_key(reply, index))
                for key in reply.heard:
                    self._heard.drop(transaction, key)
                self.rows.drop(transaction, reply.reply_id)

    # order

    def join(self, row: ReplyRow, burst_ms: float) -> None:
        # The row has become durable. The burst of the reply lasts for `burst_ms` more at most.
        known = self.open.setdefault(row.reply_id, row)
        known.heard, known.ready_at_ms = row.heard, row.ready_at_ms
        left_ms = min(max(0, row.ready_at_ms - self.tenant.now_ms()), burst_ms)
        self._over_s[row.reply_id] = asyncio.get_running_loop().time() + left_ms / 1000
        self.wake_waiters()

    async def place_of(self, reply: ReplyRow) -> None:
        # Waits until this reply is the first of its thread, and its burst is over.
        while reply.cancelled is None and reply.status == ReplyStatus.WAITING and not reply.is_apart:
            left_s = self._over_s.get(reply.reply_id, 0.0) - asyncio.get_running_loop().time()
            before = [each for each in self.open.values() if each.number < reply.number and not each.is_apart]
            mine = [each for each in before if each.is_of(reply.messenger_id, reply.thread_id)]
            is_first = all(each.reply_id in self._aside for each in mine)
            if is_first and left_s <= 0:
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            await asyncio.wait([waiter], timeout=left_s if is_first else None)

    def wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def step_aside(self, reply: ReplyRow, *, is_aside: bool) -> None:
        # The replies behind it may pass while its turn waits for a person.
        if is_aside is not (reply.reply_id in self._aside):
            (self._aside.add if is_aside else self._aside.discard)(reply.reply_id)
            self.wake_waiters()

    # ends

    def change(self, reply: ReplyRow, **fields: Unpack[ReplyChanges]) -> None:
        # Durable on return, or with the open transaction. Memory follows the commit.
        with self.tenant.storage.transaction() as transaction:
            self.keep(replace(reply, **fields))
            transaction.then(lambda: vars(reply).update(fields))

    def move(self, reply: ReplyRow, event: ReplyEvent, **fields: Unpack[ReplyFields]) -> bool:
        # Returns whether the event counted.
        status = reply.next(event)
        if status is not None:
            self.change(reply, status=status, **fields)
        return status is not None

    def settle(self, reply: ReplyRow, outcome: DeliveryOutcome, problem: str, kept_max: int) -> None:
        ended: ReplyFields = {"outcome": str(outcome), "problem": problem, "settled_at_ms": self.tenant.now_ms()}
        if self.move(reply, ReplyEvent.SETTLED, **ended):
            self.spans.ended(reply)
            self.emit("messenger:settled", reply, {"outcome": reply.outcome, "error": problem or None})
            self._prune(kept_max)
        self._leave(reply)

    def park(self, reply: ReplyRow, problem: str) -> None:
        # The replies behind it go on.
        if self.move(reply, ReplyEvent.PARKED, problem=problem, settled_at_ms=self.tenant.now_ms()):
            words = "reply %s to thread %s was parked: %s; its answer is kept, and retry_delivery(%r) tries again"
            log.warning(words, reply.reply_id, reply.thread_id, problem, reply.reply_id)
            self.spans.ended(reply)
            self.emit("messenger:parked", reply, {"error": problem})
        self._leave(reply)

    def _leave(self, reply: ReplyRow) -> None:
        self.open.pop(reply.reply_id, None)
        self._aside.discard(reply.reply_id)
        self._over_s.pop(reply.reply_id, None)
        self.wake_waiters()

    def emit(self, name: str, reply: ReplyRow, payload: Mapping[str, object]) -> None:
        told = {"replyId": reply.reply_id, "messengerId": reply.messenger_id, "threadId": reply.thread_id, **payload}
        emit(Channel.MESSENGER, name, agent=self.tenant.agent_id, payload=told, at_ms=self.tenant.now_ms())


def heard_key(event: MessengerEvent) -> str:
    return f"{event.messenger_id}\0{event.dedupe_key}"


def digest(text: str, labels: Iterable[str] = ()) -> str:
    # An intended text, with its buttons, is compared with an acknowledged one by their digests.
    return digest_of("\0".join([text, *labels]).encode("utf-8", "replace"))


def _post_key(reply: ReplyRow, index: int) -> str:
    return f"{reply.reply_id}\0{index:04d}"
