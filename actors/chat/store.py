"""What a chat agent keeps in its storage: messages, turns, the pieces of their streams, and inline tool calls.

    message  <position>               one message of the transcript, in order
    turn     <request id>             one turn (`actors.chat.turn`)
    open     <request id>             stands while the turn has not ended, so that a life knows at once what it owes
    key      <idempotency key>        the request id that it stands for
    chunks   <request id> <segment>   [number of the first event, [event, …]]
    guard                             the calls that may not be repeated blindly
    call     <request id> <call id>  an inline tool call: begun, and perhaps how it ended

Every `write` is one transaction, or part of the one that is open. Nothing is told to anybody before it returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from perdure.actors.chat.turn import Turn
from perdure.actors.life.life import Life
from perdure.ledger import pack, unpack
from perdure.ledger.storage.cabinet import CALL, CHUNKS, GUARD, KEY, MESSAGE, OPEN, TURN

Message = dict[str, Any]
Event = dict[str, Any]


STREAMS_KEPT = 20


class ChatStore:
    """The documents of one chat agent."""

    def __init__(self, life: Life) -> None:
        self._life = life

    @property
    def is_empty(self) -> bool:
        """Whether the agent never wrote anything."""
        return not self._life.has_storage

    # reading

    def messages(self) -> list[tuple[int, Message]]:
        """The transcript, with the position of each message."""
        if self.is_empty:
            return []
        return [(int(key), unpack(body)) for key, body in self._life.storage.documents(MESSAGE).items()]

    def turn(self, request_id: str) -> Turn | None:
        """A turn by its request id."""
        body = None if self.is_empty else self._life.storage.document(TURN, request_id)
        return None if body is None else Turn.load(body)

    def turns(self) -> list[Turn]:
        """All turns, in the order of their acceptance."""
        if self.is_empty:
            return []
        found = [Turn.load(body) for body in self._life.storage.documents(TURN).values()]
        return sorted(found, key=lambda turn: turn.number)

    def open_turns(self) -> list[Turn]:
        """The turns that have not ended, in order."""
        if self.is_empty:
            return []
        found = [self.turn(request_id) for request_id in self._life.storage.documents(OPEN)]
        return sorted([turn for turn in found if turn is not None], key=lambda turn: turn.number)

    def request_of(self, key: str) -> str | None:
        """The request that was accepted under this idempotency key."""
        body = None if self.is_empty else self._life.storage.document(KEY, key)
        return None if body is None else str(unpack(body))

    def events(self, request_id: str, first: int = 0) -> list[Event]:
        """The durable events of a stream from a number on."""
        if self.is_empty:
            return []
        found: list[Event] = []
        for body in self._life.storage.documents(CHUNKS, f"{request_id}\0").values():
            start, events = unpack(body)
            found += events[max(0, first - start) :]
        return found

    def calls(self, request_id: str) -> dict[str, dict[str, Any]]:
        """The inline calls of a turn, by call id."""
        if self.is_empty:
            return {}
        prefix = f"{request_id}\0"
        found = self._life.storage.documents(CALL, prefix)
        return {key.removeprefix(prefix): unpack(body) for key, body in found.items()}

    def guard(self) -> list[dict[str, Any]]:
        """What the repeat guard remembers."""
        body = None if self.is_empty else self._life.storage.document(GUARD, "")
        return [] if body is None else list(unpack(body))

    # writing

    def keep_guard(self, rows: list[dict[str, Any]]) -> None:
        """Remember this instead; durable on return."""
        with self._life.storage.transaction() as transaction:
            transaction.put(GUARD, "", pack(rows) if rows else None)

    def write(
        self,
        turn: Turn | None = None,
        *,
        messages: Iterable[tuple[int, Message | None]] = (),
        segment: tuple[int, list[Event]] | None = None,
        calls: Iterable[tuple[str, dict[str, Any]]] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        """Make all of this durable at once. `then` is done in memory after the commit."""
        with self._life.storage.transaction() as transaction:
            if segment is not None and turn is not None:
                transaction.put(CHUNKS, f"{turn.request_id}\0{turn.segments:06d}", pack(list(segment)))
                turn.segments += 1
                turn.events = segment[0] + len(segment[1])
            if turn is not None:
                self._put_turn(transaction, turn)
            for position, message in messages:
                transaction.put(MESSAGE, f"{position:010d}", None if message is None else pack(message))
            for call_id, record in calls:
                assert turn is not None
                transaction.put(CALL, f"{turn.request_id}\0{call_id}", pack(record))
            if turn is not None and turn.is_over:
                self.prune_streams()
            if then is not None:
                transaction.then(then)

    def _put_turn(self, transaction: Any, turn: Turn) -> None:
        transaction.put(TURN, turn.request_id, turn.body())
        collected = transaction.collected(OPEN)
        known = self._life.storage.records().version((OPEN, turn.request_id)) > 0
        is_open = collected[turn.request_id] is not None if turn.request_id in collected else known
        if turn.is_over and is_open:
            transaction.put(OPEN, turn.request_id, None)
        elif not turn.is_over and not is_open:
            transaction.put(OPEN, turn.request_id, b"")
            if turn.idempotency_key:
                transaction.put(KEY, turn.idempotency_key, pack(turn.request_id))

    def drop(self, request_ids: Iterable[str]) -> None:
        """Delete ended turns with their streams and calls, at once."""
        with self._life.storage.transaction() as transaction:
            for request_id in request_ids:
                self._drop(transaction, request_id)

    def _drop(self, transaction: Any, request_id: str) -> None:
        storage = self._life.storage
        turn = self.turn(request_id)
        if turn is None:
            return
        if turn.idempotency_key:
            transaction.put(KEY, turn.idempotency_key, None)
        for kind in (CHUNKS, CALL):
            for key in [key for key in storage.records().keys(kind) if key.startswith(f"{request_id}\0")]:
                transaction.put(kind, key, None)
        transaction.put(OPEN, request_id, None)
        transaction.put(TURN, request_id, None)

    def prune_streams(self, kept: int = STREAMS_KEPT) -> None:
        """Delete the streams of the oldest turns beyond so many; what they came to stays in the transcript."""
        if self.is_empty:
            return
        records = self._life.storage.records()
        owned: dict[str, list[str]] = {}
        for key in records.keys(CHUNKS):
            owned.setdefault(key.partition("\0")[0], []).append(key)
        gone = [key for owner in list(owned)[:-kept] if not records.version((OPEN, owner)) for key in owned[owner]]
        if gone:
            with self._life.storage.transaction() as transaction:
                for key in gone:
                    transaction.put(CHUNKS, key, None)
