"""Mail: a durable message to an agent, handled exactly once. The second machine of the ledger.

Each run has a slot for each mail that it may send, and each slot is used once: `finish` for its true end, `give-up` for the moment at
which its parent stopped waiting, `milestone:<name>` for each milestone on the parent's list, and `start`. What a fact puts into a slot:

- a hard end fills *finish*, and supersedes a give-up that is not delivered yet;
- an interruption fills *give-up*;
- a milestone on the parent's list fills `milestone:<name>`, the first time that it is reached;
- a request made inside a transaction fills *start*, if the parent has a hook for that: the hook may not run before the transaction is
  durable.

What an agent is told (`MailPosted`) is mail, too, in the slot *tell* that belongs to no run. So is an event for a run (`EventSent`), in a
slot `event:<name>` that may be used often: it is pending until the run takes it, and is withdrawn when the run ends.

`TABLE` below moves the state of a mail. Facts alone move it, and `decide` asks `permits` before it makes one. A handler whose
acknowledgement arrives after its mail was superseded did run, so truth wins: `superseded → delivered`. The record of a mail that is
delivered or suppressed is dropped, so whatever arrives for it later finds no mail; only the slot of its run remembers the state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from perdure.policies import Cell, IllegalTransition, Transitions

MILESTONE = "milestone:"
"""What the slot of a milestone begins with; its name follows."""
EVENT = "event:"
"""What the slot of an event for a run begins with; its name follows."""


ANSWER = "\0answer:"
"""What the name of an event begins with that brings the answer to a question; its number and its digest follow."""


class Slot(StrEnum):
    START = "start"
    FINISH = "finish"
    GIVE_UP = "give-up"
    TELL = "tell"


# Each counts in the audit equation: everything that was enqueued is in one of these.
class MailState(StrEnum):
    PENDING = "pending"
    PARKED = "parked"
    SUPERSEDED = "superseded"
    DELIVERED = "delivered"
    SUPPRESSED = "suppressed"


class MailEvent(StrEnum):
    HANDLED = "handled"
    """Its handler's effects are durable."""
    FAILED = "failed"
    """Its handler raised, and is called again later."""
    GIVEN_UP = "given up"
    """Its handler raised too often, or cannot be called."""
    OVERTAKEN = "overtaken"
    """The end of its run came before the give-up was delivered."""
    WITHDRAWN = "withdrawn"
    """Its run was cleared, or has ended without taking this event, or its recipient is being deleted."""
    REQUEUED = "requeued"
    """A person asked that it be delivered again."""


_P, _K, _S, _D, _W = (
    MailState.PENDING,
    MailState.PARKED,
    MailState.SUPERSEDED,
    MailState.DELIVERED,
    MailState.SUPPRESSED,
)
_ignored = Cell.IGNORED

TABLE = Transitions(
    (_P, _K, _S, _D, _W),
    {
        #                     pending   parked    superseded delivered  suppressed
        MailEvent.HANDLED:   (_D,       _D,       _D,        _ignored,  _ignored),
        MailEvent.FAILED:    (_P,       _ignored, _ignored,  _ignored,  _ignored),
        MailEvent.GIVEN_UP:  (_K,       _ignored, _ignored,  _ignored,  _ignored),
        MailEvent.OVERTAKEN: (_S,       _S,       _ignored,  _ignored,  _ignored),
        MailEvent.WITHDRAWN: (_W,       _W,       _ignored,  _ignored,  _ignored),
        MailEvent.REQUEUED:  (_ignored, _P,       _ignored,  _ignored,  _ignored),
    },
)  # fmt: skip


def permits(state: MailState, event: MailEvent) -> bool:
    return TABLE.cell(state, event) is not _ignored


@dataclass(slots=True)
class Mail:
    """One message to one agent.

    `content` is plain data, fixed when the mail was enqueued; with None the record of the run tells it. `seq` is the number of the fact
    that enqueued it, and its recipient's mailbox is kept in that order.
    """

    mail_id: str
    recipient: str
    run_id: str
    slot: str
    handler: str
    content: dict[str, Any] | None
    enqueued_at_ms: int
    state: MailState = MailState.PENDING
    attempts: int = 0
    retry_at_ms: int = 0
    error: str = ""
    seq: int = 0

    @property
    def is_event(self) -> bool:
        return self.slot.startswith(EVENT)

    @property
    def is_open(self) -> bool:
        return self.state in (MailState.PENDING, MailState.PARKED)

    def after(self, event: MailEvent) -> MailState:
        state = TABLE.next(self.state, event, self.mail_id)
        if state is None:  # `decide` drops echoes
            raise IllegalTransition(self.mail_id, self.state, event)
        return state

    def to_plain(self) -> list[object]:
        return [*_plain_of(self)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Mail:
        mail = cls(*plain)
        mail.state = MailState(mail.state)
        return mail


_plain_of = attrgetter(*(each.name for each in fields(Mail)))


def handler_of(slot: str, options: dict[str, Any]) -> str:
    """The name of the parent's method that handles this slot, or an empty string when only its hooks do."""
    if slot == Slot.START:
        return ""
    if slot == Slot.GIVE_UP:
        return str(options.get("on_give_up") or options.get("on_finish") or "")
    if slot == Slot.FINISH:
        return str(options.get("on_finish") or "")
    return str(options.get("on_milestone") or "")
