"""What an event does to the status of a chat turn: one table, read before anything else about turns.

Three kinds of cell. A status: the turn moves there, or stays. `IGNORED`: an echo, such as an answer to a turn that does not wait or a
second end; it changes nothing. `ILLEGAL`: only a bug of ours can bring it about; `Turn.apply` raises `IllegalTransition`.

`Turn.apply` alone moves the status, and the commit that stores the row makes the move durable. What each column survives:

- `accepted` is durable before anybody is told of the turn. A death leaves it there; the next life begins it.
- `running` survives a death: the next life finds the row and recovers the turn under the same id, into the same message.
- `parked` waits for a person and costs nothing. It can be answered, cancelled, or end at its deadline; nobody plays it meanwhile.
- The others are ends. An ended turn never changes: the first end counts.
"""

from __future__ import annotations

from enum import StrEnum

from perdure.policies.transitions import Cell


class TurnStatus(StrEnum):
    """Where a turn stands. The values are stored."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"
    INTERRUPTED = "interrupted"
    """No turn ends so any more. A `TurnResult` says it of an attempt that is over before its turn."""
    SKIPPED = "skipped"


class TurnEvent(StrEnum):
    """What can happen to a turn."""

    BEGUN = "begun"
    """Its messages have joined the transcript."""
    CUT_OFF = "cut_off"
    """An attempt is over before the turn's end: its process died, its stream stalled, its memory ran out. Another one begins."""
    PARKED = "parked"
    """Nothing is left to do until a person or a client answers one of its calls."""
    ANSWERED = "answered"
    """The last of those calls has its answer."""
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    """Somebody cancelled it."""
    SKIPPED = "skipped"
    """It has nothing to answer, or something else has taken its place."""


_S, _E = TurnStatus, TurnEvent
_ignored, _illegal = Cell.IGNORED, Cell.ILLEGAL

#                  accepted      running       parked      | completed error aborted interrupted skipped: one column, for ends are alike
_TABLE: dict[TurnEvent, tuple[TurnStatus | Cell, ...]] = {
    _E.BEGUN:     (_S.RUNNING,   _illegal,     _illegal,    _illegal),
    _E.CUT_OFF:   (_S.ACCEPTED,  _S.RUNNING,   _illegal,    _illegal),
    _E.PARKED:    (_illegal,     _S.PARKED,    _illegal,    _illegal),
    _E.ANSWERED:  (_ignored,     _ignored,     _S.RUNNING,  _ignored),
    _E.COMPLETED: (_illegal,     _S.COMPLETED, _illegal,    _ignored),
    _E.FAILED:    (_S.ERROR,     _S.ERROR,     _S.ERROR,    _ignored),
    _E.ABORTED:   (_S.ABORTED,   _S.ABORTED,   _S.ABORTED,  _ignored),
    _E.SKIPPED:   (_S.SKIPPED,   _S.SKIPPED,   _illegal,    _ignored),
}  # fmt: skip

_COLUMN = {status: index for index, status in enumerate((_S.ACCEPTED, _S.RUNNING, _S.PARKED))}
_END = len(_COLUMN)

TURN_ENDED = frozenset(TurnStatus) - _COLUMN.keys()
"""The turn is over, for ever."""


def turn_cell(status: TurnStatus, event: TurnEvent) -> TurnStatus | Cell:
    """What the table says about this event in this status."""
    return _TABLE[event][_COLUMN.get(status, _END)]
