"""How long a turn waits for a person: for ever, or for `ChatRecovery.parked_deadline_ms` (spec W-28).

A turn that was put aside keeps nobody awake. So its time is over at the instant itself if the agent happens to be awake then, and else
when it next wakes, before anybody can look at the turn or answer it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from perdure.actors.chat.conversation_state import Floor
from perdure.actors.chat.live_turn import Scene
from perdure.actors.chat.outcome import Outcome
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_errors import worded
from perdure.actors.code.author_call import tried_now
from perdure.policies import ChatRecovery, TurnEvent, TurnStatus

Ending = Callable[[Scene], Awaitable[Outcome]]
UNANSWERED = "Nobody has answered in time, so the turn has ended."


class Deadlines:
    """The turns of one agent that wait for a person, and until when.

    Args:
        close: ends a turn that is not being played.
    """

    def __init__(self, floor: Floor, close: Callable[[Turn, Ending], Coroutine[Any, Any, None]]) -> None:
        self._floor, self._close = floor, close

    def _left_ms(self, turn: Turn) -> float:
        if turn.status is not TurnStatus.PARKED:
            return math.inf
        config, _ = tried_now(lambda: ChatRecovery.of(self._floor.agent.chat_recovery))
        if config is None:
            return math.inf
        return turn.parked_at_ms + config.parked_deadline_ms - self._floor.now_ms()

    def has_passed(self, turn: Turn) -> bool:
        """Whether it is too late for an answer."""
        return self._left_ms(turn) <= 0

    def watch(self, turn: Turn) -> None:
        """A turn was put aside, in this life or in an earlier one."""
        left_ms = self._left_ms(turn)
        if math.isfinite(left_ms):
            asyncio.get_running_loop().call_later(max(0.0, left_ms) / 1000, self._over, turn, turn.parked_at_ms)

    def _over(self, turn: Turn, parked_at_ms: int) -> None:
        is_same = turn.status is TurnStatus.PARKED and turn.parked_at_ms == parked_at_ms
        if is_same and self._floor.open.get(turn.request_id) is turn and not self._floor.tenant.is_leaving:
            self._floor.tenant.spawn(self._close(turn, self._unanswered))

    async def _unanswered(self, scene: Scene) -> Outcome:
        outcome = Outcome(TurnEvent.FAILED, UNANSWERED, "awaiting_client_deadline", stage="recovery")
        return await worded(self._floor, scene.turn, outcome)
