"""What we would do: pure functions and frozen configuration. No IO, no clock, no dice, and nothing of ours is imported.

| module | the question it answers |
|---|---|
| `limits` | what is allowed, and what is the default? |
| `retry` | how long until the next try? |
| `patience` | when does a parent stop waiting, and why? |
| `recovery` | what becomes of a run whose child is gone? |
| `placement` | which host takes the next agent, and how many hosts are wanted? |
"""

from policies.limits import INFINITY, Limits
from policies.patience import NEVER, Budget, Expiry, Sighting, expiry, is_window
from policies.placement import choose, wanted_hosts
from policies.recovery import Evidence, Fail, Release, Retry, Seal, judge
from policies.retry import backoff_ms, jittered_ms

__all__ = [
    "INFINITY",
    "NEVER",
    "Budget",
    "Evidence",
    "Expiry",
    "Fail",
    "Limits",
    "Release",
    "Retry",
    "Seal",
    "Sighting",
    "backoff_ms",
    "choose",
    "expiry",
    "is_window",
    "jittered_ms",
    "judge",
    "wanted_hosts",
]
