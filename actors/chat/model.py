"""Finds models by name, asks them, and reads their answers piece by piece, whatever the provider.

pydantic-ai brings the providers. Its retries are off, because a durable turn decides them itself. Every answer must end with a reason of
its provider, and `call_reader` decides which calls are whole; the library would take the end of a stream for the end of an answer, and
patch broken arguments. Every failure becomes `ModelFailed`.

Connections belong to the event loop that opened them. So models that were found by name are kept one set per loop, with one HTTP client.
The engine watches for silence; the timeouts of the libraries are set far above it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.actors.chat.answer_reader import ANSWER_BYTES_MAX, AnswerReader
from perdure.actors.chat.call_reader import ENDING
from perdure.actors.chat.convert import IllegalRequest, assert_paired, to_model
from perdure.actors.chat.failures import ModelFailed, failure_of, too_long
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest, PerdureError, Secret, strike
from perdure.policies import Event, Failure, FailureKind, Message, stream_ended

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.providers import Provider
    from pydantic_ai.usage import RequestUsage

LIBRARY_TIMEOUT_S = 3600.0
CONNECT_TIMEOUT_S = 30.0
LONG_MESSAGES, BREATH_S = 500, 0.02
TAIL_S = 5.0
"""How long a provider may keep the connection open after it gave the reason of the end."""

_OUR_CLIENT = re.compile(r"httpx2\.AsyncClient|AsyncHTTPClient|_OpenAIHTTPClient")
_WIRE_BYTES_MAX = 8 * ANSWER_BYTES_MAX  # each piece of an answer is wrapped in much more than itself


class UnusableModel(BadRequest):
    """The model cannot be asked: its name is unknown, or something that it needs is not set or not installed."""


@dataclass(frozen=True)
class Finished:
    """The end of an answer. `reason` is `tool_call` if it calls tools of ours, else `stop`, `length`, `content_filter` or `error`.

    `usage` counts tokens: `input_tokens`, `output_tokens`, `cache_read_tokens`, …
    """

    reason: str
    usage: dict[str, int]
    response_id: str | None


class _LoopsModels(NamedTuple):
    """What one event loop has opened. The models are kept by name and key."""

    client: httpx2.AsyncClient
    models: dict[tuple[str, str | None], Model]


_opened: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopsModels] = weakref.WeakKeyDictionary()


def resolve_model(model: object, key: Secret | None = None) -> Model:
    """The model of this name (`openai:gpt-5`, as pydantic-ai names them), or the model object itself.

    Without a `key` the provider looks for it in the environment. Raises `UnusableModel`, which names the missing variable or package.
    """
    from pydantic_ai.models import Model  # noqa: PLC0415 - not before a model is asked

    if isinstance(model, Model):
        model._refresh_http_client()  # noqa: SLF001 - its client may belong to a loop that is gone
        return model
    if not isinstance(model, str) or not model.strip():
        raise UnusableModel("model", f"{model!r:.200} is neither the name of a model nor a model of pydantic-ai")
    try:
        value = None if key is None else key.reveal()
    except BadRequest as problem:
        raise UnusableModel("model", f"{model}: it needs {problem.field}, which is not set") from problem
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _found(model, value, _http_client())  # outside of a loop there is nothing to keep it for
    kept = _opened.get(loop)
    if kept is None:
        kept = _opened[loop] = _LoopsModels(_http_client(), {})
    if (model, value) not in kept.models:
        kept.models[model, value] = _found(model, value, kept.client)
    return kept.models[model, value]


def load_library(model: object) -> None:
    """Import what asking this model will need. That takes a second or two, so event loops leave it to a thread.

    Optional. What cannot be imported is reported when the model is asked.
    """
    import_module("pydantic_ai.direct")
    provider = model.partition(":")[0].removeprefix("gateway/") if isinstance(model, str) else ""
    for name in (provider.partition("-")[0], "openai"):
        if name.isidentifier():
            with contextlib.suppress(ImportError):
                import_module(f"pydantic_ai.models.{name}")
                return


async def close_models() -> None:
    """Close the connections of the running loop's models. A model that is asked again opens new ones."""
    kept = _opened.pop(asyncio.get_running_loop(), None)
    if kept is not None:
        await kept.client.aclose()


