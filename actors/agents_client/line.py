"""One connection of a client of the npm package `agents`.

Several tasks may send; each frame is whole. A client that does not read holds up those who send to it, and nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.actors.agents_client.frames import ClientFrame, encoded, read
from perdure.actors.chat.followers import Caller
from perdure.actors.gateway.chat_turns import ChatTurns
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.tasks import Pending, awaited

CHANNEL: Final = "agents-client"
BEHIND: Final = 1013
"""The close code for a client that reads too slowly. It connects again, and resumes."""
CALLS_MAX: Final = 128
"""How many calls of one connection may be under way."""
logger = logging.getLogger("perdure.gateway")


class Closed(Exception):
    """The server ends the connection: by a code, and for a reason."""


class ClientSocket:
    """A connection that was accepted. `number` names it among those of its gateway."""

    def __init__(self, socket: WebSocket, number: int) -> None:
        self.socket, self.number = socket, number
        self._turn = asyncio.Lock()  # to send: frames of several tasks do not mix
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def who(self) -> Principal:
        # As it was found last.
        found: Principal = self.socket.state.principal
        return found

    async def send(self, kind: str, **fields: object) -> None:
        await self.send_text(encoded(kind, **fields))

    async def send_text(self, frame: str) -> None:
        # Raises `WebSocketDisconnect` if the client has gone.
        async with self._turn:
            try:
                await self.socket.send_text(frame)
            except (RuntimeError, OSError) as gone:
                raise WebSocketDisconnect(1006, str(gone)) from gone

    async def receive(self) -> ClientFrame | None:
        # None for what is no JSON object with a type. Raises `WebSocketDisconnect`.
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005), message.get("reason"))
        return read(message.get("text") or "")

    async def beside(self, job: Pending[None]) -> None:
        # The job runs beside the reading. If there are many jobs already, one of them is waited for first.
        while len(self._jobs) >= CALLS_MAX:
            await asyncio.wait(self._jobs, return_when=asyncio.FIRST_COMPLETED)
        task = awaited(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def together(self, *jobs: Pending[None]) -> None:
        # They run until one of them ends or fails. Then all are stopped, with what was begun beside them. Raises what made it end.
        tasks = [awaited(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            under_way = [*tasks, *self._jobs]
            for each in under_way:
                each.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


class ChatLine(ChatTurns):
    """Does what is decided about one connection to a chat agent (`ChatTurns.decided`)."""

    def __init__(self, line: ClientSocket, caller: Caller, who: Principal) -> None:
        super().__init__(caller, who, CHANNEL)
        self._line = line

    async def send(self, frame: str) -> None:
        await self._line.send_text(frame)

    async def later(self, delay_s: float, then: Callable[..., object], *given: object) -> None:
        asyncio.get_running_loop().call_later(delay_s, then, *given)

    async def warn(self, words: str, *given: object) -> None:
        logger.warning(words, *given)

    async def call(self, method: str, *args: object) -> Any:
        return await self._call(method, *args)

    async def replace(self, messages: list[Any]) -> None:
        await self._call("_perdure_replace_messages", messages, Scope.ADMIN in self._line.who.scopes)
