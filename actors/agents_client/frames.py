"""The frames of the clients of the npm package `agents`: texts of one JSON object each. Pure."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Final, NamedTuple

from pydantic_core import to_json

from perdure.actors.chat.plain_data import mended
from perdure.actors.gateway.bodies import parsed_object
from perdure.ledger import BadRequest
from perdure.policies import JsonObject

HEAD_CHARS_MAX: Final = 1_000_000
TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]')


class ClientFrame(NamedTuple):
    # If what the client has sent holds what may not be read, `wrong` says so, and only the texts at its top are there.
    fields: JsonObject
    wrong: str = ""


def read(text: str) -> ClientFrame | None:
    # None for what is no JSON object with a type.
    try:
        found = ClientFrame(parsed_object(text, "frame"))
    except BadRequest as problem:
        # What is refused is refused under the id that the frame gives itself.
        found = ClientFrame(head_of(text), str(problem))
    return found if isinstance(found.fields.get("type"), str) else None


def head_of(text: str) -> JsonObject:
    # The fields that are texts, without reading what else is in the object.
    found: JsonObject = {}
    depth, key = 0, ""
    for token in TOKENS.finditer(text, 0, HEAD_CHARS_MAX):
        mark = token[0]
        if mark == ",":
            key = ""
        elif mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        elif depth == 1 and text[token.end() : token.end() + 20].lstrip().startswith(":"):
            key = mark
            continue
        elif depth == 1 and key:
            with suppress(ValueError):
                found[mended(json.loads(key))] = mended(json.loads(mark))
        key = ""
    return found


def encoded(kind: str, **fields: object) -> str:
    return json_text({"type": kind, **fields})


def json_text(value: object) -> str:
    return to_json(value, by_alias=True, inf_nan_mode="null", bytes_mode="base64").decode()
