"""Every operation of REST, as its description says, asked in ways that nobody thought of; and clients that lie, dawdle and leave.

Nothing is a 5xx that is not described, what is answered fits to the description, and afterwards the gateway is as it was.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.gateway.real import RealGateway, client, real_gateway

AGENTS = ["tests.gateway.cast:Walker", "tests.gateway.cast:Counter"]
PATIENCE_S = 60


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    with real_gateway(tmp_path_factory.mktemp("fuzz"), AGENTS) as started:
        with client(started) as asked:
            for number in range(5):
                asked.post("/api/runs", json={"type": "walker", "input": 0, "run_id": f"walk-{number}"})
            asked.post("/api/agents/counter/one/call/add", json={"args": [1]})
        yield started


@pytest.mark.thorough
def test_whatever_is_asked_is_answered_as_it_is_described(gateway: RealGateway) -> None:
    from tests.gateway.fuzzing import EXAMPLES, fuzz  # noqa: PLC0415 - costs a second, in each process that collects this

    told = fuzz(gateway, PATIENCE_S)
    assert told[200] > 5 * EXAMPLES, told
    assert told[400] > 5 * EXAMPLES, told


def raw(gateway: RealGateway, *pieces: bytes) -> bytes:
    """What the gateway says to these bytes, until it closes the line or the client's patience ends."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S) as line:
        for piece in pieces:
            line.sendall(piece)
        line.shutdown(socket.SHUT_WR)
        heard = b""
        while piece := line.recv(65536):
            heard += piece
        return heard


HEAD = b"POST /api/runs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"\x00\xff nonsense\r\n\r\n",),
        (HEAD + b"content-length: 1000\r\n\r\n", b'{"type":'),
        (HEAD + b"content-length: -5\r\n\r\n",),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b'5\r\n{"a":\r\n', b"zz\r\n"),
        (b"GET /api/runs/" + b"x" * 100_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",),
        (b"GET /api/runs/%ff%00%ed%a0%80 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",),
        (b"GET /api/live HTTP/1.1\r\nhost: 127.0.0.1\r\nlast-event-id: 1e9\r\n\r\n",),
    ],
    ids=["nonsense", "half a body", "negative length", "broken chunks", "long path", "no unicode", "no number"],
)
def test_a_client_that_speaks_badly_is_refused_or_left(gateway: RealGateway, pieces: tuple[bytes, ...]) -> None:
    heard = raw(gateway, *pieces)
    assert not heard or 400 <= int(heard.split()[1]) < 500, heard[:200]
    with client(gateway) as asked:
        assert asked.get("/api/runs").status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_is_there(gateway: RealGateway) -> None:
    with client(gateway) as asked:
        large = asked.post("/api/runs", json={"type": "walker", "input": "x" * 40_000_000})
        assert (large.status_code, large.json()["error"]["type"]) == (413, "TooLarge")


def test_positions_that_are_lies_are_refused_or_told_from_the_beginning(gateway: RealGateway) -> None:
    with client(gateway) as asked:
        asked.post("/api/runs", json={"type": "walker", "input": 0, "run_id": "lied-about"})
        whole = asked.get("/api/runs/lied-about/events").text
        assert whole.endswith("event: end\ndata: {}\n\n")
        for lie in ("-2", "x", str(2**60), "1.5", "", "٣"):
            answer = asked.get("/api/runs/lied-about/events", params={"after": lie})
            assert answer.status_code in (200, 400), lie
        beyond = asked.get("/api/runs", params={"before": 2**53 - 1})
        assert beyond.json()["runs"]
