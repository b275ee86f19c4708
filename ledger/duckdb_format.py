"""What is read of DuckDB's files here, without DuckDB: checksums of headers, blocks and frames, and where they lie.

A database begins with three headers, of which the second and the third are written in turns: the one with the higher number of a
checkpoint counts. Blocks follow. Each of them begins with the checksum of its rest.
"""

from __future__ import annotations

import struct
from typing import Final

HEADERS: Final = ((4_096, 4_096), (8_192, 4_096))
"""Where the two headers lie that checkpoints write, as `(offset, size)`."""
BLOCKS_AT: Final = 12_288
_BLOCK_SIZE_AT: Final = 40
_M64: Final = (1 << 64) - 1
_MULTIPLIER: Final = 0xBF58476D1CE4E5B9


def checksum(data: bytes | memoryview) -> int:
    """DuckDB's checksum."""
    whole = len(data) & ~7
    total = 5381
    for word in memoryview(data)[:whole].cast("Q"):
        total ^= word * _MULTIPLIER
    total &= _M64
    return total ^ _of_the_rest(bytes(data[whole:])) if whole < len(data) else total


def _of_the_rest(data: bytes) -> int:
    multiplier = 0xC6A4A7935BD1E995
    total = 0xE17A1465 ^ (len(data) * multiplier & _M64) ^ int.from_bytes(data, "little")
    total = total * multiplier & _M64
    total = (total ^ total >> 47) * multiplier & _M64
    return total ^ total >> 47


def is_whole(piece: bytes) -> bool:
    """Whether this header or block has its checksum."""
    return checksum(memoryview(piece)[8:]) == int.from_bytes(piece[:8], "little")


def block_size(header: bytes) -> int:
    """The size of the blocks, by one of the two headers."""
    size: int = struct.unpack_from("<Q", header, _BLOCK_SIZE_AT)[0]
    return size
