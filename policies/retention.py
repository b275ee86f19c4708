"""How long ended runs are kept: which of them may be cleared, by their age and by their number, and how fast.

Both bounds are off by default (infinity). A run is due when it ended `ended_kept_ms` ago, or when more than `ended_kept_max` have ended and
it is among the oldest of them. Whether it is still needed is not decided here (`ledger.protocol`).

Runs are cleared in *passes*. A pass takes what is due from the snapshot, slice by slice, one in a turn, so that no turn is long;
the checkpoint after it deletes them, and is the snapshot of the next pass, which begins as soon as that is taken. Where there are too many
and the snapshot has none of them, because they have ended since, a new one is taken when it is `SURPLUS_AGE_MS` old. So with `r` runs that
end in a second and passes of `p` seconds, checkpoint and all, there are at most

    ended_kept_max + r (SURPLUS_AGE + 2 p)

beside those that are needed, as long as `r p` is less than `PASS`: one checkpoint for so many runs.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from perdure.policies.limits import Limits

SLICE: Final = 100
"""Runs that one turn clears, in a few milliseconds."""
PASS: Final = 2_000
"""Runs that one checkpoint deletes."""
SURPLUS_AGE_MS: Final = 10_000
"""How old the snapshot becomes while there are more than `ended_kept_max`."""
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


def snapshot_age_max_ms(limits: Limits, ended: int) -> float:
    """How old the snapshot may become in a directory that is never quiet and has so many ended runs; infinity where nothing is cleared."""
    if not is_retention_on(limits):
        return math.inf
    if ended > limits.ended_kept_max:
        return SURPLUS_AGE_MS
    # A run is cleared only when its end is in a snapshot, so a snapshot that is much younger than what is kept delays nothing.
    return min(max(limits.ended_kept_ms / 10, _MINUTE_MS), 10 * _MINUTE_MS)


def retention_due(at_ms: int, ended: int, limits: Limits) -> Due:
    surplus = ended - limits.ended_kept_max
    return Due(at_ms - limits.ended_kept_ms, int(surplus) if surplus > 0 else 0)
