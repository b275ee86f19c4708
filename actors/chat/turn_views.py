"""What callers see of turns: the status and result of one, and its events from a number on."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.event_lists import batch
from perdure.actors.chat.turn import Turn, TurnResult
from perdure.ledger import BadRequest
from perdure.policies import Event, Message, Part, ToolState, TurnStatus, is_tool_part, tool_name

HOLD_S = 10.0
OPENING_S = 0.05  # a turn that says something so soon is begun and told in one answer
RECENT_MAX, RECENT_EVENTS_MAX = 8, 2_000


class TurnViews:
    """The turns of one chat agent, as callers see them.

    Args:
        is_behind: whether another turn is played, or comes before one.
    """

    def __init__(self, state: ConversationState, is_behind: Callable[[Turn], bool]) -> None:
        self._state, self._is_behind = state, is_behind
        self._recent: dict[str, tuple[Turn, list[Event]]] = {}

    def remember(self, turn: Turn, events: list[Event]) -> None:
        """Keep the events of a turn that has ended: its followers ask for the end in a moment."""
        if len(events) <= RECENT_EVENTS_MAX:
            self._recent[turn.request_id] = turn, events
        while len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]

    def known(self, turn: Turn) -> Turn | None:
        """The turn that was accepted under the id or the key of this one, if any."""
        by_id, key = self.find(turn.request_id), turn.idempotency_key
        if not key:
            return by_id
        request_id = next((each.request_id for each in self._state.open.values() if each.idempotency_key == key), None)
        by_key = self.find(request_id or self._state.store.request_of(key) or "")
        if by_id is not None and by_key is not by_id and by_id.idempotency_key != key:
            raise BadRequest("idempotency_key", "request_id and idempotency_key refer to different turns")
        return by_key or by_id

    def find(self, request_id: str) -> Turn | None:
        """A turn by its id, whether it has ended or not."""
        recent, _ = self._recent.get(request_id, (None, ()))
        return self._state.open.get(request_id) or recent or self._state.store.turn(request_id)

    def found(self, request_id: str) -> Turn:
        """The same. Raises `BadRequest` if there is none."""
        turn = self.find(request_id)
        if turn is None:
            raise BadRequest("request_id", f"no turn has the id {request_id}")
        return turn

    def forget(self) -> None:
        """Turns were deleted."""
        self._recent.clear()

    def result_of(self, turn: Turn) -> TurnResult:
        """A turn as its caller sees it."""
        stream = self._state.streams.get(turn.request_id)
        message = stream.message if stream is not None else self._state.transcript.get(turn.message_id)
        parts = message["parts"] if message is not None else []
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        return _result(turn, text, message if parts else None)

    async def follow(
        self, request_id: str, first: int, hold_s: float = HOLD_S, *, awaits_people: bool = True
    ) -> tuple[Turn, list[Event], int]:
        """A turn, the events of its stream from a number on, and the number after them. Waits a while if there is none yet.

        If the stream of an ended turn was dropped, its events are made again from its message.
        """
        turn = self.found(request_id)
        if not turn.is_over:
            hold_s = hold_s if awaits_people or turn.status is not TurnStatus.PARKED else 0.0
            events = await self._state.stream_of(turn).next_events(first, hold_s)
            return self.find(request_id) or turn, events, first + len(events)
        known = self._recent.get(request_id)
        events = self._state.store.events(request_id, first) if known is None else known[1][first:]
        if first < turn.events and not events:
            return turn, self._retold(turn), turn.events
        events = batch(events)
        return turn, events, first + len(events)

    async def opening(self, request_id: str) -> tuple[Turn, list[Event], int]:
        """A turn that was accepted just now, with its first events if they come at once."""
        turn = self.find(request_id)
        if turn is not None and not turn.is_over and not self._is_behind(turn):
            await self._state.stream_of(turn).next_events(1, OPENING_S)
            if self.find(request_id) is None:  # it was cleared meanwhile
                return turn, [], turn.events
        return await self.follow(request_id, 0, 0.0)

    def told(self, turn: Turn, events: list[Event], after: int) -> dict[str, object]:
        """The answer to a follower. Of a turn that is under way its events are enough."""
        is_at_rest = turn.is_over or turn.status is TurnStatus.PARKED
        shown = self.result_of(turn) if is_at_rest else _result(turn)
        return {**vars(shown), "events": events, "next": after, "attempt": turn.attempt}

    def _retold(self, turn: Turn) -> list[Event]:
        message = self._state.transcript.get(turn.message_id)
        events: list[Event] = [{"type": "start", "messageId": turn.message_id}]
        parts = message["parts"] if message is not None else []
        for number, part in enumerate(parts[turn.base :]):
            events += _events_of(part, f"part-{number}")
        last: Event = {"type": _LAST.get(turn.status, "error")}
        if last["type"] == "error":
            last["errorText"] = turn.error
        return [*events, last]


def _result(turn: Turn, text: str = "", message: Message | None = None) -> TurnResult:
    return TurnResult(
        request_id=turn.request_id,
        status=turn.status,
        text=text,
        message=message,
        error=turn.error,
        reason=turn.reason,
        next_event=turn.events,
        finish_reason=turn.finish_reason,
    )


_LAST = {TurnStatus.COMPLETED: "finish", TurnStatus.ABORTED: "abort"}


def _events_of(part: Part, part_id: str) -> list[Event]:
    """The events that make this part."""
    kind = part["type"]
    if kind in ("text", "reasoning"):
        delta: Event = {"type": f"{kind}-delta", "id": part_id, "delta": part.get("text", "")}
        return [{"type": f"{kind}-start", "id": part_id}, delta, {"type": f"{kind}-end", "id": part_id}]
    if kind == "step-start":
        return [{"type": "start-step"}]
    if not is_tool_part(part):
        return [cast("Event", part)]
    call_id, name, state = part["toolCallId"], tool_name(part), part.get("state")
    begun: Event = {"type": "tool-input-available", "toolCallId": call_id, "toolName": name, "input": part.get("input")}
    if state == ToolState.OUTPUT_AVAILABLE:
        return [begun, {"type": "tool-output-available", "toolCallId": call_id, "output": part.get("output")}]
    if state == ToolState.OUTPUT_ERROR:
        return [begun, {"type": "tool-output-error", "toolCallId": call_id, "errorText": part.get("errorText", "")}]
    if state == ToolState.OUTPUT_DENIED:
        return [begun, {"type": "tool-output-denied", "toolCallId": call_id}]
    return [begun]
