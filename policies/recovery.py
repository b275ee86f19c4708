"""What becomes of a run whose child is gone.

The evidence is four yes-or-no questions. Each combination has exactly one letter. A test checks all of them.

| | torn down | work left | attempts left | collected | verdict |
|---|---|---|---|---|---|
| A | yes | – | – | – | `Seal`: its budget is used up, and its child is gone |
| B | no | no | – | – | `Fail`: all its attempts have reached `recovery_work_max` |
| C | no | yes | yes | – | `RetryAfter` |
| D | no | yes | no | no | `RetryAfter`, but only to hand over a result (`Attempts.are_used_up`) |
| E | no | yes | no | yes | `Fail`: there was no result |

A: the parent gave up and asked the child to stop, and the child died. B: progress resets the attempts, so one bound must never reset (the
out-of-memory loop of Cloudflare #1825). C: an ordinary crash. D: with `attempts_max = 1` a run is at-most-once, but its child may have
committed a result just before it died. E: it had not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perdure.policies.limits import Limits
from perdure.policies.retry import backoff_ms


class Attempts(NamedTuple):
    spent: int
    most: int

    @property
    def are_used_up(self) -> bool:
        # The next attempt may only hand over a committed result (row D). This is asked again when it begins, because a parent that
        # re-attaches in between resets the attempts.
        return self.spent >= self.most


class Evidence(NamedTuple):
    """What is known of a run whose child is gone. `attempt` counts all attempts, and `losses` the last ones lost in a row. `collected`: the
    lost attempt could only hand over a result."""

    torn_down: bool
    attempt: int
    attempts: Attempts
    losses: int
    collected: bool


@dataclass(frozen=True)
class Seal:
    """The run is interrupted, with the reason of its teardown."""


@dataclass(frozen=True)
class Fail:
    why: str


@dataclass(frozen=True)
class RetryAfter:
    after_ms: int


Verdict = Seal | Fail | RetryAfter


def judge(evidence: Evidence, limits: Limits) -> Verdict:
    """The verdict, by the table above."""
    if evidence.torn_down:  # A
        return Seal()
    if evidence.attempt >= limits.recovery_work_max:  # B
        return Fail(
            f"its child was lost {evidence.attempt} times in all; the limit recovery_work_max is {limits.recovery_work_max}"
        )
    pause = backoff_ms(evidence.losses, limits.retry_first_ms, limits.retry_most_ms) if evidence.losses > 1 else 0
    if not (evidence.attempts.are_used_up and evidence.collected):  # C and D
        return RetryAfter(pause)
    most = evidence.attempts.most
    times = f"{most} attempt" + ("s" if most != 1 else "")
    return Fail(f"its child was lost in each of {times} without progress in between, and left no result")  # E
