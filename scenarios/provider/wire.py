"""One HTTP/1.1 connection to a server of ours: `h11` reads requests and writes responses, and acts are carried out on the socket.

It is a protocol and not a stream, so a thousand slow replies cost a task and a timer each, and a client that leaves is noticed at once,
even in the middle of a stall. A fault is an act too: a reset, or a close without the end of the chunked body.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qsl, urlsplit

import h11

from perdure.scenarios.provider.events import Failure, dumped
from perdure.scenarios.provider.faults import PLAIN_HEAD, Act, End, Head, Send, Wait, refusal

HEAD_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 64 << 20
LINGER_NOT: Final = struct.pack("ii", 1, 0)  # close with a reset, and drop what was not sent
ACK_LOOK_S: Final = 0.001
ACK_LOOKS_MAX: Final = 2_000


class HttpRequest(NamedTuple):
    """One request, read to its end."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes


class Wire(asyncio.Protocol):
    """One connection.

    `serve` answers a request; it is cancelled if the client leaves. `made` and `lost` are told of the connection's beginning and end.
    """

    def __init__(
        self,
        serve: Callable[[Wire, HttpRequest], Awaitable[None]],
        made: Callable[[Wire], None] = lambda _wire: None,
        lost: Callable[[Wire], None] = lambda _wire: None,
    ) -> None:
        self._serve, self._made, self._lost = serve, made, lost
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.keep_alive = True

    # what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and serve the request that they complete."""
        self._http.receive_data(data)
        self._advance()

    def connection_lost(self, _error: Exception | None) -> None:
        """Stop serving: the client is gone."""
        self._lost(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Wait with further writes: the client does not keep up."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Write again."""
        self._writable.set()

    # one request after the other

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked and nothing is being answered."""
        return self._http.their_state is h11.IDLE and not self._http.trailing_data[0]

    def close(self) -> None:
        """Close, after what was written has gone out."""
        self._transport.close()

    def _advance(self) -> None:
        if self._task is not None or self._transport.is_closing():
            return
        try:
            request = self._next_request()
        except h11.RemoteProtocolError as problem:
            acts: tuple[Act, ...] = refusal(
                problem.error_status_hint, Failure(message=str(problem), type="invalid_request_error")
            )
            self._transport.write(b"".join(map(self._encoded, acts)))
            self.close()
            return
        if request is not None:
            self._task = asyncio.ensure_future(self._serve(self, request))
            self._task.add_done_callback(self._answered)

    def _next_request(self) -> HttpRequest | None:
        """The next request, or None if it is not all there yet. Raises `h11.RemoteProtocolError`, with the status that says why."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._head, self._body = event, bytearray()
                self._check_size(int(dict(event.headers).get(b"content-length", b"0")))
            elif isinstance(event, h11.Data):
                self._body += event.data
                self._check_size(len(self._body))
            elif isinstance(event, h11.EndOfMessage):
                assert self._head is not None
                url = urlsplit(self._head.target.decode("latin-1"))
                return HttpRequest(self._head.method.decode(), url.path, dict(parse_qsl(url.query)), bytes(self._body))
            else:
                return None

    def _check_size(self, size: int) -> None:
        if size > BODY_BYTES_MAX:
            raise h11.RemoteProtocolError(f"the body is longer than {BODY_BYTES_MAX} bytes", error_status_hint=413)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._transport.abort()
            raise error
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._advance()
        else:
            self.close()

    # responses

    async def answer(self, status: int, told: object) -> None:
        """Answer with one JSON value."""
        acts: tuple[Act, ...] = (Head(status, PLAIN_HEAD.headers), Send(dumped(told).encode()), End("whole"))
        self._transport.write(b"".join(map(self._encoded, acts)))

    async def carry_out(
        self, acts: tuple[Act, ...], pause: Callable[[float | None], Awaitable[None]], sent: Callable[[int], None]
    ) -> str:
        """Carry out the acts of a response, and return how it ended. `pause` waits; `sent` is told how many bytes of the body went out."""
        pending: list[bytes] = []
        for act in acts:
            pending.append(self._encoded(act))
            if isinstance(act, Send):
                sent(len(act.body))
            if isinstance(act, Wait | End):
                await self._writable.wait()
                self._transport.write(b"".join(pending))
                pending = []
            if isinstance(act, Wait):
                await pause(act.ms)
            elif isinstance(act, End):
                await self._end(act.how)
                return act.how
        raise AssertionError("acts without an end")

    def _encoded(self, act: Act) -> bytes:
        """The bytes of one act; a fault and a silence have none."""
        event: h11.Event
        match act:
            case Head(status=status, headers=headers):
                closing = () if self.keep_alive else (("connection", "close"),)
                event = h11.Response(status_code=status, headers=[*headers, *closing])
            case Send(body=body):
                event = h11.Data(data=body)
            case End(how=how) if how not in ("reset", "hang_up"):
                event = h11.EndOfMessage()
            case _:
                return b""
        return self._http.send(event) or b""

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
