"""The clocks of real processes: the machine's, or one that a drill sets.

A drill may not set a clock that others use. So `PERDURE_CLOCK` names a file that says how far the clocks of the processes with
that environment are off. They all look at the same memory, so they jump at once.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Final

from perdure.ledger import BadRequest

CLOCK: Final = "PERDURE_CLOCK"
SHIFT: Final = struct.Struct("<q")


class SystemClock:
    """The wall clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Without the time in which the machine slept.
    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ShiftedClock:
    """A wall clock that is off by as many milliseconds as a file says at the moment."""

    def __init__(self, file: Path) -> None:
        self._machine = SystemClock()
        with file.open("r+b") as opened:
            self._shift = mmap.mmap(opened.fileno(), SHIFT.size)

    def now_ms(self) -> int:
        return self._machine.now_ms() + int(SHIFT.unpack_from(self._shift)[0])

    def steady_ms(self) -> int:
        return self._machine.steady_ms()


def clock_from(file: str) -> SystemClock | ShiftedClock:
    """The machine's clock, or one that is off by what this file says. Raises `BadRequest` if that cannot be read."""
    try:
        return ShiftedClock(Path(file)) if file else SystemClock()
    except (OSError, ValueError) as problem:
        raise BadRequest(CLOCK, f"{file!r} does not say how far the clock is off: {problem}") from problem


def shift_clocks(file: Path, by_ms: int) -> None:
    """Have the clocks that look at this file be off by this much from now on. The file is made if it is not there."""
    if not file.exists():
        file.write_bytes(SHIFT.pack(0))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), SHIFT.size) as shift:
        SHIFT.pack_into(shift, 0, by_ms)
