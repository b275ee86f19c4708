"""The state machine of fibers.

A row has a *status*, which is stored and which authors see. The status `interrupted` covers two *states*. A fiber whose process died is
`recovering`, and open, until its hook or the policy decides. It is `interrupted`, and settled, if nobody could decide; then only a person
moves it. So does the status `running`: a fiber is `running` as long as its body is at work, and `waiting` when that has ended because all
that it did waited, to be entered again when the wait is over. Nothing of a waiting fiber is in any process, so none can die under it.

Only `Fiber.after` moves a row. The transaction that stores the row makes the move durable. A `running` row of an earlier life is treated as
`recovering`. Events from code that no longer owns the fiber (a cancelled body, an earlier life or attempt) are refused before this table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.policies.state_tables import Cell, Transitions


# The values are stored.
class FiberStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"
    INTERRUPTED = "interrupted"


FIBER_CLEANED: Final = (FiberStatus.COMPLETED, FiberStatus.ERROR, FiberStatus.ABORTED)
"""These never change, and `delete_fibers` deletes them by default."""

FIBER_SETTLED: Final = (*FIBER_CLEANED, FiberStatus.INTERRUPTED)
"""The statuses in which a fiber can be settled."""


# A status in which `recovering` is told from `interrupted`, and `waiting` from `running`.
class FiberState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    RECOVERING = "recovering"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"

    @property
    def status(self) -> FiberStatus:
        if self is FiberState.WAITING:
            return FiberStatus.RUNNING
        return FiberStatus.INTERRUPTED if self is FiberState.RECOVERING else FiberStatus(self.value)


FIBER_OPEN_STATES: Final = frozenset(
    {FiberState.PENDING, FiberState.RUNNING, FiberState.WAITING, FiberState.RECOVERING}
)
"""The fiber goes on by itself, or when an event comes."""

FIBER_ENTERED_NEXT: Final = frozenset({FiberState.PENDING, FiberState.WAITING})
"""Its body is not at work, and is entered when its time comes."""


# The statuses of a `FiberResult` are events.
class FiberEvent(StrEnum):
    ENTERED = "entered"
    """The next attempt begins."""
    WAITED = "waits"
    """All that its body does waits, for long, so the attempt has ended."""
    ASKED = "asked"
    """Its process died, and its recovery hook is called."""
    RETRIED = "retry"
    """Its body is to be entered again."""
    COMPLETED = "completed"
    FAILED = "error"
    ABORTED = "aborted"
    """By its body, its hook or a person."""
    INTERRUPTED = "interrupted"
    """Nobody could decide."""
    CANCELLED = "cancelled"
    """It is ended while it is open."""


_S, _E = FiberState, FiberEvent
_ignored, _illegal = Cell.IGNORED, Cell.ILLEGAL
_STATES = (_S.PENDING, _S.RUNNING, _S.WAITING, _S.RECOVERING, _S.INTERRUPTED, _S.COMPLETED, _S.ERROR, _S.ABORTED)

FIBER_TRANSITIONS: Final = Transitions(_STATES, {
    #                 pending     running         waiting     recovering      interrupted     completed error     aborted
    _E.ENTERED:     (_S.RUNNING, _ignored,       _S.RUNNING, _ignored,       _ignored,       _ignored, _ignored, _ignored),
    _E.WAITED:      (_illegal,   _S.WAITING,     _ignored,   _ignored,       _ignored,       _ignored, _ignored, _ignored),
    _E.ASKED:       (_illegal,   _S.RECOVERING,  _illegal,   _S.RECOVERING,  _ignored,       _ignored, _ignored, _ignored),
    _E.RETRIED:     (_illegal,   _S.PENDING,     _illegal,   _S.PENDING,     _S.PENDING,     _ignored, _ignored, _ignored),
    _E.COMPLETED:   (_illegal,   _S.COMPLETED,   _illegal,   _S.COMPLETED,   _S.COMPLETED,   _ignored, _ignored, _ignored),
    _E.FAILED:      (_illegal,   _S.ERROR,       _illegal,   _S.ERROR,       _S.ERROR,       _ignored, _ignored, _ignored),
    _E.ABORTED:     (_illegal,   _S.ABORTED,     _illegal,   _S.ABORTED,     _S.ABORTED,     _ignored, _ignored, _ignored),
    _E.INTERRUPTED: (_illegal,   _S.INTERRUPTED, _illegal,   _S.INTERRUPTED, _S.INTERRUPTED, _ignored, _ignored, _ignored),
    _E.CANCELLED:   (_S.ABORTED, _S.ABORTED,     _S.ABORTED, _S.ABORTED,     _ignored,       _ignored, _ignored, _ignored),
})  # fmt: skip
