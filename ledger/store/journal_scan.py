"""Reading a journal: every whole frame of its segments, what mends a damaged one, and what a database lacks of it.

A frame that does not verify is taken from the mirror. If that has it neither, the next whole frame is looked for: if there is one, commits
are missing; if there is none, the frame was the last one, and was either never acknowledged or damaged later in both copies. It is not
replayed, and it is kept and told.

A boot and `perdure doctor` both begin with what a ledger's files say together (`assess`): the database up to the last fold, and the journal
after it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import duckdb

from perdure.ledger.storage.log_format import CHECK, check_of
from perdure.ledger.store.batches import count_of
from perdure.ledger.store.duckdb_file import get_mark
from perdure.ledger.store.duckdb_tables import rows_after
from perdure.ledger.store.journal import (
    FRAME,
    FRAME_MAGIC,
    HEAD,
    HEAD_MAGIC,
    MIRROR,
    SEGMENT,
    JournalEntry,
)
from perdure.ledger.store.seals import GENESIS, Commit, Mark, unseal
from perdure.ledger.store.store import Row

_Bytes = mmap.mmap | bytes


class Scan(NamedTuple):
    """What a journal holds: where its segments begin, their whole frames in order, what is damaged (in words, and in which files), and
    each segment's number with the last fact that it speaks of."""

    bases: list[Mark]
    entries: list[JournalEntry]
    flaws: list[str]
    damaged: list[str]
    segments: dict[int, int]


class ReplayPlan(NamedTuple):
    """What the journal does for a database: what to replay, what to tell, and what (in words) is lost in both."""

    replay: list[JournalEntry]
    findings: list[str]
    loss: str


class Assessment(NamedTuple):
    """The facts after the snapshot that the database has, what the journal adds to them, and (in words) what is lost in both."""

    snapshot_seq: int
    mark: Mark
    rows: list[Row]
    scanned: Scan
    plan: ReplayPlan


def has_segments(directory: Path) -> bool:
    return bool(_numbers(directory))


def has_everything(directory: Path) -> bool:
    # Every commit from the first on is there, so the database can be built from the journal.
    scanned = scan(directory)
    return scanned.bases[:1] == [GENESIS] and not reconcile(scanned, GENESIS).loss


def scan(directory: Path) -> Scan:
    """Verify every frame of every segment. Changes nothing."""
    found = Scan([], [], [], [], {})
    for number in _numbers(directory):
        last_seq = max((mark.seq for mark in found.bases), default=0)
        before = len(found.entries)
        paths = directory / f"{SEGMENT}{number}", directory / f"{MIRROR}{number}"
        with ExitStack() as stack:
            copies = [(each, _held(each, stack)) for each in paths]
            flaws = [*_scan_head(copies, found), *_scan_frames(copies, found)]
        found.flaws.extend(flaws)
        found.damaged.extend(each.name for each in paths if flaws)
        last_seq = max([last_seq, *(mark.seq for mark in found.bases)])
        found.segments[number] = max([last_seq, *(entry.after.seq for entry in found.entries[before:])])
    return found


def commits(entries: list[JournalEntry]) -> Iterator[Commit]:
    with ExitStack() as stack:
        files = {path: stack.enter_context(path.open("rb")) for path in {entry.path for entry in entries}}
        for entry in entries:
            files[entry.path].seek(entry.offset)
            yield unseal(entry.before, entry.after, files[entry.path].read(entry.length))


def reconcile(scanned: Scan, mark: Mark) -> ReplayPlan:
    """Compare the journal with a database that has everything up to `mark`. Pure. What cannot be proven is lost."""
    replay: list[JournalEntry] = []
    reached, loss = mark, ""
    for base in scanned.bases:
        if base.seq == mark.seq and base.digest != mark.digest:
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
    spoken_of = max([0, *(base.seq for base in scanned.bases), *(entry.after.seq for entry in scanned.entries)])
    if spoken_of > reached.seq:
        loss = loss or f"the facts {reached.seq + 1} to {spoken_of} are missing"
    elif spoken_of < mark.seq:
        there = f"the journal ends at fact {spoken_of}" if scanned.bases else "there is no journal that can be read"
        loss = loss or f"{there}, and the database at {mark.seq}: what was acknowledged after that is lost"
    return ReplayPlan(replay, list(scanned.flaws), loss)


