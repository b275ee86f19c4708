"""Messages of people that come during a turn: taken or not, and played or not when their place has come (`policies.overlap`)."""

from __future__ import annotations

import asyncio

from perdure.actors.chat.conversation_state import Floor
from perdure.actors.chat.live_turn import Scene
from perdure.actors.chat.outcome import Outcome
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_views import Views
from perdure.policies import Open, Overlap, Place, TurnEvent, TurnStatus, at_its_place, is_dropped, overlaps


class Crowd:
    """The turns of one agent that are open at the same time."""

    def __init__(self, floor: Floor, views: Views) -> None:
        self._floor, self._views = floor, views

    @property
    def _policy(self) -> Overlap:
        return Overlap.of(self._floor.agent.message_concurrency)

    def _open(self) -> list[Open]:
        return [self._seen(turn) for turn in self._floor.open.values()]

    def _seen(self, turn: Turn) -> Open:
        """The turn as the policy sees it. One that an earlier life or attempt began is being recovered, and in nobody's way (W-38)."""
        is_recovering = turn.status is TurnStatus.RUNNING and (turn.attempt > 1 or not self._floor.is_ours(turn))
        return Open(turn.number, turn.status, turn.is_overlapping, turn.accepted_at_ms, is_recovering=is_recovering)

    def is_overlapping(self, turn: Turn) -> bool:
        """Whether a turn that comes now is a message of a person during another turn."""
        return turn.trigger == "chat" and overlaps(self._open())

    def drops(self, turn: Turn) -> bool:
        """Whether a message that comes now is refused."""
        return is_dropped(self._policy, is_overlapping=self.is_overlapping(turn)) and self._views.known(turn) is None

    async def skipped(self, scene: Scene) -> Outcome | None:
        """Whether a later message takes the place of this one; its own stays in the transcript."""
        now_ms = self._floor.now_ms
        while True:
            told = at_its_place(self._policy, self._seen(scene.turn), self._open(), now_ms())
            if told.place is not Place.WAIT:
                break
            await asyncio.sleep(max(0.0, told.until_ms - now_ms()) / 1000)
        if told.place is Place.PLAY:
            return None
        self._floor.add_now(scene.stream, scene.turn.messages)
        return Outcome(TurnEvent.SKIPPED, "A later message has taken the place of this one.", "superseded")
