"""What a power cut has taken from agents' logs is put back from the log that they shared (`shared_log`), before anybody reads them.

An agent's log may lack pieces that were acknowledged, its last ones, or have holes where they were. A piece is put where the log ends, if
the log's chain of digests says that it followed there. A piece of an earlier life than the log, or with a number that the log does not
count from, is of a log that was written anew since, and was whole on the disk then. So to do it twice, or again after it was interrupted,
is harmless.

The shared log may be damaged itself. A piece that then follows nowhere is written where it was; and where a piece is lost that was the last
of its log, a frame is written that follows nothing. So the log has a hole, and refuses its agent as any damaged log does (`StorageLost`).
No other agent is refused. A segment that was not whole is kept, and `perdure doctor` names it.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from perdure.ledger.errors import StorageError
from perdure.ledger.storage.log_format import (
    COMMIT,
    LOG_MAGIC,
    LogFrame,
    Reading,
    frame_of,
    is_log,
    read_frame,
    read_log,
)
from perdure.ledger.storage.shared_segment import (
    SUFFIX,
    Contents,
    LogPiece,
    Name,
    alone,
    boot_of,
    is_free,
    kept_aside,
    read_segment,
)
from perdure.ledger.whole_files import synchronise, write_at

_log = logging.getLogger("perdure.storage")


def redo(storages: Path, boot: str) -> None:
    """Put back what is missing in this folder, from segments of earlier boots of the machine than this one.

    Raises `StorageError` if the disk does not let it be. Then nothing is lost yet, and it may be tried again.
    """
    folder = storages / "shared"
    try:
        if folder.is_dir() and _earlier(folder, boot):
            with alone(folder):
                _redo(storages, folder, boot)
    except OSError as problem:
        what = f"what a power cut has taken from it cannot be put back from {folder} ({problem})"
        raise StorageError(str(storages), f"{what}. Make room or repair the disk, then try again") from problem


def _earlier(folder: Path, boot: str) -> list[Path]:
    return [each for each in folder.iterdir() if each.suffix == SUFFIX and boot_of(each) != boot]


def _redo(storages: Path, folder: Path, boot: str) -> None:
    read = {each: read_segment(each.read_bytes()) for each in _earlier(folder, boot) if is_free(each)}
    for place, pieces in _by_place(read.values()).items():
        with suppress(FileNotFoundError):  # the agent was deleted
            _put_back(storages / place, *pieces)
    _refuse_who_lost(storages, [name for contents in read.values() for name in contents.lost])
    for path, contents in read.items():
        if contents.problem:
            _log.warning(
                "%s was not whole after a power cut: %s. It is kept as %s", path, contents.problem, kept_aside(path)
            )
        else:
            path.unlink(missing_ok=True)
    synchronise(folder)


def _by_place(segments: Iterable[Contents]) -> dict[str, tuple[list[LogPiece], list[LogPiece]]]:
    # The first are those that were surely acknowledged.
    found: dict[str, tuple[list[LogPiece], list[LogPiece]]] = defaultdict(lambda: ([], []))
    for each in segments:
        for piece in each.sure:
            found[piece.place][0].append(piece)
        for piece in each.last:
            found[piece.place][1].append(piece)
    return found


def _put_back(path: Path, sure: list[LogPiece], others: list[LogPiece]) -> None:
    with path.open("r+b") as file:
        if not is_log(file.read(len(LOG_MAGIC))):
            return  # it has become a database since, with all that was in the log
        file.seek(0)
        reading = read_log(file.read())
        end, digest, life = reading.end, reading.digest, reading.incarnation
        frames: dict[int, list[bytes]] = defaultdict(list)
        for piece in (*sure, *others):
            frames[piece.start].append(piece.frame)
        while (found := _following(frames.get(end, ()), digest)) is not None:
            content, frame = found
            write_at(file.fileno(), content, end)
            end, digest, life = end + len(content), frame.digest, frame.incarnation
        for piece in sure:
            if piece.start > end and reading.head is not None and _is_later(piece.frame, life, reading.head.clock):
                write_at(file.fileno(), piece.frame, piece.start)
        os.fsync(file.fileno())


def _refuse_who_lost(storages: Path, lost: list[Name]) -> None:
    if not lost:
        return
    paths = {path.stem[-2 * len(lost[0].digest) :]: path for path in storages.rglob("*.db")}
    for name in lost:
        path = paths.get(name.digest.hex())
        if path is not None and is_log(content := path.read_bytes()):
            _refuse(path, read_log(content), name)


def _refuse(path: Path, reading: Reading, name: Name) -> None:
    # The log refuses its agent if it has not come as far as this piece, which was the last one.
    if reading.head is None or reading.is_damaged or name.start < reading.end:
        return
    if name.incarnation >= reading.incarnation and name.number >= reading.head.clock:
        unfollowed, _ = frame_of(COMMIT, [], name.number, name.incarnation, bytes(len(reading.digest)))
        with path.open("r+b") as file:
            write_at(file.fileno(), unfollowed, reading.end)
            os.fsync(file.fileno())


def _following(contents: Iterable[bytes], digest: bytes) -> tuple[bytes, LogFrame] | None:
    frames = ((content, read_frame(content, 0)) for content in contents)
    return next(((content, frame) for content, frame in frames if frame is not None and frame.before == digest), None)


def _is_later(content: bytes, life: int, clock: int) -> bool:
    # The first commit of a later log would have brought this one to the disk, so the frame is of the log whose last
    # life this is.
    frame = read_frame(content, 0)
    return frame is not None and frame.incarnation >= life and frame.number >= clock
