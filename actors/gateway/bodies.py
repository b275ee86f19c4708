"""What clients send, read within a limit."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from starlette.requests import Request

from perdure.ledger import BadRequest, TooLarge

BODY_BYTES_MAX: Final = 32_000_000


async def json_object(request: Request, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """The JSON object in the body of a request. Raises `TooLarge` as soon as it is, and `BadRequest` if it is no object."""
    declared = request.headers.get("content-length", "0")
    size = int(declared) if declared.isdecimal() else 0
    taken: list[bytes] = []
    if size <= bytes_max:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > bytes_max:
                break
            taken.append(piece)
    if size > bytes_max:
        raise TooLarge("body", f"has more than {bytes_max} bytes")
    return parsed_object(b"".join(taken))


def parsed_object(text: bytes | str, field: str = "body") -> dict[str, Any]:
    """The object in a JSON text. Raises `BadRequest`."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as problem:
        raise BadRequest(field, f"is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise BadRequest(field, f"is {type(found).__name__}, not an object")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")
