"""What became of a turn."""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure.actors.code.author_call import in_words
from perdure.policies import TurnEvent


class Outcome(NamedTuple):
    """What became of a turn: an end, or `PARKED`, which waits for a person; for an unhappy one the words and the reason.

    `stage` is where an error came from: `turn` (the author's code, the model's name), `stream` (the provider), `recovery` (no patience).
    """

    event: TurnEvent
    error: str = ""
    reason: str = ""
    notice: dict[str, Any] | None = None
    stage: str = "turn"

    @property
    def last_event(self) -> dict[str, Any]:
        """The last event of the turn's stream."""
        if self.event is TurnEvent.COMPLETED:
            return {"type": "finish"}
        if self.event is TurnEvent.ABORTED:
            return {"type": "abort", "reason": self.error}
        return {"type": "error", "errorText": self.error or "The turn failed, and nothing is known of why."}


def words_of(problem: BaseException) -> str:
    """A problem as the turn's error says it."""
    return in_words(problem) if isinstance(problem, Exception) else type(problem).__name__
