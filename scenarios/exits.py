"""The exit codes of commands, and `SIGTERM`, which stops them like Ctrl-C."""

from __future__ import annotations

import signal
from typing import Final

DIFFERS: Final = 1
REFUSED: Final = 2
STOPPED: Final = 130  # what shells expect after Ctrl-C
TERMINATED: Final = 143  # and after SIGTERM
UNREAD: Final = 141  # and after SIGPIPE: what reads the output has gone


class Terminated(KeyboardInterrupt):
    """The process got `SIGTERM`."""


def heed_sigterm() -> None:
    """Let `SIGTERM` stop this process like Ctrl-C. Call it again after Ray has started: Ray installs its own handler."""

    def stop(_number: int, _frame: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


def code_of(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, Terminated) else STOPPED
