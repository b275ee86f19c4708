"""Messages of people that come during a turn: taken or not, and played or not when their place has come (`policies.overlap`)."""

from __future__ import annotations

import asyncio

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_ends import Outcome
from perdure.actors.chat.turn_views import TurnViews
from perdure.policies import OpenTurn, Overlap, QueueAction, TurnEvent, TurnStatus, is_dropped, overlaps, queue_decision


class OverlappingMessages:
    """The messages of people that come while a turn of the agent is open."""

    def __init__(self, state: ConversationState, views: TurnViews) -> None:
        self._state, self._views = state, views

    @property
    def _policy(self) -> Overlap:
        return Overlap.of(self._state.agent.message_concurrency)

    def _open(self) -> list[OpenTurn]:
        return [self._seen(turn) for turn in self._state.open.values()]

    def _seen(self, turn: Turn) -> OpenTurn:
        """The turn as the policy sees it. One that an earlier life or attempt began is being recovered, and in nobody's way (W-38)."""
        is_recovering = turn.status is TurnStatus.RUNNING and (turn.attempt > 1 or not self._state.is_ours(turn))
        return OpenTurn(turn.number, turn.status, turn.is_overlapping, turn.accepted_at_ms, is_recovering=is_recovering)

    def is_overlapping(self, turn: Turn) -> bool:
        """Whether a turn that comes now is a message of a person during another turn."""
        return turn.trigger == "chat" and overlaps(self._open())

    def drops(self, turn: Turn) -> bool:
        """Whether a message that comes now is refused."""
        return is_dropped(self._policy, is_overlapping=self.is_overlapping(turn)) and self._views.known(turn) is None

    async def superseded(self, live: LiveTurn) -> Outcome | None:
        """Wait for the place of a turn. An outcome if a later message takes it; the message of this turn stays in the transcript."""
        now_ms = self._state.now_ms
        while True:
            told = queue_decision(self._policy, self._seen(live.turn), self._open(), now_ms())
            if told.action is not QueueAction.WAIT:
                break
            await asyncio.sleep(max(0.0, told.until_ms - now_ms()) / 1000)
        if told.action is QueueAction.PLAY:
            return None
        self._state.add_now(live.stream, live.turn.messages)
        return Outcome(TurnEvent.SKIPPED, "A later message has taken the place of this one.", "superseded")
