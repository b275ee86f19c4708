"""What an event does to the row of a schedule or of a queue: one table for both, read before anything else about them.

`Row.after` alone moves the status, and the transaction that stores the row makes the move durable. A row whose last occurrence is done, and
one that is cancelled, is deleted: it has no status any more. What each column survives:

- `waiting` and `retrying` are due at an instant. A death in the middle of a callback leaves them so, and it is called again.
- `paused` and `parked` are never due. A person moves them: `schedules.resume` the one, `schedules.retry` and `queued.retry` the other.

Items of a queue are never paused: nothing asks for that.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.policies.transitions import Cell, Transitions


class CallbackStatus(StrEnum):
    """Where a schedule or a queued item stands. The values are stored."""

    WAITING = "waiting"
    """For the time of its next occurrence."""
    RETRYING = "retrying"
    """Its callback failed, and is called again after a pause."""
    PAUSED = "paused"
    PARKED = "parked"
    """It is not tried again unless a person says so."""


CALLBACK_DUE: Final = frozenset({CallbackStatus.WAITING, CallbackStatus.RETRYING})
"""The row's callback is called at an instant."""


class CallbackEvent(StrEnum):
    """What can happen to such a row."""

    MOVED_ON = "moved_on"
    """An occurrence is done, or was given up; the row waits for the next one."""
    FAILED = "failed"
    """The callback raised, and has tries left."""
    PARKED = "parked"
    """Its tries are used up, its method is gone, or it may be what kills the agent."""
    PAUSED = "paused"
    RESUMED = "resumed"
    RESUMED_BETWEEN_TRIES = "resumed_between_tries"
    """The same for a row that was paused when its callback had failed."""
    RETRIED = "retried"
    """A person gives it all its tries again, from now."""


class PastOutcome(StrEnum):
    """What came of one try of a callback. The values are stored."""

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
