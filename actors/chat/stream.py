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
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar, Unpack, cast

from perdure.actors.chat.chat_store import Beside, ChatStore
from perdure.actors.chat.plain_data import mended
from perdure.actors.chat.turn import Turn
from perdure.actors.events.message_parts import BROKEN, RETRACT, apply_chunk, step_base
from perdure.actors.life.host_services import DueWrite
from perdure.actors.life.life import Life
from perdure.ledger import StorageError, pack
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
        # That a request was begun says nothing yet, nor do messages of the user in it.
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
        # The event becomes durable soon, or with the next `flush`.
        if self._problem is not None:
            raise self._problem
        self.events.append(event)
        now_ms = self._life.now_ms()
        if earns_credit(event.get("type"), now_ms, self._credited_at_ms):
            self._credited_at_ms = self.turn.progress_at_ms = now_ms
            self.turn.work += 1
        now_s = asyncio.get_running_loop().time()
        if self._followers or self._store.watchers:
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
        # True if the next request begins a step of its own, and does not go on with an answer that broke off.
        boundary = last_boundary(self.events)
        if boundary is None or boundary["type"] == "start-step":
            return boundary is None
        return boundary.get("finishReason") != BROKEN or any(is_tool_part(part) for part in self.last_step)

    @property
    def settled(self) -> int:
        # Counts the steps of this turn that have ended of themselves, and its settled calls.
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
        # What a caller should know of the end of the answer; empty if it ended as answers do.
        if self.finish_reason not in ("stop", "tool_call"):
            return self.finish_reason
        return "" if any(part["type"] not in ("step-start", "reasoning") for part in self.last_step) else "empty"

    @property
    def open_text(self) -> Part | None:
        # The text that broke off and can be continued: the last part of all.
        last = self.parts[-1] if self.parts else None
        is_open = last is not None and last["type"] == "text" and last.get("state") == "streaming" and last.get("text")
        return last if is_open else None

    def mend(self, *, replay: bool = False) -> None:
        # With `replay` everything after the last call of the broken step is withdrawn.
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
        # A whole answer that came from elsewhere takes the place of what broke off.
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
        # What people have said in the turn stays.
        steered = [part for part in self.own_parts if part["type"] == STEERED]
        self.retract(self.turn.base, step=True)
        for part in steered:
            self.add(cast("Event", part))

    def retract(self, count: int, *, step: bool = False) -> None:
        # With `step` the opening of the step is among what is withdrawn.
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


# ---------------------------------------------------------------- lists of events


BATCH_EVENTS_MAX, BATCH_BYTES_MAX = 5_000, 1_000_000
UTF8_MOST = 4  # bytes of one character
_PLAIN = frozenset({"type", "id", "delta"})  # what a delta has that says nothing else
Numbered = TypeVar("Numbered", bound=Mapping[str, object])


def last_boundary(events: list[Event]) -> Event | None:
    # The last `start-step` or `finish-step` of a step that was not withdrawn.
    withdrawn = 0
    event: Event
    for event in reversed(events):
        kind = event["type"]
        if kind == RETRACT and event["data"].get("step"):
            withdrawn += 1
        elif kind == "start-step" and withdrawn:
            withdrawn -= 1
        elif kind in ("start-step", "finish-step") and not withdrawn:
            return event
    return None


def step_ends(events: list[Event]) -> list[Event | None]:
    # The `finish-step` of each step that was not withdrawn, in order; None for one that is open.
    ends: list[Event | None] = []
    for event in events:
        kind = event["type"]
        if kind == "start-step":
            ends.append(None)
        elif kind == "finish-step" and ends:
            ends[-1] = event
        elif kind == RETRACT and event["data"].get("step") and ends:
            ends.pop()
    return ends


def batch(events: list[Numbered]) -> list[Numbered]:
    # As many of the first events as one answer should carry, and at least one.
    size = 0
    for count, event in enumerate(events[:BATCH_EVENTS_MAX]):
        delta = event.get("delta")
        size += len(delta) * UTF8_MOST if isinstance(delta, str) else len(pack(event))
        if size > BATCH_BYTES_MAX:
            return events[: count + 1]
    return events[:BATCH_EVENTS_MAX]


def merged(events: list[Event]) -> list[Event]:
    # Neighbouring deltas of one text are joined, so that a long text is not copied once per delta.
    joined: list[Event] = []
    run: list[str] = []
    for event in events:
        last = joined[-1] if joined and event.get("type") in ("text-delta", "reasoning-delta") else None
        # asked for each delta of a long answer, so it compares no more than it must
        if (
            last is not None
            and last.keys() == _PLAIN == event.keys()
            and last["type"] == event["type"]
            and last["id"] == event["id"]
        ):
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
