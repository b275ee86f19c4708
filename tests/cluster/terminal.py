"""A terminal with a command in it: its keys can be pressed, and its screen read as a person sees it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

ROWS, COLUMNS = 30, 140
PATIENCE_S = 120.0
ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """What the lines of a terminal show, as far as the commands use its language."""

    def __init__(self) -> None:
        self.is_cursor_shown = True
        self._lines = [""] * ROWS
        self._row = self._column = 0

    @property
    def text(self) -> str:
        """What is seen."""
        return "\n".join(line.rstrip() for line in self._lines)

    def take(self, written: str) -> str:
        """Show what was written. Returns the beginning of an escape sequence at its end, which is not whole."""
        at = 0
        while at < len(written):
            found = ESCAPE.match(written, at)
            if found is not None:
                self._obey(found[2], found[1])
                at = found.end()
            elif written[at] == "\x1b":
                return written[at:]
            else:
                self._write(written[at])
                at += 1
        return ""

    def _obey(self, verb: str, given: str) -> None:
        if given == "?25":
            self.is_cursor_shown = verb == "h"
        elif verb == "A":
            self._row = max(0, self._row - int(given or 1))
        elif verb == "K":
            assert given == "2", f"a whole line is erased, not {given!r}"
            self._lines[self._row] = ""
        else:
            assert verb == "m", f"ESC [ {given} {verb} is not known here"

    def _write(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
            if self._row == ROWS:
                self._lines = [*self._lines[1:], ""]
                self._row -= 1
        else:
            assert character.isprintable(), repr(character)
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self._ours, self.process = ours, process
        self.screen = Screen()
        self._rest = b""
        self._unread = ""

    def press(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._ours, keys.encode())

    def until(self, *words: str, without: Sequence[str] = ()) -> str:
        """Wait until all of these words are seen, and none of the others. Returns what is seen."""
        until_s = time.monotonic() + PATIENCE_S
        while not (self.reads() and all(each in self.screen.text for each in words)) or any(
            each in self.screen.text for each in without
        ):
            assert time.monotonic() < until_s, f"{words} not seen:\n{self.screen.text}"
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.screen.text}"
        return self.screen.text

    def ended(self) -> int:
        """Wait until the command has ended; its exit code."""
        until_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:  # a terminal that nobody reads would hold it up
            self.reads()
            assert time.monotonic() < until_s, self.screen.text
        self.reads()
        return self.process.returncode

    def reads(self) -> bool:
        """Read what was written since, for a moment at most. Always true."""
        while select.select([self._ours], [], [], 0.05)[0]:
            whole = self._rest + os.read(self._ours, 65_536)
            text = whole.decode(errors="ignore")
            self._rest = whole[len(text.encode()) :]
            self._unread = self.screen.take(self._unread + text)
        return True


@contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A command on a terminal, which is left as it was. Whatever is still there at the end is killed."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    before: list[Any] = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        command,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    opened = Terminal(ours, process)
    try:
        yield opened
        opened.ended()
        assert termios.tcgetattr(theirs) == before
        assert opened.screen.is_cursor_shown
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)
        os.close(theirs)
