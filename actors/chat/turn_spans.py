"""The spans of turns: of each attempt, each request to a model, and each inline tool. Those of tools in runs are the supervisor's.

The turn of a run has no span of its own: the run's is the same work of the same agent.

An attempt that died is told by the next life, which finds it in the turn's row. So is the request to a model that was under way then, if
the row that was written last says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from perdure.actors.chat.answer_stream import Finished
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.tool_run import ToolEnd
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.actors.chat.watchdog import Stalled, Watchdog
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.run_context import RunContext
from perdure.actors.telemetry.conventions import (
    LOST,
    MODEL_REQUEST_MS,
    MODEL_TOKENS,
    about_tool,
    class_of,
    content_of_call,
    content_text,
)
from perdure.ledger import type_of
from perdure.policies import (
    CHAT,
    EXECUTE_TOOL,
    INVOKE_AGENT,
    OPERATION,
    OURS,
    PROVIDER,
    AttemptSpans,
    Attribute,
    EndedSpan,
    Event,
    Message,
    Part,
    TraceContext,
    TurnStatus,
    run_span,
    spoken_content,
    tool_name,
    within,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model

Source = Callable[[Watchdog], AsyncGenerator[Event | Finished]]
"""Sends a request, under a watchdog that begins with it."""
Said = Callable[[], list[Message]]


@dataclass
class ModelRequest:
    model: Model
    settings: Mapping[str, object]
    answer: Callable[[], list[Part]]
    end: Finished | None = None
    error: str = ""

    def heard(self, item: Event | Finished, turn: Turn) -> None:
        # With the last piece of the answer the request is over, before its end becomes durable.
        if isinstance(item, Finished):
            self.end, turn.asked_at_ms = item, 0


class TurnSpans:
    """Tells of the turns of one chat agent, in one life of it."""

    def __init__(self, tenant: Tenant, run_of: Callable[[str], RunContext | None]) -> None:
        self._tenant, self._run_of = tenant, run_of
        self._telemetry = tenant.services.world.telemetry

    # a turn

    def accepted(self, turn: Turn, run: RunContext | None) -> None:
        # Where a turn stands in a trace becomes durable with it.
        if self._telemetry.is_on and run is not None:
            turn.trace = run.above.text

    def place(self, turn: Turn, before: int = 0) -> TraceContext:
        # The span of the present attempt at a turn, or of that of the run if the turn is one's; `before` counts attempts backwards.
        attempts, run = self._attempts(turn), self._run_of(turn.request_id)
        if turn.run_id:
            return run_span(attempts.above, turn.run_id, (turn.attempt if run is None else run.attempt) - before)
        return attempts.place(turn.attempt - before)

    def _attempts(self, turn: Turn) -> AttemptSpans:
        return self._telemetry.attempts(turn.trace, "turn", self._tenant.agent_id, turn.request_id)

    def enter(self, turn: Turn) -> None:
        if self._telemetry.is_on:
            self._telemetry.enter(self.place(turn))

    def broke_off(self, turn: Turn, begun_ms: int, cause: str) -> None:
        if self._telemetry.is_on:
            self._attempt(turn, 1, begun_ms, "interrupted", cause)
            self.enter(turn)

    def ended(self, turn: Turn) -> None:
        if self._telemetry.is_on:
            error = "" if turn.status in (TurnStatus.COMPLETED, TurnStatus.SKIPPED) else turn.reason or str(turn.status)
            self._attempt(turn, 0, turn.attempt_at_ms or turn.accepted_at_ms, str(turn.status), error)

    def _attempt(self, turn: Turn, before: int, begun_ms: int, status: str, error: str) -> None:
        if turn.run_id:
            return
        name, attempt = class_of(type_of(self._tenant.agent_id)), turn.attempt - before
        told = {
            **self._agent(INVOKE_AGENT),
            "gen_ai.agent.name": name,
            "gen_ai.agent.id": self._tenant.agent_id,
            PROVIDER: OURS,
            "perdure.turn.request_id": turn.request_id,
            "perdure.turn.trigger": turn.trigger,
            "perdure.turn.attempt": attempt,
            "perdure.turn.status": status,
        }
        times = begun_ms, self._tenant.now_ms()
        self._telemetry.tell(self._attempts(turn).ended(attempt, f"{INVOKE_AGENT} {name}", times, told, error))

    def _agent(self, operation: str) -> dict[str, Attribute]:
        return {OPERATION: operation, "gen_ai.conversation.id": self._tenant.agent_id}

    # a request to a model

    def observed(
        self,
        stream: Stream,
        model: Model,
        settings: Mapping[str, object] | None,
        said: Said,
        source: Source,
        *,
        answer: Callable[[], list[Part]] | None = None,
    ) -> Source:
        """The same request, told of when it is over. While nobody traces, this is the request itself. `answer` is what came, if that is not
        the last step of the stream."""
        if not self._telemetry.is_on:
            return source
        asked = ModelRequest(model, settings or {}, answer or (lambda: stream.last_step))

        async def told(watchdog: Watchdog) -> AsyncGenerator[Event | Finished]:
            with self._watched(stream, asked, said):
                async with aclosing(source(watchdog)) as items:
                    async for item in items:
                        asked.heard(item, stream.turn)
                        yield item

        return told

    @contextmanager
    def _watched(self, stream: Stream, asked: ModelRequest, said: Said) -> Iterator[None]:
        stream.turn.asked_at_ms = begun_ms = self._tenant.now_ms()
        shown = content_text(spoken_content(said())) if self._telemetry.tells_content else ""
        error = "cancelled"
        try:
            yield
            error = ""
        except ModelFailed as problem:
            error = str(problem.failure.kind)
            raise
        except Stalled:
            error = "stalled"
            raise
        finally:
            stream.turn.asked_at_ms = 0
            asked.error = "" if asked.end is not None else error
            self._request(stream, asked, begun_ms, shown)

    def _request(self, stream: Stream, asked: ModelRequest, begun_ms: int, shown: str) -> None:
        turn, end, now_ms = stream.turn, asked.end, self._tenant.now_ms()
        told = _of_model(asked.model, asked.settings)
        if end is not None:
            told |= {"gen_ai.response.finish_reasons": [end.reason], "gen_ai.response.id": end.response_id or ""}
            told |= {f"gen_ai.usage.{name}": end.usage[ours] for ours, name in _USAGE.items() if ours in end.usage}
        if self._telemetry.tells_content:
            said: Message = {"id": "", "role": "assistant", "parts": asked.answer()}
            told |= {"gen_ai.input.messages": shown, "gen_ai.output.messages": content_text(spoken_content([said]))}
        self._tell_request(turn, begun_ms, now_ms, told, asked.error)
        self._measure(asked, now_ms - begun_ms)

    def _measure(self, asked: ModelRequest, took_ms: int) -> None:
        metrics = self._tenant.services.world.metrics
        tags = {
            OPERATION: CHAT,
            PROVIDER: asked.model.system,
            "gen_ai.request.model": asked.model.model_name,
        }
        metrics.observe(MODEL_REQUEST_MS, took_ms, {**tags, "error.type": asked.error})
        usage = asked.end.usage if asked.end is not None else {}
        for kind in ("input", "output"):
            if count := usage.get(f"{kind}_tokens"):
                metrics.observe(MODEL_TOKENS, count, {**tags, "gen_ai.token.type": kind})

    def lost_request(self, turn: Turn) -> None:
        if self._telemetry.is_on and turn.asked_at_ms:
            # A run that is here is at its next attempt already. A turn counts up later.
            lives_before = int(bool(turn.run_id and self._run_of(turn.request_id)))
            self._tell_request(turn, turn.asked_at_ms, self._tenant.now_ms(), {}, LOST, lives_before)
        turn.asked_at_ms = 0

    def _tell_request(
        self, turn: Turn, begun_ms: int, now_ms: int, told: Mapping[str, Attribute], error: str, before: int = 0
    ) -> None:
        place = self.place(turn, before)
        number = f"{turn.attempt}/{begun_ms}"
        context = within(place, "request", self._tenant.agent_id, turn.request_id, number)
        name = f"{CHAT} {told.get('gen_ai.request.model', '')}".strip()
        about = {**self._agent(CHAT), "perdure.turn.request_id": turn.request_id, **told}
        self._telemetry.tell(EndedSpan(name, context, place.span_id, begun_ms, now_ms, about, (), error, "client"))

    # an inline tool

    @contextmanager
    def tool(self, turn: Turn, part: Part, attempt: int) -> Iterator[Callable[[ToolEnd], None]]:
        """What is done in the block is done for an inline call. What this gives is told its end; without one it was cancelled."""
        if not self._telemetry.is_on:
            yield lambda _end: None
            return
        self._telemetry.enter(self._calls(turn, part).place(attempt))
        begun_ms, ends = self._tenant.now_ms(), list[ToolEnd]()
        try:
            yield ends.append
        finally:
            end: ToolEnd = ends[0] if ends else {"ok": False, "kind": "cancelled"}
            self._tool(turn, part, attempt, begun_ms, "" if end["ok"] else end["kind"], end.get("output"))

    def lost_tool(self, turn: Turn, part: Part, attempt: int, begun_ms: int) -> None:
        if self._telemetry.is_on:
            self._tool(turn, part, attempt, begun_ms, LOST)

    def _calls(self, turn: Turn, part: Part, before: int = 0) -> AttemptSpans:
        about = "tool", self._tenant.agent_id, turn.request_id, part["toolCallId"]
        return AttemptSpans(self.place(turn, before), about)

    def _tool(self, turn: Turn, part: Part, attempt: int, begun_ms: int, error: str, output: object = None) -> None:
        name, times = tool_name(part), (begun_ms, self._tenant.now_ms())
        told = self._agent(EXECUTE_TOOL) | about_tool(name, part["toolCallId"]) | {"perdure.tool.attempt": attempt}
        told |= content_of_call(part.get("input"), output) if self._telemetry.tells_content else {}
        calls = self._calls(turn, part, int(error == LOST))
        self._telemetry.tell(calls.ended(attempt, f"{EXECUTE_TOOL} {name}", times, told, error))


_USAGE: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read.input_tokens",
    "cache_write_tokens": "cache_creation.input_tokens",
}
"""What pydantic-ai counts, by the conventions' names."""
_SETTINGS: Final = ("temperature", "max_tokens", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")


def _of_model(model: Model, settings: Mapping[str, object]) -> dict[str, Attribute]:
    told: dict[str, Attribute] = {PROVIDER: model.system, "gen_ai.request.model": model.model_name}
    for name in _SETTINGS:
        value = settings.get(name)
        if isinstance(value, int | float):
            told[f"gen_ai.request.{name}"] = value
    place = urlsplit(model.base_url or "")
    if place.hostname:
        told["server.address"] = place.hostname
        told |= {"server.port": place.port} if place.port else {}
    return told
