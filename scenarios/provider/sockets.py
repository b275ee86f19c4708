"""An ASGI app behind real sockets, on a thread of its own. uvicorn speaks HTTP; the app can also cut its connections and close the port."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from starlette.types import ASGIApp, Receive, Scope
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

T = TypeVar("T")
HOST: Final = "127.0.0.1"
BACKLOG: Final = 4096  # a thousand agents may connect at once
KEEP_ALIVE_S: Final = 75
LINGER_NOT: Final = struct.pack("ii", 1, 0)  # close with a reset, and drop what was not sent
ACK_LOOK_S: Final = 0.001
ACK_LOOKS_MAX: Final = 2_000


class Sockets:
    """Serves an app on a free port while it is entered. The port stays reserved while it is closed."""

    def __init__(self, app: ASGIApp, connected: Callable[[], None] = lambda: None) -> None:
        self._config = Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._connected, self._state = connected, ServerState()
        self._turning = asyncio.Lock()
        self._front: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._reserve = _bound(0)
        self.port: int = self._reserve.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self.turn(is_open=True))
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserve.close()

    def do(self, job: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result()

    async def turn(self, *, is_open: bool) -> None:
        """Open the port, or close it. Closing it also closes idle connections, and the others after their response."""
        async with self._turning:
            if is_open and self._front is None:
                sock = _bound(self.port)
                self._front = await self._loop.create_server(
                    lambda: _Connection(self._config, self._state, {"connected": self._connected}, self._loop),
                    sock=sock,
                    backlog=BACKLOG,
                )
            elif not is_open and self._front is not None:
                self._front.close()
                self._front = None
                for connection in [*self._state.connections]:
                    connection.shutdown()

    async def _end(self) -> None:
        await self.turn(is_open=False)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The app can cut it: its transport is in the state of each scope.
class _Connection(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.app_state["connected"]()
        self.app_state["transport"] = transport
        super().connection_made(transport)


async def gone(receive: Receive) -> None:
    # The body of the request must have been read.
    while (await receive())["type"] != "http.disconnect":
        pass


async def hang_up(scope: Scope) -> None:
    # After what was written, without the end of a response.
    scope["state"]["transport"].close()


async def reset(scope: Scope) -> None:
    # Only after everything has arrived, because a reset drops what is still on its way.
    transport = scope["state"]["transport"]
    sock = transport.get_extra_info("socket")
    for _ in range(ACK_LOOKS_MAX):
        if not transport.get_write_buffer_size() and not _unacknowledged(sock):
            break
        await asyncio.sleep(ACK_LOOK_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    transport.abort()


def _unacknowledged(sock: socket.socket) -> int:
    # What the other side's kernel has not confirmed yet. On Linux SIOCOUTQ has the number of TIOCOUTQ.
    (count,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))
    return int(count)


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    sock.bind((HOST, port))
    return sock
