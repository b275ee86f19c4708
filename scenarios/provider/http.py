"""The little of HTTP/1.1 that the scripted provider speaks, as bytes.

By hand, because the faults are faults of bytes: a library would not let us end a chunked body without its end.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from perdure.scenarios.provider.faults import Head

HEAD_BYTES_MAX: Final = 64 << 10
BODY_BYTES_MAX: Final = 64 << 20
LAST_CHUNK: Final = b"0\r\n\r\n"
HEAD_END: Final = b"\r\n\r\n"


class HttpRequest(NamedTuple):
    """One request, read to its end."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    keep_alive: bool


class Malformed(Exception):
    """These bytes are no request that we understand; `status` says why, and the connection cannot be used any more."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(status, problem)
        self.status = status
        self.problem = problem


def take_request(buffer: bytearray) -> HttpRequest | None:
    """Cut the first request off the buffer; None if it is not all there yet. Raises `Malformed`."""
    head_end = buffer.find(HEAD_END)
    if head_end < 0:
        if len(buffer) > HEAD_BYTES_MAX:
            raise Malformed(431, f"the head of the request is longer than {HEAD_BYTES_MAX} bytes")
        return None
    line, *fields = bytes(buffer[:head_end]).decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    length = _length(headers)
    body_at = head_end + len(HEAD_END)
    if len(buffer) < body_at + length:
        return None
    body = bytes(buffer[body_at : body_at + length])
    del buffer[: body_at + length]
    words = line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):  # noqa: PLR2004 - method, target, version
        raise Malformed(400, f"not a request line: {line!r}")
    method, target, version = words
    url = urlsplit(target)
    keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return HttpRequest(method, url.path, dict(parse_qsl(url.query)), body, keep_alive)


def _length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Malformed(411, "the body must come with a content-length")
    given = headers.get("content-length", "0")
    if not given.isascii() or not given.isdigit():
        raise Malformed(400, f"content-length is {given!r}")
    if int(given) > BODY_BYTES_MAX:
        raise Malformed(413, f"the body is longer than {BODY_BYTES_MAX} bytes")
    return int(given)


def head_bytes(head: Head, *, keep_alive: bool) -> bytes:
    """The head of a response with a chunked body."""
    try:
        reason = HTTPStatus(head.status).phrase
    except ValueError:  # a provider may have statuses of its own (529: overloaded)
        reason = "Unknown"
    lines = [f"HTTP/1.1 {head.status} {reason}", *(f"{name}: {value}" for name, value in head.headers)]
    lines += ["transfer-encoding: chunked", f"connection: {'keep-alive' if keep_alive else 'close'}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(body: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(body), body)
