"""One connection to the scripted provider: requests come in, acts are carried out on the socket.

A protocol and not a stream, so that a thousand slow replies cost a task and a timer each, and so that a client that leaves is noticed at
once, also in the middle of a stall.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Final, cast

from perdure.scenarios.provider.events import Failure
from perdure.scenarios.provider.faults import Act, End, Head, Send, Wait, refusal
from perdure.scenarios.provider.http import LAST_CHUNK, HttpRequest, Malformed, chunk, head_bytes, take_request

LINGER_NOT: Final = struct.pack("ii", 1, 0)  # close with a reset, and drop what was not sent
ACK_LOOK_S: Final = 0.001
ACK_LOOKS_MAX: Final = 2_000


class Wire(asyncio.Protocol):
    """One connection. `serve` is what to do with a request; it is cancelled if the client leaves."""

    def __init__(
        self,
        serve: Callable[[Wire, HttpRequest], Awaitable[None]],
        made: Callable[[Wire], None],
        lost: Callable[[Wire], None],
    ) -> None:
        self._serve, self._made, self._lost = serve, made, lost
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.keep_alive = True

    # what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        self._transport = cast("asyncio.Transport", transport)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._buffer += data
        self._advance()

    def connection_lost(self, _error: Exception | None) -> None:
        """It is over: whatever was being served is served to nobody."""
        self._lost(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable.set()

    # one request after the other

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked and nothing is being answered."""
        return self._task is None and not self._buffer

    def close(self) -> None:
        """Close, after what was written has gone out."""
        self._transport.close()

    def _advance(self) -> None:
        if self._task is not None or self._transport.is_closing():
            return
        try:
            request = take_request(self._buffer)
        except Malformed as problem:
            acts = refusal(problem.status, Failure(message=problem.problem, type="invalid_request_error"))
            self._transport.write(b"".join(self._encoded(act) for act in acts if not isinstance(act, End)) + LAST_CHUNK)
            self.close()
            return
        if request is not None:
            self.keep_alive = request.keep_alive
            self._task = asyncio.get_running_loop().create_task(self._answer(request))
            self._task.add_done_callback(self._answered)

    async def _answer(self, request: HttpRequest) -> None:
        await self._serve(self, request)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._transport.abort()
            raise error
        if not self.keep_alive:
            self.close()
        self._advance()

    # acts

    async def carry_out(
        self, acts: tuple[Act, ...], pause: Callable[[float | None], Awaitable[None]], sent: Callable[[int], None]
    ) -> str:
        """Do it, and say how it ended. `pause` waits; `sent` is told how many bytes of the body went out."""
        pending: list[bytes] = []
        for act in acts:
            if isinstance(act, Head | Send):
                pending.append(self._encoded(act))
                sent(len(act.body) if isinstance(act, Send) else 0)
                continue
            if isinstance(act, End) and act.how not in ("reset", "hang_up"):
                pending.append(LAST_CHUNK)
            await self._flush(pending)
            pending = []
            if isinstance(act, Wait):
                await pause(act.ms)
            elif isinstance(act, End):
                await self._end(act.how)
                return act.how
        raise AssertionError("acts without an end")

    def _encoded(self, act: Act) -> bytes:
        if isinstance(act, Head):
            return head_bytes(act, keep_alive=self.keep_alive)
        assert isinstance(act, Send)
        return chunk(act.body)

    async def _flush(self, pending: list[bytes]) -> None:
        if pending:
            await self._writable.wait()
            self._transport.write(b"".join(pending))

    async def _end(self, how: str) -> None:
        if how == "hang_up":
            self.close()
        elif how == "reset":
            await self._reset()

    async def _reset(self) -> None:
        """Reset the connection, but let everything arrive first: a reset drops what is still on its way."""
        sock = self._transport.get_extra_info("socket")
        for _ in range(ACK_LOOKS_MAX):
            if not self._transport.get_write_buffer_size() and not _unacknowledged(sock):
                break
            await asyncio.sleep(ACK_LOOK_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        self._transport.abort()


def _unacknowledged(sock: socket.socket) -> int:
    """How many bytes the other side's kernel has not confirmed yet (Linux: SIOCOUTQ has the number of TIOCOUTQ)."""
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    (count,) = struct.unpack("i", answer)
    return int(count)
