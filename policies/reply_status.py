"""The state machine of a messenger's replies.

Only `ReplyRow.next` reads it. The transaction that stores the row makes the move durable.

- `waiting` is durable before the webhook is acknowledged. More messages of its thread may join it.
- `running` begins with the commit that requests the turn. A reply that needs no turn stays `waiting`.
- `parked` cannot be delivered now. Only `retry_delivery` moves it.
- `settled` never changes, but for a question with buttons: when it is answered, its message is edited once more. The first end counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.policies.state_tables import Cell, Transitions


# The values are stored.
class ReplyStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PARKED = "parked"
    SETTLED = "settled"


REPLY_OPEN: Final = frozenset({ReplyStatus.WAITING, ReplyStatus.RUNNING})
"""The reply goes on by itself."""


class ReplyEvent(StrEnum):
    JOINED = "joined"
    """One more message of its thread arrived. If this is ignored, that message gets a reply of its own."""
    ASKED = "asked"
    """Its turn was requested."""
    SETTLED = "settled"
    PARKED = "parked"
    RETRIED = "retried"
    """A person retries it before its turn was requested."""
    RETRIED_AFTERWARDS = "retried_afterwards"
    """A person retries it after that, or it needs no turn."""
    REVISED = "revised"
    """Its words are others now. If this is ignored, they are shown by whoever delivers it."""


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
    _E.REVISED:            (_ignored,    _ignored,    _ignored,    _S.WAITING),
})  # fmt: skip
