"""The AI SDK's `useChat` with its default transport, over HTTP (client protocols, part B).

    POST /chat/{class}                  ask: the chat's id and the messages are in the body; the answer is an event stream
    GET  /chat/{class}/{id}/stream      the answer that is under way, or ended just now, from its start; 204 if there is none
    POST /chat/{class}/{id}/steer       say something to the answer under way: `message`, a text or a message of the user
    POST /chat/{class}/{id}/cancel      cancel what is under way
    GET  /chat/{class}/{id}/messages    the conversation, to begin a page with
    WS   /chat/{class}                  the client's own WebSocket transport (`socket`)

If one class of chat agents is served, it also has the client's default, `/api/chat`. A chat's id is the name of its agent. `?ai=7` says
that the client has this major of `ai`; without it only what the major before knows is sent.

A client that leaves does not stop its answer. An answer that is not over never ends like one that is: the stream ends with an `error`
chunk, or the line is cut.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from pydantic_core import PydanticSerializationError, to_json
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.actors.ai_sdk.chunks import NEWEST, OLDEST, Chunk
from perdure.actors.ai_sdk.turn_requests import AskedTurns, Following, TurnRequest
from perdure.actors.chat.plain_data import all_mended
from perdure.actors.chat.turn import TurnPage, TurnTold
from perdure.actors.code.author_call import tried
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.gateway.bodies import body_of, message_in, parsed_object
from perdure.actors.gateway.chat_turns import ChatTurns
from perdure.actors.gateway.problems import problem_text, status_of
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.gateway.streaming import event, event_stream
from perdure.actors.gateway.turn_follower import Framed, TurnFollower
from perdure.actors.life.handle import address_of
from perdure.actors.tasks import awaited
from perdure.ledger import AgentUnreachable, BadRequest, PerdureError, Standalone
from perdure.policies import JsonObject, Message

# ---------------------------------------------------------------- turns


FORGOTTEN: Final = "The conversation was cleared, and this answer with it."
CANNOT_FOLLOW: Final = "The answer cannot be followed at the moment, and goes on: {}"


class ClientTurns:
    """The turns that one client, of one principal and one major, asks of one chat agent."""

    def __init__(self, backend: Backend, reached: Reached, who: Principal, major: int) -> None:
        self._backend, self._reached = backend, reached
        self.turns, self._asked = ChatTurns(reached.caller, who, "ai-sdk"), AskedTurns(major, reached.caller.token)

    async def begin(self, request: TurnRequest) -> Following:
        return await self.turns.decided(self._asked.begin(request))

    async def resume(self) -> Following | None:
        """The turn that is being played, or comes next, or has ended just now, from its start; None if there is none.

        An agent that has never been is not brought to life by the question.
        """
        address = address_of(self._reached.handle)
        assert address is not None
        existing = address._replace(standalone=Standalone.NEVER)
        try:
            standing: Any = await (await self._backend.client()).caller.call(existing, "_perdure_standing", (), {})
        except AgentUnreachable:
            return None
        turn: TurnTold | None = standing["resumable"]
        return None if turn is None else await self.turns.decided(self._asked.from_start(turn))

    async def chunks(self, following: Following) -> AsyncGenerator[list[Chunk], None]:
        """The chunks of a turn, from its start to its end, or until it waits for a person. What fails is told as the last chunk. There may
        be no chunk in a batch."""
        async with TurnFollower(self._backend, self._reached, following.request_id, following.opening) as follower:
            while not following.translator.is_over:
                yield await self._next(following, follower)

    async def _next(self, following: Following, follower: TurnFollower) -> list[Chunk]:
        clock, children = asyncio.get_running_loop().time, following.children
        try:
            item = await follower.next(children.due_in_s(clock()))
        except PerdureError as problem:
            is_gone = isinstance(problem, BadRequest) and problem.field == "request_id"
            return following.translator.failed(FORGOTTEN if is_gone else CANNOT_FOLLOW.format(problem_text(problem)))
        if item is not None and not isinstance(item, Framed):
            closed = await self._asks_before(item, following, follower)
            chunks = following.chunks(item)
            for call_id in following.translator.open_calls:
                await follower.runs.follow(call_id)
            return closed + chunks
        told: list[Chunk] = []
        if item is not None:
            told = children.asks(item, following.translator)
            children.take(item, clock())
        return told + (children.chunks(following.translator) if children.due_in_s(clock()) == 0 else [])

    async def _asks_before(self, page: TurnPage, following: Following, follower: TurnFollower) -> list[Chunk]:
        # What a run asked is closed before the result of its call: the answer may end with that, and nothing is told afterwards.
        children, found = following.children, list[Chunk]()
        for each in page["events"]:
            if children.is_asking(each.get("toolCallId")):
                async for framed in follower.said_before(each):
                    found += children.asks(framed, following.translator)
        return found

    async def messages(self, limit: int | None, before: str | None) -> list[Message]:
        # Answers that are being written are left out: `resume` tells them from their start.
        found = await self.turns.messages(limit, before)
        written = {each["message_id"] for each in await self.turns.under_way()}
        return [each for each in found if each["id"] not in written]


# ---------------------------------------------------------------- socket
# The AI SDK's own WebSocket transport: any number of answers over one connection (client protocols B.7).
#
#     up    {type: send | resume | abort, requestId, …}
#     down  {type: start | chunk | end | error | no-active, requestId, …}; chunks are numbered from 0 without a gap
#
# Each answer has a task of its own, and the connection one sender at a time, so a slow client stops its own answers and nothing grows.
# `abort` is what `stop()` sends: the client listens no more, and the turn goes on, as with a closed request. A frame that is none of
# these is answered by an `error` for its `requestId`, because the client ends the whole connection at a frame that it does not know.


REQUESTS_MAX = 32
"""Answers that one connection may have at once."""


class ChatSocket:
    """One connection of a client.

    Args:
        backend: what is behind it.
        socket: the connection, not accepted yet.
        chat_class: the name of the class of chats that is spoken with.
        major: the major of the client.
    """

    def __init__(self, backend: Backend, socket: WebSocket, chat_class: str, major: int) -> None:
        self._backend, self._socket, self._class, self._major = backend, socket, chat_class, major
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()  # so that frames of several answers do not mix

    async def serve(self) -> None:
        # Ends by `WebSocketDisconnect`, when the client leaves.
        await self._socket.accept()
        try:
            while True:
                await self._take(await self._socket.receive_text())
        finally:
            tasks = list(self._answers.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _take(self, text: str) -> None:
        request_id = ""
        try:
            frame = parsed_object(text, "frame")
            request_id = _text_of(frame, "requestId")
            self._begin(request_id, frame)
        except PerdureError as problem:
            await self._refuse(request_id, problem)

    def _begin(self, request_id: str, frame: JsonObject) -> None:
        kind = frame.get("type")
        if kind == "abort":
            task = self._answers.pop(request_id, None)
            if task is not None:
                task.cancel()
            return
        if kind not in ("send", "resume"):
            raise BadRequest("type", f"{kind!r:.40} is none of send, resume, abort")
        if request_id in self._answers:
            raise BadRequest("requestId", f"{request_id!r:.80} is being answered")
        if len(self._answers) >= REQUESTS_MAX:
            raise BadRequest(
                "requestId", f"{REQUESTS_MAX} requests are being answered; that is the limit of a connection"
            )
        self._backend.principal(self._socket, Scope.CHAT if kind == "send" else Scope.READ)
        self._answers[request_id] = awaited(self._answered(request_id, frame))

    async def _answered(self, request_id: str, frame: JsonObject) -> None:
        try:
            _, problem = await tried(self._answer(request_id, frame))
            if problem is not None and not isinstance(problem, WebSocketDisconnect):
                with suppress(WebSocketDisconnect):
                    await self._refuse(request_id, problem)
        finally:
            if self._answers.get(request_id) is asyncio.current_task():
                del self._answers[request_id]

    async def _answer(self, request_id: str, frame: JsonObject) -> None:
        turns, following = await self._following(frame)
        if following is None:
            await self._say({"type": "no-active", "requestId": request_id})
            return
        await self._say({"type": "start", "requestId": request_id})
        number = 0
        async for batch in turns.chunks(following):
            for chunk in batch:
                await self._say({"type": "chunk", "requestId": request_id, "sequence": number, "chunk": chunk})
                number += 1
        await self._say({"type": "end", "requestId": request_id})

    async def _following(self, frame: JsonObject) -> tuple[ClientTurns, Following | None]:
        is_new = frame["type"] == "send"
        who = self._backend.principal(self._socket, Scope.CHAT if is_new else Scope.READ)
        reached, _ = await self._backend.reach(who, [self._class, _text_of(frame, "id")])
        turns = ClientTurns(self._backend, reached, who, self._major)
        if not is_new:
            return turns, await turns.resume()
        more = frame.get("body")
        if not isinstance(more, Mapping):
            raise BadRequest("body", "is not an object")
        known: JsonObject = {name: frame[name] for name in ("trigger", "messages", "messageId") if name in frame}
        return turns, await turns.begin(TurnRequest.of({**more, **known}))

    async def _refuse(self, request_id: str, problem: Exception) -> None:
        await self._say({"type": "error", "requestId": request_id, "errorText": problem_text(problem)})

    async def _say(self, frame: JsonObject) -> None:
        async with self._sending:
            await self._socket.send_text(encoded(frame).decode())


def _text_of(frame: Mapping[str, object], name: str, what: str = "a text") -> str:
    value = frame.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(name, f"{value!r:.80} is not {what}")
    return value


# ---------------------------------------------------------------- routes


HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
DONE: Final = b"data: [DONE]\n\n"
DEFAULT: Final = "/api/chat"
ONCE: Final = "once"
"""In the query of a program that asks: it has no edits of messages, and is told errors as data."""
APPENDED: Final = re.compile(
    rf"(?:.*&)?ai=(?P<ai>{'|'.join(map(str, range(OLDEST, NEWEST + 1)))})/(?P<chat_id>.+)/stream"
)

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(backend: Backend) -> list[BaseRoute]:
    chats = _Chats(backend)
    found: list[BaseRoute] = []
    for prefix in ("/chat/{chat_class}", DEFAULT):
        found.append(WebSocketRoute(prefix, chats.socket))
        found += [
            Route(prefix, in_words(chats.ask), methods=["POST"]),
            Route(prefix, in_words(chats.resume_after_query), methods=["GET"]),
            Route(f"{prefix}/{{chat_id:path}}/stream", in_words(chats.resume), methods=["GET"]),
            Route(f"{prefix}/{{chat_id:path}}/steer", in_words(chats.steer), methods=["POST"]),
            Route(f"{prefix}/{{chat_id:path}}/cancel", in_words(chats.cancel), methods=["POST"]),
            Route(f"{prefix}/{{chat_id:path}}/messages", in_words(chats.messages), methods=["GET"]),
        ]
    return found


def in_words(endpoint: Endpoint) -> Endpoint:
    # The client shows the body of a refusal to people as it is, unless it is a program.
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except PerdureError as problem:
            if ONCE in request.query_params:
                raise
            return PlainTextResponse(problem_text(problem), status_code=status_of(problem))

    return answered


def encoded(told: object) -> bytes:
    try:
        return to_json(told, inf_nan_mode="null")
    except PydanticSerializationError:  # half of a surrogate pair, for which there is no JSON
        return to_json(all_mended(told), inf_nan_mode="null")


def chat_class(backend: Backend, name: str | None) -> str:
    # Without a name the only class is meant.
    known = backend.registry.chat_roots()
    if name is None and len(known) == 1:
        return next(iter(known))
    if name is None or name not in known:
        ways = ", ".join(f"/chat/{each}" for each in known) or "none"
        raise NoSuchAgent(f"no chat agent is served under this address; there are: {ways}")
    return name


def major_of(connection: HTTPConnection) -> int:
    said = connection.query_params.get("ai", str(OLDEST))
    known = {str(each): each for each in range(OLDEST, NEWEST + 1)}
    if said not in known:
        raise BadRequest("ai", f"{said!r:.40} is not a major of the client; known are {', '.join(known)}")
    return known[said]


class _Chats:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def ask(self, request: Request) -> Response:
        self._backend.principal(request, Scope.CHAT)
        name = chat_class(self._backend, request.path_params.get("chat_class"))
        body = parsed_object(await body_of(request))
        wish = TurnRequest.of(body, is_once=ONCE in request.query_params)
        turns = await self._turns(
            request, Scope.CHAT, name, _text_of(body, "id", "the id of a chat"), major_of(request)
        )
        return self._answer(turns, await turns.begin(wish))

    async def resume_after_query(self, request: Request) -> Response:
        # For clients that append the id and `/stream` to an address behind its query.
        appended = APPENDED.fullmatch(request.scope["query_string"].decode("latin-1"))
        name = chat_class(self._backend, request.path_params.get("chat_class"))
        if appended is None:
            way = f"POST /chat/{name} asks, and GET /chat/{name}/ID/stream?ai={NEWEST} resumes"
            raise BadRequest("ai", f"this address is no chat's: {way}")
        turns = await self._turns(request, Scope.READ, name, unquote(appended["chat_id"]), int(appended["ai"]))
        return self._answer(turns, await turns.resume())

    async def resume(self, request: Request) -> Response:
        turns = await self._addressed(request, Scope.READ)
        return self._answer(turns, await turns.resume())

    @staticmethod
    def _answer(turns: ClientTurns, following: Following | None) -> Response:
        if following is None:
            return Response(status_code=204)

        async def pieces() -> AsyncGenerator[bytes, None]:
            async for batch in turns.chunks(following):
                if batch:
                    yield b"".join(event(encoded(each)) for each in batch)
            yield DONE

        return event_stream(pieces(), HEADERS)

    async def steer(self, request: Request) -> Response:
        self._backend.principal(request, Scope.CHAT)
        message = message_in(parsed_object(await body_of(request)))
        asked = await self._addressed(request, Scope.CHAT)
        return JSONResponse(await asked.turns.steer(message))

    async def cancel(self, request: Request) -> Response:
        asked = await self._addressed(request, Scope.CHAT)
        return JSONResponse({"cancelled": await asked.turns.cancel_all("cancelled by the client")})

    async def messages(self, request: Request) -> Response:
        asked = await self._addressed(request, Scope.READ)
        said = request.query_params.get("limit")
        if said is not None and not said.isdecimal():
            raise BadRequest("limit", f"{said!r:.40} is no number of messages")
        shown = await asked.messages(None if said is None else int(said), request.query_params.get("before"))
        return Response(encoded(shown), media_type="application/json")

    async def socket(self, socket: WebSocket) -> None:
        self._backend.principal(socket, Scope.READ)
        name = chat_class(self._backend, socket.path_params.get("chat_class"))
        await ChatSocket(self._backend, socket, name, major_of(socket)).serve()

    async def _addressed(self, request: Request, scope: Scope) -> ClientTurns:
        name = chat_class(self._backend, request.path_params.get("chat_class"))
        return await self._turns(request, scope, name, request.path_params["chat_id"], major_of(request))

    async def _turns(
        self, connection: HTTPConnection, scope: Scope, name: str, chat_id: str, major: int
    ) -> ClientTurns:
        who = self._backend.principal(connection, scope)
        reached, _ = await self._backend.reach(who, [name, chat_id])
        return ClientTurns(self._backend, reached, who, major)
