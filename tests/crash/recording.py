"""Programs that run under the recorder (`recorder.c`): it is compiled, preloaded into one process, and armed in forked children of it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from perdure.ledger.errors import PerdureError
from tests.crash.disk import changes
from tests.tidy import IMPORT_PATH

SOURCE = Path(__file__).with_name("recorder.c")
COMPILER = shutil.which("gcc") or shutil.which("cc")
_LIMIT_S = 300


Say = Callable[[str], None]


class Workload(NamedTuple):
    """Processes that live one after the other below a directory, and tell what they begin and what was acknowledged to them.

    `judge` is given the directory and all that was told, and says what is wrong: a word (`lost`, `refused`, `unreadable`, …), a
    colon, and what was seen. Nothing, if all is well.
    """

    name: str
    lives: tuple[Callable[[Path, Say], None], ...]
    judge: Callable[[Path, list[str]], str]
    faults: bool = True  # whether its changes come in an order, so that the n-th one can be made to fail
    flips: bool = False  # whether `judge` says of a damaged directory what it says of others


def latest(said: list[str], word: str, column: int = 1) -> int:
    """The number that was last told with this word, or 0."""
    return next((int(line.split()[column]) for line in reversed(said) if line.split()[0] == word), 0)


class Fault(NamedTuple):
    """The change number `at`, counted from 1, fails with this error; with 0 it kills."""

    at: int
    error: int


def compiled(folder: Path) -> Path:
    """The recorder, ready to be preloaded."""
    assert COMPILER
    library = folder / "recorder.so"
    command = [COMPILER, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-lpthread"], check=True)
    return library


class Record:
    """The record of what happens below a directory. `run` adds a process to it."""

    def __init__(self, directory: Path, file: Path, fault: Fault | None = None) -> None:
        self.directory = directory
        self.file = file
        self.fault = fault
        self._library = ctypes.CDLL(None)

    def run(self, life: Callable[[], None]) -> str:
        """Run this to its end in a recorded child, and say how it ended, as `in_child` does; a refusal of ours is told as such."""

        at, error = self.fault or (0, 0)
        before = sum(change.op != "A" for change in changes(self.file)) if at else 0

        def recorded() -> str:
            names = os.fsencode(self.directory), os.fsencode(self.file)
            self._library.recorder_arm(*names, ctypes.c_long(max(0, at - before)), error)
            try:
                life()
            except PerdureError as refusal:
                return f"refused: {refusal}"
            return ""

        return in_child(recorded)

    def say(self, text: str) -> None:
        """Add a line to the record, in its place among the changes."""
        self._library.recorder_note(text.encode())


def in_child(work: Callable[[], str]) -> str:
    """What this returns in a forked child, or how it died; so a crash of a library, or a thread that stays, ends nobody else."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_LIMIT_S)
        try:
            result = work()
        except BaseException:
            result = f"raised: {traceback.format_exc()[-2_000:]}"
        os.write(theirs, result.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    return f"died: {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else result


def preload(library: Path) -> dict[str, str]:
    """The environment of a process that can record."""
    return {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": IMPORT_PATH}
