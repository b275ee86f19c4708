"""`perdure.connect(url)`: a gateway for sync code."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import uuid4

import httpx

from perdure.actors.life.results import RunResult
from perdure.actors.remote import answers, remote_requests
from perdure.actors.remote.answers import AnswerEnd, AnswerOperations, ChatOperations, ChatQuestion, Piece, Telling
from perdure.actors.remote.remote_client import TIMEOUT_S, headers_of, trust
from perdure.actors.remote.remote_requests import Blocks, ConnectionState, Operations, RemoteRequest, WatchPosition
from perdure.ledger import BadRequest

if TYPE_CHECKING:
    from perdure.actors.chat.turn import TurnTold


T = TypeVar("T")

# ---------------------------------------------------------------- sync chat
# Conversations with chat agents behind a gateway, for sync code.


Ask = Callable[[RemoteRequest[Any]], Any]


class RemoteChat(ChatOperations, Blocks):
    """A conversation with a chat agent. What was asked goes on when the client leaves."""

    def __init__(self, http: httpx.Client, ask: Ask, address: tuple[str, str]) -> None:
        self._http, self._ask, self._address = http, ask, address

    def send(self, text: str, *, message_id: str | None = None) -> AnswerEnd:
        """Ask, and wait for the whole answer, through every death behind the gateway."""
        return self.ask(text, message_id=message_id).result()

    def ask(self, text: str, *, message_id: str | None = None) -> Answer:
        """A question, which is asked when its answer is followed. The same id is the same question: it is asked once."""
        given = uuid4().hex if message_id is None else message_id
        return Answer(self._http, self._ask, ChatQuestion(self._address, given, text))

    def attach(self, message_id: str) -> Answer:
        """The answer to a question that was asked before, by whomever. To follow it raises `BadRequest` if there is none."""
        return Answer(self._http, self._ask, ChatQuestion(self._address, message_id))


class Answer(AnswerOperations, Blocks):
    """An answer: `for piece in answer` follows it as it is written, and `result()` waits for its end."""

    def __init__(self, http: httpx.Client, ask: Ask, question: ChatQuestion) -> None:
        self._http, self._ask, self._question = http, ask, question
        self._reply: AnswerEnd | None = None

    @property
    def message_id(self) -> str:
        """The id of the question, by which `attach` finds the answer again."""
        return self._question.message_id

    def result(self) -> AnswerEnd:
        """Wait for its end, or until it waits for a person."""
        if self._reply is None:
            for _ in self:
                pass
        return cast("AnswerEnd", self._reply)

    def __iter__(self) -> Generator[Piece, None, None]:
        """Its text from the beginning, over however many connections; nothing is lost, and nothing comes twice."""
        telling = Telling()
        while not answers.is_at_rest(turn := self._turn()):
            with telling.connected():
                yield from self._connection(turn, telling)
            time.sleep(telling.pause_s())
        self._reply = answers.reply(turn, self._messages(turn["message_id"]))
        yield from telling.whole(self._reply.text)

    def _turn(self) -> TurnTold | None:
        turn: TurnTold | None = self._ask(self._question.turn())
        if turn is None and self._question.text is None:
            raise BadRequest("message_id", f"{self.message_id!r:.200} was never asked, or its turn was deleted")
        return turn

    def _connection(self, turn: TurnTold | None, telling: Telling) -> Generator[Piece, None, None]:
        request = self._question.sent() if turn is None else self._question.followed()
        message_id = None if turn is None else turn["message_id"]
        stream = self._http.stream(
            request.method, request.path, json=request.body, params=request.query, timeout=answers.SILENT_S
        )
        with stream as answer:
            if answer.status_code in answers.AGAIN:
                return
            if answer.status_code >= remote_requests.REFUSED:
                answer.read()
                raise answers.refusal(answer)
            for text in answer.iter_text():
                yield from telling.take(text, message_id)
                if telling.is_over:
                    return

    def _messages(self, message_id: str) -> list[dict[str, Any]]:
        newest = self._newest(answers.NEWEST)
        return newest if any(each["id"] == message_id for each in newest) else self._newest(None)

    def _newest(self, limit: int | None) -> list[dict[str, Any]]:
        return list(self._ask(answers.method(self._question.address, "get_messages", limit)))


# ---------------------------------------------------------------- sync


def connect(
    url: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S, authority: str | Path | None = None
) -> RemoteGateway:
    """A client of the gateway at this address, for sync code; the arguments are those of `connect_async`."""
    return RemoteGateway(
        _Http(base_url=url, headers=headers_of(token), timeout=timeout_s, trust_env=False, verify=trust(authority))
    )


class _Http(httpx.Client):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._line = ConnectionState()

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send it, unless this client cannot be used any more, or not here."""
        self._line.check(is_closed=self.is_closed)
        return super().send(request, **options)


