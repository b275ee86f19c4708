"""`perdure.connect_async(url)`: a gateway for async code."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from uuid import uuid4

import httpx

from perdure.actors.life.results import RunResult
from perdure.actors.remote import answers, wishes
from perdure.actors.remote.answers import Piece, Question, Reply, Telling
from perdure.actors.remote.wishes import Line, Place, Wish
from perdure.ledger import BadRequest

if TYPE_CHECKING:
    from perdure.actors.chat.turn import TurnTold


TIMEOUT_S = 60.0


# ---------------------------------------------------------------- chat
# Conversations with chat agents behind a gateway, for async code.


Ask = Callable[[Wish], Awaitable[Any]]


class AsyncRemoteChat:
    """A conversation with a chat agent. What was asked goes on when the client leaves."""

    def __init__(self, http: httpx.AsyncClient, ask: Ask, address: tuple[str, str]) -> None:
        self._http, self._ask, self._address = http, ask, address

    async def send(self, text: str, *, message_id: str | None = None) -> Reply:
        """Ask, and wait for the whole answer, through every death behind the gateway."""
        return await self.ask(text, message_id=message_id).result()

    def ask(self, text: str, *, message_id: str | None = None) -> AsyncAnswer:
        """A question, which is asked when its answer is followed. The same id is the same question: it is asked once."""
        given = uuid4().hex if message_id is None else message_id
        return AsyncAnswer(self._http, self._ask, Question(self._address, given, text))

    def attach(self, message_id: str) -> AsyncAnswer:
        """The answer to a question that was asked before, by whomever. To follow it raises `BadRequest` if there is none."""
        return AsyncAnswer(self._http, self._ask, Question(self._address, message_id))

    async def cancel(self) -> int:
        """Cancel whatever is under way, and return how many turns there were."""
        return int((await self._ask(answers.chat(self._address, "POST", "cancel")))["cancelled"])

    async def messages(self, limit: int | None = None, before: str | None = None) -> list[dict[str, Any]]:
        """The conversation without what is being written: the newest messages, or those before one, oldest first."""
        which = {name: value for name, value in (("limit", limit), ("before", before)) if value is not None}
        return list(await self._ask(answers.chat(self._address, "GET", "messages", which)))


class AsyncAnswer:
    """An answer: `async for piece in answer` follows it as it is written, and `result()` waits for its end."""

    def __init__(self, http: httpx.AsyncClient, ask: Ask, question: Question) -> None:
        self._http, self._ask, self._question = http, ask, question
        self._reply: Reply | None = None

    @property
    def message_id(self) -> str:
        """The id of the question, by which `attach` finds the answer again."""
        return self._question.message_id

    async def cancel(self) -> bool:
        """Cancel it, and return whether it was under way."""
        return bool((await self._ask(self._question.cancelled()))["value"])

    async def result(self) -> Reply:
        """Wait for its end, or until it waits for a person."""
        if self._reply is None:
            async for _ in self:
                pass
        return cast("Reply", self._reply)

    async def __aiter__(self) -> AsyncGenerator[Piece, None]:
        """Its text from the beginning, over however many connections; nothing is lost, and nothing comes twice."""
        telling = Telling()
        while not answers.is_at_rest(turn := await self._turn()):
            with telling.connected():
                async for piece in self._connection(turn, telling):
                    yield piece
            await asyncio.sleep(telling.pause_s())
        self._reply = answers.reply(turn, await self._messages(turn["message_id"]))
        for piece in telling.whole(self._reply.text):
            yield piece

    async def _turn(self) -> TurnTold | None:
        turn: TurnTold | None = (await self._ask(self._question.turn()))["value"]
        if turn is None and self._question.text is None:
            raise BadRequest("message_id", f"{self.message_id!r:.200} was never asked, or its turn was deleted")
        return turn

    async def _connection(self, turn: TurnTold | None, telling: Telling) -> AsyncGenerator[Piece, None]:
        wish = self._question.sent() if turn is None else self._question.followed()
        message_id = None if turn is None else turn["message_id"]
        stream = self._http.stream(wish.method, wish.path, json=wish.body, params=wish.query, timeout=answers.SILENT_S)
        async with stream as answer:
            if answer.status_code in answers.AGAIN:
                return
            if answer.status_code >= wishes.REFUSED:
                await answer.aread()
                raise answers.refusal(answer)
            async for text in answer.aiter_text():
                for piece in telling.take(text, message_id):
                    yield piece
                if telling.is_over:
                    return

    async def _messages(self, message_id: str) -> list[dict[str, Any]]:
        newest = await self._newest(answers.NEWEST)
        return newest if any(each["id"] == message_id for each in newest) else await self._newest(None)

    async def _newest(self, limit: int | None) -> list[dict[str, Any]]:
        return list((await self._ask(answers.method(self._question.address, "get_messages", limit)))["value"])


# ---------------------------------------------------------------- client


def connect_async(
    url: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S, authority: str | Path | None = None
) -> AsyncGateway:
    """A client of the gateway at this address, for async code. Use it in `async with`. Nothing is asked yet. Raises `BadRequest` for an
    authority that is none.

    Args:
        url: such as `http://127.0.0.1:8787`.
        token: who asks, if the gateway wants to know.
        timeout_s: how long an answer is waited for; events are waited for without end.
        authority: a file with the certificate of whoever has signed the gateway's, or with that itself; by default the public authorities.
    """
    return AsyncGateway(
        _Http(base_url=url, headers=headers_of(token), timeout=timeout_s, trust_env=False, verify=trust(authority))
    )


def trust(authority: str | Path | None) -> ssl.SSLContext | bool:
    """Whose certificates are believed, for httpx."""
    if authority is None:
        return True
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as problem:
        raise BadRequest("authority", f"{authority} is no file with a certificate: {problem}") from problem


def headers_of(token: str | None) -> dict[str, str]:
    """The headers that say who asks."""
    return {} if token is None else {"authorization": f"Bearer {token}"}


class _Http(httpx.AsyncClient):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._line = Line()

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Send it, unless this client cannot be used any more, or not here."""
        self._line.check(asyncio.get_running_loop(), is_closed=self.is_closed)
        return await super().send(request, **options)


