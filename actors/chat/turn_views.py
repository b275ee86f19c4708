"""What callers see of turns: the status and result of one, and its events from a number on."""

from __future__ import annotations

from collections.abc import Callable

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.history import History
from perdure.actors.chat.stream import batch
from perdure.actors.chat.turn import Turn, TurnResult
from perdure.ledger import BadRequest
from perdure.policies import Event

HOLD_S = 10.0
OPENING_S = 0.05  # a turn that says something so soon is begun and told in one answer
RECENT_MAX, RECENT_EVENTS_MAX = 8, 2_000


class TurnViews:
    """The turns of one chat agent, to be looked at.

    Args:
        is_behind: whether another turn is played, or comes before one.
    """

    def __init__(self, state: ConversationState, history: History, is_behind: Callable[[Turn], bool]) -> None:
        self._state, self._history, self._is_behind = state, history, is_behind
        self._recent: dict[str, tuple[Turn, list[Event]]] = {}

    def remember(self, turn: Turn, events: list[Event]) -> None:
        """Keep the events of a turn that has ended: its followers ask for the end in a moment."""
        if len(events) <= RECENT_EVENTS_MAX:
            self._recent[turn.request_id] = turn, events
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]

    def known(self, turn: Turn) -> Turn | None:
        """The turn that was accepted under the id or the key of this one, if any."""
        by_id = self.find(turn.request_id)
        key = turn.idempotency_key
        if not key:
            return by_id
        request_id = next((each.request_id for each in self._state.open.values() if each.idempotency_key == key), None)
        by_key = self.find(request_id or self._state.store.request_of(key) or "")
        if by_id is not None and by_key is not by_id and by_id.idempotency_key != key:
            raise BadRequest("idempotency_key", "request_id and idempotency_key refer to different turns")
        return by_key or by_id

    def find(self, request_id: str) -> Turn | None:
        """A turn by its id, whether it has ended or not."""
        return self._state.open.get(request_id) or self._find_recent(request_id) or self._state.store.turn(request_id)

    def _find_recent(self, request_id: str) -> Turn | None:
        """The turn, if it is one of those that ended last."""
        known = self._recent.get(request_id)
        return None if known is None else known[0]

    def forget(self) -> None:
        """Turns were deleted."""
        self._recent.clear()

    def result_of(self, turn: Turn) -> TurnResult:
        """A turn as its caller sees it."""
        stream = self._state.stream_in_memory(turn)
        message = stream.message if stream is not None else self._state.transcript.get(turn.message_id)
        text = "".join(
            part["text"] for part in (message["parts"] if message is not None else ()) if part["type"] == "text"
        )
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
        turn = self.find(request_id)
        if turn is None:
            raise BadRequest("request_id", f"no turn has the id {request_id}")
        if not turn.is_over:
            events = await self._state.stream_of(turn).next_events(first, hold_s)
            return self.find(request_id) or turn, events, first + len(events)
        known = self._recent.get(request_id)
        events = self._state.store.events(request_id, first) if known is None else known[1][first:]
        if first < turn.events and not events:
            return turn, self._history.retold(turn), turn.events
        events = batch(events)
        return turn, events, first + len(events)

    async def opening(self, request_id: str) -> tuple[Turn, list[Event], int]:
        """A turn that was accepted just now, with its first events: if it comes to say something at once, with that too."""
        turn = self.find(request_id)
        if turn is not None and not turn.is_over and not self._is_behind(turn):
            await self._state.stream_of(turn).next_events(1, OPENING_S)
            if self.find(request_id) is None:  # it was cleared meanwhile, and what it came to is all that is left
                return turn, [], turn.events
        return await self.follow(request_id, 0, 0.0)

    def told(self, turn: Turn, events: list[Event], after: int) -> dict[str, object]:
        """What a follower is told. Of a turn that goes on, its events are enough."""
        if turn.is_over:
            shown = self.result_of(turn)
        else:
            shown = TurnResult(
                request_id=turn.request_id,
                status=turn.status,
                error=turn.error,
                reason=turn.reason,
                next_event=turn.events,
            )
        return {**vars(shown), "events": events, "next": after, "attempt": turn.attempt}
