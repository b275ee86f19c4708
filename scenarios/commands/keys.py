"""Keys that a person presses in a terminal, one by one, without being shown. Ctrl-C and Ctrl-Z do what they always do."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import sys
import termios
import tty
from collections import deque
from contextlib import suppress
from typing import Any, Final, Self, TextIO

NAMES: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b": "escape", "\r": "enter", "\n": "enter",
    "\x7f": "backspace", "\b": "backspace",
}  # fmt: skip
_ONE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)


def keys_in(text: str) -> list[str]:
    """The keys in what a terminal has sent: a name for each in the table, the character for any other that is seen. Pure."""
    found = (NAMES.get(each, each) for each in _ONE.findall(text))
    return [each for each in found if each in NAMES.values() or each.isprintable()]


class Keys:
    """The keys of a terminal, by default this process's, while it is entered. Without one, or while it is another program's, none comes."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stdin
        self._pressed: deque[str] = deque()
        self._is_pressed = asyncio.Event()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if _is_ours(self._file.fileno()):
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
            asyncio.get_running_loop().add_reader(self._file.fileno(), self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(self._file.fileno())
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    async def wait(self, timeout_s: float) -> list[str]:
        """The keys that were pressed; none after so long without one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_pressed.wait()
        return self.taken()

    def taken(self) -> list[str]:
        """The keys that were pressed since they were taken last."""
        keys = list(self._pressed)
        self._pressed.clear()
        self._is_pressed.clear()
        return keys

    def _read(self) -> None:
        try:
            sent = os.read(self._file.fileno(), 4096)
        except OSError:  # it was hung up
            sent = b""
        if not sent:
            asyncio.get_running_loop().remove_reader(self._file.fileno())
        self._pressed.extend(keys_in(self._decoder.decode(sent)))
        if self._pressed:
            self._is_pressed.set()


def _is_ours(file: int) -> bool:
    """Whether this is a terminal, and a program in the background would not be stopped for changing it."""
    if not os.isatty(file):
        return False
    try:
        return os.tcgetpgrp(file) == os.getpgrp()
    except OSError:  # it is no program's own
        return True
