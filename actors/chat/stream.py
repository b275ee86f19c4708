"""The stream of one turn: numbered events, durable before anybody sees them, through any number of lives of the agent.

An event is a chunk of the AI SDK's UI message stream, and the assistant's message is the fold of the events
(`actors.events.message_parts`); there is no second copy of it that could differ. Numbers go on across lost connections and across deaths.
What a broken attempt had half said is withdrawn by an event, a new attempt announces itself by one, and the last event says how the turn
ended:

    data-attempt      {attempt, cause}                     a new attempt begins
    data-retract      {parts}                              only so many parts of the message stay
    data-status       {…}                                  what is being waited for, in a pause
    data-interrupted  {attempt, cause, outcome, …}         this attempt is over, and the turn may go on
    finish | error | abort                                 the end

When events become durable: the result of a tool and the intent to call one at once. Everything else as soon as somebody follows the
turn, because what is shown must not be lost. Otherwise in groups: after 10 events, or 1 s; unfollowed streams are flushed every 5 s. A
death loses the last group, and the model says it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Unpack

from perdure.actors.chat.store import Beside, ChatStore
from perdure.actors.chat.turn import Turn
from perdure.actors.events.message_parts import apply_chunk
from perdure.ledger import StorageError, pack
from perdure.ledger.storage.cabinet import unbound
from perdure.policies import Event, Message, Part, earns_credit

GROUP, GROUP_S = 10, 0.05
LINGER_S, LINGER_UNSEEN_S = 1.0, 5.0
BATCH_EVENTS_MAX, BATCH_BYTES_MAX = 5_000, 1_000_000
UTF8_MOST = 4  # bytes of one character


class Stream:
    """The stream of a turn that has not ended, in this life of its agent.

    Args:
        now_ms: the wall clock, for progress.
        on_durable: is told of every group of events that became durable.
        is_seen: whether somebody may see what `on_durable` is told.
    """

    def __init__(
        self,
        turn: Turn,
        store: ChatStore,
        now_ms: Callable[[], int],
        on_durable: Callable[[list[Event]], None] = lambda _events: None,
        before: list[Event] | None = None,
        is_seen: Callable[[], bool] = lambda: True,
    ) -> None:
        self.turn = turn
        self._store, self._now_ms, self._on_durable, self._is_seen = store, now_ms, on_durable, is_seen
        self.events: list[Event] = before or []
        self._parts: list[Part] = []
        self._folded = 0
        self._followers: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._due: asyncio.Handle | None = None
        self._due_at_s = 0.0
        self._flushed_s = 0.0
        self._context = unbound()  # a flush that is due joins no transaction that happens to be open then
        self._problem: StorageError | None = None
        self._beside: Beside = {}
        self._credited_at_ms: float | None = None

    @property
    def parts(self) -> list[Part]:
        """The parts of the message so far."""
        pending, self._folded = self.events[self._folded :], len(self.events)
        for event in merged(pending):
            self._parts = apply_chunk(self._parts, event)
        return self._parts

    @property
    def message(self) -> Message:
        """The assistant's message so far."""
        return {"id": self.turn.message_id, "role": "assistant", "parts": self.parts}

    def begin_with(self, parts: list[Part]) -> None:
        """Go on with a message that is there already."""
        self._parts = parts

    def beside(self, **documents: Unpack[Beside]) -> None:
        """Write these with the next flush."""
        self._beside = _both(self._beside, documents)

    def add(self, event: Event) -> None:
        """Add an event. It will be durable soon; `flush` makes it so now."""
        if self._problem is not None:
            raise self._problem
        self.events.append(event)
        self._credit(event.get("type"))
        waiting = len(self.events) - self.turn.events
        now_s = asyncio.get_running_loop().time()
        if self._followers:
            self._flush_at(now_s)
        elif waiting >= GROUP:
            self._flush_at(max(now_s, self._flushed_s + GROUP_S))
        else:
            self._flush_at(now_s + (LINGER_S if self._is_seen() else LINGER_UNSEEN_S))

    def _credit(self, kind: object) -> None:
        """Count progress of the turn, at the moment at which it is made."""
        now_ms = self._now_ms()
        if not earns_credit(kind, now_ms, self._credited_at_ms):
            return
        self._credited_at_ms = self.turn.progress_at_ms = now_ms
        self.turn.work += 1

    def _flush_at(self, at_s: float) -> None:
        if self._due is not None:
            if self._due_at_s <= at_s:
                return
            self._due.cancel()
        loop = asyncio.get_running_loop()
        self._due_at_s = at_s
        soon = at_s <= loop.time()
        if soon:
            self._due = loop.call_soon(self._flush_due, context=self._context)
        else:
            self._due = loop.call_at(at_s, self._flush_due, context=self._context)

    def _flush_due(self) -> None:
        try:
            self.flush()
        except StorageError as problem:  # whoever adds the next event hears of it
            self._problem = problem

    def flush(self, **beside: Unpack[Beside]) -> None:
        """Make everything durable that was said so far, and in the same transaction what `ChatStore.write` is given beside it."""
        self.rest()
        pending = self.events[self.turn.events :]
        if not pending and not beside and not self._beside:
            return
        beside, self._beside = _both(self._beside, beside), {}
        segment = (self.turn.events, pending) if pending else None
        self._store.write(self.turn, segment=segment, **beside)
        self._flushed_s = asyncio.get_running_loop().time()
        if pending:
            self._on_durable(pending)
        self._tell()

    def rest(self) -> None:
        """Cancel the flush that is due."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _tell(self) -> None:
        followers, self._followers = self._followers, {}
        for follower in followers:
            if not follower.done():
                follower.set_result(None)

    async def next_events(self, first: int, hold_s: float) -> list[Event]:
        """The durable events from a number on; waits a while for one if there is none."""
        if first >= self.turn.events and not self.turn.is_over:
            follower: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._followers[follower] = None
            if len(self.events) > self.turn.events:
                self._flush_at(asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(hold_s):
                    await follower
            except TimeoutError:
                self._followers.pop(follower, None)
        return batch(self.events[first : self.turn.events])


def batch(events: list[Event]) -> list[Event]:
    """As many of the first events as one answer should carry, and at least one."""
    size = 0
    for count, event in enumerate(events[:BATCH_EVENTS_MAX]):
        delta = event.get("delta")
        size += len(delta) * UTF8_MOST if isinstance(delta, str) else len(pack(event))
        if size > BATCH_BYTES_MAX:
            return events[: count + 1]
    return events[:BATCH_EVENTS_MAX]


def _both(first: Beside, second: Beside) -> Beside:
    """What two would write at once; lists of messages or calls are one list."""
    both: Beside = {**first, **second}
    if "messages" in first and "messages" in second:
        both["messages"] = [*first["messages"], *second["messages"]]
    if "calls" in first and "calls" in second:
        both["calls"] = [*first["calls"], *second["calls"]]
    return both


def merged(events: list[Event]) -> list[Event]:
    """The same events with neighbouring deltas of one text joined, so that a long text is not copied once per delta."""
    joined: list[Event] = []
    run: list[str] = []
    for event in events:
        joins = joined and event.get("type") in ("text-delta", "reasoning-delta") and _same_text(joined[-1], event)
        if joins:
            run = run or [joined[-1]["delta"]]
            run.append(event["delta"])
            continue
        _join(joined, run)
        run = []
        joined.append(event)
    _join(joined, run)
    return joined


def _join(joined: list[Event], run: list[str]) -> None:
    if run:
        joined[-1] = {**joined[-1], "delta": "".join(run)}


def _same_text(left: Event, right: Event) -> bool:
    keys = ("type", "id")
    plain = left.keys() | right.keys() <= {"type", "id", "delta"}
    return plain and isinstance(right.get("delta"), str) and all(left.get(key) == right.get(key) for key in keys)
