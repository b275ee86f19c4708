"""Secrets by reference: what is kept of a key is its name, and its value is struck out of whatever leaves the process.

    key = Secret("OPENAI_API_KEY")   # plain data: it may stand in an input, in state, in what a step remembers
    key.reveal()                     # the value, looked up here and now

A value is struck out from when it was revealed in this process. Asterisks take its place, as many as it has bytes, so that no length that
is written around it changes. All that becomes durable or goes to another process is encoded by `codec.pack`, which strikes; so do the SQL
of agents and the output of a host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO, cast
from urllib.parse import quote

from perdure.ledger.errors import BadRequest

LEAST: Final = 8  # characters; what is shorter would be found in any text, and is not struck out

Source = Callable[[str], str | None]
_sources: list[Source] = []
_struck: dict[bytes, bytes] = {}  # replaced as a whole, never changed: other threads go through it


class Secret:
    """A key, a token or a password by its name. Never holds the value, so it may be stored, printed and sent."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise BadRequest("secret", f"{name!r:.40} is not a name")
        self.name = name

    def reveal(self) -> str:
        """The value: of the newest source of `provide_secrets` that has it, or else of this process' environment.

        Raises `BadRequest` that names the secret if neither has it.
        """
        found = (value for source in reversed(_sources) if (value := source(self.name)) is not None)
        value = next(found, None) or os.environ.get(self.name)
        if not value:
            raise BadRequest(self.name, "is a secret that neither this process' environment nor a given source has")
        return strike(value)

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.name == self.name

    def __hash__(self) -> int:
        return hash((Secret, self.name))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, handler: Callable[[type], Any]) -> Any:
        """In a field of this type the name alone is the value on the wire."""
        from pydantic_core import core_schema  # noqa: PLC0415 - only who has such fields needs it

        named = core_schema.no_info_after_validator_function(cls, handler(str))
        return core_schema.json_or_python_schema(
            json_schema=named,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), named]),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda it: it.name, when_used="json"),
        )


def provide_secrets(source: Source | str | Path) -> None:
    """Have secrets looked up here first, in every process that imports the module that says so.

    `source` is called with a name and returns the value or None, such as `partial(keyring.get_password, "shop")`; or it is the path of a
    file with lines `NAME=value`, which is read at each use.
    """
    _sources.append(source if callable(source) else lambda name: _lines_of(Path(source).expanduser()).get(name))


def _lines_of(path: Path) -> Mapping[str, str]:
    lines = (line.strip().removeprefix("export ") for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, mark, value in pairs if mark}


def revealed(value: str | Secret) -> str:
    """What an author gave as a key, by reference or as it is; either way it is struck out from now on."""
    return value.reveal() if isinstance(value, Secret) else strike(value)


def strike(value: str) -> str:
    """Have this value struck out from now on, also as it stands in an address, in JSON and in a `repr`. Returns it."""
    global _struck  # noqa: PLW0603 - see there
    if len(value) >= LEAST:
        written = {value, quote(value), quote(value, safe=""), json.dumps(value)[1:-1], repr(value)[1:-1]}
        bodies = [each.encode(errors="surrogatepass") for each in written]
        if not _struck.keys() >= set(bodies):
            _struck = {**_struck, **{body: b"*" * len(body) for body in bodies}}
    return value


def without_secrets(body: bytes) -> bytes:
    for value, stars in _struck.items():
        if value in body:
            body = body.replace(value, stars)
    return body


def plain_without_secrets(value: Any) -> Any:
    """Strike secrets out of texts, bytes, and what lists, tuples and dictionaries hold of them."""
    if not _struck:
        return value
    match value:
        case str():
            body = value.encode(errors="surrogatepass")
            return value if (struck := without_secrets(body)) is body else struck.decode(errors="surrogatepass")
        case bytes():
            return without_secrets(value)
        case list() | tuple():
            return type(value)(map(plain_without_secrets, value))
        case dict():
            return {key: plain_without_secrets(each) for key, each in value.items()}
    return value


class RedactedStream:
    """A stream of text out of which secrets are struck; what else it can is as the stream does it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def over(cls, stream: TextIO) -> TextIO:
        return cast("TextIO", cls(stream))

    def write(self, text: str) -> int:
        return self._stream.write(plain_without_secrets(text))

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
