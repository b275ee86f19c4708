"""Asks models and reads their answers piece by piece, whatever the provider.

pydantic-ai brings the providers. Its retries are off, because a durable turn decides them itself. Every answer must end with a reason of
its provider, and `call_reader` decides which calls are whole; the library would take the end of a stream for the end of an answer, and
patch broken arguments. Every failure becomes `ModelFailed`.

The engine watches for silence; the timeouts of the libraries are set far above it.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from perdure.actors.chat.answer_reader import ANSWER_BYTES_MAX, AnswerReader
from perdure.actors.chat.answer_stream import TAIL_S, Finished, read_answer
from perdure.actors.chat.convert import CONTINUE, IllegalRequest, KeptHistory, assert_paired
from perdure.actors.chat.model_lookup import LIBRARY_TIMEOUT_S, UnusableModel, resolve_model
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.chat.turn_failures import ModelFailed, failure_of
from perdure.actors.chat.waits import Stalled, Watchdog
from perdure.actors.telemetry.telemetry import TRACE
from perdure.ledger import PerdureError
from perdure.policies import Event, JsonObject, Message

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse

    _Opened = contextlib.AbstractAsyncContextManager[StreamedResponse]

LONG_MESSAGES, BREATH_S = 500, 0.02


def stream_model(
    model: object,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec] = (),
    instructions: str | None = None,
    settings: dict[str, object] | None = None,
    last_word: str = CONTINUE,
    bytes_max: int = ANSWER_BYTES_MAX,
    watchdog: Watchdog | None = None,
    tail_s: float = TAIL_S,
    kept: KeptHistory | None = None,
    taken_ids: Iterable[str] = (),
) -> AsyncGenerator[Event | Finished]:
    """The answer of a model as chunks of a UI message stream, then `Finished`. Closing the iterator closes the socket.

    Chunks are those of one step, without `start`, `finish` and the marks of steps. `tool-input-available` comes for calls that are
    proven whole and may be executed; every other call ends in `tool-input-error`.

    Args:
        model: a name or a model of pydantic-ai.
        messages: the transcript.
        tools: what the model may call; their names are checked.
        instructions: the system prompt of this request.
        settings: pydantic-ai's model settings (`temperature`, `max_tokens`, …).
        last_word: said to the model if the transcript ends with an answer of its own.
        bytes_max: the longest answer.
        watchdog: how long the provider may say nothing; by default for ever.
        tail_s: how long to wait for usage figures after the end of the answer.
        kept: what was made of this conversation for earlier requests.
        taken_ids: ids of calls that are not in these messages, and that no new call may take.

    Raises:
        Stalled: the provider said nothing for too long.
        ModelFailed: the request failed. Other errors are mistakes of ours or of the caller (`BadRequest`, `IllegalRequest`).
    """
    taken = {part["toolCallId"] for message in messages for part in message["parts"] if "toolCallId" in part}
    reader = AnswerReader(tools, taken_ids=taken | {*taken_ids}, bytes_max=bytes_max)

    async def opened() -> _Opened:
        found, history, parameters = resolve_model(model), kept or KeptHistory(), _parameters(tools, instructions)
        prepare = partial(history.prepared, messages, found, parameters, last_word)
        if history.count_new(messages) < LONG_MESSAGES:
            prepared = prepare()
        else:
            # On a thread, because 10,000 messages take a fifth of a second; a moment later, so that followers hear first that the turn has
            # begun.
            await asyncio.sleep(BREATH_S)
            prepared = await asyncio.to_thread(prepare)
        return _send(found, prepared, settings, parameters)

    return _answer(opened, reader, watchdog or Watchdog(), tail_s)


def stream_request(
    model: Model,
    history: list[ModelMessage],
    settings: Mapping[str, object] | None,
    parameters: ModelRequestParameters,
    taken_ids: Iterable[str],
    watchdog: Watchdog,
) -> AsyncGenerator[Event | Finished]:
    """The same for a request that an agent of pydantic-ai has made: its messages in the library's form, its tools and settings.

    `taken_ids` are the calls of the conversation so far.
    """
    tools = [
        ToolSpec(each.name, each.description or "", cast("JsonObject", each.parameters_json_schema))
        for each in (*parameters.function_tools, *parameters.output_tools)
    ]

    async def opened() -> _Opened:
        prepared = model.prepare_messages(history, parameters)
        assert_paired(prepared)
        return _send(model, prepared, settings, parameters)

    return _answer(opened, AnswerReader(tools, taken_ids=taken_ids), watchdog, TAIL_S)


async def _answer(
    opened: Callable[[], Awaitable[_Opened]], reader: AnswerReader, watchdog: Watchdog, tail_s: float
) -> AsyncGenerator[Event | Finished]:
    try:
        async with contextlib.AsyncExitStack() as stack:
            stream = await watchdog.within(stack.enter_async_context(await opened()))
            chunks = await stack.enter_async_context(contextlib.aclosing(read_answer(stream, reader, watchdog, tail_s)))
            async for chunk in chunks:
                yield chunk
    except UnusableModel as problem:
        raise ModelFailed(failure_of(problem)) from problem
    except (PerdureError, IllegalRequest, Stalled):
        raise
    except Exception as problem:
        # The library reads the first event, whatever it is, while it opens the stream.
        frames = traceback.walk_tb(problem.__traceback__)
        is_reading = any(frame.f_code.co_name == "_process_streamed_response" for frame, _ in frames)
        raise ModelFailed(failure_of(problem, is_reading=is_reading)) from problem
    finally:
        watchdog.close()


def _send(
    model: Model,
    history: list[ModelMessage],
    settings: Mapping[str, object] | None,
    parameters: ModelRequestParameters,
) -> _Opened:
    from pydantic_ai.direct import model_request_stream  # noqa: PLC0415 - as above
    from pydantic_ai.settings import ModelSettings  # noqa: PLC0415 - as above

    ours: dict[str, object] = {"timeout": LIBRARY_TIMEOUT_S, **(settings or {}), "max_retries": 0}
    known = {name: value for name, value in ours.items() if name not in model.unsupported_settings}
    return model_request_stream(
        model,
        history,
        model_settings=cast("ModelSettings", known),
        model_request_parameters=parameters,
        instrument=False if TRACE.get() else None,  # the turn tells of its requests itself
    )


def _parameters(tools: Sequence[ToolSpec], instructions: str | None) -> ModelRequestParameters:
    from pydantic_ai import ToolDefinition  # noqa: PLC0415 - as above
    from pydantic_ai.messages import InstructionPart  # noqa: PLC0415 - as above
    from pydantic_ai.models import ModelRequestParameters  # noqa: PLC0415 - as above

    definitions = [
        ToolDefinition(name=each.name, description=each.description or None, parameters_json_schema=each.parameters)
        for each in tools
    ]
    said = [InstructionPart(content=instructions)] if instructions else None
    return ModelRequestParameters(function_tools=definitions, instruction_parts=said)
