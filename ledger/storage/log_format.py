"""The log of an agent whose author uses no SQL: a head, and a frame for each transaction, chained by digests.

The head says whose log it is, which life began it, and from which number on it counts. A frame says of what kind it is, the number of its
first row, which life wrote it, and the digest of what stands before it; its own digest follows, then the rows. So every byte is in a
digest, and no frame can be missing between two others.

A *commit* is a transaction. A *claim* says that a later life has taken the log, a *rest* that a life was closed. Whatever stands before one
of them was synchronised, here or in the shared log; the frame that is written next takes its place, with what it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from perdure.ledger.codec import by_bytes, pack, unpack
from perdure.ledger.storage.records import Row

LOG_MAGIC: Final = b"perdureA"
COMMIT, CLAIM, REST = 0, 1, 2
_HEAD: Final = Struct(">8sIQQI")  # magic, version of the schema, incarnation, clock, bytes of the agent's id
_FRAME: Final = Struct(">4sIBQQ16s")  # magic, bytes of the rows, kind, first number, incarnation, what stands before
_FRAME_MAGIC: Final = b"\xc5log"
CHECK: Final = 16
_FRAME_BYTES_MAX: Final = 32 << 10  # of a log that is written anew: as much is read for one row of it

Numbered = tuple[int, Row]


# Whose log it is. `clock` is the first number that a row in it may have, if no later one was given away before.
class LogHead(NamedTuple):
    agent_id: str
    version: int
    incarnation: int
    clock: int


# A whole frame, by where it and its rows lie.
class LogFrame(NamedTuple):
    kind: int
    number: int
    incarnation: int
    before: bytes
    digest: bytes
    start: int
    rows: int
    end: int


class Reading(NamedTuple):
    """What is in a log. `end` is where its last whole frame ends. `is_damaged` says that something unreadable stands before a whole frame,
    or in the head, which was whole before the log had its name: it is no write that was interrupted."""

    head: LogHead | None
    frames: list[LogFrame]
    digest: bytes
    end: int
    is_damaged: bool

    @property
    def incarnation(self) -> int:
        return max((each.incarnation for each in (self.head, *self.frames[-1:]) if each is not None), default=0)


def frame_of(kind: int, rows: list[Numbered], number: int, incarnation: int, before: bytes) -> tuple[bytes, bytes]:
    body = pack([[each - number, *row] for each, row in rows]) if rows else b""
    told = _FRAME.pack(_FRAME_MAGIC, len(body), kind, number, incarnation, before)
    digest = check_of(told, body)
    return b"".join((told, digest, body)), digest


def log_of_rows(head: LogHead, rows: Iterable[Numbered]) -> bytes:
    # The rows rise in their numbers.
    agent_id = head.agent_id.encode("utf-8", "surrogatepass")
    told = _HEAD.pack(LOG_MAGIC, head.version, head.incarnation, head.clock, len(agent_id)) + agent_id
    digest = check_of(told)
    parts = [told + digest]
    for due in by_bytes(rows, lambda each: len(each[1].body or b""), _FRAME_BYTES_MAX):
        content, digest = frame_of(COMMIT, due, due[0][0], head.incarnation, digest)
        parts.append(content)
    return b"".join(parts)


def rows_of(content: bytes, frame: LogFrame) -> list[Numbered]:
    packed = content[frame.rows : frame.end]
    return [(frame.number + at, Row(*row)) for at, *row in unpack(packed)] if packed else []


def clock_after(reading: Reading, rows: list[Numbered]) -> int:
    clocks = [1, *(number + 1 for number, _ in rows[-1:]), *(frame.number for frame in reading.frames[-1:])]
    return max(clocks) if reading.head is None else max(reading.head.clock, *clocks)


def is_log(content: bytes) -> bool:
    return content.startswith(LOG_MAGIC)


def read_log(content: bytes) -> Reading:
    head, digest, at = _read_head(content)
    if head is None:
        return Reading(None, [], b"", 0, is_damaged=True)
    frames: list[LogFrame] = []
    while (frame := read_frame(content, at)) is not None and frame.before == digest:
        frames.append(frame)
        digest, at = frame.digest, frame.end
    return Reading(head, frames, digest, at, _has_frame(content, at))


def read_frame(content: bytes, at: int) -> LogFrame | None:
    # None if it is not whole.
    begin = at + _FRAME.size + CHECK
    if begin > len(content):
        return None
    magic, length, kind, number, incarnation, before = _FRAME.unpack_from(content, at)
    end = begin + length
    if magic != _FRAME_MAGIC or end > len(content):
        return None
    digest = content[begin - CHECK : begin]
    told, body = content[at : begin - CHECK], memoryview(content)[begin:end]
    return (
        LogFrame(kind, number, incarnation, before, digest, at, begin, end) if check_of(told, body) == digest else None
    )


def life_in(frame: bytes) -> tuple[int, int]:
    return _FRAME.unpack_from(frame)[3:5]


def digest_in(frame: bytes) -> bytes:
    return frame[_FRAME.size : _FRAME.size + CHECK]


def _read_head(content: bytes) -> tuple[LogHead | None, bytes, int]:
    if len(content) < _HEAD.size:
        return None, b"", 0
    magic, version, incarnation, clock, length = _HEAD.unpack_from(content)
    end = _HEAD.size + length
    digest = content[end : end + CHECK]
    if magic != LOG_MAGIC or check_of(content[:end]) != digest:
        return None, b"", 0
    agent_id = content[_HEAD.size : end].decode("utf-8", "surrogatepass")
    return LogHead(agent_id, version, incarnation, clock), digest, end + CHECK


def _has_frame(content: bytes, at: int) -> bool:
    while (at := content.find(_FRAME_MAGIC, at)) >= 0:
        if read_frame(content, at) is not None:
            return True
        at += 1
    return False


def check_of(*parts: bytes | memoryview) -> bytes:
    state = blake2b(digest_size=CHECK)
    for part in parts:
        state.update(part)
    return state.digest()
