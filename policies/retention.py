"""How long ended runs are kept: which of them may be cleared, by their age and by their number.

Both bounds are off by default (infinity). A run is due when it ended `ended_kept_ms` ago, or when more than `ended_kept_max` have ended and
it is among the oldest of them. Whether it is still needed is not decided here (`ledger.protocol`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from perdure.policies.limits import Limits

_MINUTE_MS = 60_000


# Which ended runs are due: those that ended before this instant, and this many of the oldest that are not needed.
class Due(NamedTuple):
    before_ms: float
    surplus: int

    @property
    def any(self) -> bool:
        return self.surplus > 0 or self.before_ms > 0

    def has(self, ended_at_ms: int, chosen: int) -> bool:
        # So many of the older ones are `chosen` already.
        return ended_at_ms < self.before_ms or chosen < self.surplus


def is_retention_on(limits: Limits) -> bool:
    return math.isfinite(limits.ended_kept_ms) or math.isfinite(limits.ended_kept_max)


def snapshot_age_max_ms(limits: Limits) -> float:
    """How old the snapshot may become in a directory that is never quiet; infinity where nothing is cleared."""
    if not is_retention_on(limits):
        return math.inf
    # A run is cleared only when its end is in a snapshot, so a snapshot that is much younger than what is kept delays nothing.
    return min(max(limits.ended_kept_ms / 10, _MINUTE_MS), 10 * _MINUTE_MS)


def retention_due(at_ms: int, ended: int, limits: Limits) -> Due:
    surplus = ended - limits.ended_kept_max
    return Due(at_ms - limits.ended_kept_ms, int(surplus) if surplus > 0 else 0)