class AsyncGateway:
    """A gateway. What may be repeated is repeated while nobody answers; errors are raised by their own classes."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. What was started goes on."""
        await self._http.aclose()

    async def start(self, type: str, input: object = None, *, run_id: str | None = None) -> str:
        """Begin a run of a class that the gateway serves, and return its id when it is durable. The same id with the same content is the
        same run."""
        told = await self._ask(wishes.start(type, input, uuid4().hex if run_id is None else run_id))
        return str(told["run_id"])

    async def run(self, type: str, input: object = None, *, run_id: str | None = None) -> RunResult:
        """Begin a run and wait for its end."""
        return await self.result(await self.start(type, input, run_id=run_id))

    async def result(self, run_id: str) -> RunResult:
        """Wait for the end of a run."""
        async for _ in self.events(run_id):
            pass
        return wishes.ended(await self.show(run_id))

    async def events(self, run_id: str, after: int = -1) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a run after a number until its end, each once and in order, over however many connections."""
        place = Place(after)
        while not place.is_over:
            with place.connected():
                async for frame in self._events(run_id, place):
                    yield frame
            if not place.is_over:
                await asyncio.sleep(place.pause_s())

    async def _events(self, run_id: str, place: Place) -> AsyncGenerator[dict[str, Any], None]:
        path, after = f"{wishes.of_run(run_id).path}/events", {"after": place.after}
        async with self._http.stream("GET", path, params=after, timeout=TIMEOUT_S) as answer:
            if answer.status_code in wishes.AGAIN:
                return
            if answer.status_code >= wishes.REFUSED:
                await answer.aread()
                raise wishes.error_of(answer.status_code, wishes.json_of(answer))
            async for piece in answer.aiter_text():
                for frame in place.take(piece):
                    yield frame

    async def show(self, run_id: str) -> dict[str, Any]:
        """Everything about a run. Raises `UnknownRun`."""
        return dict(await self._ask(wishes.of_run(run_id)))

    async def explain(self, run_id: str) -> list[str]:
        """Where a run stands and why, in lines."""
        return list((await self._ask(wishes.of_run(run_id, "/explain")))["lines"])

    async def runs(self, **which: object) -> dict[str, Any]:
        """A page of runs, newest first: `runs`, and `next` for `before`. Filters are `status`, `type`, `parent`, `q` and `limit`."""
        return dict(await self._ask(wishes.listing(which)))

    async def overview(self) -> dict[str, Any]:
        """What `perdure ps` tells."""
        return dict(await self._ask(Wish("GET", "/api/overview")))

    async def cancel(self, run_id: str, reason: str = "cancelled by a client") -> str:
        """Cancel a run, and return its status after that."""
        told = await self._ask(wishes.of_run(run_id, "/cancel", method="POST", body={"reason": reason}))
        return str(told["status"])

    async def retry(self, run_id: str) -> str:
        """Try a run again, and return its status after that. Raises `RetryRefused`."""
        told = await self._ask(wishes.of_run(run_id, "/retry", method="POST", body={})._replace(repeatable=False))
        return str(told["status"])

    async def clear(self, run_id: str) -> None:
        """Forget a run and its child's storage."""
        await self._ask(wishes.of_run(run_id, method="DELETE")._replace(repeatable=False))

    async def clear_runs(
        self,
        run_ids: Sequence[str] | None = None,
        *,
        status: Sequence[str] | None = None,
        before_ms: int | None = None,
        everything: bool = False,
    ) -> int:
        """Forget runs: these, or those of a status or requested before an instant, or all. Returns how many."""
        return int((await self._ask(wishes.clear_runs(run_ids, status, before_ms, everything)))["cleared"])

    async def inspect(self, address: str, *, sql: str | None = None) -> dict[str, Any]:
        """Everything about an agent, by its address as name@module:Class. It is not woken. `rows` answer the SQL, which reads only."""
        return dict(await self._ask(wishes.inspect(address, sql)))

    async def fibers(self, *, failed: bool = False, limit: int = 50) -> list[dict[str, Any]]:
        """Fibers of the agents that wrote last, newest first."""
        return list((await self._ask(wishes.work("fibers", failed, limit)))["rows"])

    async def schedules(self, *, failed: bool = False, limit: int = 50) -> list[dict[str, Any]]:
        """Schedules and queued items of the agents that wrote last, newest first."""
        return list((await self._ask(wishes.work("schedules", failed, limit)))["rows"])

    async def turns(self, *, failed: bool = False, limit: int = 50) -> list[dict[str, Any]]:
        """Turns of the chat agents that wrote last, newest first."""
        return list((await self._ask(wishes.work("turns", failed, limit)))["rows"])

    async def audit(self) -> dict[str, Any]:
        """The account of all mail."""
        return dict(await self._ask(Wish("GET", "/api/audit")))

    async def limits(self) -> dict[str, Any]:
        """The limits in force; an infinite one is None."""
        return dict((await self._ask(Wish("GET", "/api/limits")))["limits"])

    async def hosts(self) -> dict[str, Any]:
        """The processes that serve."""
        return dict(await self._ask(Wish("GET", "/api/hosts")))

    async def logs(
        self, of: str = "", *, level: str = "debug", since_ms: int = 0, last: int = 1_000
    ) -> list[dict[str, Any]]:
        """The newest records that agents' code printed and logged: of a run, an agent or a host, or all."""
        return list((await self._ask(wishes.logs(of, level, since_ms, last)))["records"])

    async def doctor(self, *, deep: bool = False) -> list[dict[str, str]]:
        """What an examination finds: `severity`, `what` and `advice` of each finding."""
        return list((await self._ask(wishes.doctor(deep=deep)))["findings"])

    async def backup(self, *, keep: int = 0) -> dict[str, Any]:
        """Have a backup made where the gateway makes them, and wait for it. With `keep` only so many remain, the newest."""
        return dict(await self._ask(wishes.backup(keep)))

    async def upgrade(self, type: str | None = None, *, now: bool = False) -> list[dict[str, Any]]:
        """Which code stands where. With `now` agents at rest that have older code leave, and wake with the newest."""
        return list((await self._ask(wishes.upgrade(type, now)))["types"])

    async def forget(self, address: str) -> None:
        """Delete an agent, by its address as name@module:Class, with all that is its own."""
        await self._ask(wishes.forget(address))

    async def kill(self, process: str) -> str:
        """Kill `supervisor` or a host, where the gateway allows it, and return in words what was done."""
        return str((await self._ask(Wish("POST", "/api/kill", {"process": process}, repeatable=False)))["told"])

    async def stop(self, timeout_ms: int = 30_000) -> None:
        """Stop the directory and what serves it, once work has had so long to end by itself."""
        await self._ask(wishes.stop(timeout_ms))

    def agent(self, *address: str) -> AsyncRemoteAgent:
        """An agent by its class and name, as they stand in its address: `gateway.agent("counter", "one")`. For a sub-agent follow `sub`,
        its class and its name."""
        return AsyncRemoteAgent(self._ask, address)

    def chat(self, chat_class: str, name: str) -> AsyncRemoteChat:
        """The conversation with a chat agent: `gateway.chat("assistant", "alice")`."""
        return AsyncRemoteChat(self._http, self._ask, (chat_class, name))

    async def _ask(self, wish: Wish) -> Any:
        for tries in range(wishes.TRIES + 1):
            try:
                answer = await self._http.request(wish.method, wish.path, json=wish.body, params=wish.query)
            except httpx.TransportError as problem:
                wishes.lost(wish, problem, tries)
            else:
                if wishes.is_answered(wish, answer, tries):
                    return answer.json()
            await asyncio.sleep(wishes.pause_s(tries))
        raise AssertionError("the last try returns or raises")


class AsyncRemoteAgent:
    """An agent behind a gateway. Its exposed methods are called as if it were here: `await agent.add(2)`."""

    def __init__(self, ask: Callable[[Wish], Awaitable[Any]], address: tuple[str, ...]) -> None:
        self._ask, self._address = ask, address

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        """An exposed method, called at most once."""
        if method.startswith("__"):
            raise AttributeError(method)

        async def called(*args: object, **kwargs: object) -> Any:
            return (await self._ask(wishes.call(self._address, "call", method, args, kwargs)))["value"]

        return called

    async def tell(self, method: str, *args: object, **kwargs: object) -> None:
        """Have an exposed method called exactly once, some time soon; durable on return. It is not repeated if the line breaks."""
        await self._ask(wishes.call(self._address, "tell", method, args, kwargs))
