"""When silence counts against a host, and when the host is ended for it.

Silence is counted in looks, one each `heartbeat_ms`, and each look finds one *sign*:

| the host | sign | ended |
|---|---|---|
| has spoken, or its event loop turns | none: nothing is held against it | never, however slow it is |
| answers, or computes; its loop stands in one piece of work | that piece | after `blocked_max_ms` in the same piece |
| neither answers nor computes | `MUTE` | after `heartbeat_misses_max` looks |
| is being started | `COMING` | after `STARTS` times `blocked_max_ms` |

Another sign begins the count anew: a loop that goes from one piece of work to the next makes progress. A look for which the
supervisor itself was late counts for nothing, and what was counted before it is forgotten. Whatever held up the supervisor
(its loop, the disk, a machine that stood still) may have held up the others.
"""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from perdure.policies.limits import Limits

MUTE: Final = "mute"
COMING: Final = "coming"
STARTS: Final = 5


# How many looks in a row found a host in the same way.
class Silence(NamedTuple):
    sign: str
    looks: int


def silence_after(before: Silence | None, sign: str) -> Silence:
    return Silence(sign, before.looks + 1 if before is not None and before.sign == sign else 1)


def is_noteworthy(silence: Silence, limits: Limits) -> bool:
    """Whether this look is the one after which a loop counts as blocked."""
    return silence.looks == _looks(limits.blocked_warn_ms, limits)


def is_unbearable(silence: Silence, limits: Limits) -> bool:
    blocked = _looks(limits.blocked_max_ms, limits)
    return silence.looks > {MUTE: limits.heartbeat_misses_max, COMING: STARTS * blocked}.get(silence.sign, blocked)


def was_late(late_ms: float, limits: Limits) -> bool:
    return late_ms >= limits.heartbeat_ms


def _looks(ms: float, limits: Limits) -> int:
    return ceil(ms / limits.heartbeat_ms)
