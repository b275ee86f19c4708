"""Power cuts on a real file system: a workload lives on a loop device, which is copied as it is whenever something was acknowledged.

`unshare --mount python -m tests.crash.real_disk ext4 together` (as root) prints a verdict for each copy, as JSON.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.explore import WORKLOADS
from tests.crash.recording import Workload, in_child

_MIB = 1 << 20
_SIZE = {"ext4": 48 * _MIB, "xfs": 320 * _MIB}  # XFS takes no less
_JUDGED = 40  # copies, about


def cut(workload: Workload, system: str, place: Path) -> Iterator[tuple[str, str]]:
    """What was said last before each copy, and the verdict on it."""
    image, lines = place / "disk", place / "said"
    with image.open("wb") as file:
        file.truncate(_SIZE[system])
    _run(f"mkfs.{system}", "-q", image)

    def say(text: str) -> None:
        with lines.open("a") as told:
            told.write(f"{text}\n")
        _copy(image, place / f"copy-{len(_read(lines))}")

    with _mounted(image, place / "here") as here:
        _run("sync", "-f", here)
        for life in workload.lives:
            in_child(lambda life=life: life(here / "directory", say) or "")
    said = _read(lines)
    for number in range(1, len(said) + 1, len(said) // _JUDGED or 1):
        told = said[:number]
        with _mounted(place / f"copy-{number}", place / "there") as there:
            (there / "directory").mkdir(exist_ok=True)
            yield told[-1], in_child(lambda there=there, told=told: workload.judge(there / "directory", told))


def _read(lines: Path) -> list[str]:
    return lines.read_text().splitlines()


def _run(program: str, *arguments: str | Path) -> None:
    subprocess.run([shutil.which(program) or program, *arguments], check=True)


def _copy(image: Path, copy: Path) -> None:
    _run("cp", "--sparse=always", image, copy)


@contextmanager
def _mounted(image: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    _run("mount", "-o", "loop", image, place)
    try:
        yield place
    finally:
        _run("umount", place)


def main() -> None:
    system, workload = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        verdicts = list(cut(WORKLOADS[workload], system, Path(place)))
    sys.stdout.write(json.dumps(verdicts) + "\n")


if __name__ == "__main__":
    main()
