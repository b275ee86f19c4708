"""Who handles `SIGTERM` while a runtime is open, after the last one has closed, and in processes that were forked; how those end. And how
a program ends by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from perdure.actors.ray_world.sigterm import SIGTERM_HANDLING, STOPPED
from tests.tidy import IMPORT_PATH

CLOSED_ELSEWHERE = """
import signal, threading
from perdure.actors.ray_world.sigterm import SIGTERM_HANDLING
SIGTERM_HANDLING.hold()
closing = threading.Thread(target=SIGTERM_HANDLING.let_go)
closing.start()
closing.join()
try:
    signal.raise_signal(signal.SIGTERM)
finally:
    print("went on")
"""

# What is registered first is called first: before Perdure has given the signal back.
SENT_IN_THE_FORK = """
import os, signal
os.register_at_fork(after_in_child=lambda: signal.raise_signal(signal.SIGTERM))
from perdure.actors.ray_world.sigterm import SIGTERM_HANDLING
with SIGTERM_HANDLING.held():
    child = os.fork()
    if child == 0:
        os._exit(7)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(ended, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""

INTERRUPTED = """
import atexit, ray, sys, threading
from perdure.actors.ray_world.driver import DRIVER
atexit.unregister(ray.shutdown)  # which imports: where a Ray was entered, it has by then
DRIVER._submit(lambda: (threading.main_thread().join(), exec("entered = True")))  # as imports do
"""

FORKED = """
import atexit, os, sys, threading
atexit.register(lambda: print(*(each.name for each in threading.enumerate())))
from perdure.actors.ray_world.driver import DRIVER, OpenDirectory
DRIVER.leave(OpenDirectory(None, print))
child = os.fork()
if child == 0:
    sys.exit(3)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(autouse=True)
def own_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def played(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def handler() -> object:
    return signal.getsignal(signal.SIGTERM)


def test_sigterm_leaves_blocks_until_the_last_runtime_is_closed() -> None:
    SIGTERM_HANDLING.hold()
    with SIGTERM_HANDLING.held():
        pass
    with pytest.raises(SystemExit) as end:
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == STOPPED
    SIGTERM_HANDLING.let_go()
    assert handler() is signal.SIG_DFL


def test_a_runtime_that_another_thread_opens_or_closes_is_seen_to_by_the_main_one() -> None:
    def elsewhere(job: Callable[[], None]) -> None:
        thread = threading.Thread(target=job)
        thread.start()
        thread.join()

    elsewhere(SIGTERM_HANDLING.hold)
    assert handler() is signal.SIG_DFL, "only the main thread may change it"
    with SIGTERM_HANDLING.held():
        elsewhere(SIGTERM_HANDLING.hold)
        elsewhere(SIGTERM_HANDLING.let_go)
    assert handler() is not signal.SIG_DFL
    with SIGTERM_HANDLING.held():
        elsewhere(SIGTERM_HANDLING.let_go)
    assert handler() is signal.SIG_DFL


def test_a_handler_of_the_program_is_left_alone() -> None:
    def own(*_: object) -> None:
        pass

    signal.signal(signal.SIGTERM, own)
    with SIGTERM_HANDLING.held():
        assert handler() is own
    assert handler() is own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with SIGTERM_HANDLING.held():
        signal.signal(signal.SIGTERM, own)
    assert handler() is own


def test_sigterm_ends_a_process_whose_runtime_another_thread_has_closed() -> None:
    done = played(CLOSED_ELSEWHERE)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_sigterm_ends_a_forked_process_though_its_parent_has_a_runtime_open() -> None:
    with SIGTERM_HANDLING.held():
        child = os.fork()
        if child == 0:
            if handler() is signal.SIG_DFL:  # which also ends what does not come back to Python
                signal.raise_signal(signal.SIGTERM)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)


def test_sigterm_is_not_lost_while_a_process_is_forked() -> None:
    done = played(SENT_IN_THE_FORK)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-signal.SIGTERM} set()\n", "")


def test_a_forked_process_ends_without_a_thread_for_a_ray_that_it_does_not_have() -> None:
    done = played(FORKED)
    assert (done.returncode, done.stdout, done.stderr) == (3, "MainThread\n", "")


@pytest.mark.parametrize(
    ("ends", "code"),
    [("raise KeyboardInterrupt", -2), ("raise ValueError", 1), ("", 0), ("sys.ps1 = '>'; raise KeyboardInterrupt", 1)],
)
def test_ctrl_c_ends_a_program_as_such_though_a_directory_is_being_opened_still(ends: str, code: int) -> None:
    assert played(INTERRUPTED + ends).returncode == code
