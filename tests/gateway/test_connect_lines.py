"""What a client is connected with, and lines that break: what no repeat can mend is told at once, and what is waited for is said."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import perdure
from perdure.actors.remote import lines
from perdure.actors.remote.remote_requests import Listening

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:8787", "htp://127.0.0.1:8787", "ws://127.0.0.1:8787", "http:/127.0.0.1:8787", "http://",
        "http://127.0.0.1:99999", "http://127.0.0.1:0", "http://127.0.0.1:x", "http://[::1", " http://127.0.0.1:8787",
        "http://127.0.0.1:8787?token=secret", "http://127.0.0.1:8787/?", "http://127.0.0.1:8787#secret", None, 8787,
        b"http://127.0.0.1:8787", "http://\ud800",
    ],
)  # fmt: skip
def test_an_address_that_no_gateway_can_have_is_refused_where_it_is_handed_over(url: Any) -> None:
    for connect in (perdure.connect, perdure.connect_async):
        with pytest.raises(perdure.BadRequest) as refused:
            connect(url)
        assert refused.value.field == "url"
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "https://[::1]:65535/below/", "HTTP://ü.example", "http://u:p@h"]
)
def test_any_other_address_is_taken(url: str) -> None:
    perdure.connect(url).close()


@pytest.mark.parametrize("token", ["", " \n", "ü" * 20, "secret\nsecret", "secret\x7f", 5, b"secret"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(perdure.BadRequest) as refused:
        perdure.connect(NOBODY, token=token)
    assert refused.value.field == "token"
    assert "secret" not in str(refused.value)


def test_white_space_around_a_token_is_no_part_of_it() -> None:
    told = lines.http_options(NOBODY, " 0123 4567\r\n", 1, None)
    assert told["headers"] == {"authorization": "Bearer 0123 4567"}


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), 1e10, "60", True])
def test_a_time_that_cannot_be_waited_for_is_refused(timeout_s: Any) -> None:
    with pytest.raises(perdure.BadRequest) as refused:
        perdure.connect(NOBODY, timeout_s=timeout_s)
    assert refused.value.field == "timeout_s"


# ---------------------------------------------------------------- lines that break


@contextmanager
def listening(answer: Callable[[socket.socket], None] | None) -> Iterator[str]:
    """Somebody who does this with each connection, or takes none; the address."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        assert answer is not None
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            with line:
                answer(line)

    thread = threading.Thread(target=serve)
    if answer is not None:
        thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        if answer is not None:
            thread.join()


def breaks(line: socket.socket) -> None:
    """It hears a call, or what begins in another way, and leaves."""
    heard = line.recv(65_536)
    while heard.startswith(b"POST") and not heard.endswith(b"}"):
        heard += line.recv(65_536)


def called(url: str, **options: Any) -> perdure.OutcomeUnknown:
    """What a call ends with, for sync code and for async code."""

    async def story() -> perdure.OutcomeUnknown:
        async with perdure.connect_async(url, **options) as remote:
            with pytest.raises(perdure.OutcomeUnknown) as unknown:
                await remote.agent("counter", "x", "sub", "shard", "y").slow(1)
            return unknown.value

    with perdure.connect(url, **options) as remote, pytest.raises(perdure.OutcomeUnknown) as unknown:
        remote.agent("counter", "x", "sub", "shard", "y").slow(1)
    assert str(asyncio.run(story())) == str(unknown.value)
    return unknown.value


def test_a_call_that_is_not_answered_in_time_is_told_so_and_blames_nobody() -> None:
    with listening(None) as url:
        problem = called(url, timeout_s=0.05)
        assert (problem.agent_id, problem.method) == ("counter/x/sub/shard/y", "slow")
        assert str(problem) == (
            "slow() of counter/x/sub/shard/y was not answered: no answer within timeout_s=0.05; give `timeout_s=` to"
            " `connect` for what takes longer. It may or may not have taken effect, or may be at work still, and was not"
            " repeated"
        )
        words = "^DELETE /api/runs/a%2Fb was not answered: no answer within"
        with perdure.connect(url, timeout_s=0.05) as remote, pytest.raises(perdure.OutcomeUnknown, match=words):
            remote.clear("a/b")


