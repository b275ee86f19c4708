"""A process for each group of figures, so that a crash, a hang or a leak affects that group only.

The process prints its figures as one line of JSON. Its stderr is passed on. If it fails, the last line of that is the cause.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FAREWELL_S: Final = 10.0  # for a process that was told to end


@dataclass(frozen=True)
class Failed:
    """A group that could not be measured, with the cause."""

    group: str
    cause: str

    def to_plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def command_for(group: str, place: Path, *, quick: bool, load: int = 0) -> list[str]:
    return [
        sys.executable,
        "-m",
        "perdure.scenarios.bench.runner",
        group,
        str(place.resolve()),
        str(load),
        *(["--quick"] if quick else []),
    ]


def measure_apart(
    group: str, command: Sequence[str], patience_s: float, say: Callable[[str], None]
) -> list[dict[str, Any]] | Failed:
    """Measure a group by this command. After `patience_s` the process must print its stacks, and is ended."""
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # a crash and an abort print all stacks
    said: list[str] = []
    in_time = True
    with (
        tempfile.TemporaryFile("w+") as told,
        subprocess.Popen(command, stdout=told, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        listener = threading.Thread(target=_listen, args=(process, said, say), daemon=True)
        listener.start()
        try:
            in_time = _ends(process, patience_s)
            if not in_time:
                process.send_signal(signal.SIGABRT)
        finally:
            if not _ends(process, FAREWELL_S):
                process.kill()
        listener.join(FAREWELL_S)
        if process.wait() == 0:
            told.seek(0)
            figures: list[dict[str, Any]] = json.loads(told.readlines()[-1])
            return figures
    return Failed(group, _cause(process.returncode, said) if in_time else f"it was not done within {patience_s:g} s")


def _listen(process: subprocess.Popen[str], said: list[str], say: Callable[[str], None]) -> None:
    for line in process.stderr or ():
        say(line.rstrip())
        said.extend([line.strip()] if line.strip() else [])


def _ends(process: subprocess.Popen[str], patience_s: float) -> bool:
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _cause(code: int, said: list[str]) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return said[-1] if said else f"its process ended with {code}, and without a word"
