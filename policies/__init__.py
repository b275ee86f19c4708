"""What we would do: pure functions and frozen configuration. No IO, no clock, no dice, and nothing of ours is imported.

| module | the question it answers |
|---|---|
| `limits` | what is allowed, and what is the default? |
| `retry` | how long until the next try? |
| `patience` | when does a parent stop waiting, and why? |
| `recovery` | what becomes of a run whose child is gone? |
| `transport` | why did a model request fail, and could it succeed later? |
| `phases` | what is done after it, given how far it had come? |
| `cautions` | what is said about a call whose outcome is unknown? |
| `placement` | which host takes the next agent, and how many hosts are wanted? |
"""

from policies.cautions import Fate, Notice, Remains, caution, correction, error_text, notice_of
from policies.failures import ApiKind, Failure, FailureKind, Raised
from policies.limits import INFINITY, Limits
from policies.patience import NEVER, Budget, Expiry, Sighting, expiry, is_window
from policies.phases import Action, CallFacts, Cause, Facts, Mode, Phase, Stage, TurnBudget, cause_of, decide, phase_of
from policies.placement import choose, wanted_hosts
from policies.recovery import Evidence, Fail, Release, Retry, Seal, judge
from policies.retry import backoff_ms, hinted_ms, jittered_ms
from policies.transport import (
    classify,
    is_long_wait,
    next_delay_ms,
    stalled,
    stream_ended,
)

__all__ = [
    "INFINITY",
    "NEVER",
    "Action",
    "ApiKind",
    "Budget",
    "CallFacts",
    "Cause",
    "Evidence",
    "Expiry",
    "Facts",
    "Fail",
    "Failure",
    "FailureKind",
    "Fate",
    "Limits",
    "Mode",
    "Notice",
    "Phase",
    "Raised",
    "Release",
    "Remains",
    "Retry",
    "Seal",
    "Sighting",
    "Stage",
    "TurnBudget",
    "backoff_ms",
    "cause_of",
    "caution",
    "choose",
    "classify",
    "correction",
    "decide",
    "error_text",
    "expiry",
    "hinted_ms",
    "is_long_wait",
    "is_window",
    "jittered_ms",
    "judge",
    "next_delay_ms",
    "notice_of",
    "phase_of",
    "stalled",
    "stream_ended",
    "wanted_hosts",
]
