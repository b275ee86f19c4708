"""A process is told apart by its number and its start time: whoever has the number since is never struck."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.actors.ray_world.os_processes import ProcessId, is_alive, kill, process_of, strike
from tests.tidy import IMPORT_PATH


@pytest.fixture
def sleeper() -> Iterator[tuple[subprocess.Popen[bytes], ProcessId]]:
    """A process that waits until it is killed."""
    running = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = process_of(running.pid)
    assert process is not None
    yield running, process
    running.kill()
    running.communicate()


def test_the_very_process_is_struck_once(sleeper: tuple[subprocess.Popen[bytes], ProcessId]) -> None:
    running, process = sleeper
    assert is_alive(process)
    assert strike(process)
    assert running.wait() == -signal.SIGKILL
    assert not strike(process)


def test_another_process_that_has_the_number_since_is_not_struck(
    sleeper: tuple[subprocess.Popen[bytes], ProcessId],
) -> None:
    running, process = sleeper
    earlier = process._replace(started_ms=process.started_ms - 1)
    assert not is_alive(earlier)
    assert not strike(earlier)
    kill([earlier])
    assert running.poll() is None
    assert is_alive(process)


def test_one_that_is_dead_but_not_yet_reaped_is_not_struck(
    sleeper: tuple[subprocess.Popen[bytes], ProcessId],
) -> None:
    running, process = sleeper
    running.kill()
    while is_alive(process):
        pass
    assert not strike(process)


def test_a_closed_standard_error_is_opened_so_that_no_file_gets_its_number(tmp_path: Path) -> None:
    text = (
        "import os, sys\n"
        "from perdure.actors.ray_world.os_processes import have_standard_files\n"
        "have_standard_files()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "os.write(2, b'lost')\n"
        "sys.stderr.write('lost')\n"
        "os.write(1, str(file.fileno()).encode())"
    )
    command = f"exec {sys.executable} -c {shlex.quote(text)} 2>&- <&-"
    done = subprocess.run(["/bin/sh", "-c", command], env={"PYTHONPATH": IMPORT_PATH}, capture_output=True, check=True)
    assert int(done.stdout) > 2
    assert (tmp_path / "file").read_text() == ""
