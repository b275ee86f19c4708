"""What a host's process says when it ends as no code survives it: by `os._exit`, or by a signal that can be told of.

The words go to a file of the data directory, which the supervisor takes away when the host is dead. Of `SIGKILL` nothing is said. Which
other signal ended it is told by where in the file its words begin.
"""

from __future__ import annotations

import ctypes
import faulthandler
import inspect
import os
import signal
from pathlib import Path
from typing import Final, NoReturn

EXIT: Final = os._exit
FATAL: Final = "Fatal Python error: "
CHARS_MAX: Final = 4_000
ENDED: Final = "its process was ended by {signal}"
RAN_OUT: Final = "a timer of its code ran out ({signal}), for which it has no handler, in {where}"
SAID: Final[dict[int, str]] = {
    signal.SIGXCPU: "it used up its processor time ({signal}, by RLIMIT_CPU) in {where}",
    **dict.fromkeys((signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF), RAN_OUT),
    **dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2), ENDED),
}
UNSAID: Final = "its process was killed by a signal that leaves no word, as SIGKILL does"


# From now on this process leaves them here. Not its children: those that were forked end without a word. What its code handles or ignores
# does not end it.
def keep_exit_report(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file, pid = path.open("w", encoding="utf-8"), os.getpid()

    def leave(status: int) -> NoReturn:
        caller = inspect.currentframe()
        if os.getpid() == pid and caller is not None and (caller := caller.f_back) is not None:
            code = caller.f_code
            file.write(f"its code called os._exit({status}) in {code.co_filename}:{caller.f_lineno}, {code.co_name}")
            file.flush()
        EXIT(status)

    faulthandler.enable(file, all_threads=False)
    end_on_sigterm()
    for each in SAID:
        if each == signal.SIGTERM or signal.getsignal(each) is signal.SIG_DFL:
            part = path.open("r+b", buffering=0)
            part.seek(each)
            faulthandler.register(each, part, all_threads=False, chain=True)
    os.register_at_fork(after_in_child=_leave_nothing)
    os._exit = leave


def _leave_nothing() -> None:
    faulthandler.disable()
    for each in SAID:
        faulthandler.unregister(each)


# Ray's own handler is in Python, and waits for the main thread, which never comes back to it in an async actor: so
# `kill` would do nothing.
def end_on_sigterm() -> None:
    ctypes.CDLL(None).signal(signal.SIGTERM, None)  # not `signal.signal`, which only the main thread may call


def take_exit_report(path: Path) -> str:
    """The words of a process that is dead, in one line; empty if it left none. They are deleted."""
    try:
        said = path.read_text(encoding="utf-8", errors="replace")[:CHARS_MAX]
    except FileNotFoundError:
        return ""
    path.unlink(missing_ok=True)
    number = len(said) - len(said.lstrip("\0"))
    first, *rest = said.splitlines() or [""]
    where = next((line.strip() for line in rest if line.startswith("  File ")), "an unknown place")
    if number in SAID:
        return SAID[number].format(signal=signal.Signals(number).name, where=where)
    return f"{first.removeprefix(FATAL)} in {where}" if first.startswith(FATAL) else first


def killed_for_memory() -> int:
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))
