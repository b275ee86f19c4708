"""What becomes of a run whose child is gone.

The evidence is five yes-or-no questions. The table gives each combination exactly one letter, and a test walks all of them.

| | ended hard | torn down | work left | attempts left | collected | verdict |
|---|---|---|---|---|---|---|
| A | yes | – | – | – | – | `Release`: only its place is left to be given up |
| B | no | yes | – | – | – | `Seal`: its budget was used up, and now its child is gone |
| C | no | no | no | – | – | `Fail`: its attempts over its whole life have reached `recovery_work_max` |
| D | no | no | yes | yes | – | `Retry` |
| E | no | no | yes | no | no | `Retry`; the attempt may hand over a result, but may not run (`Attempts.are_used_up`) |
| F | no | no | yes | no | yes | `Fail`: there was no result either |

How a run gets there. A: it was cancelled or ended while its host was dying. B: a give-up asked the child to stop, and the child died.
C: a run that makes progress after every crash resets its attempts each time, so one bound must never reset (the out-of-memory loop of
Cloudflare #1825). D: an ordinary crash. E: with `attempts_max = 1` a run is at-most-once, but its child may have committed a result just
before it died, and that result must not be lost. F: it had not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perdure.policies.limits import Limits
from perdure.policies.retry import backoff_ms


class Attempts(NamedTuple):
    """How many attempts of a run count, and how many it may have. They are counted since its last progress."""

    spent: int
    most: int

    @property
    def are_used_up(self) -> bool:
        """Whether the next attempt may only hand over a result that the child has committed, and not run: row E. Asked anew when the
        attempt begins, because a parent that re-attaches before that gives the run its attempts back."""
        return self.spent >= self.most


class Evidence(NamedTuple):
    """What is known of a run whose child is gone. `attempt` counts its attempts over its whole life, `losses` those lost in a row, and
    `collected` says whether the lost attempt was one that could only hand over a result."""

    ended_hard: bool
    torn_down: bool
    attempt: int
    attempts: Attempts
    losses: int
    collected: bool


@dataclass(frozen=True)
class Release:
    """Give up the run's place."""


@dataclass(frozen=True)
class Seal:
    """Interrupt the run for the reason for which it was torn down."""


@dataclass(frozen=True)
class Fail:
    """End the run with an error."""

    why: str


@dataclass(frozen=True)
class Retry:
    """Begin another attempt after a pause."""

    after_ms: int


Verdict = Release | Seal | Fail | Retry


def judge(evidence: Evidence, limits: Limits) -> Verdict:
    """What becomes of a run whose child is gone. The letters are those of the table above."""
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
        return Retry(pause)
    most = evidence.attempts.most
    times = f"{most} attempt" + ("s" if most != 1 else "")
    return Fail(f"its child was lost in each of {times} without progress in between, and left no result")  # F
