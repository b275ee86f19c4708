"""One agent's records in its log, while its author uses no SQL: one append and one `fdatasync` for a transaction, or for several agents'
transactions together (`shared_log`). The first write takes 1.5 ms and 4 KB; of a database, 5.4 and 32.

State and the outbox are in memory (`records`). Of any other row the place of its frame is known, which is read and verified again when
the row is asked for.

A commit is acknowledged when its frame is synchronised, here or in the shared log, from which it is put back before anybody looks. So a
death or a power cut leaves at most one frame that is not whole, at the end, and it was never acknowledged: it is cut off, kept and told. A
claim is not synchronised: only a power cut can take it back, and that ends the earlier life too. Nor is a rest. So whatever is written next
takes the place of either: nothing that must be on the disk ever stands behind something that may not be. A life that finds a commit at the
end writes it once more and synchronises it, because the life before may have died, or may have been refused by the disk, before it was on
the disk.

When most of the log is garbage, it is written anew beside, and takes the name of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from perdure.ledger.errors import WAY_OUT, StorageLost
from perdure.ledger.storage.log_file import LogFile
from perdure.ledger.storage.log_format import (
    CLAIM,
    COMMIT,
    REST,
    LogHead,
    Numbered,
    Reading,
    clock_after,
    frame_of,
    log_of_rows,
    read_frame,
    read_log,
    rows_of,
)
from perdure.ledger.storage.records import SCHEMA_VERSION, Records, Row, refuse_stranger

Durable = Callable[[], AbstractContextManager[None]]

_LOOK_BYTES: Final = 256 << 10  # a log that is shorter is not looked through for garbage
_LIVING_BYTES_MAX: Final = 4 << 20  # what is longer without its garbage becomes a database
_GAP_MAX: Final = 4 << 10  # bytes between two frames that are read at once
_ROW_BYTES: Final = 80  # of a row, beside its key and its body


class _Place(NamedTuple):
    start: int
    end: int
    rows: int


class _Tail(NamedTuple):
    """A claim or a rest at the end of a log: where it begins, the digest of what stands before it, and its rows. The next frame takes its
    place, with its rows."""

    start: int
    before: bytes
    rows: list[Numbered]


class AgentLog:
    """The open log of one incarnation. `durable` is put around whatever becomes durable; `let_go` gives the agent's lock back."""

    def __init__(self, file: LogFile, durable: Durable, let_go: Callable[[], None]) -> None:
        self.agent_id = file.agent_id
        self.file = file
        self.finding = ""  # what was cut off
        self.incarnation = 0
        self._durable, self._let_go = durable, let_go
        self._frames: dict[int, _Place] = {}  # number of a row with a body → its frame
        self._records = Records()
        self._digest, self._end = b"", 0
        self._tail: _Tail | None = None
        self._rows = 0  # in the log
        self._look_at = _LOOK_BYTES  # how long it is when it is looked through
        self._look_garbage = 0  # or how many rows are garbage then

    def open(self, incarnation: int | None) -> None:
        # The log is taken for this life; without one it is only looked at.
        content = self.file.content()
        reading = read_log(content)
        self._refuse(reading, incarnation)
        if reading.end < len(content):
            kept = self.file.cut(reading.end)
            self.finding = (
                f"the last {len(content) - reading.end} bytes of its log were no whole commit: a write that was interrupted, or damage. "
                f"The log is kept as {kept}"
            )
        rows = self._adopt(content, reading)
        self._records = Records(clock_after(reading, rows))
        self._records.load(rows)
        self._look_at = max(_LOOK_BYTES, 2 * _size(rows, set(self._records.garbage)))
        self.incarnation = reading.incarnation
        self._take_up(content, reading, incarnation)

    def begin(self, content: bytes) -> None:
        # The log was made with its first commit.
        reading = read_log(content)
        self._adopt(content, reading)
        self.incarnation = reading.incarnation

    def load(self) -> Records:
        return self._records

    def write(self, number: int, rows: list[Row], lane: object = None) -> None:
        assert lane is None, "a cursor is opened in a database"
        self._append(COMMIT, list(enumerate(rows, number)), number, durable=True)

    def bodies(self, numbers: list[int]) -> list[tuple[int, bytes]]:
        wanted = set(numbers)
        rows = self._read(sorted({self._frames[number] for number in wanted}))
        return [(number, row.body or b"") for number, row in rows if number in wanted]

    def tidy(self, records: Records) -> bool:
        """After a commit: write the log anew if most of it is garbage. Returns whether it has grown too long for a log."""
        if not self._is_due(records):
            return False
        if self._end <= _LIVING_BYTES_MAX and 2 * self._garbage_about(records) < self._end:
            self._look_at = self._end + self._end // 4
            self._look_garbage = 2 * len(records.garbage)
            return False
        content = self._anew(records)
        self._look_at = max(_LOOK_BYTES, 2 * len(content))
        if 2 * len(content) <= self._end:
            self._replace(content, records)
        return len(content) > _LIVING_BYTES_MAX

    def _is_due(self, records: Records) -> bool:
        # It has grown since it was looked through, or three rows of four are garbage: the sooner these go, the less is
        # written.
        garbage = len(records.garbage)
        is_mostly_garbage = garbage >= self._look_garbage and 4 * garbage >= 3 * self._rows
        return self._end >= (_LOOK_BYTES if is_mostly_garbage else self._look_at)

    def sweep(self, records: Records) -> None:
        if records.garbage:
            self._replace(self._anew(records), records)

    def secure(self) -> None:
        # every commit is on the disk already
        ...

    def rest(self, records: Records) -> None:
        # A rest says that every commit is on the disk, and what was forgotten since.
        if self._tail is not None and not records.has_forgotten:
            return
        rows = records.claim([])
        with self._durable():
            self._append(REST, list(enumerate(rows, records.clock)), records.clock, durable=False)
            records.committed(rows)

    def end(self, *, checkpoint: bool) -> None:
        self.file.shut()
        self._let_go()

    def living(self, records: Records) -> Iterator[Numbered]:
        garbage = set(records.garbage)
        content = self.file.content()
        for frame in read_log(content).frames:
            yield from (each for each in rows_of(content, frame) if each[0] not in garbage)

    def _refuse(self, reading: Reading, incarnation: int | None) -> None:
        if reading.head is not None:
            life = reading.incarnation if incarnation is None else incarnation
            owner, version = reading.head.agent_id, reading.head.version
            refuse_stranger(self.agent_id, life, owner=owner, latest=reading.incarnation, version=version)
        if reading.is_damaged:
            what = f"{self.file.name} is damaged at byte {reading.end}" + ", and later commits follow" * (
                reading.end > 0
            )
            raise StorageLost(self.agent_id, f"{what}. {WAY_OUT}")

    def _adopt(self, content: bytes, reading: Reading) -> list[Numbered]:
        self._digest, self._end, self._tail = reading.digest, reading.end, None
        self._frames.clear()
        self._rows = self._look_garbage = 0
        rows: list[Numbered] = []
        for frame in reading.frames:
            held = rows_of(content, frame)
            self._place(held, frame.start, frame.end)
            rows += held
            self._tail = None if frame.kind == COMMIT else _Tail(frame.start, frame.before, held)
        return rows

    def _take_up(self, content: bytes, reading: Reading, incarnation: int | None) -> None:
        # What may not be on the disk yet is brought there before the log is claimed.
        if reading.frames and self._tail is None:
            last = reading.frames[-1]
            self.file.write(last.start, content[last.start : reading.end], durable=True)
            self.file.settle()
        if incarnation is None or incarnation == self.incarnation:
            return
        self.incarnation = incarnation
        with self._durable():
            self._append(CLAIM, [], self._records.clock, durable=False)

    def _append(self, kind: int, rows: list[Numbered], number: int, *, durable: bool) -> None:
        start, before = self._end, self._digest
        if self._tail is not None:
            start, before, earlier = self._tail
            rows, number = [*earlier, *rows], earlier[0][0] if earlier else number
            self._rows -= len(earlier)
        content, digest = frame_of(kind, rows, number, self.incarnation, before)
        self.file.write(start, content, durable=durable)
        self._place(rows, start, start + len(content))
        self._digest, self._end = digest, start + len(content)
        self._tail = None if kind == COMMIT else _Tail(start, before, rows)

    def _place(self, rows: list[Numbered], start: int, end: int) -> None:
        place = _Place(start, end, len(rows))
        self._rows += len(rows)
        self._frames.update((number, place) for number, row in rows if row.body is not None)

    def _anew(self, records: Records) -> bytes:
        head = LogHead(self.agent_id, SCHEMA_VERSION, self.incarnation, records.clock)
        return log_of_rows(head, self.living(records))

    def _garbage_about(self, records: Records) -> float:
        # Each row counts as a like share of its frame, so nothing is read.
        places = [self._frames[number] for number in records.garbage if number in self._frames]
        without_body = len(records.garbage) - len(places)
        return sum((place.end - place.start) / place.rows for place in places) + without_body * _ROW_BYTES

    def _replace(self, content: bytes, records: Records) -> None:
        with self._durable():
            self.file.replace(content)
            self._adopt(content, read_log(content))
            records.swept(list(records.garbage))

    def _read(self, places: list[_Place]) -> Iterator[Numbered]:
        # The frames are read again and verified. Near ones are read together.
        near: list[_Place] = []
        for place in places:
            if near and place.start > near[-1].end + _GAP_MAX:
                yield from self._read_near(near)
                near = []
            near.append(place)
        if near:
            yield from self._read_near(near)

    def _read_near(self, places: list[_Place]) -> Iterator[Numbered]:
        begin = places[0].start
        content = self.file.read(begin, places[-1].end)
        for start, _, _ in places:
            frame = read_frame(content, start - begin)
            if frame is None:
                raise StorageLost(self.agent_id, f"{self.file.name} is damaged at byte {start}. {WAY_OUT}")
            yield from rows_of(content, frame)


def _size(rows: list[Numbered], garbage: set[int]) -> int:
    # about how many bytes of a log
    return sum(_ROW_BYTES + len(row.key) + len(row.body or b"") for number, row in rows if number not in garbage)
