"""MCP over standard input and output: one client, which has started this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Self, cast

from mcp.server.stdio import stdio_server

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.security import STDIO, Principal
from perdure.actors.mcp_server.offers import Choice
from perdure.actors.mcp_server.server import McpServer
from perdure.actors.tasks import awaited

LOCAL = Principal(STDIO)
STDIN: Final = 0
PIECE_BYTES: Final = 65_536
PIECES_MAX: Final = 16


async def serve_stdio(backend: Backend, choices: Iterable[Choice]) -> None:
    """Serve until standard input ends. Whatever else is printed meanwhile goes to standard error. The cluster is started, or joined, beside
    the first messages, so runs of an earlier process go on at once."""
    server = McpServer(backend, choices, LOCAL).server
    async with stdio_server(stdin=cast("Any", StdinLines())) as (heard, said):
        opening = awaited(backend.client())
        try:
            await server.run(heard, said, server.create_initialization_options())
        finally:
            await asyncio.wait({opening})  # if it failed, each call was told so
            await backend.close()


class StdinLines:
    """The lines of standard input, which from then on is empty for everybody else. A thread of its own reads them, and the process ends
    without it: nothing can interrupt it while the client is silent, so Ctrl-C would wait for the SDK's own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(PIECES_MAX)
        self._rest, self._is_over = bytearray(), False
        self._wire = os.dup(STDIN)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, STDIN)
        os.close(nothing)
        threading.Thread(target=self._read, daemon=True, name="perdure-stdin").start()

    def _read(self) -> None:
        piece = b"?"
        with suppress(RuntimeError):  # the loop has ended
            while piece:
                piece = os.read(self._wire, PIECE_BYTES)
                asyncio.run_coroutine_threadsafe(self._pieces.put(piece), self._loop).result()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        # The last line may lack its end.
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0 and not self._is_over:
            searched = len(self._rest)
            piece = await self._pieces.get()
            self._is_over = not piece
            self._rest += piece
        if not self._rest:
            raise StopAsyncIteration
        taken = len(self._rest) if end < 0 else end + 1
        line = self._rest[:taken].decode(errors="replace")
        del self._rest[:taken]
        return line
