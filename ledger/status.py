"""The statuses of a run, and the reasons for which a run may be interrupted."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where a run stands. The names are those of seed 003."""

    STARTING = "starting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"


LIVE = frozenset({Status.STARTING, Status.RUNNING})
"""The run holds a place of its parent's limit, and somebody drives it."""

HARD = frozenset({Status.COMPLETED, Status.ERROR, Status.ABORTED})
"""The run has ended for ever."""

ENDED = HARD | {Status.INTERRUPTED}
"""Nobody who waits has to wait any longer. `interrupted` is soft: a late true result repairs it."""


class InterruptedReason(StrEnum):
    """Why a parent stopped waiting. The seven reasons of seed 003."""

    NO_PROGRESS = "no-progress"
    WINDOW_EXCEEDED = "window-exceeded"
    NOT_TAILABLE = "not-tailable"
    INSPECT_TIMEOUT = "inspect-timeout"
    INSPECT_FAILED = "inspect-failed"
    RECOVERY_DEADLINE = "recovery-deadline"
    BUDGET_EXCEEDED = "budget-exceeded"
