"""What a messenger's agent keeps in its storage, beside its chat.

    heard    <messenger> <dedupe key>   one accepted event, and the reply that it belongs to; a second delivery finds it here
    reply    <number>                   one answer to one burst of events, from its acceptance to its end
    post     <number> <index>           one visible message of a reply: what is intended, what the provider acknowledged, and its id

A reply is open until it is settled or parked:

    waiting ──► running ──► settled (answered | empty | apologised | failed | cancelled)
       │           │  ▲
       │           ▼  │ (retry_delivery)
       └────────► parked

`waiting` takes in more events; the step to `running` is the commit that asks for the turn. Each line of `post` is written before the
request that it is about (`intended`) and after its reply (`acknowledged`, `message_id`), so a life that comes after knows which requests
are open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from perdure.actors.life.documents import Documents, StoredRow
from perdure.actors.life.life import Life
from perdure.actors.messenger.events import MessengerEvent
from perdure.ledger import digest_of
from perdure.ledger.storage.cabinet import HEARD, POST, REPLY
from perdure.policies import REPLY_OPEN, REPLY_TRANSITIONS, JsonObject, ReplyEvent, ReplyStatus


@dataclass
class ReplyRow(StoredRow):
    """One answer. Instants are milliseconds since the epoch.

    Attributes:
        number: its place in the conversation.
        key: the first event's key.
        heard: the keys of its events' rows.
        words: what is posted without a turn, for a notice; None for an answer.
        fiber_id: the fiber that delivers it.
        cancelled: the reason why it is to end, if somebody asked for that.
        tries, busy: failed requests to the provider in a row.
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

    @property
    def reply_id(self) -> str:
        """Its name for people, and the key of its row."""
        return f"{self.number:010d}"

    @property
    def is_open(self) -> bool:
        """Whether it goes on by itself."""
        return self.status in REPLY_OPEN

    def next(self, event: ReplyEvent) -> ReplyStatus | None:
        """The status after an event; None if the event is ignored. Raises `IllegalTransition`."""
        return REPLY_TRANSITIONS.next(self.status, event, f"reply {self.reply_id}")

    def is_of(self, messenger_id: str, thread_id: str) -> bool:
        """Whether it belongs to that thread."""
        return (self.messenger_id, self.thread_id) == (messenger_id, thread_id)


@dataclass
class PostRow(StoredRow):
    """One visible message.

    Attributes:
        message_id: what the provider calls it; empty as long as none is known.
        intended: the digest of what it is to say, or to be asked for just now.
        acknowledged: the digest of what the provider said that it says.
        is_sent: whether a post was sent whose reply is not written down here.
        is_repeated: whether it may stand there twice, and says so.
    """

    index: int
    message_id: str = ""
    intended: str = ""
    acknowledged: str = ""
    is_sent: bool = False
    is_repeated: bool = False


class Heard(TypedDict):
    """An accepted event as plain data, and the reply that it belongs to."""

    event: JsonObject
    reply: str


class MessengerStore:
    """The documents of one agent's messengers."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._heard: Documents[Heard] = Documents(life, HEARD)
        self._replies = Documents(life, REPLY, ReplyRow.load, ReplyRow.body)
        self._posts = Documents(life, POST, PostRow.load, PostRow.body)

    def heard(self, key: str) -> Heard | None:
        """The row of an accepted event."""
        return self._heard.get(key)

    def events(self, reply: ReplyRow) -> list[MessengerEvent]:
        """The events of a reply, in the order of their acceptance."""
        rows = self._heard.some(reply.heard)
        return [MessengerEvent.model_validate(rows[key]["event"]) for key in reply.heard if key in rows]

    def replies(self) -> list[ReplyRow]:
        """All replies that are remembered, oldest first."""
        return list(self._replies.all().values())

    def reply(self, reply_id: str) -> ReplyRow | None:
        """One reply, or None."""
        return self._replies.get(reply_id)

    def posts(self, reply: ReplyRow) -> dict[int, PostRow]:
        """The visible messages of a reply, by their place."""
        return {row.index: row for row in self._posts.all(f"{reply.reply_id}\0").values()}

    def keep(self, reply: ReplyRow, event: MessengerEvent | None = None) -> None:
        """Make a reply durable, and an event that joined it; now, or with the open transaction."""
        with self._life.storage.transaction() as transaction:
            self._replies.put(transaction, reply.reply_id, reply)
            if event is not None:
                row = Heard(event=event.model_dump(mode="json"), reply=reply.reply_id)
                self._heard.put(transaction, heard_key(event), row)

    def keep_post(self, reply: ReplyRow, post: PostRow) -> None:
        """Make the state of one message durable."""
        with self._life.storage.transaction() as transaction:
            self._posts.put(transaction, _post_key(reply, post.index), post)

    def forget_post(self, reply: ReplyRow, index: int) -> None:
        """Delete the row of a message."""
        with self._life.storage.transaction() as transaction:
            self._posts.drop(transaction, _post_key(reply, index))

    def prune(self, kept: int) -> None:
        """Delete the oldest settled replies beyond `kept`, with their events and posts."""
        known = len(self._replies.keys())
        if known <= kept + kept // 10:
            return
        with self._life.storage.transaction() as transaction:
            for reply in [each for each in self.replies() if each.status == ReplyStatus.SETTLED][: known - kept]:
                for index in self.posts(reply):
                    self._posts.drop(transaction, _post_key(reply, index))
                for key in reply.heard:
                    self._heard.drop(transaction, key)
                self._replies.drop(transaction, reply.reply_id)


def heard_key(event: MessengerEvent) -> str:
    """The key under which an event is stored."""
    return f"{event.messenger_id}\0{event.dedupe_key}"


def digest(text: str) -> str:
    """A digest by which an intended text is compared with an acknowledged one."""
    return digest_of(text.encode("utf-8", "replace"))


def _post_key(reply: ReplyRow, index: int) -> str:
    return f"{reply.reply_id}\0{index:04d}"
