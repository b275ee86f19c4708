"""Answers of chat agents as a client elsewhere hears them, as plain data. Without IO: the same for sync and async code.

A question is known by the id of its message. So it may be asked again after a lost line, and another process may follow its answer. The
gateway tells an answer from its beginning on each connection; what was heard already is not told twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard
from uuid import uuid4

import httpx

from perdure.actors.link.questions import Told
from perdure.actors.remote import remote_requests
from perdure.actors.remote.remote_requests import Listening, RemoteRequest, given, operation, segment, segments
from perdure.ledger import check_text, request_of
from perdure.policies import TURN_ENDED, TurnStatus

if TYPE_CHECKING:
    from perdure.actors.chat.turn import TurnTold

AGAIN: Final = remote_requests.AGAIN | {502}
"""Refusals after which the question is looked for, and asked again if it is not there."""
NEWEST: Final = 20
_KINDS: Final = {401: "Unauthenticated", 403: "Forbidden"}
_LAST: Final = frozenset({"finish", "abort", "error"})
_AI: Final = {"ai": "7"}
_ONCE: Final = {**_AI, "once": "true"}


class Piece(NamedTuple):
    """What an answer has gained: of what was told before the first `kept` characters stand, and `text` follows them."""

    kept: int
    text: str


class AnswerEnd(NamedTuple):
    """How an answer ended: `status` is `completed`, `error`, `aborted`, `skipped`, or `parked` while it waits for a person."""

    status: str
    text: str
    message: Told | None
    error: str = ""
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the answer is whole."""
        return self.status == TurnStatus.COMPLETED


class ChatQuestion(NamedTuple):
    """A message to a chat agent; without a text it was sent by somebody before."""

    address: tuple[str, str]
    message_id: str
    text: str | None = None

    @property
    def request_id(self) -> str:
        return request_of(self.message_id)

    def sent(self) -> RemoteRequest[object]:
        parts = [{"type": "text", "text": self.text}]
        message = {"id": self.message_id, "role": "user", "parts": parts}
        path = f"/chat/{segment('agent_class', self.address[0])}"
        return RemoteRequest("POST", path, {"id": self.address[1], "messages": [message]}, _ONCE)

    def followed(self) -> RemoteRequest[object]:
        return RemoteRequest("GET", chat_path(self.address, "stream"), query=_AI)

    def turn(self) -> RemoteRequest[TurnTold | None]:
        return method(self.address, "inspect_turn", self.request_id)


class ChatOperations:
    """The operations of a conversation."""

    _address: tuple[str, str]

    @operation
    def cancel(self) -> RemoteRequest[int]:
        """Cancel whatever is under way, and return how many turns there were."""
        return RemoteRequest("POST", chat_path(self._address, "cancel"), told=itemgetter("cancelled"))

    @operation
    def steer(self, text: str, *, message_id: str | None = None) -> RemoteRequest[Told]:
        """Say something to the answer under way: it is read before the next request to the model, or is the next message.

        Durable on return. The same id is the same message. Returns `request_id`, `message_id`, `steered` (the turn, or None if the message
        is a turn of its own) and `accepted`.
        """
        message = {"id": own_id(message_id), "role": "user"}
        parts = [{"type": "text", "text": check_text("text", text)}]
        path = f"/api/agents/{segments(self._address)}/steer"
        return RemoteRequest("POST", path, {"message": {**message, "parts": parts}})

    @operation
    def messages(self, limit: int | None = None, before: str | None = None) -> RemoteRequest[list[Told]]:
        """The conversation without what is being written: the newest messages, or those before one, oldest first."""
        return RemoteRequest("GET", chat_path(self._address, "messages"), query=given(limit=limit, before=before))


class AnswerOperations:
    """The operations of an answer."""

    _question: ChatQuestion

    @operation
    def cancel(self) -> RemoteRequest[bool]:
        """Cancel it, and return whether it was under way."""
        question = self._question
        return method(question.address, "cancel_chat", question.request_id, "cancelled by a client")


def own_id(message_id: str | None) -> str:
    return uuid4().hex if message_id is None else check_text("message_id", message_id)


def chat_path(address: Sequence[str], what: str) -> str:
    return f"/chat/{segments(address)}/{what}"


def method(address: Sequence[str], name: str, *args: object) -> RemoteRequest[Any]:
    # Calls of these methods may be repeated.
    return remote_requests.call(address, "call", name, args, {})._replace(repeatable=True)


def is_at_rest(turn: TurnTold | None) -> TypeGuard[TurnTold]:
    # Nothing more comes of such a turn, or only after a person has answered.
    return turn is not None and (turn["status"] in TURN_ENDED or turn["status"] == TurnStatus.PARKED)


def reply(turn: TurnTold, messages: Sequence[Told]) -> AnswerEnd:
    message = next((each for each in messages if each["id"] == turn["message_id"]), None)
    parts = [] if message is None else message["parts"]
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    return AnswerEnd(turn["status"], text, message, turn["error"] or "", turn["reason"] or "")


def refusal(answer: httpx.Response) -> Exception:
    # Those for people are in plain words. The text of the answer must have been read.
    if answer.headers.get("content-type", "").startswith("application/json"):
        return remote_requests.refusal(answer)
    kind = _KINDS.get(answer.status_code, "")
    error = {"type": kind, "message": answer.text, "args": [answer.text]}
    return remote_requests.error_of(answer.status_code, {"error": error})


class Telling(Listening):
    """How far an answer was told. `is_over` says whether this connection has told an end."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._texts: list[str] = []
        self._places: dict[str, int] = {}  # of the texts, by their ids
        self._step = 0  # how many texts stood there when the present step began

    @contextmanager
    def connected(self) -> Iterator[None]:
        # Each connection tells the answer from its beginning.
        self.is_over, self._texts, self._places, self._step = False, [], {}, 0
        with super().connected():
            yield

    def pause_s(self) -> float:
        pause_s = super().pause_s()
        return 0.0 if self.is_over and self._tries == 1 else pause_s

    def take(self, piece: str, message_id: str | None) -> Iterator[Piece]:
        # What is gained by a piece of the stream. Nothing is taken of another message than this one.
        for _, data in self._events(piece):
            if not data or data == "[DONE]" or self.is_over:
                continue
            chunk = json.loads(data)
            if chunk["type"] == "start" and message_id not in (None, chunk["messageId"]):
                self.is_over = True  # another turn is under way, and this one waits
                self._tries = max(self._tries, 1)
                return
            self._fold(chunk)
        now = "".join(self._texts)
        if not self.text.startswith(now):
            yield from self.whole(now)

    def whole(self, text: str) -> Iterator[Piece]:
        if text != self.text:
            kept = _shared(self.text, text)
            self.text, self._tries = text, 0
            yield Piece(kept, text[kept:])

    def _fold(self, chunk: Mapping[str, Any]) -> None:
        kind = chunk["type"]
        if kind == "text-start":
            self._places[chunk["id"]] = len(self._texts)
            self._texts.append("")
        elif kind == "text-delta":
            self._texts[self._places[chunk["id"]]] += chunk["delta"]
        elif kind == "start-step":
            self._step = len(self._texts)
        elif kind == "reset-step":
            del self._texts[self._step :]
        elif kind in _LAST:
            self.is_over = True


def _shared(before: str, now: str) -> int:
    if now.startswith(before):
        return len(before)
    differ = (at for at, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(before), len(now)))
