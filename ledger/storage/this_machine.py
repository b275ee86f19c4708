"""What the system says of the machine and of its disks, as far as commits that share a log depend on it."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS: Final = Path("/proc/self/mountinfo")
_LOCAL: Final = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"))


def boot_id() -> str:
    # Empty where the system does not tell it.
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def is_local(folder: Path) -> bool:
    """Whether this folder lies on a disk of this machine alone: no other machine writes to it, and what one process has written every
    other one sees. False where the system does not tell it."""
    return mount_of(folder)[1] in _LOCAL


def mount_of(folder: Path) -> tuple[str, str]:
    """Where the file system of a folder is mounted, be the folder there or not, and its type. Empty where the system does not tell it."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return "", ""
    place = folder.resolve()
    mounts = {
        _path(before.split()[4]): after.split()[0] for before, _, after in (line.partition(" - ") for line in lines)
    }
    return next(((str(each), mounts[each]) for each in (place, *place.parents) if each in mounts), ("", ""))


def synchronise_file_system(file: int) -> None:
    """Bring everything that was written to the file system of an open file to its disk. Raises `OSError`, also for what could not be
    written since the file was opened."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(file):
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))


def settle_file_system(folder: Path) -> None:
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        synchronise_file_system(file)
    finally:
        os.close(file)


def _path(told: str) -> Path:
    return Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), told))
