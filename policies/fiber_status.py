"""What an event does to a fiber: one table, read before anything else about fibers.

A fiber's row has a *status*, which is stored and which authors see. `interrupted` is two things there, so the machine has *states*: a fiber
whose process died is `recovering`, and open, until its hook or the policy has come to a verdict; it is `interrupted`, and settled, when
nobody could tell what becomes of it. A settled one is moved only by a person, and only if it is `interrupted`.

`Fiber.after` alone moves the row, and the transaction that stores it makes the move durable. A `running` row of an earlier life is one
whose process died: what recovers it treats it as `recovering`. An event that comes from code which lost the fiber (a cancelled body, an
earlier life, an earlier attempt) is refused before this table is asked: the row names whoever is at work on it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from perdure.policies.transitions import Cell, Transitions


class FiberStatus(StrEnum):
    """Where a fiber stands. The values are stored."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"
    INTERRUPTED = "interrupted"


FIBER_CLEANED: Final = (FiberStatus.COMPLETED, FiberStatus.ERROR, FiberStatus.ABORTED)
"""These never change, and are deleted unless somebody says otherwise."""

FIBER_SETTLED: Final = (*FIBER_CLEANED, FiberStatus.INTERRUPTED)
"""The statuses in which a fiber can be settled."""


class FiberState(StrEnum):
    """A status, where `interrupted` is told from what is being recovered."""

    PENDING = "pending"
    RUNNING = "running"
    RECOVERING = "recovering"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"

    @property
    def status(self) -> FiberStatus:
        """The status of a row in this state."""
        return FiberStatus.INTERRUPTED if self is FiberState.RECOVERING else FiberStatus(self.value)


FIBER_OPEN_STATES: Final = frozenset({FiberState.PENDING, FiberState.RUNNING, FiberState.RECOVERING})
"""Something is still to come of the fiber by itself."""


class FiberEvent(StrEnum):
    """What can happen to a fiber. The words of a `FiberResult` are events."""

    ENTERED = "entered"
    """The next attempt at its body begins."""
    ASKED = "asked"
    """Its process died, and its recovery hook is called."""
    RETRIED = "retry"
    """Its body is to be entered again."""
    COMPLETED = "completed"
    FAILED = "error"
    ABORTED = "aborted"
    """Its body, its hook or a person says so."""
    INTERRUPTED = "interrupted"
    """Nobody can tell what becomes of it."""
    CANCELLED = "cancelled"
    """Somebody ends it while it is open."""


_S, _E = FiberState, FiberEvent
_ignored, _illegal = Cell.IGNORED, Cell.ILLEGAL
_STATES = (_S.PENDING, _S.RUNNING, _S.RECOVERING, _S.INTERRUPTED, _S.COMPLETED, _S.ERROR, _S.ABORTED)

FIBER_TRANSITIONS: Final = Transitions(_STATES, {
    #                 pending     running         recovering      interrupted     completed error     aborted
    _E.ENTERED:     (_S.RUNNING, _ignored,       _ignored,       _ignored,       _ignored, _ignored, _ignored),
    _E.ASKED:       (_illegal,   _S.RECOVERING,  _S.RECOVERING,  _ignored,       _ignored, _ignored, _ignored),
    _E.RETRIED:     (_illegal,   _S.PENDING,     _S.PENDING,     _S.PENDING,     _ignored, _ignored, _ignored),
    _E.COMPLETED:   (_illegal,   _S.COMPLETED,   _S.COMPLETED,   _S.COMPLETED,   _ignored, _ignored, _ignored),
    _E.FAILED:      (_illegal,   _S.ERROR,       _S.ERROR,       _S.ERROR,       _ignored, _ignored, _ignored),
    _E.ABORTED:     (_illegal,   _S.ABORTED,     _S.ABORTED,     _S.ABORTED,     _ignored, _ignored, _ignored),
    _E.INTERRUPTED: (_illegal,   _S.INTERRUPTED, _S.INTERRUPTED, _S.INTERRUPTED, _ignored, _ignored, _ignored),
    _E.CANCELLED:   (_S.ABORTED, _S.ABORTED,     _S.ABORTED,     _ignored,       _ignored, _ignored, _ignored),
})  # fmt: skip
