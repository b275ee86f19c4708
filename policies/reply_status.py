"""What an event does to a messenger's reply: one table, read before anything else about replies.

`ReplyRow.next` is all that reads it, and the transaction that stores the row makes the move durable. What each column survives:

- `waiting` is durable before the webhook is acknowledged. It takes in more messages of its thread. A death leaves it there.
- `running` begins with the commit that asks for the turn, or stays `waiting` for words that need none. The next life goes on with it.
- `parked` cannot be delivered as things are. `retry_delivery` alone moves it.
- `settled` never changes: the first end counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.policies.transitions import Cell, Transitions


class ReplyStatus(StrEnum):
    """Where a reply stands. The values are stored."""

    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    SETTLED = "settled"


REPLY_OPEN: Final = frozenset({ReplyStatus.WAITING, ReplyStatus.RUNNING})
"""The reply goes on by itself."""


class ReplyEvent(StrEnum):
    """What can happen to a reply."""

    JOINED = "joined"
    """One more message of its thread came. If it is ignored here, that message has a reply of its own."""
    ASKED = "asked"
    """Its turn was asked for."""
    SETTLED = "settled"
    PARKED = "parked"
    RETRIED = "retried"
    """A person says so; its turn was not asked for yet."""
    RETRIED_AFTERWARDS = "retried_afterwards"
    """The same for one whose turn was asked for, or that needs none."""


_S, _E = ReplyStatus, ReplyEvent
_ignored, _illegal = Cell.IGNORED, Cell.ILLEGAL
_STATUSES = (_S.WAITING, _S.RUNNING, _S.PARKED, _S.SETTLED)

REPLY_TRANSITIONS: Final = Transitions(_STATUSES, {
    #                         waiting      running      parked       settled
    _E.JOINED:             (_S.WAITING,  _ignored,    _ignored,    _ignored),
    _E.ASKED:              (_S.RUNNING,  _illegal,    _illegal,    _illegal),
    _E.SETTLED:            (_S.SETTLED,  _S.SETTLED,  _ignored,    _ignored),
    _E.PARKED:             (_S.PARKED,   _S.PARKED,   _ignored,    _ignored),
    _E.RETRIED:            (_ignored,    _ignored,    _S.WAITING,  _ignored),
    _E.RETRIED_AFTERWARDS: (_ignored,    _ignored,    _S.RUNNING,  _ignored),
})  # fmt: skip
