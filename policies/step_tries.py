"""What happens next with a step that is tried, timed, or asked for: one table over what is remembered of it.

| | tries used up | limit over | pause ahead | begun, with a probe | verdict |
|---|---|---|---|---|---|
| A | yes | – | – | – | `FAILED`, in a later attempt too |
| B | no | yes | – | – | `TIMED_OUT` |
| C | no | no | yes | – | `PAUSE` |
| D | no | no | no | yes | `PROBE` |
| E | no | no | no | no | `BEGIN` |

A and B come before everything else, so that an attempt after a death meets the same failure as the one that died. C: a death in the
middle of a pause does not shorten it. D: the job had begun, and its end was not remembered. E: also of a job that had begun and has no
probe.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class StepVerdict(Enum):
    FAILED = "failed"
    TIMED_OUT = "timed out"
    PAUSE = "pause"
    PROBE = "probe"
    BEGIN = "begin"


class StepRecord(NamedTuple):
    """What is remembered of a step beside its value. Instants are milliseconds since the epoch; 0 means none.

    Attributes:
        round: in which count of the tries it was written; another one counts anew.
        began: its job had begun, and did not raise.
        number: orders the steps of a run that have an undo, by when they were first begun.
        undo, probe: how what undoes it, and what tells whether it took effect, are found again; None without.
    """

    round: int = 0
    began: bool = False
    failures: int = 0
    next_try_ms: int = 0
    deadline_ms: int = 0
    error: str = ""
    number: int = 0
    undo: list[Any] | None = None
    probe: list[Any] | None = None

    def counted_anew(self, count: int) -> StepRecord:
        # The failures, the pause and the limit of an earlier count do not count any more.
        return self._replace(round=count, failures=0, next_try_ms=0, deadline_ms=0, error="")


def look_at_step(record: StepRecord, now_ms: int, attempts_max: int | None, *, has_probe: bool) -> StepVerdict:
    """The verdict, by the table above. `attempts_max` is None for a step that is not tried again."""
    if attempts_max is not None and record.failures >= attempts_max:  # A
        return StepVerdict.FAILED
    if record.deadline_ms and now_ms >= record.deadline_ms:  # B
        return StepVerdict.TIMED_OUT
    if now_ms < record.next_try_ms:  # C
        return StepVerdict.PAUSE
    return StepVerdict.PROBE if record.began and has_probe else StepVerdict.BEGIN  # D and E
