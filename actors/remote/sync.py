"""`perdure.connect(url)`: a gateway for sync code."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

import httpx

from perdure.actors.life.results import RunResult
from perdure.actors.remote import answers, wishes
from perdure.actors.remote.answers import Piece, Question, Reply, Telling
from perdure.actors.remote.client import TIMEOUT_S, headers_of, trust
from perdure.actors.remote.wishes import Line, Place, Wish
from perdure.ledger import BadRequest

if TYPE_CHECKING:
    from perdure.actors.chat.turn import TurnTold


# ---------------------------------------------------------------- sync chat
# Conversations with chat agents behind a gateway, for sync code.


Ask = Callable[[Wish], Any]


class RemoteChat:
    """A conversation with a chat agent. What was asked goes on when the client leaves."""

    def __init__(self, http: httpx.Client, ask: Ask, address: tuple[str, str]) -> None:
        self._http, self._ask, self._address = http, ask, address

    def send(self, text: str, *, message_id: str | None = None) -> Reply:
        """Ask, and wait for the whole answer, through every death behind the gateway."""
        return self.ask(text, message_id=message_id).result()

    def ask(self, text: str, *, message_id: str | None = None) -> Answer:
        """A question, which is asked when its answer is followed. The same id is the same question: it is asked once."""
        given = uuid4().hex if message_id is None else message_id
        return Answer(self._http, self._ask, Question(self._address, given, text))

    def attach(self, message_id: str) -> Answer:
        """The answer to a question that was asked before, by whomever. To follow it raises `BadRequest` if there is none."""
        return Answer(self._http, self._ask, Question(self._address, message_id))

    def cancel(self) -> int:
        """Cancel whatever is under way, and return how many turns there were."""
        return int(self._ask(answers.chat(self._address, "POST", "cancel"))["cancelled"])

    def messages(self, limit: int | None = None, before: str | None = None) -> list[dict[str, Any]]:
        """The conversation without what is being written: the newest messages, or those before one, oldest first."""
        which = {name: value for name, value in (("limit", limit), ("before", before)) if value is not None}
        return list(self._ask(answers.chat(self._address, "GET", "messages", which)))


class Answer:
    """An answer: `for piece in answer` follows it as it is written, and `result()` waits for its end."""

    def __init__(self, http: httpx.Client, ask: Ask, question: Question) -> None:
        self._http, self._ask, self._question = http, ask, question
        self._reply: Reply | None = None

    @property
    def message_id(self) -> str:
        """The id of the question, by which `attach` finds the answer again."""
        return self._question.message_id

    def cancel(self) -> bool:
        """Cancel it, and return whether it was under way."""
        return bool(self._ask(self._question.cancelled())["value"])

    def result(self) -> Reply:
        """Wait for its end, or until it waits for a person."""
        if self._reply is None:
            for _ in self:
                pass
        return cast("Reply", self._reply)

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
        turn: TurnTold | None = self._ask(self._question.turn())["value"]
        if turn is None and self._question.text is None:
            raise BadRequest("message_id", f"{self.message_id!r:.200} was never asked, or its turn was deleted")
        return turn

    def _connection(self, turn: TurnTold | None, telling: Telling) -> Generator[Piece, None, None]:
        wish = self._question.sent() if turn is None else self._question.followed()
        message_id = None if turn is None else turn["message_id"]
        stream = self._http.stream(wish.method, wish.path, json=wish.body, params=wish.query, timeout=answers.SILENT_S)
        with stream as answer:
            if answer.status_code in answers.AGAIN:
                return
            if answer.status_code >= wishes.REFUSED:
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
        return list(self._ask(answers.method(self._question.address, "get_messages", limit))["value"])


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
        self._line = Line()

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send it, unless this client cannot be used any more, or not here."""
        self._line.check(is_closed=self.is_closed)
        return super().send(request, **options)


