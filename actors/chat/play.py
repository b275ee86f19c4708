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
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Self, cast

from pydantic_core import to_jsonable_python

from perdure.actors.chat.answer_stream import Finished
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.convert import CONTINUE, beside_result, call_result, to_model
from perdure.actors.chat.history import History
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.model import stream_model, stream_request
from perdure.actors.chat.plain_data import plain_output
from perdure.actors.chat.stream import last_boundary, step_ends
from perdure.actors.chat.tools import Tool
from perdure.actors.chat.toolsets import deps_of, library_tool, with_owners
from perdure.actors.chat.turn import OUTPUT, last_text
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.actors.chat.turn_recovery import TurnOutcome, TurnRecovery, abort
from perdure.actors.chat.turn_spans import Source
from perdure.actors.chat.watchdog import Stalled, Watchdog
from perdure.actors.code.author_call import in_words, tried
from perdure.actors.events.message_parts import BROKEN
from perdure.actors.ports import Faults, KillPoint
from perdure.policies import (
    STEERED,
    Event,
    Failure,
    FailureKind,
    Message,
    Part,
    TurnEvent,
    is_tool_part,
    steered_message,
    steps_of,
)

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent
    from pydantic_ai import RunContext, ToolDefinition
    from pydantic_ai.messages import FinishReason, ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool


SHORTER = TurnOutcome(TurnEvent.CUT_OFF, reason="the conversation was made shorter")
"""The library's loop begins again, with what there is now."""

UNEXPLAINED: Final = frozenset({FailureKind.SETUP, FailureKind.UNKNOWN, FailureKind.STREAM_END, FailureKind.NO_ANSWER})
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
            self._tenant.give_up(self._task)

    async def run(self) -> TurnOutcome:
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

    async def _by_library(self, library: LibraryAgent[object, object]) -> TurnOutcome:
        while True:
            model = await self._state.model()
            ask, read = partial(self._request_of_library, model), partial(self._read, self.live)
            outcome = await _LibraryTurn(self._state, self.live, self._history, library, model, ask, read).play()
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
        instructions = await self._tenant.call_hook(self._agent.get_instructions)
        settings = await self._tenant.call_hook(self._agent.get_model_settings)

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
            return await self._recovery.stalled(self.live, problem)
        return None if failure is None else await self._recovery.failed(self.live, failure)

    async def _take(self, source: Source, announced: Callable[[str], object]) -> Failure | None:
        stream = self.live.stream
        resumed = stream.open_text if stream.is_broken else None
        if resumed is None:
            stream.add({"type": "start-step"})
        reader = _AnswerWriter(self.live, self._tenant.faults, resumed, announced)
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


class _AnswerWriter:
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


# ---------------------------------------------------------------- by an agent of pydantic-ai
# The library decides, and each of its requests and calls is Perdure's. Its own loop runs from the start of the turn, with a model and
# toolsets that answer from the turn's stream:
#
#     a request     whose answer is in the stream is answered by it; the next one is sent, recovered and written as any request of a turn
#     a tool call   is a run, under an id derived from turn and call; what is settled is told again, and never executed again
#
# So a turn that is taken up after a death comes to where it was without asking or doing anything twice. Instructions, history processors,
# validators and preparations of tools are called again; they have no effects to repeat, or say so by being tools.
#
# The library sees every step of the turn. Steps that a summary covers are left out of what it sends: the summary stands before the rest.


@dataclass
class _Answer:
    parts: list[Part]
    end: Event | None
    steps: int = 1

    @property
    def is_whole(self) -> bool:
        # It ended by itself, or it broke off after whole calls.
        if self.end is None:
            return False
        return self.end.get("finishReason") != BROKEN or any(is_tool_part(part) for part in self.parts)


