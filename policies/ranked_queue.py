"""Which of many agents on a host has the next turn of the event loop, or of the thread that writes storages.

| rank | agent | |
|---|---|---|
| `CALL` | an agent that is called, because a caller waits for the answer | always first |
| `WORK` | an agent that is at work | before newcomers, so that what was begun comes to its end |
| `OPENING` | an agent that begins | when no other waits, or after `PASSES_MAX` others went before it |

So agents end steadily and few are begun at once. Only calls can keep an agent waiting for ever, and each call is one turn.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final, Generic, TypeVar

PASSES_MAX: Final = 8

T = TypeVar("T")


class Rank(IntEnum):
    CALL = 1
    WORK = 2
    OPENING = 3


class RankedQueue(Generic[T]):
    """The waiting agents, each rank in the order of arrival."""

    def __init__(self) -> None:
        self._ranks: dict[Rank, deque[T]] = {rank: deque() for rank in Rank}
        self._passes = 0

    def __len__(self) -> int:
        return sum(map(len, self._ranks.values()))

    def add(self, item: T, rank: Rank) -> None:
        self._ranks[rank].append(item)

    def put_back(self, item: T, rank: Rank) -> None:
        self._ranks[rank].appendleft(item)

    def take(self) -> T:
        calls, work, openings = self._ranks.values()
        if calls:
            return calls.popleft()
        if openings and (not work or self._passes >= PASSES_MAX):
            self._passes = 0
            return openings.popleft()
        self._passes += bool(openings)
        return work.popleft()

    def first(self, rank: Rank) -> T | None:
        return self._ranks[rank][0] if self._ranks[rank] else None
