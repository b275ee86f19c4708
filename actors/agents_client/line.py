"""One connection of a client of the npm package `agents`: how its frames are read and written.

Frames are texts of one JSON object each. Several tasks may send; each frame is whole. A client that does not read holds up those who send
to it, and nobody else.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import Final, NamedTuple

from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.actors.chat.plain_data import mended
from perdure.actors.gateway.bodies import parsed_object
from perdure.actors.tasks import Pending, awaited
from perdure.ledger import BadRequest
from perdure.policies import JsonObject

BEHIND: Final = 1013
"""The close code for a client that reads too slowly. It connects again, and resumes."""
HEAD_CHARS_MAX: Final = 1_000_000
TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]')
CALLS_MAX: Final = 128
"""How many calls of one connection may be under way."""


class Closed(Exception):
    # The server ends the connection.

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


class ClientFrame(NamedTuple):
    # If what the client has sent holds what may not be read, `wrong` says so, and only the texts at its top are there.
    fields: JsonObject
    wrong: str = ""


class ClientSocket:
    """A connection that was accepted. `number` names it among those of its gateway."""

    def __init__(self, socket: WebSocket, number: int) -> None:
        self.socket, self.number = socket, number
        self._turn = asyncio.Lock()  # to send: frames of several tasks do not mix
        self._jobs: set[asyncio.Task[None]] = set()

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
        text = message.get("text") or ""
        try:
            found = ClientFrame(parsed_object(text, "frame"))
        except BadRequest as problem:
            # What is refused is refused under the id that the frame gives itself.
            found = ClientFrame(head_of(text), str(problem))
        return found if isinstance(found.fields.get("type"), str) else None

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


def head_of(text: str) -> JsonObject:
    # The fields that are texts, without reading what else is in the object.
    found: JsonObject = {}
    depth, key = 0, ""
    for token in TOKENS.finditer(text, 0, HEAD_CHARS_MAX):
        mark = token[0]
        if mark == ",":
            key = ""
        elif mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        elif depth == 1 and text[token.end() : token.end() + 20].lstrip().startswith(":"):
            key = mark
            continue
        elif depth == 1 and key:
            with suppress(ValueError):
                found[mended(json.loads(key))] = mended(json.loads(mark))
        key = ""
    return found


def encoded(kind: str, **fields: object) -> str:
    return json_text({"type": kind, **fields})


def json_text(value: object) -> str:
    return to_json(value, by_alias=True, inf_nan_mode="null", bytes_mode="base64").decode()
