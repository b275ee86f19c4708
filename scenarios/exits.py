"""The exit codes of commands, and `SIGTERM` and `SIGHUP`, which stop them like Ctrl-C."""

from __future__ import annotations

import os
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
    for each in terminating():
        signal.signal(each, _stop)


def heed_no_more() -> None:
    """The end has begun already. The handler does nothing; unlike `SIG_IGN`, processes that are started do not inherit it."""
    for each in terminating():
        signal.signal(each, _go_on)


def _stop(_number: int, _frame: object) -> None:
    heed_no_more()
    raise Terminated


def _go_on(_number: int, _frame: object) -> None:
    pass


# A process that is forked from a command is none.
def _end_in_child() -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) in (_stop, _go_on):
            signal.signal(each, signal.SIG_DFL)


os.register_at_fork(after_in_child=_end_in_child)


def code_of(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, Terminated) else STOPPED


def stop_of(problem: RuntimeError) -> KeyboardInterrupt | None:
    """What has stopped this process, if that is what the error means: DuckDB ends its query, and raises an error of its own instead."""
    if str(problem) != "Query interrupted":
        return None
    return Terminated() if signal.getsignal(signal.SIGTERM) is _go_on else KeyboardInterrupt()
