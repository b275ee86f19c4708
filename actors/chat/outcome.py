"""What became of a turn."""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure.actors.code.author_call import in_words


class Outcome(NamedTuple):
    """What became of a turn: its status, and for an unhappy one the words and the reason. `parked` waits for a person.

    `stage` is where an error came from: `turn` (the author's code, the model's name), `stream` (the provider), `recovery` (no patience).
    """

    status: str
    error: str = ""
    reason: str = ""
    notice: dict[str, Any] | None = None
    stage: str = "turn"

    @property
    def last_event(self) -> dict[str, Any]:
        """The last event of the turn's stream."""
        if self.status == "completed":
            return {"type": "finish"}
        if self.status == "aborted":
            return {"type": "abort", "reason": self.error}
        return {"type": "error", "errorText": self.error or in_words(RuntimeError(self.status))}


def words_of(problem: BaseException) -> str:
    """A problem as the turn's error says it."""
    return in_words(problem) if isinstance(problem, Exception) else type(problem).__name__