class _LibraryTurn:
    """Plays one turn by an agent of pydantic-ai.

    Args:
        ask: sends a request, writes its answer into the stream, and recovers; its outcome if the turn is over.
        read: takes in what people have said meanwhile.
    """

    def __init__(
        self,
        state: ConversationState,
        live: LiveTurn,
        history: History,
        library: LibraryAgent[object, object],
        model: Model,
        ask: Callable[[Source], Awaitable[TurnOutcome | None]],
        read: Callable[[], None],
    ) -> None:
        self._library, self._author, self._tenant, self._live = library, state.agent, state.tenant, live
        self._model, self._ask, self._read = model, ask, read
        # As they are now: once the conversation is made shorter, the loop begins again.
        self._before = history.before(live)
        self._covered_steps = history.view.covered_steps(live.stream.message)
        # A new call must not take the id of one that the model is not told any more.
        self._call_ids = history.call_ids(live)
        self._asked = 0
        self._ids: dict[str, str] = {}  # the calls by the ids that the library knows
        self._outcome: TurnOutcome | None = None

    async def play(self) -> TurnOutcome:
        from pydantic_ai.exceptions import AgentRunError  # noqa: PLC0415 - loaded where an agent of the library plays

        self._live.stream.mend()
        result, problem = await tried(self._run())
        if self._outcome is not None:
            return self._outcome
        if isinstance(problem, AgentRunError):
            return TurnOutcome(TurnEvent.FAILED, in_words(problem), "library")
        if problem is not None:
            raise problem
        if not isinstance(result, str) or result != last_text(self._live.stream.own_parts):
            self._live.stream.add({"type": OUTPUT, "id": "output", "data": plain_output("output", result)})
        return TurnOutcome(TurnEvent.COMPLETED, reason=self._live.stream.remark)

    async def _run(self) -> object:
        from pydantic_ai.capabilities import ReinjectSystemPrompt  # noqa: PLC0415 - as above
        from pydantic_ai.usage import UsageLimits  # noqa: PLC0415 - as above

        _PLAYED.set(self._library)
        toolsets = [_wrapped(each, self, at) for at, each in enumerate(self._library.toolsets)]
        given = self._live.client_tools()
        if given:
            toolsets.append(_wrapped(_of_client(given), self, None))
        base = [part for step in self._base_steps()[self._covered_steps :] for part in step]
        own: list[Message] = [{**self._live.stream.message, "parts": base}] if base else []
        with self._library.override(model=_recorded(self._model, self), toolsets=toolsets, tools=[]):
            result = await self._library.run(
                None,
                message_history=to_model([*self._before, *own], provider=self._model.system),
                deps=await deps_of(self._author),
                usage_limits=UsageLimits(request_limit=self._author.max_steps),
                capabilities=[ReinjectSystemPrompt()],
                infer_name=False,
            )
        self._settle(result.all_messages())
        return result.output

    def _over(self, outcome: TurnOutcome) -> _TurnOver:
        self._outcome = outcome
        return _TurnOver(outcome.event)

    # requests

    def _base_steps(self) -> list[list[Part]]:
        return steps_of(self._live.stream.parts[: self._live.turn.base])

    def _steered(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        # The library's messages with those of people that stand in the turn, each before the first answer of those after it.
        ends = [*accumulate(answer.steps for answer in self._answers())]
        said: deque[tuple[int, Message]] = deque()
        steps = 0
        for part in self._live.stream.own_parts:
            steps += part["type"] == "step-start"
            message = steered_message(part)
            if message is not None:
                said.append((sum(end <= steps for end in ends), message))
        found: list[ModelMessage] = []
        for each in messages:
            number = (each.metadata or {}).get(_NUMBER, -1) if each.kind == "response" else -1
            while said and said[0][0] <= number:
                _add(found, said.popleft()[1])
            found.append(each)
        for _, message in said:
            _add(found, message)
        return found

    def _uncovered(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        left = self._covered_steps - len(self._base_steps())
        steps = accumulate(answer.steps for answer in self._answers())
        covered, is_covered = sum(each <= left for each in steps), False
        kept: list[ModelMessage] = []
        for each in messages:
            if each.kind == "response":
                is_covered = (each.metadata or {}).get(_NUMBER, covered) < covered
            if not is_covered:
                kept.append(each)
            elif each.kind == "request" and (
                prompts := [part for part in each.parts if part.part_kind == "system-prompt"]
            ):
                kept.append(replace(each, parts=prompts))
        return kept

    async def request(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        # The answer is in the stream already, or the model is asked.
        self._settle(messages)
        number, self._asked = self._asked, self._asked + 1
        while True:
            known = self._answers()[number : number + 1]
            if known and known[0].is_whole:
                return self._response(known[0], number)
            if not known:
                self._read()
            history = self._steered(self._uncovered(messages))
            if known:  # it broke off: what was said of it, and the word that it goes on
                so_far: Message = {"id": "", "role": "assistant", "parts": known[0].parts}
                history += to_model([_ASKED, so_far], last_word=CONTINUE)[1:]
            own = {part["toolCallId"] for part in self._live.stream.parts if is_tool_part(part)}
            taken = own | self._call_ids
            outcome = await self._ask(partial(stream_request, self._model, history, settings, parameters, taken))
            if outcome is not None:
                raise self._over(outcome)
            self._live.stream.mend()

    def _answers(self) -> list[_Answer]:
        # An answer that broke off goes on in the next step.
        found: list[_Answer] = []
        for parts, end in zip(_steps(self._live.stream.own_parts), step_ends(self._live.stream.events), strict=True):
            if found and not found[-1].is_whole:
                found[-1] = _Answer([*found[-1].parts, *parts], end, found[-1].steps + 1)
            else:
                found.append(_Answer(parts, end))
        return found

    def _response(self, answer: _Answer, number: int) -> ModelResponse:
        from pydantic_ai.messages import ModelResponse  # noqa: PLC0415 - as above
        from pydantic_ai.usage import RequestUsage  # noqa: PLC0415 - as above

        said: Message = {"id": "", "role": "assistant", "parts": answer.parts}
        made = to_model([_ASKED, said], provider=self._model.system)
        parts = [part for each in made if isinstance(each, ModelResponse) for part in each.parts]
        name, provider = self._model.model_name, self._model.system
        # the answer keeps its number wherever the library puts it
        response = ModelResponse(parts=parts, model_name=name, provider_name=provider, metadata={_NUMBER: number})
        called = [part for part in answer.parts if is_tool_part(part) and not part.get("providerExecuted")]
        ours = [part["toolCallId"] for part in called if part.get("state") != "input-streaming"]
        self._ids |= dict(zip((call.tool_call_id for call in response.tool_calls), ours, strict=True))
        end: Event = answer.end or {"type": "finish-step"}
        counts: dict[str, Any] = end.get("usage") or {}
        response.usage = RequestUsage(**{name: count for name, count in counts.items() if name in _COUNTS})
        reason = end.get("finishReason")
        if reason in _REASONS:
            response.finish_reason = cast("FinishReason", reason)
        return response

    # calls

    async def call(self, call_id: str, at: int | None, tool: ToolsetTool[object]) -> object:
        # The result of its run, or the same told again.
        from pydantic_ai.exceptions import ToolFailed  # noqa: PLC0415 - as above
        from pydantic_ai.messages import ToolReturn  # noqa: PLC0415 - as above

        if at is not None:
            ours = library_tool(type(self._author), at, tool.tool_def, self._tenant.code_dir)
            self._live.add_tool(ours)
        part = await self._live.performed(self._ids[call_id])
        if part is None:
            await self._live.drain()
            raise self._over(TurnOutcome(TurnEvent.PARKED))
        output, outcome = call_result(part)
        if outcome != "success":
            raise ToolFailed(str(output))
        beside = beside_result(part)
        return ToolReturn(output, content=beside) if beside else output

    def _settle(self, messages: list[ModelMessage]) -> None:
        # The library has answered some calls itself: those of its output tools, and those that it refused.
        if not messages or messages[-1].kind != "request":
            return
        for part in messages[-1].parts:
            if part.part_kind not in ("tool-return", "retry-prompt"):
                continue
            call_id = self._ids.get(part.tool_call_id)
            if call_id is None or self._live.is_settled(call_id):
                continue
            if part.part_kind == "tool-return" and part.outcome == "success":
                shown = to_jsonable_python(part.content, fallback=str)
                self._live.stream.add({"type": "tool-output-available", "toolCallId": call_id, "output": shown})
            else:
                words = part.model_response_str() if part.part_kind == "tool-return" else part.model_response()
                self._live.stream.add({"type": "tool-output-error", "toolCallId": call_id, "errorText": words})

    def refused(self, toolset: AbstractToolset[object], problem: Exception) -> None:
        self._tenant.trouble(f"opening the toolset {toolset.label}", problem)


_PLAYED: ContextVar[object] = ContextVar("_PLAYED", default=None)
"""The agent whose turn is being played here, by `override`."""


def is_overridden(library: LibraryAgent[Any, Any]) -> bool:
    """Whether somebody's `override` of this agent holds here: it is of this context alone."""
    values = (value for name, value in vars(library).items() if name.startswith("_override_"))
    is_set = any(isinstance(value, ContextVar) and value.get(None) is not None for value in values)
    return is_set and _PLAYED.get() is not library


class _TurnOver(Exception):
    """Ends the library's loop; the turn's outcome is known beside it."""


_NUMBER = "perdure_answer"
"""In the metadata of an answer, which no model is sent: its number in the turn."""
_ASKED: Message = {"id": "", "role": "user", "parts": [{"type": "text", "text": "…"}]}
_COUNTS = frozenset({"input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"})
_REASONS = frozenset({"stop", "length", "content_filter", "tool_call", "error"})


def _add(messages: list[ModelMessage], said: Message) -> None:
    is_sent = any(part["type"] == "file" or (part["type"] == "text" and part["text"].strip()) for part in said["parts"])
    for made in to_model([said]) if is_sent else ():
        last = messages[-1] if messages else None
        if last is not None and last.kind == "request" and made.kind == "request":
            messages[-1] = replace(last, parts=[*last.parts, *made.parts])
        else:
            messages.append(made)


def _steps(parts: list[Part]) -> Iterator[list[Part]]:
    step: list[Part] | None = None
    for part in parts:
        if part["type"] == "step-start":
            if step is not None:
                yield step
            step = []
        elif step is not None and part["type"] not in (OUTPUT, STEERED):
            step.append(part)
    if step is not None:
        yield step


def _recorded(model: Model, turn: _LibraryTurn) -> Model:
    from pydantic_ai.models import CompletedStreamedResponse  # noqa: PLC0415 - as above
    from pydantic_ai.models.wrapper import WrapperModel  # noqa: PLC0415 - as above

    class Recorded(WrapperModel):
        async def request(
            self,
            messages: list[ModelMessage],
            model_settings: ModelSettings | None,
            model_request_parameters: ModelRequestParameters,
        ) -> ModelResponse:
            return await turn.request(messages, model_settings, model_request_parameters)

        @asynccontextmanager
        async def request_stream(
            self,
            messages: list[ModelMessage],
            model_settings: ModelSettings | None,
            model_request_parameters: ModelRequestParameters,
            run_context: RunContext[object] | None = None,
        ) -> AsyncGenerator[StreamedResponse]:
            response = await turn.request(messages, model_settings, model_request_parameters)
            yield CompletedStreamedResponse(
                response, model_request_parameters=model_request_parameters, replay_events=True
            )

    return Recorded(model)


def _wrapped(toolset: AbstractToolset[object], turn: _LibraryTurn, at: int | None) -> AbstractToolset[object]:
    # A toolset whose calls are the turn's. `at` is its place among the toolsets of the class, None for what the client brought.
    from pydantic_ai.toolsets import WrapperToolset  # noqa: PLC0415 - as above

    @dataclass
    class Wrapped(WrapperToolset[object]):
        is_open: bool = False

        async def __aenter__(self) -> Self:
            _, problem = await tried(self.wrapped.__aenter__())
            self.is_open = problem is None
            if problem is not None:
                turn.refused(self.wrapped, problem)
            return self

        async def __aexit__(self, *args: object) -> bool | None:
            return await self.wrapped.__aexit__(*args) if self.is_open else None

        async def get_tools(self, ctx: RunContext[object]) -> dict[str, ToolsetTool[object]]:
            if not self.is_open:
                return {}
            found = await self.wrapped.get_tools(with_owners(ctx, self.wrapped))
            return {name: replace(each, tool_def=_called_by_us(each.tool_def)) for name, each in found.items()}

        async def call_tool(
            self, name: str, tool_args: dict[str, object], ctx: RunContext[object], tool: ToolsetTool[object]
        ) -> object:
            assert ctx.tool_call_id is not None
            declared = await self.wrapped.get_tools(with_owners(ctx, self.wrapped))
            return await turn.call(ctx.tool_call_id, at, declared.get(name, tool))

    return Wrapped(toolset)


def _called_by_us(definition: ToolDefinition) -> ToolDefinition:
    # To the library such a tool is like any other: the turn waits for the person or the client.
    return replace(definition, kind="function") if definition.kind in ("external", "unapproved") else definition


def _of_client(tools: Sequence[Tool]) -> AbstractToolset[object]:
    from pydantic_ai import ToolDefinition  # noqa: PLC0415 - as above
    from pydantic_ai.toolsets import ExternalToolset  # noqa: PLC0415 - as above

    specs = [each.spec for each in tools]
    return ExternalToolset(
        [ToolDefinition(name=e.name, description=e.description, parameters_json_schema=e.parameters) for e in specs]
    )
