"""What a power cut has taken from agents' logs is put back from the log that they shared (`shared_log`), before anybody reads them.

An agent's log may lack pieces that were acknowledged, its last ones, or have holes where they were. A piece is put where the log ends, if
the log's chain of digests says that it followed there. Any other piece is there already, or is of a log that was written anew since, and
was whole on the disk then. So to do it twice, or again after it was interrupted, is harmless.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from perdure.ledger.block_guard import synchronise
from perdure.ledger.errors import StorageError
from perdure.ledger.storage.log_format import is_log, read_frame, read_log
from perdure.ledger.storage.shared_segment import SUFFIX, alone, boot_of, is_free, pieces_in


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
    earlier = [each for each in _earlier(folder, boot) if is_free(each)]
    frames: dict[str, dict[int, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for each in earlier:
        for piece in pieces_in(each.read_bytes()):
            frames[piece.place][piece.start].append(piece.frame)
    for place, found in frames.items():
        with suppress(FileNotFoundError):  # the agent was deleted
            _put_back(storages / place, found)
    for each in earlier:
        each.unlink(missing_ok=True)
    synchronise(folder)


def _put_back(path: Path, frames: dict[int, list[bytes]]) -> None:
    content = path.read_bytes()
    if not is_log(content):
        return  # it has become a database since, with all that was in the log
    reading = read_log(content)
    end, digest = reading.end, reading.digest
    with path.open("r+b") as file:
        while (found := _following(frames.get(end, ()), digest)) is not None:
            frame, digest = found
            file.seek(end)
            file.write(frame)
            end += len(frame)
        file.flush()
        os.fsync(file.fileno())


def _following(frames: Iterable[bytes], digest: bytes) -> tuple[bytes, bytes] | None:
    """The frame that follows this digest, and its own."""
    for each in frames:
        frame = read_frame(each, 0)
        if frame is not None and frame.before == digest:
            return each, frame.digest
    return None
