"""`perdure.connect(url)`: a gateway for sync code.

What a client does is written once, as coroutines (`remote_client`). Here they speak over a wire that blocks, so they never suspend: one
step plays each to its end, on the caller's thread, without an event loop.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from perdure.actors.life.conditions import After
from perdure.actors.life.results import BulkReport, RunResult
from perdure.actors.remote import remote_requests
from perdure.actors.remote.answers import AnswerEnd, AnswerOperations, ChatOperations, Piece
from perdure.actors.remote.remote_client import (
    SILENT_S,
    TIMEOUT_S,
    AsyncGateway,
    AsyncRemoteAnswer,
    AsyncRemoteChat,
    http_options,
)
from perdure.actors.remote.remote_requests import AgentOperations, Blocks, ConnectionState, Operations, RemoteRequest
from perdure.actors.tasks import Pending

T = TypeVar("T")

Ask = Callable[[RemoteRequest[Any]], Any]


def connect(
    url: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S, authority: str | Path | None = None
) -> RemoteGateway:
    """A client of the gateway at this address, for sync code; the arguments are those of `connect_async`."""
    wire = _BlockingWire(httpx.Client(**http_options(url, token, timeout_s, authority)))
    return RemoteGateway(AsyncGateway(wire))


class _BlockingWire:
    def __init__(self, http: httpx.Client) -> None:
        self._http, self._state = http, ConnectionState()

    async def request(self, request: RemoteRequest[object]) -> httpx.Response:
        self._state.check(is_closed=self._http.is_closed)
        return self._http.request(**request.http)

    async def texts(
        self, request: RemoteRequest[object], again: frozenset[int], refusal: Callable[[httpx.Response], Exception]
    ) -> AsyncGenerator[str, None]:
        self._state.check(is_closed=self._http.is_closed)
        with self._http.stream(**request.http, timeout=SILENT_S) as answer:
            if answer.status_code in again:
                return
            if answer.status_code >= remote_requests.REFUSED:
                answer.read()
                raise refusal(answer)
            for text in answer.iter_text():
                yield text

    async def sleep(self, pause_s: float) -> None:
        time.sleep(pause_s)  # noqa: ASYNC251 - nothing else runs on this thread

    async def close(self) -> None:
        self._http.close()


def _played(job: Pending[T]) -> T:
    try:
        job.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("what blocks does not suspend")


def _each(values: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    try:
        while True:
            try:
                value = _played(values.__anext__())
            except StopAsyncIteration:
                return
            yield value
    finally:
        _played(values.aclose())


class RemoteGateway(Operations, Blocks):
    """A gateway: `AsyncGateway` for sync code. Each method blocks."""

    def __init__(self, gateway: AsyncGateway) -> None:
        self._gateway = gateway

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: RemoteRequest[T]) -> T:
        return _played(self._gateway._ask(request))  # noqa: SLF001 - the two are one client

    def close(self) -> None:
        """Leave. What was started goes on."""
        _played(self._gateway.close())

    def run(
        self,
        type: str,
        input: object = None,
        *,
        run_id: str | None = None,
        after: After | None = None,
        losers: str = "leave",
    ) -> RunResult:
        """Begin a run and wait for its end. The arguments are those of `start`."""
        return _played(self._gateway.run(type, input, run_id=run_id, after=after, losers=losers))

    def result(self, run_id: str) -> RunResult:
        """Wait for the end of a run."""
        return _played(self._gateway.result(run_id))

    def events(self, run_id: str, after: int = -1) -> Iterator[dict[str, Any]]:
        """The events of a run after a number until its end, each once and in order, over however many connections."""
        return _each(self._gateway.events(run_id, after))

    def cancel_runs(self, **which: object) -> BulkReport:
        """Cancel many runs, and what their children wait for: those that `status`, `type`, `parent`, `q`, `prefix`, `error`, `parked`,
        `undoing`, `requested_since_ms`, `requested_before_ms`, `ended_since_ms` and `ended_before_ms` choose, or the named `run_ids`, or
        `all`. With `dry_run` they are only counted. `reason` is told to their parents."""
        return _played(self._gateway.cancel_runs(**which))

    def retry_runs(self, **which: object) -> BulkReport:
        """Try runs again that have failed, were given up or are parked; the filters are those of `cancel_runs`."""
        return _played(self._gateway.retry_runs(**which))

    def clear_runs(self, **which: object) -> BulkReport:
        """Forget runs and what their children had requested; the filters are those of `cancel_runs`."""
        return _played(self._gateway.clear_runs(**which))

    def agent(self, *address: str) -> RemoteAgent:
        """An agent by its class and name, as they stand in its address. For a sub-agent follow `sub`, its class and its name."""
        return RemoteAgent(self._ask, address)

    def chat(self, chat_class: str, name: str) -> RemoteChat:
        """The conversation with a chat agent: `gateway.chat("assistant", "alice")`."""
        return RemoteChat(self._ask, self._gateway.chat(chat_class, name), (chat_class, name))


class RemoteAgent(AgentOperations, Blocks):
    """An agent behind a gateway. Its exposed methods are called as if it were here: `agent.add(2)`."""


class RemoteChat(ChatOperations, Blocks):
    """A conversation with a chat agent. What was asked goes on when the client leaves."""

    def __init__(self, ask: Ask, chat: AsyncRemoteChat, address: tuple[str, str]) -> None:
        self._ask, self._chat, self._address = ask, chat, address

    def send(self, text: str, *, message_id: str | None = None) -> AnswerEnd:
        """Ask, and wait for the whole answer, through every death behind the gateway."""
        return self.ask(text, message_id=message_id).result()

    def ask(self, text: str, *, message_id: str | None = None) -> RemoteAnswer:
        """A question, which is asked when its answer is followed. The same id is the same question: it is asked once."""
        return RemoteAnswer(self._ask, self._chat.ask(text, message_id=message_id))

    def attach(self, message_id: str) -> RemoteAnswer:
        """The answer to a question that was asked before, by whomever. To follow it raises `BadRequest` if there is none."""
        return RemoteAnswer(self._ask, self._chat.attach(message_id))


class RemoteAnswer(AnswerOperations, Blocks):
    """An answer: `for piece in answer` follows it as it is written, and `result()` waits for its end."""

    def __init__(self, ask: Ask, answer: AsyncRemoteAnswer) -> None:
        self._ask, self._answer = ask, answer
        self._question = answer._question  # noqa: SLF001 - the two are one answer

    @property
    def message_id(self) -> str:
        """The id of the question, by which `attach` finds the answer again."""
        return self._answer.message_id

    def result(self) -> AnswerEnd:
        """Wait for its end, or until it waits for a person."""
        return _played(self._answer.result())

    def __iter__(self) -> Generator[Piece, None, None]:  # noqa: PYI058 - it can be closed
        """Its text from the beginning, over however many connections; nothing is lost, and nothing comes twice."""
        return _each(self._answer.__aiter__())
