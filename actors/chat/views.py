"""Turns as those see them who ask: what one has come to, and its events from a number on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.chat.stream import batch
from actors.chat.turn import Turn, TurnResult
from ledger import BadRequest

if TYPE_CHECKING:
    from actors.chat.store import Event
    from actors.chat.turns import Turns

HOLD_S = 10.0


class Views:
    """The turns of one chat agent, to be looked at."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def result_of(self, turn: Turn) -> TurnResult:
        """A turn as its caller sees it."""
        stream = self._turns.stream_in_memory(turn)
        message = stream.message if stream is not None else self._turns.transcript.get(turn.message_id)
        text = "".join(part["text"] for part in (message or {"parts": []})["parts"] if part["type"] == "text")
        return TurnResult(
            request_id=turn.request_id,
            status=turn.status,
            text=text,
            message=message if message and message["parts"] else None,
            error=turn.error,
            reason=turn.reason,
            next_event=turn.events,
        )

    async def follow(self, request_id: str, first: int, hold_s: float = HOLD_S) -> tuple[Turn, list[Event], int]:
        """A turn, the events of its stream from a number on, and the number after them; waits a while if there is none yet.

        Of a turn whose stream was dropped since, what it came to is told as if it had just been said.
        """
        turns = self._turns
        turn = turns.find(request_id)
        if turn is None:
            raise BadRequest("request_id", f"no turn has the id {request_id}")
        if not turn.is_over:
            events = await turns.stream_of(turn).next_events(first, hold_s)
            return turns.find(request_id) or turn, events, first + len(events)
        events = turns.store.events(request_id, first)
        if first < turn.events and not events:
            return turn, turns.repair.retold(turn), turn.events
        events = batch(events)
        return turn, events, first + len(events)
