"""Conversations with chat agents behind a gateway, for sync code."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import httpx

from perdure.actors.remote import answers, wishes
from perdure.actors.remote.answers import Piece, Question, Reply, Telling
from perdure.actors.remote.wishes import Wish
from perdure.ledger import BadRequest

if TYPE_CHECKING:
    from perdure.actors.chat.turn import TurnTold

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
