"""Plays a turn from where its events say that it is to its end, or until it waits for a person.

    mend a broken step ─► settle its tool calls ─► answered? ──► completed
            ▲                     │  ▲                │ no
            │                     ▼  │                ▼
            └── lost connection ◄─ one request to the model
                (pause, budget)

The only state is the turn's row and its events, so a lost connection, a stall and a death come back to the same loop. A kill at any line
costs the events that were not durable, which no follower had seen. A tool call is durable before it begins, under an id derived from the
call (`live_turn`), so it begins once however often this loop is entered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from perdure.actors.chat.answer_stream import Finished
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.history import History
from perdure.actors.chat.library_turn import LibraryTurn, ModelHistory
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.model import stream_model
from perdure.actors.chat.stream import last_boundary
from perdure.actors.chat.turn_ends import TurnOutcome
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.actors.chat.turn_recovery import TurnRecovery, abort
from perdure.actors.chat.turn_spans import Source
from perdure.actors.chat.waits import Stalled, Watchdog
from perdure.actors.code.author_call import result_of, tried
from perdure.actors.ports import Faults, KillPoint
from perdure.policies import Event, Failure, FailureKind, Part, TurnEvent

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent
    from pydantic_ai.models import Model


SHORTER = TurnOutcome(TurnEvent.CUT_OFF, reason="the conversation was made shorter")
"""The library's loop begins again, with what there is now."""

UNEXPLAINED: Final = frozenset({FailureKind.SETUP, FailureKind.UNKNOWN, FailureKind.STREAM_END})
"""Neither a provider nor a connection has said these: if something was raised, the log has its traceback."""


