"""Finds models by name, and gives them their connections and keys.

Connections belong to the event loop that opened them. So models that were found by name are kept one set per loop, with one HTTP client.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.actors.chat.answer_reader import ANSWER_BYTES_MAX
from perdure.actors.chat.turn_failures import too_long
from perdure.actors.code.author_call import tried_now
from perdure.actors.code.naming import IMPORTING
from perdure.ledger import BadRequest, Secret, strike

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

LIBRARY_TIMEOUT_S = 3600.0
CONNECT_TIMEOUT_S = 30.0

_OUR_CLIENT = re.compile(r"httpx2\.AsyncClient|AsyncHTTPClient|_OpenAIHTTPClient")
_WIRE_BYTES_MAX = 8 * ANSWER_BYTES_MAX  # each piece of an answer is wrapped in much more than itself


class UnusableModel(BadRequest):
    """The model cannot be asked: its name is unknown, or something that it needs is not set or not installed."""


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


def library_of(model: object) -> str:
    """The provider that is named, whose library `load_library` imports; empty for a model that is no name."""
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


def _provider(name: str, key: str | None, client: httpx2.AsyncClient) -> Provider[Any]:
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
        timeout=httpx2.Timeout(LIBRARY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=CONNECT_TIMEOUT_S),
        limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
        headers={"User-Agent": get_user_agent()},
        event_hooks={"response": [bound]},
    )
