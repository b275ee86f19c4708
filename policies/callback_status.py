"""The state machine of schedules and queued items.

Only `Row.after` moves the status. The transaction that stores the row makes the move durable. A finished or cancelled row is deleted.

- `waiting` and `retrying` are due at an instant. A callback that a death cut off is called again.
- `paused` and `parked` are never due. A person moves them, by `schedules.resume`, or by `schedules.retry` and `queued.retry`.

Queued items are never paused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.policies.state_tables import Cell, Transitions


# Of a schedule or a queued item. The values are stored.
class CallbackStatus(StrEnum):
    WAITING = "waiting"
    """It waits for its next occurrence."""
    RETRYING = "retrying"
    """Its callback failed, and is called again after a pause."""
    PAUSED = "paused"
    PARKED = "parked"
    """Only a person can retry it."""


CALLBACK_DUE: Final = frozenset({CallbackStatus.WAITING, CallbackStatus.RETRYING})
"""The callback is called at an instant."""


class CallbackEvent(StrEnum):
    MOVED_ON = "moved_on"
    """An occurrence is done or given up. The row waits for the next one."""
    FAILED = "failed"
    """The callback raised, and has tries left."""
    PARKED = "parked"
    """Its tries are used up, its method is gone, or it may be what kills the agent."""
    PAUSED = "paused"
    RESUMED = "resumed"
    RESUMED_BETWEEN_TRIES = "resumed_between_tries"
    """It was paused after a failure of its callback."""
    RETRIED = "retried"
    """A person retries it now, with all its tries."""


# Of one try of a callback. The values are stored.
class PastOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    PARKED = "parked"
    """It failed for good."""
    SKIPPED = "skipped"
    """Nothing was called."""


_S, _E = CallbackStatus, CallbackEvent
_ignored, _illegal = Cell.IGNORED, Cell.ILLEGAL
_STATUSES = (_S.WAITING, _S.RETRYING, _S.PAUSED, _S.PARKED)

CALLBACK_TRANSITIONS: Final = Transitions(_STATUSES, {
    #                            waiting       retrying      paused        parked
    _E.MOVED_ON:              (_S.WAITING,   _S.WAITING,   _illegal,     _illegal),
    _E.FAILED:                (_S.RETRYING,  _S.RETRYING,  _illegal,     _illegal),
    _E.PARKED:                (_S.PARKED,    _S.PARKED,    _illegal,     _illegal),
    _E.PAUSED:                (_S.PAUSED,    _S.PAUSED,    _ignored,     _ignored),
    _E.RESUMED:               (_ignored,     _ignored,     _S.WAITING,   _ignored),
    _E.RESUMED_BETWEEN_TRIES: (_ignored,     _ignored,     _S.RETRYING,  _ignored),
    _E.RETRIED:               (_ignored,     _S.WAITING,   _ignored,     _S.WAITING),
})  # fmt: skip
