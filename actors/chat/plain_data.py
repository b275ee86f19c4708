"""Plain data at the edges of a chat: input of a client is checked, output of tools and models is mended.

Neither msgpack nor a provider takes a NUL or half of a surrogate pair. A client is told which field to change. In the output of a tool,
which has had its effect, and of a model, which cannot repeat its words, the character is replaced.

Of the library's own kinds in the output of a tool, files and what the model is told beside are parts, as those of a message are. Its
`metadata`, which is not for the model, is not kept: a message is shown to people, too.
"""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar, cast

from pydantic_core import to_json, to_jsonable_python

from perdure.actors.code.author_call import tried_now
from perdure.ledger import BadRequest, class_name
from perdure.policies import OurMetadata, Part

T = TypeVar("T")
NESTING_MAX = 64
"""Levels of lists and objects in a value. Some JSON readers give up at a hundred."""

_UNTAKABLE = re.compile("[\x00\ud800-\udfff]")
_INTEGER_BITS_MAX = 64
_WORDS_MAX = 60


def checked_plain(field: str, value: object, depth: int = 0) -> Any:
    """A copy of JSON-like data. Raises `BadRequest` with the path of what is wrong, such as `messages[0].parts[1].data.rows[3]`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return checked_text(field, value)
    if isinstance(value, int):
        if not -(2 ** (_INTEGER_BITS_MAX - 1)) <= value < 2**_INTEGER_BITS_MAX:
            raise BadRequest(field, f"has {value.bit_length()} bits; an integer may have {_INTEGER_BITS_MAX}")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(field, f"is {value!r}, which JSON does not know")
        return float(value)
    if depth >= NESTING_MAX:
        raise BadRequest(field, f"is nested deeper than {NESTING_MAX} levels")
    if isinstance(value, Mapping):
        return {
            _key(field, key): checked_plain(f"{field}.{_named(key)}", each, depth + 1) for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [checked_plain(f"{field}[{at}]", each, depth + 1) for at, each in enumerate(value)]
    raise BadRequest(field, _no_data(value))


def plain_output(field: str, value: object) -> object:
    """What an author's code gave, as JSON-like data: of models, dataclasses, dates and the like what pydantic makes of them. Raises
    `BadRequest` for what it does not know."""

    def refuse(unknown: object) -> object:
        raise BadRequest(field, _no_data(unknown))

    try:
        plain = to_jsonable_python(value, by_alias=True, fallback=refuse)
    except (ValueError, TypeError, RecursionError) as problem:
        raise BadRequest(field, f"cannot be made plain data: {problem}") from problem
    return checked_plain(field, all_mended(plain))


def _no_data(value: object) -> str:
    return f"{value!r:.200} is {class_name(type(value))}, which is not plain data"


def _key(field: str, key: object) -> str:
    if not isinstance(key, str):
        raise BadRequest(field, f"has the key {key!r:.200}, which is not a string")
    return checked_text(f"{field}.{_named(key)}", key)


def _named(key: object) -> str:
    return mended(str(key)[:_WORDS_MAX])


def checked_text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadRequest(field, f"{value!r:.200} is {type(value).__name__}, not a string")
    odd = _UNTAKABLE.search(value)
    if odd is not None:
        what = "a NUL character" if odd[0] == "\x00" else f"half of a surrogate pair ({odd[0]!a})"
        raise BadRequest(field, f"contains {what} at position {odd.start()}")
    return str.__str__(value)  # a member of a text enum says its name otherwise


def mended(text: str) -> str:
    """The text with U+FFFD in place of NULs and halves of surrogate pairs."""
    return _UNTAKABLE.sub("\ufffd", text)


def all_mended(value: T) -> T:
    """The same for all strings and keys of a value of JSON's types. NaN and infinities become their names."""
    return cast("T", _mended(value))


def _mended(value: object) -> object:
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {mended(key): _mended(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_mended(each) for each in value]
    return value


def in_parts(value: object) -> tuple[object, OurMetadata]:
    """What a tool returned, with parts in place of the library's files, and what there is beside it for the model."""
    lib = sys.modules.get("pydantic_ai.messages")  # without its module there is nothing of the library
    if lib is None:
        return value, {}
    about: OurMetadata = {}
    if isinstance(value, lib.ToolReturn):
        said = value.content or ()
        items = [said] if isinstance(said, str) else said
        if content := [part for each in items for part in _told_as(each, lib)]:
            about["content"] = content
        value = value.return_value
    items = value if isinstance(value, list) else [value]  # as the library finds them
    if any(_is_file(each, lib) for each in items):
        about["hasFiles"] = True
        found = [_file(each) if _is_file(each, lib) else each for each in items]
        value = found if isinstance(value, list) else found[0]
    return value, about


def _is_file(value: object, lib: ModuleType) -> bool:
    return isinstance(value, lib.BinaryContent | lib.FileUrl)


def _told_as(said: object, lib: ModuleType) -> Iterator[Part]:
    if _is_file(said, lib):
        yield _file(said)
    elif isinstance(said, lib.TextContent):
        yield {"type": "text", "text": said.content}
    elif not isinstance(said, lib.CachePoint):
        yield {"type": "text", "text": said if isinstance(said, str) else to_json(said, fallback=str).decode()}


def _file(said: Any) -> Part:
    if said.kind == "binary":
        kind, url = said.media_type, f"data:{said.media_type};base64,{base64.b64encode(said.data).decode()}"
    else:
        kind, url = tried_now(lambda: said.media_type)[0] or f"{said.kind.removesuffix('-url')}/*", said.url
    about: OurMetadata = {"id": said.identifier}
    if said.vendor_metadata:
        about["details"] = said.vendor_metadata
    part: Part = {"type": "file", "mediaType": kind, "url": url}
    part["providerMetadata"] = {"perdure": about}
    return part


# A provider may split a character outside the BMP between two pieces of a text.
class TextJoiner:
    def __init__(self) -> None:
        self._half = ""

    def joined(self, piece: str) -> str:
        # The first half of a character waits for the second.
        text, self._half = self._half + piece, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        if _UNTAKABLE.search(text) is None:
            return text
        return mended(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass"))

    def rest(self) -> str:
        half, self._half = self._half, ""
        return mended(half)
