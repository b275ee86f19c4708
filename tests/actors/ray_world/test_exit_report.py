"""What a process leaves to be read when it ends by `os._exit` or by a fatal signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.actors.ray_world.exit_report import killed_for_memory, take_exit_report
from tests.tidy import IMPORT_PATH

LISTEN = """
import ctypes, os, signal, sys
from pathlib import Path
from perdure.actors.ray_world.exit_report import EXIT, keep_exit_report
keep_exit_report(Path(sys.argv[1]))
"""
RAN_OUT = "a timer of its code ran out (SIGALRM), for which it has no handler, in File "


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("def work():\n    os._exit(3)\nwork()", 3, "its code called os._exit(3) in <string>:7, work"),
        ("ctypes.string_at(0)", -11, "Segmentation fault in File "),
        ("if not os.fork():\n    os._exit(5)\nos.wait()", 0, ""),
        ("EXIT(4)", 4, ""),
        ("os.kill(os.getpid(), 24)", -24, "it used up its processor time (SIGXCPU, by RLIMIT_CPU) in File "),
        ("os.kill(os.getpid(), 15)", -15, "its process was ended by SIGTERM"),
        ("signal.setitimer(signal.ITIMER_REAL, 0.01)\nctypes.CDLL(None).pause()", -14, RAN_OUT),
        ("os.kill(os.getpid(), 10)", -10, "its process was ended by SIGUSR1"),
        ("signal.signal(10, lambda *_: EXIT(6))\nos.kill(os.getpid(), 10)", 6, ""),
        ("if not os.fork():\n    os.kill(os.getpid(), 15)\nos.wait()", 0, ""),
        ("if not os.fork():\n    ctypes.string_at(0)\nos.wait()", 0, ""),
        ("os.kill(os.getpid(), 9)", -9, ""),
    ],
)
def test_the_words_are_of_the_process_itself_and_are_taken_once(
    code: str, status: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "hosts" / "h1"
    command = [sys.executable, "-c", LISTEN + code, str(path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": IMPORT_PATH}, check=False, capture_output=True)
    assert done.returncode == status, done.stderr
    words = take_exit_report(path)
    assert words.startswith(said)
    assert bool(words) == bool(said)
    assert not path.exists()
    assert take_exit_report(path) == ""


def test_a_signal_that_the_process_has_been_started_to_ignore_leaves_no_word(tmp_path: Path) -> None:
    code = LISTEN + "os.kill(os.getpid(), 10); EXIT(6)"
    command = ["sh", "-c", 'trap "" USR1; exec "$@"', "sh", sys.executable, "-c", code, str(tmp_path / "h1")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": IMPORT_PATH}, check=False, capture_output=True)
    assert (done.returncode, take_exit_report(tmp_path / "h1")) == (6, "")


def test_sigterm_ends_a_process_whose_main_thread_does_not_come_back_to_python() -> None:
    code = """
import ctypes, os, signal, threading, time
from perdure.actors.ray_world.exit_report import end_on_sigterm
signal.signal(signal.SIGTERM, lambda *_: print("in Python"))
def end():
    end_on_sigterm()
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end).start()
ctypes.CDLL(None).sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False, capture_output=True, timeout=50)
    assert (done.returncode, done.stdout) == (-15, b"")


def test_the_kernel_counts_those_that_it_killed_for_memory() -> None:
    assert killed_for_memory() >= 0
