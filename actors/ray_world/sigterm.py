"""`SIGTERM` raises `SystemExit` while this process has a runtime open, so that `with` blocks are left, unless somebody else handles it.

When the last runtime closes the signal ends the process as before. In a forked process it always does: a handler of its parent's would
leave blocks that are not its own, and Python forgets a signal that it noted between the fork and its first line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

STOPPED: Final = 143  # the exit code of a process that SIGTERM ended


class SigtermHandling:
    """The one instance is `SIGTERM_HANDLING`. Any thread may call it; the handler changes in the main thread only, which Python demands."""

    def __init__(self) -> None:
        self._open = 0
        self._lock = threading.Lock()
        self._of_thread = threading.local()  # the signals that it did not take before it forked

    def hold(self) -> None:
        self._change(1)

    def let_go(self) -> None:
        self._change(-1)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Around what another thread opens or closes: this one, the main one, sees to the handler before and after."""
        self.hold()
        try:
            yield
        finally:
            self.let_go()

    def _change(self, by: int) -> None:
        with self._lock:  # a thread that begins to open keeps the handler, for Ray puts back what it finds
            self._open += by
            if threading.current_thread() is threading.main_thread():
                self._settle()

    def _settle(self) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        if self._open and handler is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._end)
        elif not self._open and handler == self._end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self._open:
            sys.exit(STOPPED)
        signal.signal(number, signal.SIG_DFL)  # another thread has closed the last one
        signal.raise_signal(number)

    def before_fork(self) -> None:
        self._of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.mask)

    def after_fork_in_child(self) -> None:
        self._open, self._lock = 0, threading.Lock()
        self._settle()
        self.after_fork()


SIGTERM_HANDLING: Final = SigtermHandling()

os.register_at_fork(
    before=SIGTERM_HANDLING.before_fork,
    after_in_parent=SIGTERM_HANDLING.after_fork,
    after_in_child=SIGTERM_HANDLING.after_fork_in_child,
)
