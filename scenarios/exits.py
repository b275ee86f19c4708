"""How a command ends: its exit code, and that `SIGTERM` stops it like Ctrl-C."""

from __future__ import annotations

import signal
from typing import Final

REFUSED: Final = 2
STOPPED: Final = 130  # what shells expect after Ctrl-C
TERMINATED: Final = 143  # and after SIGTERM


class Terminated(KeyboardInterrupt):
    """This process was asked to end (`SIGTERM`). It stops as for Ctrl-C."""


def heed_sigterm() -> None:
    """Let `SIGTERM` stop this process like Ctrl-C. To be said again whenever Ray has started, because Ray puts its own way in place."""

    def stop(_number: int, _frame: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def code_of(stop: KeyboardInterrupt) -> int:
    """The exit code that shells expect of a stopped process."""
    return TERMINATED if isinstance(stop, Terminated) else STOPPED
