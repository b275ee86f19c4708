"""How many messages one turn of the supervisor decides.

Messages of one turn share a commit, so many are cheaper than few. But messages that come meanwhile wait until the turn is over. So a turn
takes as many as are dealt with in about a thirtieth of a second. The time of the commit does not count: a slow disk needs large
groups.
"""

from __future__ import annotations

from typing import Final

from perdure.policies.limits import Limits

LONG_MS: Final = 40.0
SHORT_MS: Final = 15.0
SIZE_MIN: Final = 64


def turn_size_after(size: int, taken: int, took_ms: float, limits: Limits) -> int:
    """The most messages of the next turn. The last one took `taken` of at most `size`, in `took_ms` without its commit."""
    if took_ms > LONG_MS:
        return min(size, max(SIZE_MIN, taken // 2))
    if took_ms < SHORT_MS and taken >= size:
        return min(2 * size, limits.turn_max)
    return size
