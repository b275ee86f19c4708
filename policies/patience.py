"""How long a parent waits for a child, and why it stops.

- A *detached* run has an absolute budget from its request, and a window of silence that every signal resets. The window counts only after
  the child's first report.
- An *awaited* run has no limit until its parent must re-attach to it. From then on silence is measured since the last progress, and a
  finite hard window may bound the whole wait.

| | 0 | infinity |
|---|---|---|
| absolute budget | gives up at once | never gives up |
| silence of a detached run, hard window | off | off |
| silence after a re-attachment | does not wait | never gives up |
"""

from __future__ import annotations

import math
from typing import NamedTuple


# What a parent allows one run, in milliseconds.
class Budget(NamedTuple):
    absolute_ms: float
    silence_ms: float
    reattach_silence_ms: float
    reattach_window_ms: float


# When a run was requested, last heard of, and re-attached to. Zero is never.
class Sighting(NamedTuple):
    detached: bool
    requested_at_ms: int
    signal_at_ms: int
    reattached_at_ms: int


# When the wait ends, why, and whether the child is then stopped.
class Expiry(NamedTuple):
    at_ms: float
    reason: str
    teardown: bool


NEVER = Expiry(math.inf, "", False)


def is_window(limit_ms: float) -> bool:
    return 0 < limit_ms < math.inf


def expiry(budget: Budget, seen: Sighting) -> Expiry:
    """The end of the wait for a live run, as far as is known now. A later signal can only postpone it."""
    if seen.detached:
        ends = [Expiry(seen.requested_at_ms + budget.absolute_ms, "budget-exceeded", True)]
        if is_window(budget.silence_ms) and seen.signal_at_ms:
            ends.append(Expiry(seen.signal_at_ms + budget.silence_ms, "no-progress", True))
        return min(ends)
    if not seen.reattached_at_ms:
        return NEVER
    quiet_since = max(seen.reattached_at_ms, seen.signal_at_ms)
    ends = [Expiry(quiet_since + budget.reattach_silence_ms, "no-progress", False)]
    if is_window(budget.reattach_window_ms):
        ends.append(Expiry(seen.reattached_at_ms + budget.reattach_window_ms, "window-exceeded", True))
    return min(ends)
