"""Small files that are whole: at every moment, also after a power cut, such a file is the former one or the new one, and never a part.

The order is: a draft beside it, on the disk; then its name; then the folder, on the disk. A name that came to the disk before its content
would be an empty file after a power cut. What a death leaves is a draft, `<name>.<process>-<thread>`, which nobody reads. A file to which
lines are added may end with a torn one, which readers pass over.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident


def keep_whole(path: Path, content: bytes) -> None:
    """Put this content into the file, unless it has it. Once this has returned, a power cut leaves it there. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        if path.read_bytes() == content:
            _settle(path)  # its writer may have died before
            return
    draft = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}")
    write_whole(draft, content)
    try:
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _settle(path)


def add_line(path: Path, line: str) -> None:
    """Add a line to a file to which several processes add, also if the line before was torn. Once this has returned, a power cut leaves it
    there. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        is_torn = file.read(1) not in (b"", b"\n")
        body = b"\n" * is_torn + f"{line}\n".encode()
        # One write, at whatever is the end by now: the rest would go behind what others add.
        if file.write(body) < len(body):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file.fileno())
    _settle(path)


def lines_of(path: Path) -> list[str]:
    """The lines of such a file that can be read; none if there is no file. Raises `OSError`."""
    return [line for line in numbered_lines(path).values() if line is not None]


def numbered_lines(path: Path) -> dict[int, str | None]:
    """All lines by their numbers, from 1 on; None for one that is no UTF-8 or has no end. Raises `OSError`."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    return {number: _whole(line) for number, line in enumerate(lines, 1)}


def _whole(line: bytes) -> str | None:
    with suppress(UnicodeDecodeError):
        return line.decode().rstrip("\r\n") if line.endswith(b"\n") else None
    return None


def write_whole(path: Path, content: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)  # a full disk is not to be filled further by each try
        raise


def write_at(file: int, content: bytes, start: int) -> None:
    # With one call unless the disk is full; then the second one says so.
    written = os.pwrite(file, content, start)
    while written < len(content):
        written += os.pwrite(file, content[written:], start + written)


def synchronise(directory: Path) -> None:
    """Bring the names in a directory to the disk: a new file's name survives a power cut only when its directory was written too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _settle(path: Path) -> None:
    synchronise(path.parent)
    synchronise(path.parent.parent)  # the folder may be new
