"""What is seen of the line to a provider, beside the events that its library passes on.

A provider that is thinking may send keep-alives (comments in a stream of events, `ping` of Anthropic). No library tells of them, so a line
looks dead that is alive. Bytes are seen by a hook of the HTTP client, which touches nothing but the responses to requests that are made
under `LISTENING`.

The client is our own, or that of a model object: what pydantic-ai has made for it, or its author for the client of the API. If it is none
of `httpx2`, or kept elsewhere, keep-alives are not seen, and the line is silent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from perdure.actors.code.author_call import tried_now
from perdure.policies import one_line

if TYPE_CHECKING:
    import httpx2


SHOWN_BYTES: Final = 150


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
        if len(self._first) < SHOWN_BYTES:
            self._first += piece[:SHOWN_BYTES]

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
        words = "" if is_packed else one_line(self._first[:SHOWN_BYTES].decode(errors="replace"))
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
