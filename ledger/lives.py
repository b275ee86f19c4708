"""When lives of agents ended, as far as somebody may still have to know.

A call is no fact, so after a supervisor's death nobody remembers to whom it was handed. But whoever may have had it can be named. A life
that is still there can be asked. A life that had ended before the call was made never had it. Only one that ended since may have taken the
call with it; so it is enough to know when the last life of an agent ended: by which fact. Of old ones that is forgotten, and then
nothing is certain before the last that was forgotten.
"""

from __future__ import annotations

from typing import Any

LIVES_KEPT = 1000


class Lives:
    """The ends of lives by agent, latest last, as the number of the fact that tells of it."""

    def __init__(self, forgotten: int = 0, ends: dict[str, int] | None = None) -> None:
        self._forgotten, self._ends = forgotten, ends or {}

    def ended(self, agent: str, seq: int) -> None:
        """A life of this agent is over."""
        self._ends.pop(agent, None)
        self._ends[agent] = seq
        if len(self._ends) > LIVES_KEPT:
            self.forget(self._ends.pop(next(iter(self._ends))))

    def forget(self, seq: int) -> None:
        """Lives that ended up to here are not known any more."""
        self._forgotten = max(self._forgotten, seq)

    def last_end(self, agent: str) -> int:
        """No life of this agent has ended after this fact."""
        return self._ends.get(agent, self._forgotten)

    def to_plain(self) -> list[Any]:
        """Everything as plain data, for the snapshot."""
        return [self._forgotten, self._ends]
