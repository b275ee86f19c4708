"""Conversations with chat agents behind a gateway, for async code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import httpx

from perdure.actors.remote import answers, wishes
from perdure.actors.remote.answers import Piece, Question, Reply, Telling
from perdure.actors.remote.wishes import Wish
from perdure.ledger import BadRequest

if TYPE_CHECKING:
    from perdure.actors.chat.turn import TurnTold

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
