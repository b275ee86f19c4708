"""One turn as one client of the AI SDK hears it: batches of chunks, of its own events and of the agents that its calls have started.

What is durable when it comes is translated at once, so that nobody is told what was withdrawn by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from perdure.actors.ai_sdk.chunks import ENDS, Chunk, Translator, made
from perdure.actors.ai_sdk.client_turns import Following
from perdure.actors.chat.event_lists import merged
from perdure.actors.chat.followers import is_last, is_newest
from perdure.actors.chat.turn import TurnPage
from perdure.actors.events.reducer import AgentToolEvents, RunState
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.gateway.problems import problem_text
from perdure.actors.gateway.turn_follower import Framed, TurnFollower
from perdure.ledger import BadRequest, PerdureError
from perdure.policies import PROGRESS_EVERY_S, Event, TurnStatus

FORGOTTEN: Final = "The conversation was cleared, and this answer with it."
CANNOT_FOLLOW: Final = "The answer cannot be followed at the moment, and goes on: {}"


async def chunks_of(backend: Backend, reached: Reached, following: Following) -> AsyncGenerator[list[Chunk], None]:
    """The chunks of a turn, from its start to its end, or until it waits for a person. What fails is told as the last chunk. There may be
    no chunk in a batch."""
    answer = _Answer(following)
    async with TurnFollower(backend, reached, following.request_id, following.opening) as follower:
        while not following.translator.is_over:
            yield await answer.next(follower)


class _Answer:
    def __init__(self, following: Following) -> None:
        self._translator, self._retells = following.translator, following.retells
        self._children, self._events = Children(), list[Event]()

    async def next(self, follower: TurnFollower) -> list[Chunk]:
        clock = asyncio.get_running_loop().time
        try:
            item = await follower.next(self._children.due_in_s(clock()))
        except PerdureError as problem:
            is_gone = isinstance(problem, BadRequest) and problem.field == "request_id"
            words = FORGOTTEN if is_gone else CANNOT_FOLLOW.format(problem_text(problem))
            return self._translator.failed(words)
        if isinstance(item, Framed):
            self._children.take(item, clock())
        elif item is not None:
            return await self._told(item, follower)
        return self._children.chunks(self._translator) if self._children.due_in_s(clock()) == 0 else []

    async def _told(self, page: TurnPage, follower: TurnFollower) -> list[Chunk]:
        self._events += page["events"]
        if not is_newest(page):
            return []
        events = merged(self._events)
        chunks = self._translator.chunks(settled(events) if self._retells else events)
        self._events, self._retells = [], False
        if not self._translator.is_over and is_last(page):  # its stream has no end of its own
            is_parked = page["status"] == TurnStatus.PARKED
            chunks += self._translator.paused() if is_parked else self._translator.failed(page["error"])
        for call_id in self._translator.open_calls:
            await follower.runs.follow(call_id)
        return chunks


def settled(events: list[Event]) -> list[Event]:
    """Events of the past, in which a call that has its outcome is not told as one to be made."""
    # `tool-input-available` is what the client hears by `onToolCall`. Without it the client shows the call all the same, and does not make
    # it again.
    over = {each["toolCallId"] for each in events if each["type"] in ENDS.values() and not each.get("preliminary")}
    found: list[Event] = []
    for event in events:
        if event.get("toolCallId") not in over or event.get("providerExecuted"):
            found.append(event)
        elif event["type"] == "tool-input-available":
            found += made(event)
        elif event["type"] not in ("tool-input-start", "tool-input-delta"):
            found.append(event)
    return found


class Children:
    """The agents that the calls of a turn have started, told while they work: as outputs that are not final yet (client protocols B.6).

    Each is the newest standing of one run, and takes the place of the one before; the result of the call takes the place of them all. A
    call that is over soon has none. They are told from now on, also to who comes later, and stand in no transcript.
    """

    def __init__(self) -> None:
        self._seen = AgentToolEvents()
        self._changed: dict[str, str] = {}  # runs, with their calls
        self._due_s: float | None = None

    def take(self, framed: Framed, now_s: float) -> None:
        # A little later, so that much is told at once.
        if framed.is_agent and self._seen.apply(framed.frame):
            self._changed[framed.frame["run_id"]] = framed.call_id
            self._due_s = self._due_s or now_s + PROGRESS_EVERY_S

    def due_in_s(self, now_s: float) -> float | None:
        """When there is something to be told; None if there is nothing."""
        return None if self._due_s is None else max(0.0, self._due_s - now_s)

    def chunks(self, translator: Translator) -> list[Chunk]:
        changed, self._changed, self._due_s = self._changed, {}, None
        runs = self._seen.runs_by_id
        told = [
            translator.preliminary(call_id, standing(runs[run_id]))
            for run_id, call_id in sorted(changed.items())
            if run_id in runs
        ]
        return [chunk for chunks in told for chunk in chunks]


def standing(run: RunState) -> dict[str, object]:
    """A run as an output that is not final."""
    found: dict[str, object] = {
        "runId": run.run_id,
        "agentType": run.agent_type.rpartition(":")[2],
        "status": run.status,
        "attempt": run.attempt,
        "milestones": run.milestones,
        "message": {"id": run.run_id, "role": "assistant", "parts": run.parts},
    }
    return found | ({"progress": run.progress} if run.progress is not None else {})
