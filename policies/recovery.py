"""What becomes of a run whose child is gone.

The evidence is five yes-or-no questions. Each combination has exactly one letter. A test checks all of them.

| | ended hard | torn down | work left | attempts left | collected | verdict |
|---|---|---|---|---|---|---|
| A | yes | – | – | – | – | `Release` its place |
| B | no | yes | – | – | – | `Seal`: its budget is used up, and its child is gone |
| C | no | no | no | – | – | `Fail`: all its attempts have reached `recovery_work_max` |
| D | no | no | yes | yes | – | `RetryAfter` |
| E | no | no | yes | no | no | `RetryAfter`, but only to hand over a result (`Attempts.are_used_up`) |
| F | no | no | yes | no | yes | `Fail`: there was no result |

A: the run was cancelled or ended while its host died. B: the parent gave up and asked the child to stop, and the child died. C: progress
resets the attempts, so one bound must never reset (the out-of-memory loop of Cloudflare #1825). D: an ordinary crash. E: with
`attempts_max = 1` a run is at-most-once, but its child may have committed a result just before it died. F: it had not.
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
        # The next attempt may only hand over a committed result (row E). This is asked again when it begins, because a parent that
        # re-attaches in between resets the attempts.
        return self.spent >= self.most


class Evidence(NamedTuple):
    """What is known of a run whose child is gone. `attempt` counts all attempts, and `losses` the last ones lost in a row. `collected`: the
    lost attempt could only hand over a result."""

    ended_hard: bool
    torn_down: bool
    attempt: int
    attempts: Attempts
    losses: int
    collected: bool


@dataclass(frozen=True)
class Release:
    """Release the run's place."""


@dataclass(frozen=True)
class Seal:
    """The run is interrupted, with the reason of its teardown."""


@dataclass(frozen=True)
class Fail:
    why: str


@dataclass(frozen=True)
class RetryAfter:
    after_ms: int


Verdict = Release | Seal | Fail | RetryAfter


def judge(evidence: Evidence, limits: Limits) -> Verdict:
    """The verdict, by the table above."""
    if evidence.ended_hard:  # A
        return Release()
    if evidence.torn_down:  # B
        return Seal()
    if evidence.attempt >= limits.recovery_work_max:  # C
        return Fail(
            f"its child was lost {evidence.attempt} times in all; the limit recovery_work_max is {limits.recovery_work_max}"
        )
    pause = backoff_ms(evidence.losses, limits.retry_first_ms, limits.retry_most_ms) if evidence.losses > 1 else 0
    if not (evidence.attempts.are_used_up and evidence.collected):  # D and E
        return RetryAfter(pause)
    most = evidence.attempts.most
    times = f"{most} attempt" + ("s" if most != 1 else "")
    return Fail(f"its child was lost in each of {times} without progress in between, and left no result")  # F