@pytest.mark.parametrize("answer", [None, b"503 No\r\ncontent-length: 0\r\n\r\n"])
def test_a_request_that_is_repeated_is_not_made_again_after_two_minutes_however_few_tries_that_were(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines.TRIED_S == 120
    monkeypatch.setattr(lines, "TRIED_S", 0.2)
    monkeypatch.setattr(lines, "TRIES", 4)
    words = "no answer within 0.1 s; it was tried 2 times$" if answer is None else "answered 503"
    with (
        listening(None if answer is None else says(answer)) as url,
        perdure.connect(url, timeout_s=0.1 if answer is None else 60) as remote,
        pytest.raises(perdure.SupervisorUnreachable, match=words),
    ):
        remote.overview()


def test_a_call_whose_line_breaks_is_told_so() -> None:
    with listening(breaks) as url:
        assert "slow() of counter/x/sub/shard/y was not answered: Server disconnected" in str(called(url))


def broken(kind: type[httpx.TransportError], words: str = "") -> httpx.TransportError:
    """An error of httpx, as its client raises it."""
    return kind(words, request=httpx.Client(timeout=7).build_request("GET", "http://gateway:81/api"))


@pytest.mark.parametrize("kind", [httpx.ConnectTimeout, httpx.PoolTimeout])
def test_a_call_that_was_not_sent_is_not_uncertain(kind: type[httpx.TransportError]) -> None:
    with pytest.raises(perdure.SupervisorUnreachable, match="gateway:81 cannot be reached: no answer within 7 s"):
        lines.lost(broken(kind), 0, ("a", "m"))


def test_whoever_speaks_no_tls_is_asked_for_it_once() -> None:
    problem = broken(httpx.ConnectError)
    problem.__cause__ = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")
    problem.__cause__.reason = "WRONG_VERSION_NUMBER"
    with pytest.raises(perdure.BadRequest, match="http://gateway:81 speaks no TLS"):
        lines.lost(problem, 0, None)
    problem.__cause__.reason = "TLSV1_ALERT_INTERNAL_ERROR"
    lines.lost(problem, 0, None)


def test_whoever_waits_for_a_gateway_says_so_once_and_gives_up_at_last(caplog: pytest.LogCaptureFixture) -> None:
    problem = broken(httpx.ConnectError, "Connection refused")
    told = "the gateway at http://gateway:81 cannot be reached: Connection refused"
    for tries in range(lines.TRIES):
        lines.lost(problem, tries, ("a", "m") if tries % 2 else None)
    assert [each.getMessage() for each in caplog.records] == [f"{told}; it is tried again for two minutes"]
    with pytest.raises(perdure.SupervisorUnreachable, match=told):
        lines.lost(problem, lines.TRIES, None)


def test_whoever_listens_says_so_too_and_gives_up_at_last(caplog: pytest.LogCaptureFixture) -> None:
    place = Listening()

    def attempt() -> None:
        with place.connected():
            raise broken(httpx.ReadError)

    for _ in range(lines.TRIES):
        attempt()
        place.pause_s()
    assert [each.getMessage() for each in caplog.records] == [
        "the gateway at http://gateway:81 cannot be reached: ReadError; it is tried again for two minutes"
    ]
    with pytest.raises(perdure.SupervisorUnreachable, match="cannot be reached"):
        attempt()


def says(answer: bytes) -> Callable[[socket.socket], None]:
    """It hears a request, and answers this."""

    def answering(line: socket.socket) -> None:
        line.recv(65_536)
        line.sendall(b"HTTP/1.1 " + answer)

    return answering


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"301 Moved\r\nlocation: https://h/x\r\ncontent-length: 0\r\n\r\n", "leads to https://h/x"),
        (b"200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nHi", "overview answers is no JSON"),
    ],
)
def test_what_is_no_gateway_is_told_to_be_none_at_once(answer: bytes, words: str) -> None:
    with listening(says(answer)) as url, perdure.connect(url) as remote:
        with pytest.raises(perdure.SupervisorUnreachable, match=words):
            remote.overview()
        if answer.startswith(b"301"):
            with pytest.raises(perdure.SupervisorUnreachable, match=words):
                next(remote.events("run"))
