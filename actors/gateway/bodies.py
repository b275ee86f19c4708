"""What clients send, read within a limit."""

from __future__ import annotations

import json
import math
from typing import Final

from starlette.requests import Request

from perdure.actors.gateway.refusals import UnknownEncoding
from perdure.ledger import BadRequest, TooLarge
from perdure.policies import Json, JsonObject

BODY_BYTES_MAX: Final = 32_000_000
DEPTH_MAX: Final = 100
"""How deep JSON may be nested."""
_TOO_DEEP: Final = f"is nested more than {DEPTH_MAX} deep"


async def body_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body of a request that is text. Raises `UnknownEncoding`, and `TooLarge`."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise UnknownEncoding("content-encoding", f"{encoding!r:.80} is not read here; send the body as it is")
    return await bytes_of(request, bytes_max)


async def bytes_of(request: Request, bytes_max: int) -> bytes:
    """The body of a request as it was sent. Raises `TooLarge`."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > bytes_max:
        raise TooLarge("body", f"has more than {bytes_max} bytes")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > bytes_max:
            raise TooLarge("body", f"has more than {bytes_max} bytes")
    return bytes(body)


def parsed_object(text: bytes | str, field: str = "body") -> JsonObject:
    found = read_json(text.encode(errors="surrogatepass") if isinstance(text, str) else text, field)
    if not isinstance(found, dict):
        raise BadRequest(field, f"is {type(found).__name__}, not an object")
    return found


def message_in(body: JsonObject) -> Json:
    # A request that steers has no other field.
    beside = sorted(body.keys() - {"message"})
    if beside or "message" not in body:
        raise BadRequest(beside[0] if beside else "message", "is no field here" if beside else "is missing")
    return body["message"]


def read_json(text: bytes, field: str = "body") -> Json:
    """The data of a JSON text. Raises `BadRequest` for what is none, is nested too deeply, or has text that is no Unicode."""
    try:
        # Python would take UTF-16 and UTF-32 too, in which no look at the bytes finds half of a pair.
        decoded = text.decode("utf-8-sig", "surrogatepass")
        read: Json = json.loads(decoded, parse_constant=_refuse, parse_float=_finite)
    except ValueError as problem:
        words = str(problem).partition("; use sys.")[0]  # which is advice for another program than the asker's
        raise BadRequest(field, f"is not JSON: {words:.200}") from None
    except RecursionError:  # the parser comes to its own end before it is known how deep it goes
        raise BadRequest(field, _TOO_DEEP) from None
    _check_depth(read, field)
    if b"\\ud" in text.lower() or b"\xed" in text:
        try:
            json.dumps(read, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadRequest(field, "has half of a surrogate pair") from None
    return read


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is too large for a number")
    return number


def _check_depth(read: object, field: str) -> None:
    level = [read]
    for _ in range(DEPTH_MAX + 1):
        below = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [child for each in below for child in each if isinstance(child, dict | list)]
        if not level:
            return
    raise BadRequest(field, _TOO_DEEP)
