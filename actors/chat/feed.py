"""The feed of one conversation: whatever happens in it, in order, told from what is durable.

Nothing is written for the feed but one small row for each accepted turn and each deleted message, in commits that are made anyway. The
order is that of the rows of the agent's storage, whose numbers rise for ever:

    row of the storage                   told as
    feed     accepted <request id>       turn-accepted
    message                              message: new, or with other content
    chunks                               turn-begun (before the first event of a turn that began), event …
    turn, once it has ended              turn-ended
    feed     deleted <position>          message-deleted
    feed     cleared                     cleared

An event's number is that of its row times `PER_ROW`, and its place in the row. So a follower goes on from a number in every later life of
the agent, and a death between two answers loses nothing and tells nothing twice. A row that was written again has a later number: of a
message that has changed twice since, a late follower is told once. A commit wakes those who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias, TypedDict

from perdure.actors.chat.chat_store import ACCEPTED, CLEARED
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.stream import batch
from perdure.actors.chat.turn import Turn
from perdure.ledger import BadRequest, check_whole
from perdure.ledger.storage.records import CHUNKS, MESSAGE, TURN
from perdure.policies import Event, Json, Message, TurnStatus

PER_ROW: Final = 1 << 20
"""More than the events that one commit can hold."""
ROWS_MAX: Final = 50
HOLD_S: Final = 10.0


class _Numbered(TypedDict):
    number: int


class TurnAccepted(_Numbered):
    """A turn was accepted. `messages` are those that it came with, as far as they still exist. `steers` is the turn whose answer they may
    enter, or have entered; empty for a turn of its own."""

    type: Literal["turn-accepted"]
    turn: str
    trigger: str
    metadata: Json
    messages: list[Message]
    steers: str
    at_ms: int


class TurnBegun(_Numbered):
    """A turn is being played, and writes this message."""

    type: Literal["turn-begun"]
    turn: str
    message_id: str


class TurnStreamed(_Numbered):
    """An event of the stream of a turn, and its place there, as `attach` counts."""

    type: Literal["event"]
    turn: str
    event: Event
    event_number: int


class TurnEnded(_Numbered):
    """A turn has ended; the words are those of `TurnResult`."""

    type: Literal["turn-ended"]
    turn: str
    status: str
    reason: str
    error: str
    finish_reason: str
    at_ms: int


class MessageWritten(_Numbered):
    """A message of the transcript is new, or has other content. Positions order the transcript."""

    type: Literal["message"]
    position: int
    message: Message


class MessageDeleted(_Numbered):
    """A message was deleted."""

    type: Literal["message-deleted"]
    position: int
    message_id: str


class FeedCleared(_Numbered):
    """The conversation was cleared. Nothing is left of what was before."""

    type: Literal["cleared"]


FeedEvent: TypeAlias = (
    TurnAccepted | TurnBegun | TurnStreamed | TurnEnded | MessageWritten | MessageDeleted | FeedCleared
)
"""Something that happened in a conversation. Its `number` rises, with gaps. A follower goes on from `number + 1`."""


class FeedPage(TypedDict):
    # `next` is the number to go on from. A page is resting if it has no event and nothing is under way.
    events: list[FeedEvent]
    next: int
    is_resting: bool


class Feed:
    """The feed of one conversation, in one life of its agent."""

    def __init__(self, state: ConversationState) -> None:
        self._state = state

    async def page(self, first: int, hold_s: float) -> FeedPage:
        # Waits up to `hold_s` if there is none.
        check_whole("first", first, 0)
        if first > self._state.store.next_row * PER_ROW:
            raise BadRequest("first", f"{first} is ahead of this conversation; read it from 0 on")
        found = self._read(first)
        try:
            async with asyncio.timeout(min(hold_s, HOLD_S)):
                while not found and hold_s > 0:
                    found = await self._read_next(first)
        except TimeoutError:
            pass
        open_turns = self._state.open.values()
        is_resting = not found and all(turn.status is TurnStatus.PARKED for turn in open_turns)
        return {"events": found, "next": found[-1]["number"] + 1 if found else first, "is_resting": is_resting}

    async def _read_next(self, first: int) -> list[FeedEvent]:
        changed = self._state.store.changed
        found = self._read(first)  # what was committed since the last look, on another thread
        if not found:
            for stream in self._state.streams.values():
                stream.hasten()
            await self._state.store.change(changed)
        return found or self._read(first)

    def _read(self, first: int) -> list[FeedEvent]:
        found: list[FeedEvent] = []
        for row, kind, key, value in self._state.store.rows_from(first // PER_ROW, ROWS_MAX):
            for number, event in enumerate(self._told(kind, key, value), row * PER_ROW):
                event["number"] = number
                found += [event] if number >= first else []
        return batch(found)

    def _told(self, kind: str, key: str, value: Any) -> Iterator[FeedEvent]:
        if kind == MESSAGE:
            yield {"number": 0, "type": "message", "position": int(key), "message": value}
        elif kind == CHUNKS:
            yield from self._streamed(key.partition("\0")[0], *value)
        elif kind == TURN:
            yield from _ended(value)
        elif key == CLEARED:
            yield {"number": 0, "type": "cleared"}
        elif key.startswith(f"{ACCEPTED}\0"):
            yield from self._accepted(key.partition("\0")[2], value)
        else:
            yield {
                "number": 0,
                "type": "message-deleted",
                "position": int(key.partition("\0")[2]),
                "message_id": value,
            }

    def _accepted(self, request_id: str, message_ids: list[str]) -> Iterator[FeedEvent]:
        turn = self._state.open.get(request_id) or self._state.store.turn(request_id)
        if turn is None:
            return
        waiting = {each["id"]: each for each in turn.messages}
        found = [waiting.get(each) or self._state.transcript.get(each) for each in message_ids]
        yield {
            "number": 0,
            "type": "turn-accepted",
            "turn": request_id,
            "trigger": turn.trigger,
            "metadata": turn.metadata,
            "messages": [each for each in found if each is not None],
            "steers": turn.steers,
            "at_ms": turn.accepted_at_ms,
        }

    def _streamed(self, request_id: str, start: int, events: list[Event]) -> Iterator[FeedEvent]:
        if start == 0 and events[0]["type"] == "start":
            yield {"number": 0, "type": "turn-begun", "turn": request_id, "message_id": events[0]["messageId"]}
        for at, event in enumerate(events, start):
            yield {"number": 0, "type": "event", "turn": request_id, "event": event, "event_number": at}


def _ended(turn: Turn) -> Iterator[FeedEvent]:
    if turn.is_over:
        yield {
            "number": 0,
            "type": "turn-ended",
            "turn": turn.request_id,
            "status": turn.status,
            "reason": turn.reason,
            "error": turn.error,
            "finish_reason": turn.finish_reason,
            "at_ms": turn.ended_at_ms,
        }
