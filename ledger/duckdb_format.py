"""What is read of DuckDB's files here, without DuckDB: checksums of headers, blocks and frames, and where they lie.

A database begins with three headers, of which the second and the third are written in turns: the one with the higher number of a
checkpoint counts. Blocks follow. Each of them begins with the checksum of its rest.

A log begins with fields that say to which checkpoint of which database it belongs. Frames follow, and a short one of its own kind ends
each commit.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

HEADERS: Final = ((4_096, 4_096), (8_192, 4_096))
"""Where the two headers lie that checkpoints write, as `(offset, size)`."""
BLOCKS_AT: Final = 12_288
_BLOCK_SIZE_AT: Final = 40
_LOG_BEGIN: Final = b"d\0be\0"
_IDENTIFIER_BYTES: Final = 16
_LOG_BEGIN_2: Final = _LOG_BEGIN + bytes([2, *b"f\0", _IDENTIFIER_BYTES])
_FRAME_HEAD: Final = 16
_COMMIT_BODY: Final = b"d\0d\xff\xff"
_M64: Final = (1 << 64) - 1  # DuckDB computes in 64 bits, where overflow is dropped
_MULTIPLIER: Final = 0xBF58476D1CE4E5B9


_DAMAGE: Final = re.compile(
    r"^(?:(?:FATAL|IO|INTERNAL|Serialization|Data Corruption|TransactionContext) Error: |Failed to commit: )*"
    r"(?:Corrupt(?:ed)? (?!Parquet|temporary)|Could not read (?:enough bytes )?from file|Failed to deserialize)"
)


def is_damage(problem: Exception) -> bool:
    """Whether DuckDB says by this error that its file is damaged."""
    # It has no class for that: it comes as a plain `duckdb.Error`, of a commit as one of transactions, and of an index or a checkpoint as a
    # fatal one. What an author's SQL raises has another beginning.
    return _DAMAGE.match(str(problem)) is not None


def checksum(data: bytes | memoryview) -> int:
    whole = len(data) & ~7
    # Zeros at the end of the words, of which a header has many, add nothing to the sum.
    used = -(-int.from_bytes(data[:whole], "little").bit_length() // 64) * 8
    total = 5381
    for word in memoryview(data)[:used].cast("Q"):
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
    return checksum(memoryview(piece)[8:]) == int.from_bytes(piece[:8], "little")


def block_size(header: bytes) -> int:
    size: int = struct.unpack_from("<Q", header, _BLOCK_SIZE_AT)[0]
    return size


_COMMIT: Final = struct.pack("<QQ", len(_COMMIT_BODY), checksum(_COMMIT_BODY)) + _COMMIT_BODY


class Survey(NamedTuple):
    """What is in a log. `end` is where its last whole commit ends. `is_damaged` says that a later commit follows something unreadable:
    it began only when that was on the disk, so this is no write that was interrupted."""

    end: int
    is_damaged: bool = False


def survey(log: bytes) -> Survey:
    """Look through a log: frames of a size, a checksum and a body. A log of a version that is not known here is taken as it is."""
    begin = _frames_at(log)
    if begin is None:
        return Survey(len(log))
    at, end = begin, 0
    while size := _frame_size(log, at):
        at += _FRAME_HEAD + size
        if log.endswith(_COMMIT, 0, at):
            end = at
    follower = log.find(_COMMIT, at) if end < len(log) else -1
    return Survey(end, follower >= 0 and any(log[follower + len(_COMMIT) :]))


def _frame_size(log: bytes, at: int) -> int:
    """The size of the frame's body; 0 if it is not whole."""
    if log.startswith(_COMMIT, at):
        return len(_COMMIT_BODY)
    body = at + _FRAME_HEAD
    size, expected = struct.unpack_from("<QQ", log, at) if body <= len(log) else (0, 0)
    return size if size <= len(log) - body and checksum(memoryview(log)[body : body + size]) == expected else 0


def _frames_at(log: bytes) -> int | None:
    """Where the frames begin, 0 if the beginning of the log cannot be read; None if it is of another version."""
    if log.startswith(_LOG_BEGIN) and not log.startswith(_LOG_BEGIN_2):
        return None
    try:
        at = len(_LOG_BEGIN_2)
        for _ in range(_IDENTIFIER_BYTES):
            at = _after_number(log, at)
        return _after_number(log, at + 2) + 2 if log.startswith(_LOG_BEGIN_2) else 0
    except IndexError:
        return 0


def _after_number(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
