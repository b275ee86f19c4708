"""The server of a gateway on real sockets: who is patient with whom, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from perdure.actors import ServePlan, bound, check_certificate
from perdure.actors.gateway.rate_limits import GatewayLimits
from perdure.actors.gateway.security import Principal, Security, bearer
from perdure.actors.gateway.streaming import event_stream
from perdure.actors.serve.guard import Guard
from perdure.actors.serve.listening import Server
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.ledger import BadRequest
from tests.gateway.certificates import Certificate, certified
from tests.kit import played

PATIENCE_S = 60
PIECE = b"x" * 65_536
HELLO = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Site:
    """What is served here: pages that end and that do not."""

    def __init__(self) -> None:
        self.sent, self.left = 0, asyncio.Event()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    def app(self) -> Starlette:
        paths = {"/hello": self.hello, "/late": self.late, "/flood": self.flood, "/feed": self.feed}
        routes = [Route(path, each, methods=["GET", "POST"]) for path, each in paths.items()]
        return Starlette(
            routes=[*routes, WebSocketRoute("/socket", self.socket), WebSocketRoute("/torrent", self.torrent)]
        )

    async def hello(self, request: Request) -> JSONResponse:
        return JSONResponse({"client": request.client and request.client.host, "scheme": request.url.scheme})

    async def late(self, request: Request) -> PlainTextResponse:
        self.asked.set()
        await self.answer.wait()
        return PlainTextResponse("whole")

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield PIECE
                self.sent += len(PIECE)
        finally:
            self.left.set()

    async def flood(self, request: Request) -> StreamingResponse:
        return event_stream(self._pieces())

    async def _feed(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            self.asked.set()
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def feed(self, request: Request) -> StreamingResponse:
        return event_stream(self._feed())

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        self.asked.set()
        try:
            await socket.receive_text()
        finally:
            self.left.set()

    async def torrent(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            while True:
                await socket.send_bytes(PIECE)
                self.sent += len(PIECE)
        except WebSocketDisconnect:
            self.left.set()
            raise


class Place:
    """A server that serves a site."""

    def __init__(self, site: Site, server: Server, port: int) -> None:
        self.site, self.server, self.port = site, server, port

    async def line(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def said(self, text: bytes) -> bytes:
        """All that is answered until the server closes."""
        reader, writer = await self.line()
        writer.write(text)
        answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def serving(plan: ServePlan | None = None, **limits: Any) -> AsyncGenerator[Place, None]:
    given = GatewayLimits(**limits)
    site, listening = Site(), bound("127.0.0.1", 0)
    server = Server(Guard(site.app(), Security(), given), given, plan or ServePlan(()))
    running = asyncio.ensure_future(server.serve([listening]))
    await server.is_up.wait()
    try:
        yield Place(site, server, listening.getsockname()[1])
    finally:
        server.should_exit = True
        await running


def play(story: Callable[[], Any]) -> None:
    async def patient() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(patient())


# patience


@played(play)
async def test_a_thousand_connections_that_say_nothing_are_closed_while_others_are_served() -> None:
    async with serving(head_s=3) as place:
        silent = [await place.line() for _ in range(1000)]
        reader, writer = await place.line()
        writer.write(HELLO)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        ended = await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
        assert all(each == b"" or isinstance(each, ConnectionResetError) for each in ended)
        for each in (writer, *(writer for _, writer in silent)):
            each.close()


@played(play)
async def test_headers_that_come_a_byte_at_a_time_are_waited_for_only_so_long() -> None:
    async with serving(head_s=1) as place:
        reader, writer = await place.line()
        writer.write(HELLO)
        await reader.readuntil(b"}")
        writer.write(b"GET /hello HTTP/1.1\r\nX-Slow: ")
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            writer.write(b"x")
            await asyncio.wait({ended}, timeout=0.05)
        assert isinstance(ended.exception(), ConnectionResetError) or ended.result() == b""
        writer.close()


@played(play)
async def test_an_answer_may_take_longer_than_a_head() -> None:
    async with serving(head_s=1) as place:
        reader, writer = await place.line()
        writer.write(b"GET /late HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await place.site.asked.wait()
        assert await _quietly(place.said(b"")) == b"", "who says nothing is sent away meanwhile"
        place.site.answer.set()
        assert (await reader.read()).endswith(b"whole")
        writer.close()


@played(play)
async def test_headers_without_an_end_are_refused() -> None:
    async with serving(head_bytes_max=2000) as place:
        assert (await place.said(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)).startswith(b"HTTP/1.1 400")


@played(play)
async def test_a_body_that_goes_on_after_its_answer_is_cut_off() -> None:
    async with serving(head_s=1, body_bytes_max=100) as place:
        reader, writer = await place.line()
        writer.write(b"POST /hello HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            writer.write(b"1\r\nx\r\n")
            await asyncio.wait({ended}, timeout=0.02)
        assert isinstance(ended.exception(), ConnectionResetError) or b" 200 " in ended.result()
        writer.close()


@pytest.mark.parametrize("path", ["/flood", "/torrent"])
@played(play)
async def test_who_reads_nothing_costs_little_memory_and_is_cut_off(path: str) -> None:
    async with serving(stall_s=0.5) as place:
        line = socket.create_connection(("127.0.0.1", place.port))
        upgrade = (
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            + b"a" * 22
            + b"==\r\n"
        )
        line.sendall(
            b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path.encode(), upgrade if path == "/torrent" else b"")
        )
        await place.site.left.wait()
        assert place.site.sent < 16 * 1024 * 1024, "what the kernel holds, and little more"
        line.close()


@played(play)
async def test_a_slow_websocket_is_told_to_come_again() -> None:
    async with (
        serving(stall_s=0.5) as place,
        connect(f"ws://127.0.0.1:{place.port}/torrent", max_queue=1) as client,
    ):
        await place.site.left.wait()
        with suppress(ConnectionClosed):
            while await client.recv():
                """What was sent before."""
        assert client.close_code == 1013


@pytest.mark.parametrize("path", ["/flood", "/torrent"])
@played(play)
async def test_who_reads_on_gets_more_than_the_kernel_holds_and_is_not_cut_off(path: str) -> None:
    loop = asyncio.get_running_loop()
    async with serving(stall_s=1) as place:
        until_s = loop.time() + 1.2

        async def read(piece: Callable[[], Any]) -> None:
            taken = 0
            async with asyncio.timeout(20):
                while taken < 16 * 1024 * 1024 or loop.time() < until_s:
                    taken += len(await piece())

        if path == "/torrent":
            async with connect(f"ws://127.0.0.1:{place.port}{path}") as client:
                await read(client.recv)
                client.transport.abort()
        else:
            reader, writer = await place.line()
            writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
            await read(lambda: reader.readexactly(65_536))
            writer.close()


@played(play)
async def test_one_connection_too_many_is_sent_away() -> None:
    async with serving(connections_max=2) as place:
        lines = [await place.line() for _ in range(2)]
        assert b"200 OK" not in await _quietly(place.said(HELLO))
        for reader, writer in lines:
            writer.write(HELLO)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()


async def _quietly(answer: Any) -> bytes:
    try:
        return bytes(await answer)
    except ConnectionResetError:
        return b""


# the end


@played(play)
async def test_at_the_end_streams_break_off_sockets_are_told_to_come_again_and_answers_are_finished() -> None:
    async with serving() as feeding, httpx.AsyncClient(base_url=f"http://127.0.0.1:{feeding.port}") as client:
        site = feeding.site
        async with client.stream("GET", "/feed") as answer:
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b"data: 1\n\n"
            feeding.server.should_exit = True
            with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                await anext(pieces)
        await site.left.wait()

    async with serving() as place, connect(f"ws://127.0.0.1:{place.port}/socket") as client:
        await place.site.asked.wait()
        place.server.should_exit = True
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd
        assert closed.value.rcvd.code == 1012

    async with serving() as place, httpx.AsyncClient(base_url=f"http://127.0.0.1:{place.port}") as client:
        late = asyncio.ensure_future(client.get("/late"))
        await place.site.asked.wait()
        place.server.should_exit = True
        while place.server.servers[0].is_serving():
            await asyncio.sleep(0.01)
        place.site.answer.set()
        assert (await late).text == "whole"


# who asks, and what is heard on the way


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certified(tmp_path_factory.mktemp("tls"))


def test_tls_is_spoken_with_a_certificate(certificate: Certificate) -> None:
    async def story() -> None:
        plan = ServePlan((), certfile=certificate.cert, keyfile=certificate.key)
        trust = ssl.create_default_context(cafile=certificate.authority)
        async with serving(plan) as place, httpx.AsyncClient(verify=trust) as client:
            assert (await client.get(f"https://localhost:{place.port}/hello")).json()["scheme"] == "https"
            with pytest.raises(httpx.TransportError):
                await client.get(f"http://localhost:{place.port}/hello")

    play(story)
    check_certificate(certificate.cert, certificate.key)
    check_certificate("", "")
    for pair in (
        (certificate.key, ""),
        (certificate.cert, certificate.cert),
        ("nowhere.pem", ""),
        ("", certificate.key),
    ):
        with pytest.raises(BadRequest):
            check_certificate(*pair)


@pytest.mark.parametrize(
    ("proxies", "client", "scheme"),
    [("", "127.0.0.1", "http"), ("192.0.2.1", "127.0.0.1", "http"), ("127.0.0.1", "203.0.113.9", "https")],
)
@played(play)
async def test_what_a_proxy_says_of_its_client_is_believed_only_of_a_named_proxy(
    proxies: str, client: str, scheme: str
) -> None:
    headers = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"}
    async with serving(ServePlan((), forwarded_allow_ips=proxies)) as place, httpx.AsyncClient() as asking:
        answer = await asking.get(f"http://127.0.0.1:{place.port}/hello", headers=headers)
    assert answer.json() == {"client": client, "scheme": scheme}


def test_under_another_server_its_access_log_has_no_token(caplog: pytest.LogCaptureFixture) -> None:
    key = "correct-horse-battery"

    async def story() -> None:
        guarded = Guard(Site().app(), Security(bearer({key: Principal("anna")})), GatewayLimits())
        server = uvicorn.Server(uvicorn.Config(guarded, log_config=None, lifespan="off"))
        with bound("127.0.0.1", 0) as listening:
            running = asyncio.ensure_future(server.serve([listening]))
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
                assert (await client.get(f"/hello?x=1&token={key}")).status_code == 200
            server.should_exit = True
            await running

    with caplog.at_level(logging.INFO, "uvicorn.access"):
        play(story)
    assert "/hello?x=1" in caplog.text
    assert key not in "".join(each.getMessage() for each in caplog.records if each.name == "uvicorn.access")


def test_a_socket_that_is_listened_on_names_its_protocol() -> None:
    """Or asyncio would leave `TCP_NODELAY` out, and each small answer would wait for the client's delayed acknowledgement."""
    with bound("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_a_port_is_shared_by_processes_that_all_want_that() -> None:
    with bound("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        bound("127.0.0.1", port).close()
        with pytest.raises(BadRequest, match="cannot be listened on: Address already in use"):
            bound("127.0.0.1", port, shared=False)


@pytest.mark.parametrize("times", [1, 2])
def test_targets_are_found_in_the_folder_that_the_plan_names(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"shop_{times}.py").write_text("agents = []\n", "utf-8")
    plan = ServePlan((f"shop_{times}:agents",), place=str(tmp_path))
    for _ in range(times):
        with pytest.raises(BadRequest, match=f"shop_{times}:agents"):
            plan.application()
    assert sys.path.count(str(tmp_path)) == 1


class Ticking(Server):
    """Counts how often it looks around."""

    ticks = 0

    async def on_tick(self, counter: int) -> bool:
        self.ticks += 1
        return await super().on_tick(counter)


def test_an_idle_server_looks_around_once_a_second_and_ends_at_once_when_it_is_told_so() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        server = Ticking(Site().app(), GatewayLimits(), ServePlan(()))
        serving = asyncio.ensure_future(server.main_loop())
        await asyncio.sleep(60.5)
        assert 60 <= server.ticks <= 61
        server.should_exit = True
        await serving
        assert loop.time() == pytest.approx(60.5, abs=0.01)
        assert server.ticks <= 62

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())
