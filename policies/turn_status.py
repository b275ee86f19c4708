"""The state machine of chat turns; see `policies.state_tables`. An answer to a turn that does not wait, and a second end, are ignored.

Only `Turn.apply` moves the status. The commit that stores the row makes the move durable.

- `accepted` is durable before anybody is told of the turn. After a death the next life begins it.
- `running`: after a death the next life recovers the turn under the same id, into the same message.
- `parked` waits for a person. It can be answered, cancelled, or end at its deadline.
- The others are ends. The first end counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.policies.state_tables import Cell, Transitions


# The values are stored.
class TurnStatus(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"
    INTERRUPTED = "interrupted"
    """Only in the `TurnResult` of an attempt that ends before its turn."""
    SKIPPED = "skipped"


class TurnEvent(StrEnum):
    BEGUN = "begun"
    """Its messages are in the transcript."""
    CUT_OFF = "cut_off"
    """An attempt ended before the turn: its process died, its stream stalled, or its memory ran out. Another one begins."""
    PARKED = "parked"
    """It waits until a person or a client answers its calls."""
    ANSWERED = "answered"
    """The last of those calls is answered."""
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    """It was cancelled."""
    SKIPPED = "skipped"
    """It has nothing to answer, or was superseded."""


_S, _E = TurnStatus, TurnEvent
_ignored, _illegal = Cell.IGNORED, Cell.ILLEGAL
_OPEN = (_S.ACCEPTED, _S.RUNNING, _S.PARKED)

TURN_ENDED: Final = frozenset(TurnStatus) - {*_OPEN}
"""The turn has ended."""

#                  accepted      running       parked      | completed error aborted interrupted skipped: one column, for ends are alike
_TABLE: Final[dict[TurnEvent, tuple[TurnStatus | Cell, ...]]] = {
    _E.BEGUN:     (_S.RUNNING,   _illegal,     _illegal,    _illegal),
    _E.CUT_OFF:   (_S.ACCEPTED,  _S.RUNNING,   _illegal,    _illegal),
    _E.PARKED:    (_illegal,     _S.PARKED,    _illegal,    _illegal),
    _E.ANSWERED:  (_ignored,     _ignored,     _S.RUNNING,  _ignored),
    _E.COMPLETED: (_illegal,     _S.COMPLETED, _illegal,    _ignored),
    _E.FAILED:    (_S.ERROR,     _S.ERROR,     _S.ERROR,    _ignored),
    _E.ABORTED:   (_S.ABORTED,   _S.ABORTED,   _S.ABORTED,  _ignored),
    _E.SKIPPED:   (_S.SKIPPED,   _S.SKIPPED,   _illegal,    _ignored),
}  # fmt: skip

TURN_TRANSITIONS: Final = Transitions(
    (*_OPEN, *TURN_ENDED), {event: (*cells[:3], *cells[3:] * len(TURN_ENDED)) for event, cells in _TABLE.items()}
)
