"""Facts, messages and rows to bytes and back: our own data, in which what authors handed over stands as `Kept` (`ledger.values`).

Named tuples and tuples are arrays. Nothing that is encoded holds the value of a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_args

import msgpack

from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.facts import Fact
from perdure.ledger.secret import without_secrets
from perdure.ledger.values import opened, reference, referred, unpack_with

T = TypeVar("T")
_KEPT_BYTES_MAX = 1 << 20  # a packer keeps room for the longest value that it has packed


# Packers that are free now: to make a new one for each value would cost more than the packing.
_idle: list[Callable[[object], bytes]] = []
_KINDS: dict[str, type[Fact]] = {kind.__name__: kind for kind in get_args(Fact)}


def pack(value: object) -> bytes:
    """Encode data of ours. What authors hand over is encoded by `pack_value`."""
    return without_secrets(_packed(value))


def _packed(value: object) -> bytes:
    try:
        packer = _idle.pop()  # one of several threads gets it
    except IndexError:
        packer = encoder()
    packed = packer(value)
    if len(packed) <= _KEPT_BYTES_MAX:
        _idle.append(packer)
    return packed


def unpack(body: bytes) -> Any:
    """Decode what `pack` made. What authors handed over stays as it was encoded."""
    return unpack_with(body, referred)


def unpack_opened(body: bytes) -> Any:
    """Decode what `pack` made, and what authors handed over within it: objects of their classes by their fields."""
    return unpack_with(body, opened)


def encoder() -> Callable[[object], bytes]:
    # For one thread at a time.
    pack: Callable[[object], bytes] = msgpack.Packer(default=reference).pack
    return pack


def encode(fact: tuple[object, ...]) -> tuple[str, bytes]:
    return type(fact).__name__, _packed(fact)


def decode(kind: str, body: bytes) -> Fact:
    try:
        return _KINDS[kind](*unpack(body))
    except (KeyError, TypeError, ValueError) as problem:
        raise LedgerDamaged(
            "ledger", f"a fact of kind {kind!r} cannot be read: {problem}", "run `perdure doctor`"
        ) from problem


def by_bytes(items: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """The items in groups, in their order. Each group but the last ends with the item by which it has more than `most` bytes."""
    groups: list[list[T]] = []
    room = -1
    for item in items:
        if room < 0:
            groups.append([])
            room = most
        groups[-1].append(item)
        room -= size(item)
    return groups
