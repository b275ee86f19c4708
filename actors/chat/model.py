"""Finds models by name, asks them, and reads their answers piece by piece, whatever the provider.

pydantic-ai brings the providers. Its retries are off, because a durable turn decides them itself. Every answer must end with a reason of
its provider, and `CallReader` decides which calls are whole; the library would take the end of a stream for the end of an answer, and
patch broken arguments. Every failure becomes `ModelFailed`.

The engine watches for silence; the timeouts of the libraries are set far above it.

Connections belong to the event loop that opened them. So models that were found by name are kept one set per loop, with one HTTP client.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import traceback
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from perdure.actors.chat.answer_reader import ANSWER_BYTES_MAX, AnswerReader
from perdure.actors.chat.answer_stream import TAIL_S, Finished, read_answer, reason_of_end
from perdure.actors.chat.convert import CONTINUE, IllegalRequest, KeptHistory, assert_paired
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.chat.turn_failures import ModelFailed, failure_of, too_long
from perdure.actors.chat.watchdog import Stalled, Watchdog
from perdure.actors.code.author_call import tried_now
from perdure.actors.code.naming import IMPORTING
from perdure.actors.telemetry.telemetry import TRACE
from perdure.ledger import BadRequest, PerdureError, Secret, strike
from perdure.policies import Event, FailureKind, JsonObject, Message, no_answer, one_line

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.providers import Provider
    from pydantic_ai.settings import ModelSettings

    _Opened = contextlib.AbstractAsyncContextManager[StreamedResponse]


_LIBRARY_TIMEOUT_S = 3600.0
CONNECT_TIMEOUT_S = 30.0

_OUR_CLIENT = re.compile(r"httpx2\.AsyncClient|AsyncHTTPClient|_OpenAIHTTPClient")
_WIRE_BYTES_MAX = 8 * ANSWER_BYTES_MAX  # each piece of an answer is wrapped in much more than itself


class UnusableModel(BadRequest):
    """The model cannot be asked: its name is unknown, or something that it needs is not set or not installed."""


class _LoopsModels(NamedTuple):
    # The models are kept by name and key.
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


def library_of(model: object) -> str:
    # The provider that is named. Empty for a model that is no name.
    return model.partition(":")[0].removeprefix("gateway/") if isinstance(model, str) else ""


def load_library(model: object) -> None:
    """Import what asking this model will need. That takes a second or two, so event loops leave it to a thread.

    Code of authors that imports parts of the library waits for it, or is asked afterwards: see `IMPORTING`. What cannot be imported is
    reported when the model is asked.
    """
    with IMPORTING:
        import_module("pydantic_ai.direct")
        # a provider without a module of its own is asked in OpenAI's protocol
        for name in filter(str.isidentifier, (library_of(model).partition("-")[0], "openai")):
            with contextlib.suppress(ImportError):
                import_module(f"pydantic_ai.models.{name}")
                return


async def close_models() -> None:
    # A model that is asked again opens new connections.
    kept = _opened.pop(asyncio.get_running_loop(), None)
    if kept is not None:
        await kept.client.aclose()


def _found(name: str, key: str | None, client: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - as above
    from pydantic_ai.providers import infer_provider_class  # noqa: PLC0415 - as above

    def inferred() -> Model:
        try:
            infer_provider_class(name.partition(":")[0])
        except ValueError:
            return infer_model(name)  # a name without a provider, such as `test`; or an error that says what was meant
        return infer_model(name, lambda provider: _provider(provider, key, client))

    found, problem = tried_now(inferred)
    if found is None or problem is not None:
        raise UnusableModel("model", f"{name}: {_what_is_missing(problem)}") from problem
    return found


def _provider(name: str, key: str | None, client: httpx2.AsyncClient) -> Provider[object]:
    # Its key is struck out of all that is written.
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


def _what_is_missing(problem: Exception | None) -> str:
    said = " ".join(str(problem).split())
    variables = dict.fromkeys(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", said))
    if variables:
        return f"it needs {' or '.join(variables)}, which is not set"
    package = re.search(r"pydantic-ai-slim\[[\w-]+\]", said)
    if isinstance(problem, ImportError) and package:
        return f"its package is not installed: pip install '{package[0]}'"
    return said or type(problem).__name__


def _http_client() -> httpx2.AsyncClient:
    # One client for all providers that take it. It bounds an answer before any library gathers it in memory.
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
        timeout=httpx2.Timeout(_LIBRARY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
        limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
        headers={"User-Agent": get_user_agent()},
        event_hooks={"response": [bound, heard]},
    )


# ---------------------------------------------------------------- the line to a provider
# A provider that is thinking may send keep-alives (comments in a stream of events, `ping` of Anthropic). No library tells of them, so a
# line looks dead that is alive. Bytes are seen by a hook of the HTTP client, which touches nothing but the responses to requests that are
# made under `LISTENING`.
#
# The client is our own, or that of a model object: what pydantic-ai has made for it, or its author for the client of the API. If it is none
# of `httpx2`, or kept elsewhere, keep-alives are not seen, and the line is silent.


LINE_BYTES_SHOWN: Final = 150


class Line:
    """That of one request. `came` is called whenever bytes of an answer come."""

    def __init__(self, came: Callable[[], None]) -> None:
        self._came = came
        self._headers: Mapping[str, str] = {}
        self._first = b""
        self._is_over = False

    def opened(self, headers: Mapping[str, str]) -> None:
        """A response begins, perhaps after another one."""
        self._headers, self._first, self._is_over = headers, b"", False

    def took(self, piece: bytes) -> None:
        self._came()
        if len(self._first) < LINE_BYTES_SHOWN:
            self._first += piece[:LINE_BYTES_SHOWN]

    def ended(self) -> None:
        """The response ended in order, as far as HTTP can tell."""
        self._is_over = True

    @property
    def is_answerless(self) -> bool:
        """Whether the response was whole and had nothing of an answer in it, if its library has found nothing.

        A stream of events that broke off may end like that, too, if neither its length nor its chunks say where it ends.
        """
        if not self._is_over or (self._is_stream and "content-encoding" in self._headers):
            return False
        is_framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        return not self._is_stream or (b"{" not in self._first and (is_framed or bool(self._first)))

    @property
    def received(self) -> str:
        """The kind of the response and its first words, for people."""
        kind = one_line(self._headers.get("content-type", "")) or "no content type"
        is_packed = "content-encoding" in self._headers
        words = "" if is_packed else one_line(self._first[:LINE_BYTES_SHOWN].decode(errors="replace"))
        return f"{kind}: {words}" if words else kind if self._first else f"{kind}, and is empty"

    @property
    def _is_stream(self) -> bool:
        return "event-stream" in self._headers.get("content-type", "")


LISTENING: Final[ContextVar[Line | None]] = ContextVar("LISTENING", default=None)


def listen_to(model: object) -> None:
    """Have the line of this model heard, and those of the models in it. It may be asked again before each request."""
    from httpx2 import AsyncClient  # noqa: PLC0415 - loaded where a model is asked

    for client in _clients_of(model):
        if isinstance(client, AsyncClient) and heard not in client.event_hooks["response"]:
            client.event_hooks["response"].append(heard)


def _clients_of(model: Any) -> Iterator[object]:
    # What an author's class makes of these names is tried.
    yield tried_now(lambda: model.provider._own_http_client)[0]  # noqa: SLF001 - it has no public name
    yield tried_now(lambda: model.client._client)[0]  # noqa: SLF001 - as above
    inner, _ = tried_now(
        lambda: [*getattr(model, "models", ()), *([model.wrapped] if hasattr(model, "wrapped") else ())]
    )
    for each in inner or ():
        yield from _clients_of(each)


async def heard(response: httpx2.Response) -> None:
    """The hook: pass on the bytes of a response, and tell of them."""
    line = LISTENING.get()
    if line is not None:
        line.opened(response.headers)
        response.stream = _stream_class()(response.stream, line)


@cache
def _stream_class() -> Callable[[Any, Line], httpx2.AsyncByteStream]:
    from httpx2 import AsyncByteStream  # noqa: PLC0415 - as above

    class Heard(AsyncByteStream):
        def __init__(self, stream: AsyncByteStream, line: Line) -> None:
            self._stream, self._line = stream, line

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self._stream:
                self._line.took(piece)
                yield piece
            self._line.ended()

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Heard


# ---------------------------------------------------------------- asking them


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
    line = Line(watchdog.alive)
    try:
        async with contextlib.AsyncExitStack() as stack:
            stream = await watchdog.within(_begun(stack, await opened(), line))
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
        failure = failure_of(problem, is_reading=is_reading)
        if failure.kind is FailureKind.STREAM_END and line.is_answerless:
            failure = no_answer(line.received)
        raise ModelFailed(failure) from problem
    finally:
        watchdog.close()


async def _begun(stack: contextlib.AsyncExitStack, opened: _Opened, line: Line) -> StreamedResponse:
    token = LISTENING.set(line)
    try:
        return await stack.enter_async_context(opened)
    finally:
        LISTENING.reset(token)


def _send(
    model: Model,
    history: list[ModelMessage],
    settings: Mapping[str, object] | None,
    parameters: ModelRequestParameters,
) -> _Opened:
    listen_to(model)
    ours: dict[str, object] = {"timeout": _LIBRARY_TIMEOUT_S, **(settings or {}), "max_retries": 0}
    known = {name: value for name, value in ours.items() if name not in model.unsupported_settings}
    is_told = False if TRACE.get() else None  # the turn tells of its requests itself
    return _streamed(model, history, cast("ModelSettings", known), parameters, is_told)


@contextlib.asynccontextmanager
async def _streamed(
    model: Model,
    history: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    instrument: bool | None,
) -> AsyncGenerator[StreamedResponse]:
    # A model that has no streams is asked for the answer as a whole.
    from pydantic_ai.direct import model_request, model_request_stream  # noqa: PLC0415 - as above

    stream: StreamedResponse | None = None
    async with contextlib.AsyncExitStack() as stack:
        if _has_streams(model):
            opening = model_request_stream(
                model, history, model_settings=settings, model_request_parameters=parameters, instrument=instrument
            )
            with contextlib.suppress(NotImplementedError):  # of the opening alone
                stream = await stack.enter_async_context(opening)
        if stream is None:
            whole = await model_request(
                model, history, model_settings=settings, model_request_parameters=parameters, instrument=instrument
            )
            stream = _whole(whole, parameters)
        yield stream


def _has_streams(model: Model) -> bool:
    from pydantic_ai.models.fallback import FallbackModel  # noqa: PLC0415 - as above
    from pydantic_ai.models.function import FunctionModel  # noqa: PLC0415 - as above
    from pydantic_ai.models.wrapper import WrapperModel  # noqa: PLC0415 - as above

    if isinstance(model, WrapperModel):
        return _has_streams(model.wrapped)
    if isinstance(model, FallbackModel):
        return all(map(_has_streams, model.models))
    return not isinstance(model, FunctionModel) or model.stream_function is not None


def _whole(response: ModelResponse, parameters: ModelRequestParameters) -> StreamedResponse:
    from pydantic_ai.models import CompletedStreamedResponse  # noqa: PLC0415 - as above

    stream = CompletedStreamedResponse(response, model_request_parameters=parameters, replay_events=True)
    stream.provider_details, stream.provider_response_id = response.provider_details, response.provider_response_id
    stream.finish_reason = response.finish_reason
    if reason_of_end(stream, is_over=True) is None:
        stream.finish_reason = "stop"  # it is whole, whether its provider says so or not
    return stream


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