def assess(con: duckdb.DuckDBPyConnection, directory: Path) -> Assessment:
    """Read the facts after the snapshot, and compare with the journal. Changes nothing.

    The cost grows with the facts after the snapshot, not with what is retained before it.
    """
    snapshot_seq, mark = get_mark(con)
    rows, scanned = rows_after(con, snapshot_seq), scan(directory)
    last_seq, kept = _follow(rows, snapshot_seq, mark.seq)
    if kept == len(rows) and last_seq == mark.seq:
        return Assessment(snapshot_seq, mark, rows, scanned, reconcile(scanned, mark))
    missing = f"fact {last_seq + 1} is missing" if last_seq < mark.seq else ""
    problem = missing or f"facts stand in {directory.name} after the last fold"
    last = Mark(last_seq, mark.digest)
    return Assessment(snapshot_seq, last, rows[:kept], scanned, ReplayPlan([], list(scanned.flaws), problem))


def _follow(rows: list[Row], seq: int, upto_seq: int) -> tuple[int, int]:
    # Up to which fact these rows follow one another after the fact of this number, and how many rows that are.
    for place, row in enumerate(rows):
        after = seq + count_of([row])
        if row.seq != seq + 1 or after > upto_seq:
            return seq, place
        seq = after
    return seq, len(rows)


def _numbers(directory: Path) -> list[int]:
    return sorted({_number(path) for name in (SEGMENT, MIRROR) for path in directory.glob(f"{name}*")} - {0})


def _number(path: Path) -> int:
    # 0 if it is another file.
    suffix = path.suffix[1:]
    return int(suffix) if suffix.isdigit() and path.name in (f"{SEGMENT}{suffix}", f"{MIRROR}{suffix}") else 0


def _scan_head(copies: list[tuple[Path, _Bytes]], found: Scan) -> Iterator[str]:
    (path, held), (_, mirror) = copies
    own = _head(held)
    base = own or _head(mirror)
    if base is not None:
        found.bases.append(base)
    if base is not None and not held:
        yield f"{path.name} is missing and is taken from its mirror"
    elif base is not None and own is None:
        yield f"the head of {path.name} was damaged and is taken from its mirror"
    elif base is None and held[: HEAD.size + CHECK].strip(b"\0"):
        yield f"the head of {path.name} cannot be read"


def _scan_frames(copies: list[tuple[Path, _Bytes]], found: Scan) -> Iterator[str]:
    path, held = copies[0]
    place, size = HEAD.size + CHECK, max(len(copy) for _, copy in copies)
    while place < size:
        entry = next((entry for each, copy in copies if (entry := _frame(each, copy, place))), None)
        if entry is not None:
            if entry.path != path and held:
                yield f"{path.name} was damaged at byte {place} and is mended from its mirror"
            found.entries.append(entry)
            place = entry.offset + entry.length
            continue
        if not held[place:].strip(b"\0"):
            return
        after = min(_next_frame(copy, place + 1, each) for each, copy in copies)
        if after < size:
            yield f"{path.name} is damaged from byte {place} to {after}"
        else:
            yield f"{path.name} ends with a commit that is not whole, at byte {place}"
        place = after


def _held(path: Path, stack: ExitStack) -> _Bytes:
    if not path.exists() or not path.stat().st_size:
        return b""
    return stack.enter_context(mmap.mmap(stack.enter_context(path.open("rb")).fileno(), 0, access=mmap.ACCESS_READ))


def _head(held: _Bytes) -> Mark | None:
    head = held[: HEAD.size]
    if len(head) < HEAD.size or held[HEAD.size : HEAD.size + CHECK] != check_of(head):
        return None
    magic, *base = HEAD.unpack(head)
    return Mark(*base) if magic == HEAD_MAGIC else None


def _frame(path: Path, held: _Bytes, place: int) -> JournalEntry | None:
    body = place + FRAME.size + CHECK
    head = held[place : place + FRAME.size]
    if len(head) < FRAME.size:
        return None
    magic, length, before_seq, after_seq, before, after = FRAME.unpack(head)
    if magic != FRAME_MAGIC or body + length > len(held):
        return None
    with memoryview(held) as view, view[body : body + length] as packed:
        whole = held[place + FRAME.size : body] == check_of(head, packed)
    return JournalEntry(Mark(before_seq, before), Mark(after_seq, after), path, body, length) if whole else None


def _next_frame(held: _Bytes, place: int, path: Path) -> int:
    while (place := held.find(FRAME_MAGIC, place)) >= 0:
        if _frame(path, held, place) is not None:
            return place
        place += 1
    return 1 << 62