class RemoteGateway(Operations, Blocks):
    """A gateway: `AsyncGateway` for sync code. Each method blocks."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave. What was started goes on."""
        self._http.close()

    def run(self, type: str, input: object = None, *, run_id: str | None = None) -> RunResult:
        """Begin a run and wait for its end."""
        return self.result(self.start(type, input, run_id=run_id))

    def result(self, run_id: str) -> RunResult:
        """Wait for the end of a run."""
        for _ in self.events(run_id):
            pass
        return remote_requests.ended(self.show(run_id))

    def events(self, run_id: str, after: int = -1) -> Iterator[dict[str, Any]]:
        """The events of a run after a number until its end, each once and in order, over however many connections."""
        place = WatchPosition(after)
        while not place.is_over:
            with place.connected():
                yield from self._events(run_id, place)
            if not place.is_over:
                time.sleep(place.pause_s())

    def _events(self, run_id: str, place: WatchPosition) -> Iterator[dict[str, Any]]:
        path, after = remote_requests.run_path(run_id, "/events"), {"after": place.after}
        with self._http.stream("GET", path, params=after, timeout=TIMEOUT_S) as answer:
            if answer.status_code in remote_requests.AGAIN:
                return
            if answer.status_code >= remote_requests.REFUSED:
                answer.read()
                raise remote_requests.error_of(answer.status_code, remote_requests.json_of(answer))
            for piece in answer.iter_text():
                yield from place.take(piece)

    def agent(self, *address: str) -> RemoteAgent:
        """An agent by its class and name, as they stand in its address. For a sub-agent follow `sub`, its class and its name."""
        return RemoteAgent(self._ask, address)

    def chat(self, chat_class: str, name: str) -> RemoteChat:
        """The conversation with a chat agent: `gateway.chat("assistant", "alice")`."""
        return RemoteChat(self._http, self._ask, (chat_class, name))

    def _ask(self, request: RemoteRequest[T]) -> T:
        for tries in range(remote_requests.TRIES + 1):
            try:
                answer = self._http.request(request.method, request.path, json=request.body, params=request.query)
            except httpx.TransportError as problem:
                remote_requests.lost(request, problem, tries)
            else:
                if remote_requests.is_answered(request, answer, tries):
                    return request.told(answer.json())
            time.sleep(remote_requests.pause_s(tries))
        raise AssertionError("the last try returns or raises")


class RemoteAgent:
    """An agent behind a gateway. Its exposed methods are called as if it were here: `agent.add(2)`."""

    def __init__(self, ask: Callable[[RemoteRequest[Any]], Any], address: tuple[str, ...]) -> None:
        self._ask, self._address = ask, address

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """An exposed method, called at most once."""
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._ask(remote_requests.call(self._address, "call", method, args, kwargs))

    def tell(self, method: str, *args: object, **kwargs: object) -> None:
        """Have an exposed method called exactly once, some time soon; durable on return. It is not repeated if the line breaks."""
        self._ask(remote_requests.call(self._address, "tell", method, args, kwargs))
