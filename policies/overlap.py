"""What becomes of a user's message that comes while a turn is accepted or running (spec chat-recovery §3.3).

| strategy | an overlapping message |
|---|---|
| `queue` (default) | runs in its order |
| `latest` | is skipped at its place if a later overlapping one exists; it stays in the transcript |
| `merge` | is put in front of the next overlapping one, which answers all of them |
| `drop` | is refused, and nothing of it is kept |
| `debounce` | is skipped like `latest`; the last one waits until it has been quiet for `debounce_ms` |

Only messages of users overlap, and only with turns that wait or run. Regenerations, approvals, results of tools, notifications and
recoveries are never dropped or skipped; and a turn that is being *recovered*, or is parked, does not make the user's next message an
overlapping one: at the system that we answer a running recovery made `drop` refuse people (W-38). The first message of a burst overlaps
with nothing, and so nothing supersedes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from perdure.policies.numbers import is_number
from perdure.policies.turn_status import TurnStatus

STRATEGIES = ("queue", "latest", "merge", "drop", "debounce")
DEBOUNCE_MS = 750
_OCCUPIED = frozenset({TurnStatus.ACCEPTED, TurnStatus.RUNNING})


@dataclass(frozen=True)
class Overlap:
    """One strategy; `debounce_ms` counts for `debounce` only."""

    strategy: str = "queue"
    debounce_ms: float = DEBOUNCE_MS

    @classmethod
    def of(cls, value: object) -> Overlap:
        """What an author wrote: the name of a strategy, or a mapping of `strategy` and `debounce_ms`. ValueError if it is neither.

        A `debounce_ms` that is missing, negative, infinite or no number is 750.
        """
        if isinstance(value, Overlap):
            return value
        options: Mapping[str, Any] = value if isinstance(value, Mapping) else {"strategy": value}
        strategy = options.get("strategy")
        if strategy not in STRATEGIES:
            raise ValueError(f"message_concurrency: {strategy!r} is none of {', '.join(STRATEGIES)}")
        unknown = sorted(set(options) - {"strategy", "debounce_ms"})
        if unknown:
            raise ValueError(f"message_concurrency: {unknown[0]!r} is neither `strategy` nor `debounce_ms`")
        pause = options.get("debounce_ms")
        return cls(strategy, pause if is_number(pause) and 0 <= pause < math.inf else DEBOUNCE_MS)


class OpenTurn(NamedTuple):
    """A turn that has not ended. `is_overlapping`: it is a message of the user that overlapped with another turn."""

    number: int
    status: TurnStatus
    is_overlapping: bool = False
    accepted_at_ms: float = 0
    is_recovering: bool = False


class QueueAction(StrEnum):
    """What a turn does when its place in the queue has come."""

    PLAY = "play"
    SKIP = "skip"
    MERGE = "merge"
    WAIT = "wait"


class QueueDecision(NamedTuple):
    """The decision, and for WAIT the instant at which to ask again."""

    action: QueueAction
    until_ms: float = 0


def overlaps(open_turns: Iterable[OpenTurn]) -> bool:
    """Whether a message that comes now overlaps. Asked when it is accepted, and stored with its turn."""
    return any(turn.status in _OCCUPIED and not turn.is_recovering for turn in open_turns)


def is_dropped(policy: Overlap, *, is_overlapping: bool) -> bool:
    """Whether a user's message is refused instead of accepted."""
    return policy.strategy == "drop" and is_overlapping


def queue_decision(policy: Overlap, turn: OpenTurn, open_turns: Iterable[OpenTurn], now_ms: float) -> QueueDecision:
    """What a turn does now that its place has come. `open_turns` may hold the turn itself."""
    if not turn.is_overlapping or policy.strategy in ("queue", "drop"):
        return QueueDecision(QueueAction.PLAY)
    later = any(
        each.is_overlapping and each.number > turn.number and each.status is TurnStatus.ACCEPTED for each in open_turns
    )
    if later:
        return QueueDecision(QueueAction.MERGE if policy.strategy == "merge" else QueueAction.SKIP)
    quiet_at_ms = turn.accepted_at_ms + policy.debounce_ms
    if policy.strategy == "debounce" and now_ms < quiet_at_ms:
        return QueueDecision(QueueAction.WAIT, quiet_at_ms)
    return QueueDecision(QueueAction.PLAY)
