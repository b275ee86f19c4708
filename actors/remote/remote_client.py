"""`perdure.connect_async(url)` and `perdure.connect(url)`: a gateway for async and for sync code.

What a client does is written once, as coroutines. For sync code they speak over a wire that blocks, so they never suspend: one step plays
each to its end, on the caller's thread, without an event loop.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, Protocol, Self, TypeVar, cast

import httpx

from perdure.actors.life.conditions import After
from perdure.actors.life.results import BulkReport, RunResult
from perdure.actors.link.performed import Blocks, Suspends
from perdure.actors.link.questions import Told
from perdure.actors.remote import answers, lines, remote_requests
from perdure.actors.remote.answers import AnswerEnd, AnswerOperations, ChatOperations, ChatQuestion, Piece, Telling
from perdure.actors.remote.remote_requests import (
    AgentOperations,
    ConnectionState,
    Operations,
    RemoteRequest,
    WatchPosition,
    given,
)
from perdure.actors.tasks import Pending
from perdure.ledger import BadRequest, check_text

if TYPE_CHECKING:
    from perdure.actors.chat.turn import TurnTold

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S: Final = 60.0
SILENT_S: Final = 60.0
"""How long a line may say nothing before another one is made."""
TLS_S: Final = 5.0
"""How long it is tried whether TLS is spoken."""
HTTP_PORT: Final = 80


# ---------------------------------------------------------------- chat
# Conversations with chat agents behind a gateway.


class _Ask(Protocol):
    async def __call__(self, request: RemoteRequest[T]) -> T: ...


class Wire(Protocol):
    # How a client speaks HTTP, and waits. That of sync code blocks, and never suspends its caller (`_BlockingWire`).

    async def request(self, request: RemoteRequest[object]) -> httpx.Response: ...

    def texts(
        self, request: RemoteRequest[object], again: frozenset[int], refusal: Callable[[httpx.Response], Exception]
    ) -> AsyncGenerator[str, None]:
        """Make a request, and give what its stream brings: nothing if the status is one of `again`. Raises the refusal that another status
        tells of."""

    async def sleep(self, pause_s: float) -> None: ...

    async def close(self) -> None: ...


class AsyncRemoteChat(ChatOperations, Suspends):
    """A conversation with a chat agent. What was asked goes on when the client leaves."""

    def __init__(self, wire: Wire, ask: _Ask, address: tuple[str, str]) -> None:
        remote_requests.segments(address)
        self._wire, self._ask, self._address = wire, ask, address

    async def send(self, text: str, *, message_id: str | None = None) -> AnswerEnd:
        """Ask, and wait for the whole answer, through every death behind the gateway."""
        return await self.ask(text, message_id=message_id).result()

    def ask(self, text: str, *, message_id: str | None = None) -> AsyncRemoteAnswer:
        """A question, which is asked when its answer is followed. The same id is the same question: it is asked once, and to follow it with
        another text raises `ConflictingRequest`."""
        question = ChatQuestion(self._address, answers.own_id(message_id), check_text("text", text))
        return AsyncRemoteAnswer(self._wire, self._ask, question)

    def attach(self, message_id: str) -> AsyncRemoteAnswer:
        """The answer to a question that was asked before, by whomever. To follow it raises `BadRequest` if there is none."""
        question = ChatQuestion(self._address, check_text("message_id", message_id))
        return AsyncRemoteAnswer(self._wire, self._ask, question)


class AsyncRemoteAnswer(AnswerOperations, Suspends):
    """An answer: `async for piece in answer` follows it as it is written, and `result()` waits for its end."""

    def __init__(self, wire: Wire, ask: _Ask, question: ChatQuestion) -> None:
        self._wire, self._ask, self._question = wire, ask, question
        self._reply: AnswerEnd | None = None
        self._is_asked = question.text is None

    @property
    def message_id(self) -> str:
        """The id of the question, by which `attach` finds the answer again."""
        return self._question.message_id

    async def result(self) -> AnswerEnd:
        """Wait for its end, or until it waits for a person."""
        if self._reply is None:
            async for _ in self:
                pass
        return cast("AnswerEnd", self._reply)

    async def __aiter__(self) -> AsyncGenerator[Piece, None]:
        """Its text from the beginning, over however many connections; nothing is lost, and nothing comes twice."""
        telling = Telling()
        # It is sent although the id is known: the gateway compares what was asked with it.
        while not (answers.is_at_rest(turn := await self._turn()) and self._is_asked):
            with telling.connected():
                async for piece in self._connection(turn, telling):
                    yield piece
            await self._wire.sleep(telling.pause_s())
        self._reply = answers.reply(turn, await self._messages(turn["message_id"]))
        for piece in telling.whole(self._reply.text):
            yield piece

    async def _turn(self) -> TurnTold | None:
        turn = await self._ask(self._question.turn())
        if turn is None and self._question.text is None:
            raise BadRequest("message_id", f"{self.message_id!r:.200} was never asked, or its turn was deleted")
        return turn

    async def _connection(self, turn: TurnTold | None, telling: Telling) -> AsyncGenerator[Piece, None]:
        must_ask = turn is None or not self._is_asked
        request = self._question.sent() if must_ask else self._question.followed()
        message_id = None if turn is None else turn["message_id"]
        async with aclosing(self._wire.texts(request, answers.AGAIN, answers.refusal)) as texts:
            async for text in texts:
                self._is_asked = True
                for piece in telling.take(text, message_id):
                    yield piece
                if telling.is_over:
                    return

    async def _messages(self, message_id: str) -> list[Told]:
        newest = await self._newest(answers.NEWEST)
        return newest if any(each["id"] == message_id for each in newest) else await self._newest(None)

    async def _newest(self, limit: int | None) -> list[Told]:
        return list(await self._ask(answers.method(self._question.address, "get_messages", limit)))


# ---------------------------------------------------------------- client


def connect_async(
    url: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S, authority: str | Path | None = None
) -> AsyncGateway:
    """A client of the gateway at this address, for async code. Use it in `async with`. Nothing is asked yet. Raises `BadRequest` for what
    no gateway could be asked with.

    Args:
        url: such as `http://127.0.0.1:8787`.
        token: who asks, if the gateway wants to know; white space around it is no part of it.
        timeout_s: how long an answer is waited for; events are waited for without end.
        authority: a file with the certificate of whoever has signed the gateway's, or with that itself; by default the public authorities.
    """
    return AsyncGateway(_AsyncWire(httpx.AsyncClient(**lines.http_options(url, token, timeout_s, authority))))


class _HttpWire(ABC):
    # What is the same of both wires: whether the gateway speaks what its address says.

    def __init__(self, http: httpx.AsyncClient | httpx.Client) -> None:
        self._state, self._base, self._has_answered = ConnectionState(), http.base_url, False

    @asynccontextmanager
    async def _line(self) -> AsyncGenerator[None, None]:
        # To one who speaks no TLS a gateway that does says nothing, as one that is being stopped: then that is tried.
        try:
            yield
        except (httpx.RemoteProtocolError, httpx.ReadError) as problem:
            if not self._has_answered and self._base.scheme == "http" and await self._speaks_tls():
                raise lines.unheard(problem) from problem
            raise

    async def _speaks_tls(self) -> bool:
        try:
            await self._get(self._base.copy_with(scheme="https", port=self._base.port or HTTP_PORT))
        except httpx.TransportError as problem:
            return lines.is_of_tls(problem)
        return True

    @abstractmethod
    async def _get(self, url: httpx.URL) -> None: ...


class _AsyncWire(_HttpWire):
    def __init__(self, http: httpx.AsyncClient) -> None:
        super().__init__(http)
        self._http = http

    def _check(self) -> None:
        self._state.check(asyncio.get_running_loop(), is_closed=self._http.is_closed)

    async def _get(self, url: httpx.URL) -> None:
        await self._http.get(url, timeout=TLS_S)

    async def request(self, request: RemoteRequest[object]) -> httpx.Response:
        self._check()
        async with self._line():
            answer = await self._http.request(**request.http)
        self._has_answered = True
        return answer

    async def texts(
        self, request: RemoteRequest[object], again: frozenset[int], refusal: Callable[[httpx.Response], Exception]
    ) -> AsyncGenerator[str, None]:
        self._check()
        async with self._line(), self._http.stream(**request.http, timeout=SILENT_S) as answer:
            self._has_answered = True
            if answer.status_code in again:
                return
            if answer.status_code >= remote_requests.REFUSED:
                await answer.aread()
                raise refusal(answer)
            async for text in answer.aiter_text():
                yield text

    async def sleep(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)

    async def close(self) -> None:
        await self._http.aclose()


class AsyncGateway(Operations, Suspends):
    """A gateway. What may be repeated is repeated while nobody answers; errors are raised by their own classes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. What was started goes on."""
        await self._wire.close()

    async def run(
        self,
        type: str,
        input: object = None,
        *,
        run_id: str | None = None,
        after: After | None = None,
        losers: str = "leave",
    ) -> RunResult:
        """Begin a run and wait for its end. The arguments are those of `start`."""
        return await self.result(await self.start(type, input, run_id=run_id, after=after, losers=losers))

    async def result(self, run_id: str) -> RunResult:
        """Wait for the end of a run."""
        async for _ in self.events(run_id):
            pass
        return remote_requests.ended(await self.show(run_id))

    async def events(self, run_id: str, after: int = -1) -> AsyncGenerator[Told, None]:
        """The events of a run after a number until its end, each once and in order, over however many connections."""
        place = WatchPosition(after)
        while not place.is_over:
            async with aclosing(self._connection(run_id, place)) as frames:
                async for frame in frames:
                    yield frame
            if not place.is_over:
                await self._wire.sleep(place.pause_s())

    async def _connection(self, run_id: str, place: WatchPosition) -> AsyncGenerator[Told, None]:
        path = remote_requests.run_path(run_id, "/events")
        request = RemoteRequest[object]("GET", path, query={"after": place.after})
        with place.connected():
            async with aclosing(self._wire.texts(request, remote_requests.AGAIN, remote_requests.refusal)) as texts:
                async for frame in (each async for text in texts for each in place.take(text)):
                    yield frame

    async def cancel_runs(self, /, **which: object) -> BulkReport:
        """Cancel many runs, and what their children wait for: those that `status`, `type`, `parent`, `q`, `prefix`, `error`, `parked`,
        `undoing`, `requested_since_ms`, `requested_before_ms`, `ended_since_ms` and `ended_before_ms` choose, or the named `run_ids`, or
        `all`. With `dry_run` they are only counted. `reason` is told to their parents."""
        return await self._steered("cancel", which)

    async def retry_runs(self, /, **which: object) -> BulkReport:
        """Try runs again that have failed, were given up or are parked; the filters are those of `cancel_runs`."""
        return await self._steered("retry", which)

    async def clear_runs(self, /, **which: object) -> BulkReport:
        """Forget runs and what their children had requested; the filters are those of `cancel_runs`."""
        return await self._steered("clear", which)

    async def _steered(self, verb: str, which: Mapping[str, object]) -> BulkReport:
        report = BulkReport(verb=verb, dry_run=bool(which.get("dry_run")))
        body = {**which, "verb": verb}
        while True:
            # A part may be asked for twice: what has been done is told as such. What is tried again is known by when the pass began.
            is_known = verb != "retry" or body.get("began_ms") is not None
            part = RemoteRequest[Told]("POST", "/api/runs/bulk", given(**body), repeatable=is_known)
            told = await self._ask(part)
            report.take(told)
            report.next = told["next"]
            if report.next is None:
                return report
            body |= {"before": told["next"], "began_ms": told["began_ms"]}

    def agent(self, *address: str) -> AsyncRemoteAgent:
        """An agent by its class and name, as they stand in its address: `gateway.agent("counter", "one")`. For a sub-agent follow `sub`,
        its class and its name."""
        return AsyncRemoteAgent(self._ask, address)

    def chat(self, chat_class: str, name: str) -> AsyncRemoteChat:
        """The conversation with a chat agent: `gateway.chat("assistant", "alice")`."""
        return AsyncRemoteChat(self._wire, self._ask, (chat_class, name))

    async def _ask(self, request: RemoteRequest[T]) -> T:
        begun_s = time.monotonic()
        for tries in range(lines.TRIES + 1):
            try:
                answer = await self._wire.request(request)
            except httpx.TransportError as problem:
                lines.lost(problem, tries, request.uncertain, time.monotonic() - begun_s)
            else:
                is_last = lines.is_last(tries, time.monotonic() - begun_s)
                if remote_requests.is_answered(request, answer, is_last=is_last):
                    return request.told(remote_requests.told_in(answer))
            await self._wire.sleep(remote_requests.pause_s(tries))
        raise AssertionError("the last try returns or raises")


class AsyncRemoteAgent(AgentOperations, Suspends):
    """An agent behind a gateway. Its exposed methods are called as if it were here: `await agent.add(2)`."""

    def __getattr__(self, method: str) -> Callable[..., _AwaitedCall]:
        """An exposed method, called at most once."""
        called = super().__getattr__(method)
        return lambda *args, **kwargs: _AwaitedCall(method, called(*args, **kwargs))


class _AwaitedCall(Coroutine[Any, Any, Any]):
    # A coroutine that says what is wrong if it is followed: nothing has been called by then.

    def __init__(self, method: str, job: Coroutine[Any, Any, Any]) -> None:
        self._method, self._job = method, job

    def send(self, value: Any) -> Any:
        return self._job.send(value)

    def throw(self, *raised: Any) -> Any:
        return self._job.throw(*raised)

    def close(self) -> None:
        self._job.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._job.__await__()

    def __aiter__(self) -> NoReturn:
        self.close()
        told = (
            "is called by `await`; one that gives its values bit by bit is followed over a WebSocket, or over a handle"
        )
        raise BadRequest("method", f"{self._method} {told} of a `Runtime`")


# ---------------------------------------------------------------- sync code


_BlockingAsk = Callable[[RemoteRequest[object]], object]


def connect(
    url: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S, authority: str | Path | None = None
) -> RemoteGateway:
    """A client of the gateway at this address, for sync code; the arguments are those of `connect_async`."""
    wire = _BlockingWire(httpx.Client(**lines.http_options(url, token, timeout_s, authority)))
    return RemoteGateway(AsyncGateway(wire))


class _BlockingWire(_HttpWire):
    def __init__(self, http: httpx.Client) -> None:
        super().__init__(http)
        self._http = http

    async def _get(self, url: httpx.URL) -> None:
        self._http.get(url, timeout=TLS_S)

    async def request(self, request: RemoteRequest[object]) -> httpx.Response:
        self._state.check(is_closed=self._http.is_closed)
        async with self._line():
            answer = self._http.request(**request.http)
        self._has_answered = True
        return answer

    async def texts(
        self, request: RemoteRequest[object], again: frozenset[int], refusal: Callable[[httpx.Response], Exception]
    ) -> AsyncGenerator[str, None]:
        self._state.check(is_closed=self._http.is_closed)
        async with self._line():
            with self._http.stream(**request.http, timeout=SILENT_S) as answer:
                self._has_answered = True
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


def _blocking(method: Callable[Concatenate[AsyncGateway, P], Pending[T]]) -> Callable[Concatenate[RemoteGateway, P], T]:
    @wraps(method)
    def blocked(self: RemoteGateway, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _played(method(self._gateway, *args, **kwargs))

    return blocked


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

    close, run, result = _blocking(AsyncGateway.close), _blocking(AsyncGateway.run), _blocking(AsyncGateway.result)
    cancel_runs, retry_runs = _blocking(AsyncGateway.cancel_runs), _blocking(AsyncGateway.retry_runs)
    clear_runs = _blocking(AsyncGateway.clear_runs)

    def events(self, run_id: str, after: int = -1) -> Iterator[Told]:
        """The events of a run after a number until its end, each once and in order, over however many connections."""
        return _each(self._gateway.events(run_id, after))

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

    def __init__(self, ask: _BlockingAsk, chat: AsyncRemoteChat, address: tuple[str, str]) -> None:
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

    def __init__(self, ask: _BlockingAsk, answer: AsyncRemoteAnswer) -> None:
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
