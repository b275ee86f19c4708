"""The journal: a second, simpler copy of every commit since the last checkpoint, beside the database.

DuckDB's write-ahead log is where this ledger can be hurt: a damaged byte in it makes the database refuse to open, or lose its last
commits without a word. So each commit is first written here, whole, with one `write`, and then to DuckDB. Only DuckDB's copy is
synchronised to the disk: it alone decides what was acknowledged. What this survives:

- the process dies between both writes: the journal is one commit ahead; it is appended to the database at the next start;
- the log loses commits or cannot be read: they are all here;
- the power fails: the journal may end early or in zeros, and the database has everything; its own chain shows it;
- a checkpoint is cut off: the journal is only begun anew after the database has everything in its own file.

A file is a head (magic, the place in the chain where it begins) and frames (magic, length, numbers, both ends of the link, body), each
with a digest. So a reader finds the next whole frame after a damaged one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from perdure.ledger.store.seals import Commit, Mark, rows_in, unseal

_HEAD = Struct(">8sQ16s")
_FRAME = Struct(">8sQQQ16s16s")
_HEAD_MAGIC = b"perdureJ"
_FRAME_MAGIC = b"\xc5commit\n"
_CHECK = 16


class Entry(NamedTuple):
    """A whole frame, by where its body lies: the facts after `before` up to `after`."""

    before: Mark
    after: Mark
    offset: int
    length: int


class Scan(NamedTuple):
    """What a journal holds. `base` is None if its head cannot be read; `claimed_seq` is the last fact that any damaged frame speaks of."""

    base: Mark | None
    entries: list[Entry]
    flaws: list[str]
    claimed_seq: int


class Plan(NamedTuple):
    """What the journal does for a database: what to append, what to tell, and what (in words) is lost in both."""

    replay: list[Entry]
    findings: list[str]
    loss: str


class Journal:
    """The journal open for writing. The caller holds the directory's lock."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self._path = path
        self._fsync = fsync
        self._file: int | None = None

    def begin(self, base: Mark) -> None:
        """Start an empty journal in place of the old one, which is in the database by now. The name changes hands at once or not at all."""
        self.close()
        fresh = self._path.with_suffix(".journal-new")
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        head = _HEAD.pack(_HEAD_MAGIC, base.seq, base.digest)
        try:
            _write(file, head + _digest(head))
            if self._fsync:
                os.fsync(file)
            fresh.rename(self._path)
        except OSError:
            os.close(file)
            raise
        self._file = file

    def resume(self) -> None:
        """Continue at the end of a journal that was scanned and found whole."""
        self.close()
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def append(self, commit: Commit) -> None:
        """Write one commit. If only a part gets onto the disk, the next start sees a torn end."""
        if self._file is None:
            raise AssertionError("the journal is not open")
        before, after = commit.before, commit.after
        head = _FRAME.pack(_FRAME_MAGIC, len(commit.packed), before.seq, after.seq, before.digest, after.digest)
        _write(self._file, b"".join((head, _digest(head, commit.packed), commit.packed)))

    def close(self) -> None:
        """Release the file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
        self._file = None


def scan(path: Path) -> Scan:
    """Verify every frame of a journal, and find where it is damaged. A missing journal is one without a readable head."""
    if not path.exists() or not path.stat().st_size:
        return Scan(None, [], [f"there is no journal ({path.name} is {'empty' if path.exists() else 'missing'})"], 0)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        return _scan(held)


def commits(path: Path, entries: list[Entry]) -> Iterator[Commit]:
    """Read these frames again, one at a time."""
    if not entries:
        return
    with path.open("rb") as file:
        for entry in entries:
            file.seek(entry.offset)
            yield unseal(entry.before, entry.after, file.read(entry.length))


def reconcile(scanned: Scan, mark: Mark, last_seq: int) -> Plan:
    """Compare the journal with a database that verifies up to `mark` and ends at `last_seq`. Pure. What cannot be proven is lost."""
    findings = list(scanned.flaws)
    replay: list[Entry] = []
    reached, loss = mark, ""
    if scanned.base is not None and scanned.base.seq == mark.seq and scanned.base.digest != mark.digest:
        loss = f"the journal and the database tell different stories about fact {mark.seq}"
    for entry in scanned.entries:
        if entry.after.seq <= reached.seq or loss:
            continue
        if entry.before == reached:
            replay.append(entry)
            reached = entry.after
        elif entry.before.seq > reached.seq:
            loss = f"the facts {reached.seq + 1} to {entry.before.seq} are missing"
        else:
            loss = f"the journal and the database tell different stories after fact {entry.before.seq}"
    known_seq = max(last_seq, scanned.claimed_seq, scanned.base.seq if scanned.base else 0)
    if known_seq > reached.seq:
        loss = loss or f"the facts {reached.seq + 1} to {known_seq} are missing or do not verify"
    if replay:
        findings.append(_told(replay))
    elif scanned.flaws and not loss:
        findings.append(f"what the database holds verifies up to fact {mark.seq}")
    return Plan(replay, findings, loss)


def _told(replay: list[Entry]) -> str:
    first_seq, last_seq = replay[0].before.seq + 1, replay[-1].after.seq
    which = f"fact {first_seq}" if first_seq == last_seq else f"facts {first_seq} to {last_seq}"
    if len(replay) > 1:
        return f"{len(replay)} commits were missing in the database and appended from the journal: {which}"
    return (
        f"the last commit was appended from the journal: {which}; either the process ended before its answer,"
        " or the database lost it"
    )


def _scan(held: mmap.mmap) -> Scan:
    entries: list[Entry] = []
    flaws: list[str] = []
    base, claimed_seq = None, 0
    size, place = len(held), _HEAD.size + _CHECK
    head = held[: _HEAD.size]
    if len(head) == _HEAD.size and held[_HEAD.size : place] == _digest(head):
        base = Mark(*_HEAD.unpack(head)[1:])
    else:
        flaws.append("the head of the journal cannot be read")
    while place < size:
        entry = _frame(held, place)
        if entry is not None:
            entries.append(entry)
            place = entry.offset + entry.length
            continue
        reached = max(claimed_seq, entries[-1].after.seq if entries else base.seq if base else 0)
        claimed_seq = max(claimed_seq, _claim(held, place, reached))
        found = _next_magic(held, place + 1)
        what = f"is damaged from byte {place} to {found}" if found < size else f"is torn at byte {place} of {size}"
        flaws.append(f"the journal {what}")
        place = found
    return Scan(base, entries, flaws, claimed_seq)


def _frame(held: mmap.mmap, place: int) -> Entry | None:
    """The frame at this place, if it is whole."""
    body = place + _FRAME.size + _CHECK
    head = held[place : place + _FRAME.size]
    if len(head) < _FRAME.size:
        return None
    magic, length, before_seq, after_seq, before, after = _FRAME.unpack(head)
    if magic != _FRAME_MAGIC or body + length > len(held):
        return None
    with memoryview(held) as view, view[body : body + length] as packed:
        whole = held[place + _FRAME.size : body] == _digest(head, packed)
    return Entry(Mark(before_seq, before), Mark(after_seq, after), body, length) if whole else None


def _claim(held: mmap.mmap, place: int, reached: int) -> int:
    """The last fact that a damaged frame held, if its numbers agree; 0 for a torn end.

    A single damaged byte is in the frame's head or in its body, so they only agree if they are right about the count.
    """
    body = place + _FRAME.size + _CHECK
    head = held[place : place + _FRAME.size]
    if len(head) < _FRAME.size:
        return 0
    magic, length, before_seq, after_seq, _, _ = _FRAME.unpack(head)
    if magic != _FRAME_MAGIC or body + length > len(held):
        return 0
    counted = before_seq == reached and after_seq - before_seq == rows_in(held[body : body + 16])
    return int(after_seq) if counted else reached + 1


def _next_magic(held: mmap.mmap, place: int) -> int:
    """Where the next frame may begin, or the end."""
    found = held.find(_FRAME_MAGIC, place)
    return len(held) if found < 0 else found


def _digest(*parts: bytes | memoryview) -> bytes:
    state = blake2b(digest_size=_CHECK)
    for part in parts:
        state.update(part)
    return state.digest()


def _write(file: int, content: bytes) -> None:
    """Write everything with one call, as a file does unless its disk is full; then the second call says so."""
    written = os.write(file, content)
    while written < len(content):
        written += os.write(file, content[written:])
