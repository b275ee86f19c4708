"""Whether to try again, and after how long. Arithmetic only: the caller keeps the count, the clock and the die."""

from __future__ import annotations


def backoff_ms(attempt: int, first_ms: int, most_ms: int) -> int:
    """The pause before the next try after `attempt` failures (1, 2, …): doubled each time, never more than `most_ms`."""
    return int(min(most_ms, first_ms * 2 ** min(max(attempt, 1) - 1, 30)))


def jittered_ms(pause_ms: float, roll: float) -> float:
    """Half of the pause for sure and up to the other half by the die (`roll` in [0, 1)), so that a crowd does not return at once."""
    return pause_ms / 2 + pause_ms / 2 * roll
