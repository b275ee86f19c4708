"""The stream of one turn: numbered events, durable before anybody sees them, through any number of lives of the agent.

An event is a chunk of the AI SDK's UI message stream. The assistant's message is the fold of the events (`actors.events.message_parts`).
Numbers continue across lost connections and deaths. The README has the table of all events.

The result of a tool and the intent to call one become durable at once; everything else at once if the turn has followers, because what is
shown must not be lost. "At once" is a few turns of the loop later, so that an answer that is there costs one commit and one message.
Otherwise events are flushed in groups: after 10 events, or 1 s; unfollowed streams are flushed every 5 s. A death loses the last group, and
the model says it again.

The progress of a turn is read from its events alone, so a lost connection and a death are mended by the same rules. A step is one request
to the model with its whole answer: `start-step` opens it, `finish-step` closes it with the provider's reason. A step without `finish-step`
broke off. `mend` repairs it (transport spec §4.1):

    unfinished arguments             withdrawn; before a whole call they stay, and are said to be cut off
    reasoning, and nothing after it  withdrawn: half a signed thought cannot be sent back
    text                             kept, and the model continues in the same part
    a call with whole arguments      kept; the ledger knows whether it began
    nothing                          withdrawn, and the same request is sent again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Unpack, cast

from perdure.actors.chat.chat_store import Beside, ChatStore
from perdure.actors.chat.event_lists import batch, last_boundary, merged
from perdure.actors.chat.plain_data import mended
from perdure.actors.chat.turn import Turn
from perdure.actors.events.message_parts import BROKEN, RETRACT, apply_chunk, step_base
from perdure.actors.life.host_services import DueWrite
from perdure.actors.life.life import Life
from perdure.ledger import StorageError
from perdure.ledger.storage.agent_storages import unbound
from perdure.policies import (
    STEERED,
    Event,
    Message,
    NoResult,
    Part,
    caution,
    earns_credit,
    is_settled,
    is_tool_part,
    tool_name,
)

GROUP, GROUP_S = 10, 0.05
LINGER_S, LINGER_UNSEEN_S = 1.0, 5.0
LOOP_TURNS = 10
"""How many turns of the loop a flush waits for. A tenth of a millisecond when nothing else happens."""
PRESSURE, PRESSURE_S = 8, 0.004
"""After more events than this at once, the next ones are so close behind that an answer waits for them."""


class Stream:
    """The stream of an open turn, in this life of its agent.

    Args:
        on_durable: is told of every group of events that became durable.
        before: the events that are durable already.
    """

    def __init__(
        self, turn: Turn, store: ChatStore, life: Life, on_durable: Callable[[list[Event]], None], before: list[Event]
    ) -> None:
        self.turn = turn
        self._store, self._life, self._on_durable = store, life, on_durable
        self.events = before
        self._parts: list[Part] = []
        self._folded = 0
        self._followers: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._due: asyncio.Handle | DueWrite | None = None
        self._due_at_s = 0.0
        self._flushed_s = 0.0
        self._context = unbound()  # a flush joins no transaction that happens to be open
        self._problem: StorageError | None = None
        self._beside: Beside = {}
        self._credited_at_ms: float | None = None

    # the message

    @property
    def parts(self) -> list[Part]:
        pending, self._folded = self.events[self._folded :], len(self.events)
        for event in merged(pending):
            self._parts = apply_chunk(self._parts, event)
        return self._parts

    @property
    def own_parts(self) -> list[Part]:
        return self.parts[self.turn.base :]

    @property
    def said(self) -> list[Part]:
        """The same, if anything was said: that a request was begun says nothing yet, nor do messages of the user in it."""
        parts = self.own_parts
        return parts if any(part["type"] not in ("step-start", STEERED) for part in parts) else []

    @property
    def message(self) -> Message:
        return {"id": self.turn.message_id, "role": "assistant", "parts": self.parts}

    def begin_with(self, parts: list[Part]) -> None:
        self._parts = parts

    # writing

    def beside(self, **documents: Unpack[Beside]) -> None:
        self._beside = _both(self._beside, documents)

    def add(self, event: Event) -> None:
        """Add an event. It becomes durable soon, or with the next `flush`."""
        if self._problem is not None:
            raise self._problem
        self.events.append(event)
        now_ms = self._life.now_ms()
        if earns_credit(event.get("type"), now_ms, self._credited_at_ms):
            self._credited_at_ms = self.turn.progress_at_ms = now_ms
            self.turn.work += 1
        now_s = asyncio.get_running_loop().time()
        if self._followers or self._store.is_watched:
            self._flush_at(now_s)
        elif len(self.events) - self.turn.events >= GROUP:
            self._flush_at(max(now_s, self._flushed_s + GROUP_S))
        else:
            self._flush_at(now_s + (LINGER_S if self._life.services.is_followed else LINGER_UNSEEN_S))

    def _flush_at(self, at_s: float) -> None:
        if self._due is not None:
            if self._due_at_s <= at_s:
                return
            self._due.cancel()
        loop = asyncio.get_running_loop()
        self._due_at_s = at_s
        if at_s <= loop.time():
            self._flush_after(LOOP_TURNS)
        else:
            self._due = loop.call_at(at_s, self._flush_after, 1, context=self._context)

    def _flush_after(self, turns: int) -> None:
        # What is there already goes with it then: often the end of the answer.
        self._due = self._life.services.writes.soon(self.flush, self._fail, self._context, turns)

    def _fail(self, problem: StorageError) -> None:
        # The next `add` raises it.
        self._problem = problem

    def flush(self, **beside: Unpack[Beside]) -> None:
        self.rest()
        pending = self.events[self.turn.events :]
        if not pending and not beside and not self._beside:
            return
        beside, self._beside = _both(self._beside, beside), {}
        segment = (self.turn.events, pending) if pending else None
        self._store.write(self.turn, segment=segment, told=partial(self._told, pending), **beside)

    def _told(self, pending: list[Event]) -> None:
        self._flushed_s = asyncio.get_running_loop().time()
        if pending:
            self._on_durable(pending)
        self.wake()

    def wake(self) -> None:
        followers, self._followers = self._followers, {}
        for follower in followers:
            self._tell(follower)

    def hasten(self) -> None:
        if len(self.events) > self.turn.events:
            self._flush_at(asyncio.get_running_loop().time())

    def rest(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    async def next_events(self, first: int, hold_s: float) -> list[Event]:
        """The durable events from a number on. Waits up to `hold_s` if there is none, and a moment if many come at once: each answer costs
        several processes a millisecond or more."""
        if first >= self.turn.events and not self.turn.is_over:
            await self._hear(hold_s)
        if self.turn.events - first > PRESSURE and not self.turn.is_over:
            await asyncio.sleep(PRESSURE_S)
            try:
                self.flush()
            except StorageError as problem:
                self._fail(problem)
        return batch(self.events[first : self.turn.events])

    async def _hear(self, hold_s: float) -> None:
        # A timer by itself takes half of what `asyncio.timeout` does.
        loop = asyncio.get_running_loop()
        follower: asyncio.Future[None] = loop.create_future()
        self._followers[follower] = None
        self.hasten()
        timer = loop.call_later(hold_s, self._tell, follower)
        try:
            await follower
        finally:
            timer.cancel()
            self._followers.pop(follower, None)

    @staticmethod
    def _tell(follower: asyncio.Future[None]) -> None:
        if not follower.done():
            follower.set_result(None)

    # its steps

    @property
    def last_step(self) -> list[Part]:
        return self.parts[step_base(self.parts) + 1 :]

    @property
    def is_broken(self) -> bool:
        boundary = last_boundary(self.events)
        return boundary is not None and boundary["type"] == "start-step"

    @property
    def is_between_steps(self) -> bool:
        """Whether the next request begins a step of its own, and does not go on with an answer that broke off."""
        boundary = last_boundary(self.events)
        if boundary is None or boundary["type"] == "start-step":
            return boundary is None
        return boundary.get("finishReason") != BROKEN or any(is_tool_part(part) for part in self.last_step)

    @property
    def settled(self) -> int:
        """How many steps of this turn have ended of themselves, and how many of its calls are settled."""
        kept = [
            event for event in self.events if event["type"] == "finish-step" and event.get("finishReason") != BROKEN
        ]
        return len(kept) + sum(is_tool_part(part) and is_settled(part) for part in self.own_parts)

    @property
    def steps_taken(self) -> int:
        # A step that broke off in its text goes on, and does not count yet.
        return sum(part["type"] == "step-start" for part in self.own_parts) - self.is_broken

    @property
    def is_answered(self) -> bool:
        boundary = last_boundary(self.events)
        if boundary is None or boundary["type"] == "start-step" or boundary.get("finishReason") == BROKEN:
            return False
        return not any(is_tool_part(part) and not part.get("providerExecuted") for part in self.last_step)

    @property
    def finish_reason(self) -> str:
        boundary = last_boundary(self.events)
        reason = "" if boundary is None else boundary.get("finishReason", "")
        return "" if reason == BROKEN else reason

    @property
    def remark(self) -> str:
        """What a caller should know of the end of the answer; empty if it ended as answers do."""
        if self.finish_reason not in ("stop", "tool_call"):
            return self.finish_reason
        return "" if any(part["type"] not in ("step-start", "reasoning") for part in self.last_step) else "empty"

    @property
    def open_text(self) -> Part | None:
        """The text that broke off and can be continued: the last part of all."""
        last = self.parts[-1] if self.parts else None
        is_open = last is not None and last["type"] == "text" and last.get("state") == "streaming" and last.get("text")
        return last if is_open else None

    def mend(self, *, replay: bool = False) -> None:
        """Repair a broken step by events. With `replay` everything after its last call is withdrawn."""
        if not self.is_broken:
            return
        base, parts = step_base(self.parts), self.parts
        kept = _kept(parts[base + 1 :], replay=replay)
        if not kept:
            self.retract(base, step=True)
            return
        if base + 1 + kept < len(parts):
            self.retract(base + 1 + kept)
        for part in self.parts[base + 1 :]:
            if is_tool_part(part) and part.get("state") == "input-streaming":
                words = caution(NoResult.CUT_OFF, tool_name(part), part["toolCallId"])
                self.add({"type": "tool-input-error", "toolCallId": part["toolCallId"], "errorText": words})
        if self.open_text is None:
            self.add({"type": "finish-step", "finishReason": BROKEN})

    def answer_with(self, text: str) -> None:
        """Write a whole answer, which came from elsewhere, in place of what broke off."""
        self.mend(replay=True)
        if self.is_broken:
            self.add({"type": "finish-step", "finishReason": BROKEN})
        part_id = f"text-{len(self.parts)}"
        self.add({"type": "start-step"})
        self.add({"type": "text-start", "id": part_id})
        self.add({"type": "text-delta", "id": part_id, "delta": mended(text)})
        self.add({"type": "text-end", "id": part_id})
        self.add({"type": "finish-step", "finishReason": "stop"})

    def withdraw(self) -> None:
        """Withdraw all that the turn has said. What people have said in it stays."""
        steered = [part for part in self.own_parts if part["type"] == STEERED]
        self.retract(self.turn.base, step=True)
        for part in steered:
            self.add(cast("Event", part))

    def retract(self, count: int, *, step: bool = False) -> None:
        """Withdraw the parts from this one on; with `step` the opening of the step is among them."""
        self.add({"type": RETRACT, "data": {"parts": count, "step": step}, "transient": True})


def _kept(step: list[Part], *, replay: bool) -> int:
    calls = [index for index, part in enumerate(step) if is_tool_part(part) and part.get("state") != "input-streaming"]
    if replay:
        return calls[-1] + 1 if calls else 0
    kept = len(step)
    while kept and _is_void(step[kept - 1]):
        kept -= 1
    return kept


def _is_void(part: Part) -> bool:
    if is_tool_part(part):
        return part.get("state") == "input-streaming"
    return part["type"] == "reasoning" or (part["type"] == "text" and not part.get("text"))


def _both(first: Beside, second: Beside) -> Beside:
    both: Beside = {**first, **second}
    if "messages" in first and "messages" in second:
        both["messages"] = [*first["messages"], *second["messages"]]
    if "calls" in first and "calls" in second:
        both["calls"] = [*first["calls"], *second["calls"]]
    return both
