"""What happens to a user's message that arrives while a turn waits or runs.

| strategy | an overlapping message |
|---|---|
| `queue` (default) | runs in its order |
| `latest` | is skipped if a later overlapping one exists; it stays in the transcript |
| `merge` | is prepended to the next overlapping one, which answers both |
| `drop` | is refused, and not kept |
| `debounce` | is skipped like `latest`; the last one waits for `debounce_ms` of silence |

Only users' messages overlap, and only with turns that wait or run. Regenerations, approvals, tool results, notifications and recoveries are
never dropped or skipped. A turn that is parked or being recovered makes no message overlap. The first message of a burst overlaps with
nothing, so nothing supersedes it.

A message by which a person steers is beside all this. It enters the answer of the turn under way, before the next request to the model. It
is a turn of its own from the start, held back while the steered turn is open: whatever ends that turn, the words come next, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from perdure.policies.numbers import is_number
from perdure.policies.turn_status import TurnStatus

STRATEGIES = ("queue", "latest", "merge", "drop", "debounce")
DEBOUNCE_MS = 750
_OCCUPIED = frozenset({TurnStatus.ACCEPTED, TurnStatus.RUNNING})


@dataclass(frozen=True)
class Overlap:
    """One strategy. Only `debounce` uses `debounce_ms`."""

    strategy: str = "queue"
    debounce_ms: float = DEBOUNCE_MS

    @classmethod
    def of(cls, value: object) -> Overlap:
        """Read what an author wrote: the name of a strategy, or a mapping of `strategy` and `debounce_ms`. Otherwise a ValueError.

        A `debounce_ms` that is missing, negative, infinite or not a number means 750.
        """
        if isinstance(value, Overlap):
            return value
        options: Mapping[str, object] = value if isinstance(value, Mapping) else {"strategy": value}
        strategy = options.get("strategy")
        if strategy not in STRATEGIES:
            raise ValueError(f"message_concurrency: {strategy!r} is none of {', '.join(STRATEGIES)}")
        unknown = sorted(set(options) - {"strategy", "debounce_ms"})
        if unknown:
            raise ValueError(f"message_concurrency: {unknown[0]!r} is neither `strategy` nor `debounce_ms`")
        pause = options.get("debounce_ms")
        return cls(strategy, pause if is_number(pause) and 0 <= pause < math.inf else DEBOUNCE_MS)


# `is_overlapping`: its message overlapped with another turn.
class OpenTurn(NamedTuple):
    number: int
    status: TurnStatus
    is_overlapping: bool = False
    accepted_at_ms: float = 0
    is_recovering: bool = False


class QueueAction(StrEnum):
    PLAY = "play"
    SKIP = "skip"
    MERGE = "merge"
    WAIT = "wait"


# After WAIT, ask again at `until_ms`.
class QueueDecision(NamedTuple):
    action: QueueAction
    until_ms: float = 0


# Decided when the message is accepted, and stored with its turn.
def overlaps(open_turns: Iterable[OpenTurn]) -> bool:
    return any(turn.status in _OCCUPIED and not turn.is_recovering for turn in open_turns)


def is_dropped(policy: Overlap, *, is_overlapping: bool) -> bool:
    return policy.strategy == "drop" and is_overlapping


def queue_decision(policy: Overlap, turn: OpenTurn, open_turns: Iterable[OpenTurn], now_ms: float) -> QueueDecision:
    # `open_turns` may include the turn itself.
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


# Looked at again for each choice of the next turn, so it needs no write when the steered turn ends, however it does.
def is_held(steers: str, status: TurnStatus, open_ids: Container[str]) -> bool:
    """Whether a turn waits to be read by the turn that it steers; if not, it is played like any other."""
    return status is TurnStatus.ACCEPTED and steers in open_ids


def steered_turn(open_turns: Iterable[OpenTurn], playing: int) -> OpenTurn | None:
    """The turn that a person steers now: the one that is played, else the next, else the newest that waits for a person.

    None if nothing is under way. `open_turns` are those that are not held back; `playing` is the number of the one that is played, or 0.
    """
    turns = list(open_turns)
    ready = [each for each in turns if each.status in _OCCUPIED]
    played = next((each for each in ready if each.number == playing), None)
    newest = max((each for each in turns if each.status is TurnStatus.PARKED), key=attrgetter("number"), default=None)
    return played or min(ready, key=attrgetter("number"), default=newest)
