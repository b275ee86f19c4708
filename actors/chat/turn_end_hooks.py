"""Telling the author that turns have ended: one after the other, in their order, and in nobody's way.

The hook may ask for another turn and wait for it (C-1234), so the next turn must not wait for the hook. What it raises stops nothing. It is
told at most once: what must happen for certain after a turn belongs into a run, or into a message.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from perdure.actors.chat.chat_hooks import ChatHooks
from perdure.actors.chat.turn import Turn
from perdure.actors.code.author_call import tried
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life
from perdure.policies import TurnStatus


class Endings:
    """The ends of turns of which the author has not heard yet."""

    def __init__(self, agent: ChatHooks, life: Life) -> None:
        self._agent, self._life = agent, life
        self._untold: deque[dict[str, Any]] = deque()
        self._is_telling = False

    def ended(self, turn: Turn, message: dict[str, Any] | None) -> None:
        """A turn has ended. Of one that never began, and that nothing went wrong with, there is nothing to tell."""
        if not self._life.overrides("on_chat_response") or not (turn.started_at_ms or turn.status is TurnStatus.ERROR):
            return
        self._untold.append(
            {
                "request_id": turn.request_id,
                "status": turn.status,
                "message": message,
                "error": turn.error,
                "continuation": bool(turn.continues),
            }
        )
        if not self._is_telling:
            self._is_telling = True
            self._life.spawn(self._tell())

    async def _tell(self) -> None:
        while self._untold:
            told = self._untold.popleft()
            ACTIVITY.set(Activity(f"after/{told['request_id']}"))
            _, problem = await tried(self._life.call(self._agent.on_chat_response, told))
            if problem is not None:
                self._life.trouble("on_chat_response", problem)
        self._is_telling = False
