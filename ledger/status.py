"""The statuses of a run, and the reasons for which a run may be interrupted."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    ERROR = "error"
    ABORTED = "aborted"


LIVE = frozenset({Status.STARTING, Status.RUNNING})
"""The run counts against its parent's limit, and the supervisor drives it."""

HARD = frozenset({Status.COMPLETED, Status.ERROR, Status.ABORTED})
"""The run has ended and never changes again."""

ENDED = HARD | {Status.INTERRUPTED}
"""Nobody waits for the run any longer. `interrupted` is soft: a late result replaces it."""

RETRIABLE = frozenset({Status.ERROR, Status.INTERRUPTED})
"""A person may have the run tried again. So may be one that is parked, which is live."""

LAST_EVENTS = frozenset({"finished", "error", "aborted", "cleared"})
"""The kinds of event after which a run says nothing, unless it is tried again."""


# Of a run with steps that are undone unless it completes: what becomes of it when that is done.
class Undo(StrEnum):
    PROMISED = "promised"  # nothing yet: it goes on
    ERROR = "error"
    ABORTED = "aborted"
    CLEARED = "cleared"  # it is aborted, and then cleared


class AskStatus(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


# Why a parent stopped waiting.
class InterruptedReason(StrEnum):
    NO_PROGRESS = "no-progress"
    WINDOW_EXCEEDED = "window-exceeded"
    NOT_TAILABLE = "not-tailable"
    INSPECT_TIMEOUT = "inspect-timeout"
    INSPECT_FAILED = "inspect-failed"
    RECOVERY_DEADLINE = "recovery-deadline"
    BUDGET_EXCEEDED = "budget-exceeded"
