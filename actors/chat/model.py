"""Asks models and reads their answers piece by piece, whatever the provider.

pydantic-ai brings the providers. Its retries are off, because a durable turn decides them itself. Every answer must end with a reason of
its provider, and `call_reader` decides which calls are whole; the library would take the end of a stream for the end of an answer, and
patch broken arguments. Every failure becomes `ModelFailed`.

The engine watches for silence; the timeouts of the libraries are set far above it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from perdure.actors.chat.answer_reader import ANSWER_BYTES_MAX, AnswerReader
from perdure.actors.chat.call_reader import ENDING
from perdure.actors.chat.convert import IllegalRequest, assert_paired, to_model
from perdure.actors.chat.failures import ModelFailed, failure_of
from perdure.actors.chat.model_lookup import LIBRARY_TIMEOUT_S, UnusableModel, resolve_model
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.tasks import awaited
from perdure.ledger import PerdureError
from perdure.policies import Event, Failure, FailureKind, JsonObject, Message, stream_ended

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.usage import RequestUsage

    _Opened = contextlib.AbstractAsyncContextManager[StreamedResponse]

LONG_MESSAGES, BREATH_S = 500, 0.02
TAIL_S = 5.0
"""How long a provider may keep the connection open after it gave the reason of the end."""


@dataclass(frozen=True)
class Finished:
    """The end of an answer. `reason` is `tool_call` if it calls tools of ours, else `stop`, `length`, `content_filter` or `error`.

    `usage` counts tokens: `input_tokens`, `output_tokens`, `cache_read_tokens`, …
    """

    reason: str
    usage: dict[str, int]
    response_id: str | None


async def stream_model(
    model: object,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec] = (),
    instructions: str | None = None,
    settings: dict[str, object] | None = None,
    bytes_max: int = ANSWER_BYTES_MAX,
    tail_s: float = TAIL_S,
) -> AsyncGenerator[Event | Finished]:
    """Ask a model and yield its answer as chunks of a UI message stream, then `Finished`. Closing the iterator closes the socket.

    Chunks are those of one step, without `start`, `finish` and the marks of steps. `tool-input-available` comes for calls that are
    proven whole and may be executed; every other call ends in `tool-input-error`.

    Args:
        model: a name or a model of pydantic-ai.
        messages: the transcript.
        tools: what the model may call; their names are checked.
        instructions: the system prompt of this request.
        settings: pydantic-ai's model settings (`temperature`, `max_tokens`, …).
        bytes_max: the longest answer.
        tail_s: how long to wait for usage figures after the end of the answer.

    Raises:
        ModelFailed: the request failed. Other errors are mistakes of ours or of the caller (`BadRequest`, `IllegalRequest`).
    """
    taken = {part["toolCallId"] for message in messages for part in message["parts"] if "toolCallId" in part}
    reader = AnswerReader(tools, taken_ids=taken, bytes_max=bytes_max)

    async def opened() -> _Opened:
        return await _asked(resolve_model(model), messages, tools, instructions, settings)

    async with contextlib.aclosing(_answer(opened, reader, tail_s)) as chunks:
        async for chunk in chunks:
            yield chunk


async def stream_request(
    model: Model,
    history: list[ModelMessage],
    settings: Mapping[str, object] | None,
    parameters: ModelRequestParameters,
    *,
    taken_ids: Iterable[str] = (),
) -> AsyncGenerator[Event | Finished]:
    """The same for a request that an agent of pydantic-ai has made: its messages in the library's form, its tools and settings.

    `taken_ids` are the calls of the conversation so far.
    """
    tools = [
        ToolSpec(each.name, each.description or "", cast("JsonObject", each.parameters_json_schema))
        for each in (*parameters.function_tools, *parameters.output_tools)
    ]

    async def opened() -> _Opened:
        return _send(model, history, settings, parameters)

    async with contextlib.aclosing(_answer(opened, AnswerReader(tools, taken_ids=taken_ids), TAIL_S)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _answer(
    opened: Callable[[], Awaitable[_Opened]], reader: AnswerReader, tail_s: float
) -> AsyncGenerator[Event | Finished]:
    """The chunks of one answer, and its end. Every failure of the provider is `ModelFailed`."""
    try:
        async with await opened() as stream, contextlib.aclosing(_chunks(stream, reader, tail_s)) as chunks:
            async for chunk in chunks:
                yield chunk
    except UnusableModel as problem:
        raise ModelFailed(failure_of(problem)) from problem
    except (PerdureError, IllegalRequest):
        raise
    except Exception as problem:
        raise ModelFailed(failure_of(problem)) from problem


_How = tuple[Sequence[ToolSpec], str | None, dict[str, object] | None]


async def _asked(model: Model, messages: Sequence[Message], *how: *_How) -> _Opened:
    """Open the stream. A long conversation is converted on a thread, because 10,000 messages take a fifth of a second, and a moment later,
    so that followers hear first that the turn has begun."""
    if len(messages) < LONG_MESSAGES:
        return _open(model, messages, *how)
    await asyncio.sleep(BREATH_S)
    return await asyncio.to_thread(_open, model, messages, *how)


def _open(
    model: Model,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    instructions: str | None,
    settings: dict[str, object] | None,
) -> _Opened:
    return _send(model, to_model(messages, provider=model.system), settings, _parameters(tools, instructions))


def _send(
    model: Model,
    messages: list[ModelMessage],
    settings: Mapping[str, object] | None,
    parameters: ModelRequestParameters,
) -> _Opened:
    from pydantic_ai.direct import model_request_stream  # noqa: PLC0415 - as above
    from pydantic_ai.settings import ModelSettings  # noqa: PLC0415 - as above

    history = model.prepare_messages(messages, parameters)
    assert_paired(history)
    ours: dict[str, object] = {"timeout": LIBRARY_TIMEOUT_S, **(settings or {}), "max_retries": 0}
    known = {name: value for name, value in ours.items() if name not in model.unsupported_settings}
    return model_request_stream(
        model, history, model_settings=cast("ModelSettings", known), model_request_parameters=parameters
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


async def _chunks(stream: StreamedResponse, reader: AnswerReader, tail_s: float) -> AsyncGenerator[Event | Finished]:
    """The chunks of an answer, and its end. A connection may break after the provider gave the reason of the end."""
    reader.provider = stream.provider_name
    cutter = awaited(_cut_tail(stream, tail_s))
    try:
        async with contextlib.aclosing(_read(stream, reader)) as chunks:
            async for chunk in chunks:
                yield chunk
    except ModelFailed as problem:
        if not problem.failure.is_transport or reason_of_end(stream, is_over=False) is None:
            raise
    finally:
        cutter.cancel()
        await asyncio.gather(cutter, return_exceptions=True)
    for last in _end(stream, reader):
        yield last


async def _read(stream: StreamedResponse, reader: AnswerReader) -> AsyncGenerator[Event]:
    try:
        async for event in stream:
            for chunk in reader.read(event):
                yield chunk
            _refuse_overrun_call(reader)
    except ModelFailed:
        raise
    except Exception as problem:
        raise ModelFailed(failure_of(problem, is_reading=True)) from problem


def _end(stream: StreamedResponse, reader: AnswerReader) -> Iterator[Event | Finished]:
    reason = reason_of_end(stream, is_over=True)
    if stream.state == "suspended":
        words = "the provider suspended its answer; to ask for the rest of it later is not supported"
        raise ModelFailed(Failure(FailureKind.UNKNOWN, words, is_transient=False))
    if reason is None:
        raise ModelFailed(stream_ended())
    if reason == "tool_call" and not reader.has_calls:
        raise ModelFailed(stream_ended("the provider announced a call of a tool, and sent none that has a name"))
    yield from reader.finish(reason)
    if reason in ENDING:  # providers name the end of an answer with calls in different ways
        reason = "tool_call" if len(reader.calls) else "stop"
    yield Finished(reason, _usage(stream.usage), stream.provider_response_id)


def _refuse_overrun_call(reader: AnswerReader) -> None:
    if reader.calls.overrun is not None:
        words = f"the provider added to a finished call of {reader.calls.overrun}"
        raise ModelFailed(Failure(FailureKind.IN_BAND, words, is_transient=True))


async def _cut_tail(stream: StreamedResponse, tail_s: float) -> None:
    """End a stream whose provider has given the reason of the end, but keeps the connection open."""
    is_over = False
    while not is_over:
        was_over = reason_of_end(stream, is_over=False) is not None
        await asyncio.sleep(tail_s)
        is_over = was_over
    with contextlib.suppress(NotImplementedError):  # then it ends by itself, or by the watchdog
        await stream.cancel()


def reason_of_end(stream: StreamedResponse, *, is_over: bool) -> str | None:
    """The reason that the provider gave for the end of the answer, or None.

    The library makes `stop` of the bare end of a stream of chat completions. A reason that it does not know is in the provider's words:
    those for too long an answer name its length or its tokens. A model in this process, such as a test's, gives no reason.
    """
    details = stream.provider_details or {}
    raw = details.get("finish_reason")
    reason = stream.finish_reason
    names = {kind.__name__ for kind in type(stream).__mro__}
    if reason == "stop" and raw is None and "OpenAIStreamedResponse" in names:
        return None
    if reason is None and isinstance(raw, str) and raw:
        return "length" if re.search("length|token", raw, re.IGNORECASE) else "stop"
    if reason is None and is_over and stream.provider_url is None:
        return "stop"
    return reason


def _usage(usage: RequestUsage) -> dict[str, int]:
    counts = {each.name: getattr(usage, each.name) for each in fields(usage) if each.name.endswith("_tokens")}
    return {name: count for name, count in counts.items() if isinstance(count, int) and count}
