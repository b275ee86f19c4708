"""The exit codes of commands, and `SIGTERM` and `SIGHUP`, which stop them like Ctrl-C."""

from __future__ import annotations

import signal
from typing import Final

DIFFERS: Final = 1
REFUSED: Final = 2
STOPPED: Final = 130  # what shells expect after Ctrl-C
TERMINATED: Final = 143  # and after SIGTERM
UNREAD: Final = 141  # and after SIGPIPE: what reads the output has gone


class Terminated(KeyboardInterrupt):
    """The process got `SIGTERM`, or `SIGHUP`."""


def terminating() -> list[signal.Signals]:
    """What terminates this process: not a `SIGHUP` that `nohup` has it ignore."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGHUP]


def heed_sigterm() -> None:
    """Let `SIGTERM` stop this process like Ctrl-C, once: a second one would only hinder the end. Call it again after Ray has started: Ray
    installs its own handler."""

    def stop(_number: int, _frame: object) -> None:
        heed_no_more()
        raise Terminated

    for each in terminating():
        signal.signal(each, stop)


def heed_no_more() -> None:
    """The end has begun already. The handler does nothing; unlike `SIG_IGN`, processes that are started do not inherit it."""
    for each in terminating():
        signal.signal(each, lambda _number, _frame: None)


def code_of(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, Terminated) else STOPPED
