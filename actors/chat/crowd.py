"""Messages of people that come during a turn: taken or not, and played or not when their place has come (`policies.overlap`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actors.chat.play import Outcome
from policies import Open, Overlap, Place, at_its_place, is_dropped, overlaps

if TYPE_CHECKING:
    from actors.chat.play import Play
    from actors.chat.turn import Turn
    from actors.chat.turns import Turns


class Crowd:
    """The turns of one agent that are open at the same time."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    @property
    def _policy(self) -> Overlap:
        return Overlap.of(self._turns.agent.message_concurrency)

    def _open(self) -> list[Open]:
        return [self._seen(turn) for turn in self._turns.open.values()]

    def _seen(self, turn: Turn) -> Open:
        """The turn as the policy sees it. One that an earlier life or attempt began is being recovered, and in nobody's way (W-38)."""
        is_recovering = turn.status == "running" and (turn.attempt > 1 or not self._turns.is_ours(turn))
        return Open(
            turn.number, "recovering" if is_recovering else turn.status, turn.is_overlapping, turn.accepted_at_ms
        )

    def is_overlapping(self, turn: Turn) -> bool:
        """Whether a turn that comes now is a message of a person during another turn."""
        return turn.trigger == "chat" and overlaps(self._open())

    def drops(self, turn: Turn) -> bool:
        """Whether a message that comes now is refused."""
        return is_dropped(self._policy, is_overlapping=self.is_overlapping(turn)) and self._turns.known(turn) is None

    async def skipped(self, play: Play) -> Outcome | None:
        """Whether a later message takes the place of this one; its own stays in the transcript."""
        now_ms = self._turns.now_ms
        while True:
            told = at_its_place(self._policy, self._seen(play.turn), self._open(), now_ms())
            if told.place is not Place.WAIT:
                break
            await asyncio.sleep(max(0.0, told.until_ms - now_ms()) / 1000)
        if told.place is Place.PLAY:
            return None
        self._turns.add_now(play.stream, play.turn.messages)
        return Outcome("skipped", "A later message has taken the place of this one.", "superseded")
