"""Mail: a durable message to an agent, handled exactly once. The second machine of the ledger.

A run has two slots for its ends: *give-up* (the parent stopped waiting) and *finish* (the true end), and one per announced
milestone name. One that was asked for inside a transaction has a slot for its *start*, if its parent has a hook for that: nobody could
be told before the transaction was durable. What a fact puts into a slot:

- the request of such a run fills *start*;
- a hard end fills *finish*, and supersedes a give-up that has not been delivered yet;
- an interruption fills *give-up*;
- a milestone on the parent's list fills `milestone:<name>`, once for ever.

What somebody tells an agent (`MailPosted`) is mail, too, in a slot that belongs to no run.

A mail moves `pending → delivered | superseded | suppressed | parked`, and `parked → pending` when a person asks. A handler whose
acknowledgement arrives after its mail was superseded did run, so truth wins: `superseded → delivered`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

START = "start"
FINISH = "finish"
TELL = "tell"
GIVE_UP = "give-up"
MILESTONE = "milestone:"

PENDING = "pending"
DELIVERED = "delivered"
SUPERSEDED = "superseded"
SUPPRESSED = "suppressed"
PARKED = "parked"


@dataclass(slots=True)
class Mail:
    """One message to one agent. `content` is plain data, fixed when the mail was enqueued, or None: then the run's record tells it.

    `seq` is the fact that put it into its mailbox, which is kept in that order.
    """

    mail_id: str
    recipient: str
    run_id: str
    slot: str
    handler: str
    content: dict[str, Any] | None
    enqueued_at_ms: int
    state: str = PENDING
    attempts: int = 0
    retry_at_ms: int = 0
    error: str = ""
    seq: int = 0

    def to_plain(self) -> list[Any]:
        """The record as plain data, for the snapshot."""
        return [getattr(self, name) for name in _FIELDS]


_FIELDS = [each.name for each in fields(Mail)]


def handler_of(slot: str, options: dict[str, Any]) -> str:
    """The name of the parent's method that handles this slot, or an empty string when only its hooks do."""
    if slot == START:
        return ""
    if slot == GIVE_UP:
        return str(options.get("on_give_up") or options.get("on_finish") or "")
    if slot == FINISH:
        return str(options.get("on_finish") or "")
    return str(options.get("on_milestone") or "")
