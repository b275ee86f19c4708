"""The floor of a conversation: its transcript, the turns that are open, and their streams.

Everything that has to do with turns stands on it: what repairs, plays, rescues and shows them. `Turns` is the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.actors.chat.chat_hooks import ChatHooks
from perdure.actors.chat.equipment import Equipment
from perdure.actors.chat.repeats import Repeats
from perdure.actors.chat.store import ChatStore, Event, Message
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.transcript import Transcript
from perdure.actors.chat.turn import Turn
from perdure.actors.events.observability import emit
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.run_context import RunContext


class Floor:
    """What the turns of one chat agent share, in one life of it.

    Attributes:
        open: the turns that have not ended, by their ids.
        freed_at_ms: when a turn last made room for the next one, in this life.
    """

    def __init__(self, agent: ChatHooks, tenant: Tenant) -> None:
        self.agent, self.tenant = agent, tenant
        self.store = ChatStore(tenant)
        self.transcript = Transcript(self.store)
        self.repeats = Repeats(self.store)
        self.equipment = Equipment(agent, tenant)
        self.open: dict[str, Turn] = {}
        self.freed_at_ms = 0
        self._streams: dict[str, Stream] = {}
        self._runs: dict[str, RunContext] = {}
        self._ours: dict[str, None] = {}

    def now_ms(self) -> int:
        """Wall time."""
        return self.tenant.now_ms()

    def roll(self) -> float:
        """A throw of the dice."""
        return self.tenant.dice.roll()

    def is_ours(self, turn: Turn) -> bool:
        """Whether this life has begun the turn, or taken it up."""
        return turn.request_id in self._ours

    def ours(self, turn: Turn) -> None:
        """This life answers for the turn now."""
        self._ours[turn.request_id] = None

    def token(self) -> str:
        """A new identifier."""
        return self.tenant.dice.token()

    def stream_in_memory(self, turn: Turn) -> Stream | None:
        """The stream of a turn, if it is at hand."""
        return self._streams.get(turn.request_id)

    def stream_of(self, turn: Turn) -> Stream:
        """The stream of a turn that has not ended."""
        stream = self._streams.get(turn.request_id)
        if stream is None:
            before = self.store.events(turn.request_id) if turn.segments else []
            stream = Stream(turn, self.store, self.now_ms, self._teller(turn), before, self._is_seen)
            if turn.base:
                stream.begin_with((self.transcript.get(turn.message_id) or {"parts": []})["parts"][: turn.base])
            self._streams[turn.request_id] = stream
        return stream

    def _is_seen(self) -> bool:
        return self.tenant.premises.is_followed

    def _teller(self, turn: Turn) -> Callable[[list[Event]], None]:
        """Who else is told of durable events: the run that this turn answers, so that its parent can follow."""

        def tell(events: list[Event]) -> None:
            run = self._runs.get(turn.request_id)
            if run is not None:
                run.emit({"type": "chunks", "chunks": events})

        return tell

    def add_now(self, stream: Stream, messages: list[Message]) -> None:
        """Add messages to the transcript; they are durable with the next flush of the stream."""
        placed = self.transcript.placed(messages)
        for position, each in placed:
            self.transcript.put(position, each)
        stream.beside(messages=placed)
        if any(each["role"] == "user" for each in messages):
            self.repeats.user_spoke()

    def emit(self, name: str, turn: Turn, payload: dict[str, Any], *, channel: str = "chat") -> None:
        """Tell those who observe the channel what happened to the turn."""
        told = {"requestId": turn.request_id, **payload}
        emit(channel, name, agent=self.tenant.agent_id, payload=told, at_ms=self.now_ms())
