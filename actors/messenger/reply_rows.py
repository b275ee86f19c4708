"""The rows of a reply and of its visible messages, as documents (`replies` tells what becomes of them)."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.actors.life.documents import StoredRow
from perdure.policies import REPLY_OPEN, REPLY_TRANSITIONS, ReplyEvent, ReplyStatus


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

    @property
    def reply_id(self) -> str:
        """Its name for people, and the key of its row."""
        return f"{self.number:010d}"

    @property
    def is_open(self) -> bool:
        return self.status in REPLY_OPEN

    def next(self, event: ReplyEvent) -> ReplyStatus | None:
        """The status after an event; None if the event is ignored. Raises `IllegalTransition`."""
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
