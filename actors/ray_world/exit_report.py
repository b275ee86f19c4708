"""What a host's process says when it ends as no code survives it: by `os._exit`, or by a fatal signal that Python can name.

The words go to a file of the data directory, which the supervisor takes away when the host is dead. Of `SIGKILL`, and of most signals that
end a process by default, nothing is said. Of `SIGXCPU` the process does, since a limit (`RLIMIT_CPU`) sends it, and of `SIGTERM`, which is
what `kill` sends.
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
STACK: Final = "Stack (most recent call first):"  # begins what is left of SIGXCPU, of which one thread speaks
THREADS: Final = ("Thread 0x", "Current thread 0x")  # begin what is left of SIGTERM, of which all threads speak
CHARS_MAX: Final = 4_000


# From now on this process leaves them here. Not its children: those that were forked end without a word.
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
    faulthandler.register(signal.SIGXCPU, file, all_threads=False, chain=True)
    end_on_sigterm()
    faulthandler.register(signal.SIGTERM, file, all_threads=True, chain=True)
    os._exit = leave


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
    first, *rest = said.splitlines() or [""]
    where = next((line.strip() for line in rest if line.startswith("  File ")), "an unknown place")
    if first.startswith(THREADS):
        return "its process was ended by SIGTERM"
    if first.startswith(STACK):
        return f"it used up its processor time (SIGXCPU, by RLIMIT_CPU) in {where}"
    return f"{first.removeprefix(FATAL)} in {where}" if first.startswith(FATAL) else first


def killed_for_memory() -> int:
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))
