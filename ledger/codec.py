"""Facts to rows and back. Everything durable is msgpack of plain data; nothing is ever pickled.

A `Secret` is plain data too, as an extension type that holds its name. Nothing that is encoded holds the value of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgpack

from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.facts import Fact
from perdure.ledger.secret import Secret, without_secrets

_KEPT_BYTES_MAX = 1 << 20  # a packer keeps room for the longest value that it has packed
_SECRET = 1  # the code of the extension type


def _reference(value: object) -> msgpack.ExtType:
    if isinstance(value, Secret):
        return msgpack.ExtType(_SECRET, value.name.encode())
    raise TypeError(f"can not serialize {type(value).__name__!r} object")


def _referred(code: int, body: bytes) -> object:
    return Secret(body.decode()) if code == _SECRET else msgpack.ExtType(code, body)


# Packers that nobody uses now: to make a new one for each value would cost more than the packing.
_idle: list[Callable[[Any], bytes]] = []
_KINDS: dict[str, type[Fact]] = {kind.__name__: kind for kind in get_args(Fact)}


def pack(value: Any) -> bytes:
    """Encode plain data (None, booleans, numbers, strings, bytes, lists, dicts, secrets by name)."""
    return without_secrets(_packed(value))


def _packed(value: Any) -> bytes:
    try:
        packer = _idle.pop()  # one of several threads gets it
    except IndexError:
        packer = encoder()
    packed = packer(value)
    if len(packed) <= _KEPT_BYTES_MAX:
        _idle.append(packer)
    return packed


def unpack(body: bytes) -> Any:
    """Decode what `pack` made."""
    return msgpack.unpackb(body, raw=False, strict_map_key=False, ext_hook=_referred)


def encoder() -> Callable[[Any], bytes]:
    """A packer: it encodes facts as `encode` does, for one thread at a time."""
    pack: Callable[[Any], bytes] = msgpack.Packer(default=_reference).pack
    return pack


def encode(fact: tuple[Any, ...]) -> tuple[str, bytes]:
    """The kind and the body of a fact's row."""
    return type(fact).__name__, _packed(fact)


def decode(kind: str, body: bytes) -> Fact:
    """The fact in a row. The fields that a row of an older version lacks take their defaults."""
    try:
        return _KINDS[kind](*unpack(body))
    except (KeyError, TypeError, ValueError) as problem:
        raise LedgerDamaged(
            "ledger", f"a fact of kind {kind!r} cannot be read: {problem}", "run `perdure doctor`"
        ) from problem
