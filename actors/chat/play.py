"""Playing a turn: from wherever its events say that it stands, to its end, or to where it has to wait for a person.

    mend a broken step ─► settle its tool calls ─► answered? ──► completed
            ▲                     │  ▲                │ no
            │                     ▼  │                ▼
            └── lost connection ◄─ one request to the model
                (pause, budget)

There is no other state than the turn's row and its events, so a lost connection, a stall and the death of the process come back to the
same loop. A kill at any line costs what was not durable: events that nobody had seen. A tool call is durable before it begins, and it
begins by a request to the ledger under an id derived from the call (`toolbox`), so it begins once however often this loop is entered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from perdure.actors.chat import turn_position as half_step
from perdure.actors.chat.conversation_state import Floor
from perdure.actors.chat.failures import ModelFailed
from perdure.actors.chat.history import History
from perdure.actors.chat.live_turn import Scene
from perdure.actors.chat.model import Finished, stream_model
from perdure.actors.chat.outcome import Outcome
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_recovery import Rescue
from perdure.actors.chat.watchdog import Stalled, watched
from perdure.actors.code.author_call import tried
from perdure.actors.host.tenant import Tenant
from perdure.actors.ports import KillPoint
from perdure.policies import FAILURES_MAX, Failure, TurnEvent


class Play(Scene):
    """One turn in this life of its agent, being played."""

    def __init__(self, floor: Floor, turn: Turn, stream: Stream, history: History, rescue: Rescue) -> None:
        super().__init__(floor, turn, stream)
        self._agent, self._tenant, self._equipment = floor.agent, floor.tenant, floor.equipment
        self._history, self._rescue = history, rescue
        self._task: asyncio.Task[Outcome | None] | None = None

    async def within(self, job: Coroutine[Any, Any, Outcome | None]) -> Outcome | None:
        """What the turn comes to, wherever it is: a cancel reaches every wait of it, also those of its recovery (case A12).

        A cancelled turn is aborted; a cancelled task is not a cancelled turn.
        """
        self._task = self._tenant.spawn_awaited(job)
        await asyncio.wait([self._task])
        if self.turn.cancelled is None:
            return self._task.result()
        was_stopped = self._task.cancelled() or self._task.exception() is not None
        outcome = None if was_stopped else self._task.result()
        return await self.abort() if outcome is None or outcome.event is TurnEvent.PARKED else outcome

    def cancel(self) -> None:
        """Stop at once; the turn says why."""
        if self._task is not None:
            self._task.cancel()

    async def abort(self) -> Outcome:
        """End a cancelled turn: its tools are stopped, and of each call is said what is known of it."""
        await self.toolbox.abort(self.turn.cancelled or "")
        half_step.mend(self.stream, replay=False)
        return Outcome(TurnEvent.ABORTED, f"The turn was cancelled: {self.turn.cancelled}", "cancelled")

    async def run(self) -> Outcome:
        """Play the turn to its end."""
        while True:
            try:
                return await self._play()
            except Stalled as problem:
                outcome = await self._rescue.stalled(self, problem)
                if outcome is not None:
                    return outcome

    async def _play(self) -> Outcome:
        for _ in range(self._agent.max_steps + FAILURES_MAX):
            half_step.mend(self.stream, replay=False)
            waiting = await self.toolbox.settle()
            if waiting:
                return Outcome(TurnEvent.PARKED)
            if half_step.is_answered(self.stream):
                return Outcome(TurnEvent.COMPLETED)
            if half_step.steps_taken(self.stream) >= self._agent.max_steps:
                break
            failure = await self._request()
            outcome = None if failure is None else await self._rescue.failed(self, failure)
            if outcome is not None:
                return outcome
        return Outcome(TurnEvent.FAILED, f"The turn took more than {self._agent.max_steps} steps.", "max_steps")

    # one request

    async def _request(self) -> Failure | None:
        """Send one request and take in its answer. What went wrong, or None."""
        resumed = half_step.open_text(self.stream.parts) if half_step.is_broken(self.stream) else None
        messages, model, problem = await self._prepared()
        if problem is not None:
            return problem
        if resumed is None:
            self.stream.add({"type": "start-step"})
        reader = Reader(self, self._tenant, resumed)
        source = stream_model(
            model,
            messages,
            tools=self.toolbox.specs,
            instructions=self._agent.get_instructions(),
            settings=self._agent.get_model_settings(),
        )
        first_ms, between_ms = self._timeouts()
        self._tenant.faults.at(KillPoint.MID_STREAM, "request")
        try:
            async for item in watched(source, first_ms, between_ms):
                reader.take(item)
        except ModelFailed as failed:
            return failed.failure
        self.turn.failures = 0
        return None

    def _timeouts(self) -> tuple[float, float]:
        """How long the first event and each further one of a request may take, in milliseconds; 0 is for ever."""
        between = (
            self.turn.stall_ms if self.turn.stall_ms is not None else float(self._agent.chat_stream_stall_timeout_ms)
        )
        first = self._agent.chat_first_token_timeout_ms
        return (between if first is None else float(first)), between

    async def _prepared(self) -> tuple[Any, Any, Failure | None]:
        """The messages of the request, repaired, and the model; or why there is none."""
        model, problem = await tried(self._equipment.model())
        if isinstance(problem, ModelFailed):
            return [], None, problem.failure
        if problem is not None:
            raise problem
        messages = self._history.request_messages(self)
        return messages, model, None


class Reader:
    """Takes in what the model says: into the stream, and what it calls to the toolbox."""

    def __init__(self, scene: Scene, tenant: Tenant, resumed: dict[str, Any] | None) -> None:
        self._stream, self._toolbox, self._tenant = scene.stream, scene.toolbox, tenant
        self._resumed = resumed
        self._texts: dict[str, str] = {}

    def take(self, item: Mapping[str, Any] | Finished) -> None:
        """One event of the model."""
        if isinstance(item, Finished):
            self._stream.add({"type": "finish-step", "finishReason": item.reason, "usage": item.usage})
            return
        event = self._mapped(dict(item))
        if event is None:
            return
        self._stream.add(event)
        self._tenant.faults.at(KillPoint.MID_STREAM, event["type"])
        if event["type"] == "tool-input-available":
            self._toolbox.announced(event["toolCallId"])

    def _mapped(self, event: dict[str, Any]) -> dict[str, Any] | None:
        kind = event["type"]
        if self._resumed is not None and kind in ("text-start", "tool-input-start", "reasoning-start"):
            resumed, self._resumed = self._resumed, None
            if kind == "text-start":
                self._texts[event.get("id", "")] = resumed.get("id", "")
                return None
            self._stream.add({"type": "text-end", "id": resumed.get("id")})
        if kind.startswith("text-") and event.get("id", "") in self._texts:
            told = {
                name: value for name, value in event.items() if name != "providerMetadata"
            }  # it is of the second half
            return {**told, "id": self._texts[event.get("id", "")]}
        return event
