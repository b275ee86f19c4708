"""What a machine does to the processes of a directory: it stands still, or its disk is full."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Final

import psutil

SMALL_BYTES: Final = 4 * 2**30
PIECE_BYTES: Final = 2**22


@contextlib.contextmanager
def stood_still(pids: Sequence[int]) -> Iterator[None]:
    stopped: list[psutil.Process] = []
    try:
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                stopped.append(psutil.Process(pid))
                stopped[-1].suspend()
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


@contextlib.contextmanager
def full_disk(ballast: Path) -> Iterator[None]:
    # The file takes all room that its file system has.
    piece = PIECE_BYTES
    try:
        with ballast.open("wb", buffering=0) as file:
            while piece:
                piece = piece if _takes(file, bytes(piece)) else piece // 2
        yield
    finally:
        ballast.unlink(missing_ok=True)


def _takes(file: RawIOBase, piece: bytes) -> bool:
    try:
        file.write(piece)
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise
        return False
    return True


def may_be_filled(directory: Path) -> bool:
    # A small file system is nobody else's.
    return shutil.disk_usage(directory).total <= SMALL_BYTES
