"""What a chat agent keeps in its storage.

    message  <position>               one message of the transcript, in order
    turn     <request id>             one turn (`actors.chat.turn`)
    open     <request id>             stands until the turn has ended, so that a life finds what it owes
    key      <idempotency key>        the request id of this key
    chunks   <request id> <segment>   [number of the first event, [event, …]]
    guard                             the calls that may not be repeated blindly
    call     <request id> <call id>   an inline tool call that has begun
    feed     accepted <request id>    [id, …]: a turn was accepted, with these messages
    feed     deleted <position>       the id of a message that was deleted
    feed     cleared                  the conversation was cleared
    summary                           what the model is told in place of the older messages

Every `write` is one transaction, or part of the open one. Nothing is told to anybody before it returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypedDict, Unpack

from perdure.actors.chat.chat_messages import is_current
from perdure.actors.chat.turn import Turn
from perdure.actors.life.documents import Documents, RememberedDocuments
from perdure.actors.life.life import Life
from perdure.ledger import pack, unpack
from perdure.ledger.storage.agent_storages import Transaction
from perdure.ledger.storage.records import CALL, CHUNKS, FEED, GUARD, KEY, MESSAGE, OPEN, SUMMARY, TURN
from perdure.policies import Event, LossRow, Message

STREAMS_KEPT = 20
ACCEPTED, DELETED, CLEARED = "accepted", "deleted", "cleared"
"""The documents of the feed; a request id or a position follows the first two."""


class InlineCall(TypedDict):
    # How often it has begun, and when last.
    attempt: int
    at_ms: int


class TranscriptSummary(TypedDict):
    """What the model is told in place of the older part of a conversation.

    It covers all messages up to the position `after`, and the first `steps` steps of the message `within`, if that is not empty. The
    message `asked` is told all the same: the question that `within` answers.
    """

    text: str
    after: int
    within: str
    steps: int
    asked: str


class Beside(TypedDict, total=False):
    """What one transaction writes beside a turn and its events. `turns` are others, which end with it. `then` is done in memory after
    the commit."""

    summary: TranscriptSummary
    messages: Sequence[tuple[int, Message | None]]
    calls: Sequence[tuple[str, InlineCall]]
    turns: Sequence[Turn]
    then: Callable[[], None]


class ChatStore:
    """The documents of one chat agent."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._messages: Documents[Message] = Documents(life, MESSAGE)
        self._turns = Documents(life, TURN, Turn.load, Turn.body)
        self._open = Documents(life, OPEN, bytes, bytes)
        self._keys: Documents[str] = Documents(life, KEY)
        self._chunks: Documents[tuple[int, list[Event]]] = Documents(life, CHUNKS)
        self._calls: Documents[InlineCall] = Documents(life, CALL)
        self._guard: Documents[list[LossRow]] = Documents(life, GUARD)
        self._feed: Documents[Any] = Documents(life, FEED)
        self._summary: Documents[TranscriptSummary] = RememberedDocuments(life, SUMMARY, unpack, pack)
        self.changed = asyncio.Event()  # set by the next commit that the feed tells of
        self.watchers = 0

    # reading

    def messages(self) -> list[tuple[int, Message]]:
        return [(int(key), message) for key, message in self._messages.all().items()]

    def turn(self, request_id: str) -> Turn | None:
        return self._turns.get(request_id)

    def turns(self) -> list[Turn]:
        return sorted(self._turns.all().values(), key=attrgetter("number"))

    def knows(self, turn: Turn) -> bool:
        return self._turns.stands(turn.request_id)

    def open_turns(self) -> list[Turn]:
        return sorted(self._turns.some(self._open.all()).values(), key=attrgetter("number"))

    def request_of(self, key: str) -> str | None:
        return self._keys.get(key)

    def events(self, request_id: str, first: int = 0) -> list[Event]:
        found: list[Event] = []
        for start, events in self._chunks.all(f"{request_id}\0").values():
            found += events[max(0, first - start) :]
        return found

    def calls(self, request_id: str) -> dict[str, InlineCall]:
        prefix = f"{request_id}\0"
        return {key.removeprefix(prefix): call for key, call in self._calls.all(prefix).items()}

    def guard(self) -> list[LossRow]:
        return self._guard.get("") or []

    def summary(self) -> TranscriptSummary | None:
        # The same object while it stands.
        return self._summary.get("")

    def message_versions(self, positions: Iterable[int]) -> list[int]:
        # The number of the commit that wrote the message at each position; 0 if there is none.
        return [self._messages.version(f"{each:010d}") for each in positions]

    # the feed

    def rows_from(self, number: int, most: int) -> list[tuple[int, str, str, object]]:
        """The first rows from a number on that the feed is made of: each one's number, kind, key and value.

        The number of a row is that of its latest writing. It rises for ever, so whatever is written later comes later.
        """
        if not self._life.has_storage:
            return []
        told: tuple[Documents[Any], ...] = (self._feed, self._messages, self._chunks, self._turns)
        with self._life.storage.committing:
            # the row of an open turn is written again and again; it is told once the turn has ended
            found = [
                (version, at, key)
                for at, documents in enumerate(told)
                for key, version in documents.versions().items()
                if version >= number and not (documents is self._turns and self._open.version(key))
            ]
            chosen = sorted(found)[:most]
            bodies = [documents.some(key for _, of, key in chosen if of == at) for at, documents in enumerate(told)]
        return [(version, told[at].kind, key, bodies[at][key]) for version, at, key in chosen]

    def asked_with(self, request_id: str) -> list[str]:
        found: list[str] | None = self._feed.get(f"{ACCEPTED}\0{request_id}") if self._life.has_storage else None
        return found or []

    @property
    def next_row(self) -> int:
        # It is above the numbers of all rows.
        return self._life.storage.records().clock if self._life.has_storage else 1

    async def change(self, changed: asyncio.Event) -> None:
        # Waits for a commit that the feed tells of. `changed` is the event of the next one, as it was when the rows were read.
        self.watchers += 1
        try:
            await changed.wait()
        finally:
            self.watchers -= 1

    @contextmanager
    def _changing(self) -> Iterator[Transaction]:
        # The open transaction, or one of its own; the followers of the feed hear of its commit.
        with self._life.storage.transaction() as transaction:
            yield transaction
            transaction.then(lambda: self._life.on_loop(self._wake))

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    # writing

    def keep_guard(self, rows: list[LossRow]) -> None:
        with self._life.storage.transaction() as transaction:
            if rows:
                self._guard.put(transaction, "", rows)
            else:
                self._guard.drop(transaction, "")

    def write(
        self,
        turn: Turn | None = None,
        *,
        segment: tuple[int, list[Event]] | None = None,
        told: Callable[[], None] | None = None,
        **beside: Unpack[Beside],
    ) -> None:
        """Make all of this durable at once. `then` is done in memory after the commit, and after it `told`.

        The feed tells of it in the order of the rows: acceptance, messages, events, end.
        """
        placed, summary = beside.get("messages", ()), beside.get("summary")
        with self._changing() as transaction:
            if turn is not None and not self.knows(turn):
                # `placed` has the messages of a turn that is accepted and begun in one commit.
                new = [each for _, each in placed if each and each["role"] != "assistant" and is_current(each)]
                asked = turn.messages or (new if turn.attempt else [])
                self._feed.put(transaction, f"{ACCEPTED}\0{turn.request_id}", [each["id"] for each in asked])
            for position, message in placed:
                self._keep_summary_true(transaction, position, message, "" if turn is None else turn.message_id)
                self._put_message(transaction, f"{position:010d}", message)
            if summary is not None:
                self._summary.put(transaction, "", summary)
            if turn is not None:
                if segment is not None:
                    self._chunks.put(transaction, f"{turn.request_id}\0{turn.segments:06d}", segment)
                    turn.segments += 1
                    turn.events = segment[0] + len(segment[1])
                self._put_turn(transaction, turn)
                for each in beside.get("turns", ()):
                    self._put_turn(transaction, each)
                for call_id, record in beside.get("calls", ()):
                    self._calls.put(transaction, f"{turn.request_id}\0{call_id}", record)
            if turn is not None and turn.is_over:
                self.prune_streams()
            for job in filter(None, (beside.get("then"), told)):
                transaction.then(job)

    def _put_turn(self, transaction: Transaction, turn: Turn) -> None:
        self._turns.put(transaction, turn.request_id, turn)
        if turn.is_over:
            self._open.drop(transaction, turn.request_id)
        elif not self._open.stands(turn.request_id):
            self._open.put(transaction, turn.request_id, b"")
            if turn.idempotency_key:
                self._keys.put(transaction, turn.idempotency_key, turn.request_id)

    def forget_summary(self) -> None:
        with self._life.storage.transaction() as transaction:
            self._summary.drop(transaction, "")

    def _keep_summary_true(self, transaction: Transaction, position: int, message: Message | None, own_id: str) -> None:
        # The answer that a turn writes itself only grows, so its own writing does not drop the summary.
        key = f"{position:010d}"
        if not self._messages.stands(key):
            return
        self._summary.depend_on(transaction, "")
        summary = self._summary.get("")
        if summary is None:
            return
        changed = message or self._messages.get(key)
        is_partly = changed is not None and changed["id"] == summary["within"]
        if own_id != summary["within"] if is_partly else position <= summary["after"]:
            self._summary.drop(transaction, "")

    def _put_message(self, transaction: Transaction, key: str, message: Message | None) -> None:
        if message is not None:
            self._messages.put(transaction, key, message)
            return
        known = self._messages.get(key)
        if known is not None:
            self._feed.put(transaction, f"{DELETED}\0{key}", known["id"])
            self._messages.drop(transaction, key)

    def clear(self, positions: Iterable[int], then: Callable[[], None]) -> None:
        # Of what the feed has told only this is left.
        with self._changing() as transaction:
            for position in positions:
                self._messages.drop(transaction, f"{position:010d}")
            self.drop([turn.request_id for turn in self.turns()])
            self.keep_guard([])
            self.forget_summary()
            for key in self._feed.versions():
                self._feed.drop(transaction, key)
            self._feed.put(transaction, CLEARED, None)
            transaction.then(then)

    def drop(self, request_ids: Iterable[str]) -> None:
        with self._life.storage.transaction() as transaction:
            for turn in filter(None, map(self.turn, request_ids)):
                self._drop(transaction, turn)

    def _drop(self, transaction: Transaction, turn: Turn) -> None:
        if turn.idempotency_key:
            self._keys.drop(transaction, turn.idempotency_key)
        for pieces in (self._chunks, self._calls):
            for key in [each for each in pieces.versions() if each.startswith(f"{turn.request_id}\0")]:
                pieces.drop(transaction, key)
        self._open.drop(transaction, turn.request_id)
        self._feed.drop(transaction, f"{ACCEPTED}\0{turn.request_id}")
        self._turns.drop(transaction, turn.request_id)

    def prune_streams(self, kept: int = STREAMS_KEPT) -> None:
        owned: dict[str, list[str]] = {}
        for key in self._chunks.versions():
            owned.setdefault(key.partition("\0")[0], []).append(key)
        gone = [key for owner in list(owned)[:-kept] if not self._open.version(owner) for key in owned[owner]]
        if gone:
            with self._life.storage.transaction() as transaction:
                for key in gone:
                    self._chunks.drop(transaction, key)