class RemoteGateway:
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

    def start(self, type: str, input: object = None, *, run_id: str | None = None) -> str:
        """Begin a run of a class that the gateway serves, and return its id when it is durable."""
        told = self._ask(wishes.start(type, input, uuid4().hex if run_id is None else run_id))
        return str(told["run_id"])

    def run(self, type: str, input: object = None, *, run_id: str | None = None) -> RunResult:
        """Begin a run and wait for its end."""
        return self.result(self.start(type, input, run_id=run_id))

    def result(self, run_id: str) -> RunResult:
        """Wait for the end of a run."""
        for _ in self.events(run_id):
            pass
        return wishes.ended(self.show(run_id))

    def events(self, run_id: str, after: int = -1) -> Iterator[dict[str, Any]]:
        """The events of a run after a number until its end, each once and in order, over however many connections."""
        place = Place(after)
        while not place.is_over:
            with place.connected():
                yield from self._events(run_id, place)
            if not place.is_over:
                time.sleep(place.pause_s())

    def _events(self, run_id: str, place: Place) -> Iterator[dict[str, Any]]:
        path, after = f"{wishes.of_run(run_id).path}/events", {"after": place.after}
        with self._http.stream("GET", path, params=after, timeout=TIMEOUT_S) as answer:
            if answer.status_code in wishes.AGAIN:
                return
            if answer.status_code >= wishes.REFUSED:
                answer.read()
                raise wishes.error_of(answer.status_code, wishes.json_of(answer))
            for piece in answer.iter_text():
                yield from place.take(piece)

    def show(self, run_id: str) -> dict[str, Any]:
        """Everything about a run. Raises `UnknownRun`."""
        return dict(self._ask(wishes.of_run(run_id)))

    def explain(self, run_id: str) -> list[str]:
        """Where a run stands and why, in lines."""
        return list(self._ask(wishes.of_run(run_id, "/explain"))["lines"])

    def runs(self, **which: object) -> dict[str, Any]:
        """A page of runs, newest first: `runs`, and `next` for `before`. Filters are `status`, `type`, `parent`, `q` and `limit`."""
        return dict(self._ask(wishes.listing(which)))

    def overview(self) -> dict[str, Any]:
        """What `perdure ps` tells."""
        return dict(self._ask(Wish("GET", "/api/overview")))

    def cancel(self, run_id: str, reason: str = "cancelled by a client") -> str:
        """Cancel a run, and return its status after that."""
        return str(self._ask(wishes.of_run(run_id, "/cancel", method="POST", body={"reason": reason}))["status"])

    def retry(self, run_id: str) -> str:
        """Try a run again, and return its status after that. Raises `RetryRefused`."""
        told = self._ask(wishes.of_run(run_id, "/retry", method="POST", body={})._replace(repeatable=False))
        return str(told["status"])

    def clear(self, run_id: str) -> None:
        """Forget a run and its child's storage."""
        self._ask(wishes.of_run(run_id, method="DELETE")._replace(repeatable=False))

    def clear_runs(
        self,
        run_ids: Sequence[str] | None = None,
        *,
        status: Sequence[str] | None = None,
        before_ms: int | None = None,
        everything: bool = False,
    ) -> int:
        """Forget runs: these, or those of a status or requested before an instant, or all. Returns how many."""
        return int(self._ask(wishes.clear_runs(run_ids, status, before_ms, everything))["cleared"])

    def inspect(self, address: str, *, sql: str | None = None) -> dict[str, Any]:
        """Everything about an agent, by its address as name@module:Class. It is not woken. `rows` answer the SQL, which reads only."""
        return dict(self._ask(wishes.inspect(address, sql)))

    def fibers(self, *, failed: bool = False, limit: int = 50) -> list[dict[str, Any]]:
        """Fibers of the agents that wrote last, newest first."""
        return list(self._ask(wishes.work("fibers", failed, limit))["rows"])

    def schedules(self, *, failed: bool = False, limit: int = 50) -> list[dict[str, Any]]:
        """Schedules and queued items of the agents that wrote last, newest first."""
        return list(self._ask(wishes.work("schedules", failed, limit))["rows"])

    def turns(self, *, failed: bool = False, limit: int = 50) -> list[dict[str, Any]]:
        """Turns of the chat agents that wrote last, newest first."""
        return list(self._ask(wishes.work("turns", failed, limit))["rows"])

    def audit(self) -> dict[str, Any]:
        """The account of all mail."""
        return dict(self._ask(Wish("GET", "/api/audit")))

    def limits(self) -> dict[str, Any]:
        """The limits in force; an infinite one is None."""
        return dict(self._ask(Wish("GET", "/api/limits"))["limits"])

    def hosts(self) -> dict[str, Any]:
        """The processes that serve."""
        return dict(self._ask(Wish("GET", "/api/hosts")))

    def logs(self, of: str = "", *, level: str = "debug", since_ms: int = 0, last: int = 1_000) -> list[dict[str, Any]]:
        """The newest records that agents' code printed and logged: of a run, an agent or a host, or all."""
        return list(self._ask(wishes.logs(of, level, since_ms, last))["records"])

    def doctor(self, *, deep: bool = False) -> list[dict[str, str]]:
        """What an examination finds: `severity`, `what` and `advice` of each finding."""
        return list(self._ask(wishes.doctor(deep=deep))["findings"])

    def backup(self, *, keep: int = 0) -> dict[str, Any]:
        """Have a backup made where the gateway makes them, and wait for it. With `keep` only so many remain, the newest."""
        return dict(self._ask(wishes.backup(keep)))

    def upgrade(self, type: str | None = None, *, now: bool = False) -> list[dict[str, Any]]:
        """Which code stands where. With `now` agents at rest that have older code leave, and wake with the newest."""
        return list(self._ask(wishes.upgrade(type, now))["types"])

    def forget(self, address: str) -> None:
        """Delete an agent, by its address as name@module:Class, with all that is its own."""
        self._ask(wishes.forget(address))

    def kill(self, process: str) -> str:
        """Kill `supervisor` or a host, where the gateway allows it, and return in words what was done."""
        return str(self._ask(Wish("POST", "/api/kill", {"process": process}, repeatable=False))["told"])

    def stop(self, timeout_ms: int = 30_000) -> None:
        """Stop the directory and what serves it, once work has had so long to end by itself."""
        self._ask(wishes.stop(timeout_ms))

    def agent(self, *address: str) -> RemoteAgent:
        """An agent by its class and name, as they stand in its address. For a sub-agent follow `sub`, its class and its name."""
        return RemoteAgent(self._ask, address)

    def chat(self, chat_class: str, name: str) -> RemoteChat:
        """The conversation with a chat agent: `gateway.chat("assistant", "alice")`."""
        return RemoteChat(self._http, self._ask, (chat_class, name))

    def _ask(self, wish: Wish) -> Any:
        for tries in range(wishes.TRIES + 1):
            try:
                answer = self._http.request(wish.method, wish.path, json=wish.body, params=wish.query)
            except httpx.TransportError as problem:
                wishes.lost(wish, problem, tries)
            else:
                if wishes.is_answered(wish, answer, tries):
                    return answer.json()
            time.sleep(wishes.pause_s(tries))
        raise AssertionError("the last try returns or raises")


class RemoteAgent:
    """An agent behind a gateway. Its exposed methods are called as if it were here: `agent.add(2)`."""

    def __init__(self, ask: Callable[[Wish], Any], address: tuple[str, ...]) -> None:
        self._ask, self._address = ask, address

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """An exposed method, called at most once."""
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *args, **kwargs: self._ask(wishes.call(self._address, "call", method, args, kwargs))["value"]

    def tell(self, method: str, *args: object, **kwargs: object) -> None:
        """Have an exposed method called exactly once, some time soon; durable on return. It is not repeated if the line breaks."""
        self._ask(wishes.call(self._address, "tell", method, args, kwargs))
