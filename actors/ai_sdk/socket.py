"""The AI SDK's own WebSocket transport: any number of answers over one connection (client protocols B.7).

    up    {type: send | resume | abort, requestId, …}
    down  {type: start | chunk | end | error | no-active, requestId, …}; chunks are numbered from 0 without a gap

Each answer has a task of its own, and the connection one sender at a time, so a slow client stops its own answers and nothing grows.
`abort` is what `stop()` sends: the client listens no more, and the turn goes on, as with a closed request. A frame that is none of these is
answered by an `error` for its `requestId`, because the client ends the whole connection at a frame that it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.actors.ai_sdk.children import Children
from perdure.actors.ai_sdk.stream import Pace, chunks_of
from perdure.actors.ai_sdk.turns import Following, Turns, Wish
from perdure.actors.chat.plain_data import all_mended
from perdure.actors.code.author_call import tried
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.gateway.bodies import parsed_object
from perdure.actors.gateway.problems import told
from perdure.actors.gateway.security import Scope
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest, PerdureError
from perdure.policies import JsonObject

Frame = JsonObject
REQUESTS_MAX = 32
"""Answers that one connection may have at once."""


class ChatSocket:
    """One connection of a client.

    Args:
        backend: what is behind it.
        socket: the connection, not accepted yet.
        chat_class: the name of the class of chats that is spoken with.
        major: the major of the client.
        pace: how often the followers of this gateway ask.
    """

    def __init__(self, backend: Backend, socket: WebSocket, chat_class: str, major: int, pace: Pace) -> None:
        self._backend, self._socket, self._class, self._major = backend, socket, chat_class, major
        self._pace = pace
        self._answers: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        """Take frames until the client leaves. Raises `WebSocketDisconnect` then."""
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

    def _begin(self, request_id: str, frame: Frame) -> None:
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

    async def _answered(self, request_id: str, frame: Frame) -> None:
        try:
            _, problem = await tried(self._answer(request_id, frame))
            if problem is not None and not isinstance(problem, WebSocketDisconnect):
                with suppress(WebSocketDisconnect):
                    await self._refuse(request_id, problem)
        finally:
            if self._answers.get(request_id) is asyncio.current_task():
                del self._answers[request_id]

    async def _answer(self, request_id: str, frame: Frame) -> None:
        reached, following = await self._following(frame)
        if following is None:
            await self._say({"type": "no-active", "requestId": request_id})
        else:
            await self._stream(request_id, reached, following)

    async def _following(self, frame: Frame) -> tuple[Reached, Following | None]:
        is_new = frame["type"] == "send"
        who = self._backend.principal(self._socket, Scope.CHAT if is_new else Scope.READ)
        reached, _ = await self._backend.reach(who, [self._class, _text_of(frame, "id")])
        client = await self._backend.client()
        turns = Turns(reached.handle, client.world.dice.token, self._major)
        if not is_new:
            return reached, await turns.resume(client.caller)
        more = frame.get("body")
        if not isinstance(more, Mapping):
            raise BadRequest("body", "is not an object")
        known: Frame = {name: frame[name] for name in ("trigger", "messages", "messageId") if name in frame}
        return reached, await turns.begin(Wish.of({**more, **known}))

    async def _stream(self, request_id: str, reached: Reached, following: Following) -> None:
        await self._say({"type": "start", "requestId": request_id})
        number = 0
        children = Children(self._backend, reached.agent_id, following.request_id)
        async for batch in chunks_of(reached.handle, following, self._pace, children):
            for chunk in batch:
                await self._say({"type": "chunk", "requestId": request_id, "sequence": number, "chunk": chunk})
                number += 1
        await self._say({"type": "end", "requestId": request_id})

    async def _refuse(self, request_id: str, problem: Exception) -> None:
        await self._say({"type": "error", "requestId": request_id, "errorText": told(problem)["message"]})

    async def _say(self, frame: Frame) -> None:
        async with self._sending:
            await self._socket.send_text(to_json(all_mended(frame), inf_nan_mode="null").decode())


def _text_of(frame: Mapping[str, object], name: str) -> str:
    value = frame.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(name, f"{value!r:.80} is not a text")
    return value