class Play:
    """Plays one turn, in this life of its agent.

    Args:
        read: takes in what people have said meanwhile. It is called before each request to the model.
    """

    def __init__(
        self,
        state: ConversationState,
        live: LiveTurn,
        history: History,
        recovery: TurnRecovery,
        read: Callable[[LiveTurn], None],
    ) -> None:
        self.live, self._read = live, read
        self._state, self._agent, self._tenant = state, state.agent, state.tenant
        self._history, self._recovery, self._spans = history, recovery, state.spans
        self._task: asyncio.Task[TurnOutcome | None] | None = None

    async def within(self, job: Coroutine[object, None, TurnOutcome | None]) -> TurnOutcome | None:
        """The outcome of a job of this turn. A cancel reaches every wait of it, also those of its recovery (case A12).

        A cancelled turn is aborted; a cancelled task is not a cancelled turn.
        """
        self._task = self._tenant.spawn_awaited(job)
        await asyncio.wait([self._task])
        if self.live.turn.cancelled is None:
            return self._task.result()
        was_stopped = self._task.cancelled() or self._task.exception() is not None
        outcome = None if was_stopped else self._task.result()
        return await abort(self.live) if outcome is None or outcome.event is TurnEvent.PARKED else outcome

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> TurnOutcome:
        """Play the turn to its end, or until it waits for a person."""
        live, library = self.live, self._agent.library_agent
        if library is not None:
            return await self._by_library(library)
        await live.open_toolsets()
        while True:
            live.stream.mend()
            if await live.settle():
                return TurnOutcome(TurnEvent.PARKED)
            if live.stream.is_answered:
                return TurnOutcome(TurnEvent.COMPLETED, reason=live.stream.remark)
            if live.stream.steps_taken >= self._agent.max_steps:
                words = f"The turn took more than {self._agent.max_steps} steps."
                return TurnOutcome(TurnEvent.FAILED, words, "max_steps")
            outcome = await self._request()
            if outcome is not None:
                return outcome

    async def _by_library(self, library: LibraryAgent[Any, Any]) -> TurnOutcome:
        while True:
            model, before = await self._state.model(), self._history.before(self.live)
            covered = self._history.view.covered_steps(self.live.stream.message)
            told = ModelHistory(before, covered, self._history.call_ids(self.live))
            ask = partial(self._request_of_library, model)
            read = partial(self._read, self.live)
            outcome = await LibraryTurn(library, self._agent, self._tenant, self.live, told, model, ask, read).play()
            if outcome is not SHORTER:
                return outcome

    async def _request_of_library(self, model: Model, source: Source) -> TurnOutcome | None:
        if await self._recovery.compaction.ahead(self.live):
            return SHORTER
        said = partial(self._history.request_messages, self.live)
        compactions = self.live.turn.compactions
        observed = self._spans.observed(self.live.stream, model, None, said, source)
        outcome = await self._answered(observed, lambda _: None)
        return SHORTER if outcome is None and self.live.turn.compactions > compactions else outcome

    # one request: sent, taken in, and recovered; an outcome if the turn is over

    async def _request(self) -> TurnOutcome | None:
        model, problem = await tried(self._state.model())
        if isinstance(problem, ModelFailed):
            return await self._recovery.failed(self.live, problem.failure)
        if model is None or problem is not None:
            raise AssertionError("there is neither a model nor a reason") if problem is None else problem
        self._read(self.live)
        await self._recovery.compaction.ahead(self.live)
        messages, specs = self._history.request_messages(self.live), self.live.tools.specs()
        instructions = await result_of(self._agent.get_instructions)
        settings = await result_of(self._agent.get_model_settings)

        def sent(watchdog: Watchdog) -> AsyncGenerator[Event | Finished]:
            return stream_model(
                model,
                messages,
                tools=specs,
                instructions=instructions,
                settings=settings,
                last_word=self._history.last_word(self.live),
                watchdog=watchdog,
                kept=self._history.kept,
                # A new call must not take the id of one that the model is not sent any more.
                taken_ids=set() if self._history.view.is_whole else self._history.call_ids(self.live),
            )

        source = self._spans.observed(self.live.stream, model, settings, lambda: messages, sent)
        return await self._answered(source, self.live.announced)

    async def _answered(self, source: Source, announced: Callable[[str], object]) -> TurnOutcome | None:
        try:
            failure = await self._take(source, announced)
        except Stalled as problem:
            return await self._recovery.stalled(self.live, problem.waited_ms)
        return None if failure is None else await self._recovery.failed(self.live, failure)

    async def _take(self, source: Source, announced: Callable[[str], object]) -> Failure | None:
        stream = self.live.stream
        resumed = stream.open_text if stream.is_broken else None
        if resumed is None:
            stream.add({"type": "start-step"})
        reader = AnswerWriter(self.live, self._tenant.faults, resumed, announced)
        self._tenant.faults.at(KillPoint.MID_STREAM, "request")
        try:
            async with contextlib.aclosing(source(self._state.watchdog(self.live.turn))) as answer:
                async for item in answer:
                    reader.take(item)
        except ModelFailed as failed:
            if isinstance(failed.__cause__, Exception) and failed.failure.kind in UNEXPLAINED:
                doing = f"a request of turn {self.live.turn.request_id} to its model"
                self._tenant.log("model", doing, failed.__cause__, self.live.turn.run_id)
            return failed.failure
        self.live.turn.failures = 0
        end = last_boundary(stream.events)
        self._recovery.compaction.counted({} if end is None else end.get("usage") or {})
        return None


class AnswerWriter:
    """Writes an answer into the stream, and tells of its calls.

    Args:
        resumed: the text that a broken step ended with; the answer continues it.
        announced: is told of each call whose arguments are complete.
    """

    def __init__(
        self, live: LiveTurn, faults: Faults, resumed: Part | None, announced: Callable[[str], object]
    ) -> None:
        self._stream, self._faults, self._announced = live.stream, faults, announced
        self._resumed = resumed
        self._texts: dict[str, str] = {}

    def take(self, item: Event | Finished) -> None:
        """Take in one event of the model."""
        if isinstance(item, Finished):
            self._stream.add({"type": "finish-step", "finishReason": item.reason, "usage": item.usage})
            return
        event = self._mapped(item)
        if event is None:
            return
        self._stream.add(event)
        self._faults.at(KillPoint.MID_STREAM, event["type"])
        if event["type"] == "tool-input-available":
            self._announced(event["toolCallId"])

    def _mapped(self, event: Event) -> Event | None:
        kind = event["type"]
        if self._resumed is not None and kind in ("text-start", "tool-input-start", "reasoning-start"):
            resumed, self._resumed = self._resumed, None
            if kind == "text-start":
                self._texts[event.get("id", "")] = resumed.get("id", "")
                return None
            self._stream.add({"type": "text-end", "id": resumed.get("id", "")})
        if kind.startswith("text-") and event.get("id", "") in self._texts:
            resumed_event: Event = {**event, "id": self._texts[event.get("id", "")]}
            resumed_event.pop("providerMetadata", None)  # it is of the second half
            return resumed_event
        return event