def _found(name: str, key: str | None, client: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - as above
    from pydantic_ai.providers import infer_provider_class  # noqa: PLC0415 - as above

    try:
        try:
            infer_provider_class(name.partition(":")[0])
        except ValueError:
            return infer_model(name)  # a name without a provider, such as `test`; or an error that says what was meant
        return infer_model(name, lambda provider: _provider(provider, key, client))
    except Exception as problem:
        raise UnusableModel("model", f"{name}: {_what_is_missing(problem)}") from problem


def _provider(name: str, key: str | None, client: httpx2.AsyncClient) -> Provider[Any]:
    """The provider, with our client if it takes one of this kind. Its key is struck out of all that is written."""
    from pydantic_ai.providers import infer_provider, infer_provider_class  # noqa: PLC0415 - as above
    from pydantic_ai.providers.gateway import gateway_provider  # noqa: PLC0415 - as above

    given: dict[str, object] = {} if key is None else {"api_key": key}
    make: Callable[..., Provider[Any]] = partial(infer_provider, name)
    if not name.startswith("gateway/"):
        make = cast("Callable[..., Provider[Any]]", infer_provider_class(name))
        wanted = inspect.signature(make).parameters.get("http_client")
        if wanted is not None and _OUR_CLIENT.match(str(wanted.annotation)):
            given["http_client"] = client
    elif given:
        make = partial(gateway_provider, name.removeprefix("gateway/"))
    found = make(**given)
    used = getattr(getattr(found, "client", None), "api_key", None)
    if isinstance(used, str):
        strike(used)
    return found


def _what_is_missing(problem: Exception) -> str:
    """The missing variable or package, out of the message of the provider's library."""
    said = " ".join(str(problem).split())
    variables = dict.fromkeys(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", said))
    if variables:
        return f"it needs {' or '.join(variables)}, which is not set"
    package = re.search(r"pydantic-ai-slim\[[\w-]+\]", said)
    if isinstance(problem, ImportError) and package:
        return f"its package is not installed: pip install '{package[0]}'"
    return said or type(problem).__name__


def _http_client() -> httpx2.AsyncClient:
    """One client for all providers that take it. It bounds an answer before any library gathers it in memory."""
    import httpx2  # noqa: PLC0415 - as above
    from pydantic_ai.models import get_user_agent  # noqa: PLC0415 - as above

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for piece in self._stream:
                size += len(piece)
                if size > _WIRE_BYTES_MAX:
                    raise too_long(_WIRE_BYTES_MAX)
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: httpx2.Response) -> None:
        response.stream = Bounded(cast("httpx2.AsyncByteStream", response.stream))

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(LIBRARY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
        limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
        headers={"User-Agent": get_user_agent()},
        event_hooks={"response": [bound]},
    )


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
    try:
        opened = await _asked(resolve_model(model), messages, tools, instructions, settings)
        async with opened as stream, contextlib.aclosing(_chunks(stream, reader, tail_s)) as chunks:
            async for chunk in chunks:
                yield chunk
    except UnusableModel as problem:
        raise ModelFailed(failure_of(problem)) from problem
    except (PerdureError, IllegalRequest):
        raise
    except Exception as problem:
        raise ModelFailed(failure_of(problem)) from problem


_How = tuple[Sequence[ToolSpec], str | None, dict[str, object] | None]


async def _asked(
    model: Model, messages: Sequence[Message], *how: *_How
) -> contextlib.AbstractAsyncContextManager[StreamedResponse]:
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
) -> contextlib.AbstractAsyncContextManager[StreamedResponse]:
    from pydantic_ai.direct import model_request_stream  # noqa: PLC0415 - as above
    from pydantic_ai.settings import ModelSettings  # noqa: PLC0415 - as above

    parameters = _parameters(tools, instructions)
    history = model.prepare_messages(to_model(messages, provider=model.system), parameters)
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
