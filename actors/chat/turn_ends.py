"""How turns end: the outcome, its words, and the hook that is called.

Every error is put into words here before it is written into the turn's row. So what is shown, what is stored and what `attach` tells later
are the same words.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.turn import Turn
from perdure.actors.code.author_call import sendable, tried
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.policies import Event, JsonObject, Message, TurnEvent, TurnStatus


class TurnOutcome(NamedTuple):
    """An end of a turn, or `PARKED`, which waits for a person.

    `stage` is where an error came from: `turn` (the author's code, the model's name), `stream` (the provider), `recovery` (the budget).
    """

    event: TurnEvent
    error: str = ""
    reason: str = ""
    notice: JsonObject | None = None
    stage: str = "turn"

    @property
    def last_event(self) -> Event:
        if self.event is TurnEvent.COMPLETED:
            return {"type": "finish"}
        if self.event is TurnEvent.ABORTED:
            return {"type": "abort", "reason": self.error}
        return {"type": "error", "errorText": self.error or "The turn failed for an unknown reason."}


async def reported(state: ConversationState, turn: Turn, outcome: TurnOutcome) -> TurnOutcome:
    """The outcome as people will read it. A text that `on_chat_error` returns replaces an error."""
    if outcome.event is not TurnEvent.FAILED:
        return outcome
    info = {"request_id": turn.request_id, "stage": outcome.stage, "reason": outcome.reason}
    shown, problem = await tried(state.tenant.call(state.agent.on_chat_error, outcome.error, info))
    if problem is not None:
        state.tenant.trouble("on_chat_error", problem)
    if isinstance(shown, str) and shown.strip():
        outcome = outcome._replace(error=sendable(shown))
    if outcome.stage != "recovery":  # a recovery emits events of its own
        told = {"stage": outcome.stage, "reason": outcome.reason, "error": outcome.error}
        state.emit("chat:request:failed", turn, told)
    return outcome


class ResponseHook:
    """Calls `on_chat_response` after turns, one call after the other, in the order of the turns.

    The next turn does not wait for the hook, because the hook may ask for a turn and wait for it (C-1234). What the hook raises stops
    nothing. Each turn is told at most once. What must happen after a turn belongs in a run or in a message.
    """

    def __init__(self, state: ConversationState) -> None:
        self._agent, self._tenant = state.agent, state.tenant
        self._untold: deque[dict[str, object]] = deque()
        self._is_telling = False

    def ended(self, turn: Turn, message: Message | None) -> None:
        """A turn has ended. One that never began and did not fail is not told."""
        was_played = turn.started_at_ms or turn.status is TurnStatus.ERROR
        if not self._tenant.overrides("on_chat_response") or not was_played:
            return
        self._untold.append(
            {
                "request_id": turn.request_id,
                "status": str(turn.status),
                "message": message,
                "error": turn.error,
                "continuation": bool(turn.continues),
            }
        )
        if not self._is_telling:
            self._is_telling = True
            self._tenant.spawn(self._tell())

    async def _tell(self) -> None:
        while self._untold:
            told = self._untold.popleft()
            ACTIVITY.set(Activity(f"after/{told['request_id']}"))
            _, problem = await tried(self._tenant.call(self._agent.on_chat_response, told))
            if problem is not None:
                self._tenant.trouble("on_chat_response", problem)
        self._is_telling = False
