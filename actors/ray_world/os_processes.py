"""Processes of this machine: found, killed and waited for by number and start time, since a number alone is used again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from perdure.ledger import boot_id

LOOK_S: Final = 0.01  # between two looks at processes that are waited for
PR_SET_PDEATHSIG: Final = 1  # from <sys/prctl.h>


class ProcessId(NamedTuple):
    """Which process of a machine is meant.

    Args:
        pid: its number. After its end another process may have it.
        started_ms: when it started, in milliseconds since the machine did; the same whatever becomes of the wall clock.
    """

    pid: int
    started_ms: int


class ProcessInfo(NamedTuple):
    """What a process says of itself. `machine` tells within which machine, and container, its number means something."""

    process: ProcessId
    machine: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def node(self) -> str:
        return self.machine.partition(" ")[0]

    # The process if it is within reach of this one, else nothing.
    @property
    def here(self) -> list[ProcessId]:
        return [self.process] if self.machine == machine() else []


# A container has a namespace of its own for the numbers of processes.
def machine() -> str:
    return f"{platform.node()} {_space('pid')}"


def home() -> str:
    """This machine, or the container, as its processes see it: what runs there, and who listens at its addresses. Nothing else has this
    id. Empty where the system does not tell it."""
    known = [boot_id(), _space("pid"), _space("net")]
    return " ".join(known) if all(known) else ""


def _space(kind: str, pid: int | str = "self") -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    return ""


def this_process() -> ProcessId:
    return _id_of(psutil.Process())


def this_process_info() -> ProcessInfo:
    return ProcessInfo(this_process(), machine())


def parent_process() -> ProcessId | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        if (found := psutil.Process().parent()) is not None:
            return _id_of(found)
    return None


def process_of(pid: int) -> ProcessId | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return _id_of(psutil.Process(pid))
    return None


# One that has ended, and is not yet reaped by its parent, does not run.
def is_alive(process: ProcessId) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        found = _find(process)
        return found is not None and bool(found.status() != psutil.STATUS_ZOMBIE)
    return False


def kill(processes: Iterable[ProcessId]) -> None:
    for process in processes:
        _kill(process)


def strike(process: ProcessId) -> bool:
    """`SIGKILL` one process, and say whether it was still there. Raises `PermissionError` if it belongs to another user."""
    try:
        return is_alive(process) and _kill(process)
    except psutil.AccessDenied as problem:
        raise PermissionError(f"process {process.pid} belongs to another user") from problem


def _kill(process: ProcessId) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        if (found := _find(process)) is not None:
            found.kill()
            return True
    return False


# Returns those that still run in the end. Exit codes stay for their parents to collect.
def wait_until_gone(processes: Iterable[ProcessId], timeout_s: float) -> list[ProcessId]:
    left, end_s = list(processes), time.monotonic() + timeout_s
    while (left := [process for process in left if is_alive(process)]) and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    return left


def children(parent: ProcessId, *marks: str) -> list[ProcessId]:
    return _ids(_children(parent, *marks))


def descendants(parent: ProcessId, mark: str = "") -> list[ProcessId]:
    found = _children(parent, mark)
    for each in found[:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += each.children(recursive=True)
    return _ids(found)


def with_command(*marks: str) -> list[ProcessId]:
    return _ids(each for each in psutil.process_iter() if all(mark in _command(each) for mark in marks))


def runs_here(mark: str) -> bool:
    """Whether a process within this machine, and not in a container on it, has this in its command line."""
    here = _space("pid")
    return any(_space("pid", each.pid) in ("", here) for each in with_command(mark))


# The value that a process was started with for a variable of its environment.
def value_in(process: ProcessId, name: str) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return _environment(psutil.Process(process.pid)).get(name, "")
    return ""


def with_environment(name: str, value: str) -> list[ProcessId]:
    return _ids(each for each in psutil.process_iter() if _environment(each).get(name) == value)


# One that has ended counts as 0.
def cpu_s(pids: Iterable[int]) -> float:
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            spent = psutil.Process(pid).cpu_times()
            total_s += spent.user + spent.system
    return total_s


def _id_of(process: psutil.Process) -> ProcessId:
    return ProcessId(process.pid, round((process.create_time() - psutil.boot_time()) * 1000))


def _ids(processes: Iterable[psutil.Process]) -> list[ProcessId]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(_id_of(process))
    return found


# Raises `NoSuchProcess` if no process has its number.
def _find(process: ProcessId) -> psutil.Process | None:
    found = psutil.Process(process.pid)
    return found if _id_of(found) == process else None


def _children(parent: ProcessId, *marks: str) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        if (found := _find(parent)) is not None:
            return [each for each in found.children() if all(mark in _command(each) for mark in marks)]
    return []


# Each word has a space after it, so that a mark can say where a word ends.
def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return "".join(f"{word} " for word in process.cmdline())
    return ""


def _environment(process: psutil.Process) -> dict[str, str]:
    with contextlib.suppress(psutil.Error):
        found: dict[str, str] = process.environ()
        return found
    return {}


def have_standard_files() -> None:
    """See that standard input, output and error are open (`2>&-` closes one): the next file would get the number, and whatever native
    code and child processes write to it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the life of the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - Ray does not start without


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
