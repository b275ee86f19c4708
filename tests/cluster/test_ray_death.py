"""A process with a Ray of its own dies, or is asked to end: what it leaves behind, what it says, and how soon another one goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray

from perdure.actors import Agent, RunContext, Runtime
from perdure.actors.ray_world.cluster_record import startup_lock, write_record
from perdure.actors.ray_world.driver import SILENT_S
from perdure.actors.ray_world.os_processes import ProcessId, descendants, is_alive, kill, process_of, wait_until_gone
from perdure.actors.ray_world.ray_internals import workers_of
from perdure.ledger import BadRequest, NoLongerServed, RuntimeClosed
from perdure.policies import Limits
from tests.cluster.harbour import free_address, head
from tests.tidy import IMPORT_PATH

ROOT = Path(__file__).resolve().parents[2]
ORPHANS_S = 60.0
ONE_HOST = Limits(hosts_max=1, hosts_warm=1)  # each more would take a second of processor time
NAP_S = 3_600.0  # which whoever begins again need not sleep

SCRIPT = """
import os, sys, threading, time
from perdure.actors import Runtime
from tests.cluster.test_ray_death import NAP_S, ONE_HOST, Napper

with Runtime(sys.argv[1], limits=ONE_HOST) as runtime:
    runtime.start(Napper, NAP_S, run_id="nap")
    while not any(run["status"] == "running" for run in runtime.list()):
        time.sleep(0.05)
    print(*(number for info in runtime.cluster.processes().values() for number in info.process), flush=True)
    threading.Event().wait()
"""


class Napper(Agent):
    """Sleeps in its first attempt."""

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input if run.attempt == 1 else 0)
        return run.attempt


@contextmanager
def script(data: Path) -> Iterator[tuple[subprocess.Popen[str], list[ProcessId]]]:
    """A process that has a Ray of its own with a run in it, and its supervisor and hosts."""
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    command = [sys.executable, "-c", SCRIPT, str(data)]
    running = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=data.parent,
        start_new_session=True,
    )
    process = process_of(running.pid)
    assert process is not None
    try:
        assert running.stdout is not None
        numbers = map(int, running.stdout.readline().split())
        actors = [ProcessId(pid, started_ms) for pid, started_ms in zip(numbers, numbers, strict=True)]
        assert len(actors) > 1
        family = descendants(process)
        yield running, actors
    finally:
        kill([*descendants(process), process])
        running.communicate()
    # a worker that is only starting when its raylet dies waits in Ray's start for ever
    kill(worker for raylet in family for worker in workers_of(raylet))


def test_a_killed_script_leaves_nothing_that_would_hinder_the_next_one(tmp_path: Path) -> None:
    with script(tmp_path / "data") as (running, actors):
        running.kill()
        running.wait()
        assert wait_until_gone(actors, ORPHANS_S) == []
    with Runtime(tmp_path / "data", limits=ONE_HOST) as runtime:
        result = runtime.run(Napper, NAP_S, run_id="nap")
        assert (result.status, result.output) == ("completed", 2)


@pytest.mark.thorough
def test_who_has_joined_the_ray_of_a_script_goes_on_in_another_one_when_that_script_ends(tmp_path: Path) -> None:
    with script(tmp_path / "data") as (running, _), Runtime(tmp_path / "data", limits=ONE_HOST) as runtime:
        assert not runtime.cluster.own
        running.terminate()
        assert runtime.run(Napper, NAP_S, run_id="nap").output == 2
        assert runtime.cluster.own
        ray.shutdown()
        with pytest.raises(NoLongerServed, match="this process has shut Ray down — open it anew"):
            runtime.ps()


@pytest.mark.thorough
def test_a_cluster_that_was_named_is_waited_for_and_work_goes_on_when_it_is_started_anew(tmp_path: Path) -> None:
    """Also one that is back before anybody has missed its answers: its raylet is another one."""
    address, python = free_address(), Path(sys.executable)
    environment = {"HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled", "PYTHONPATH": IMPORT_PATH}
    with contextlib.ExitStack() as first:
        first.enter_context(head(python, address, tmp_path, environment))
        with Runtime(tmp_path / "data", address=address, limits=ONE_HOST) as runtime:
            handle = runtime.start(Napper, NAP_S, run_id="nap")
            assert runtime.run(Napper, 0.0).output == 1
            first.close()
            with head(python, address, tmp_path, environment):
                assert handle.result().output == 2
                assert not runtime.cluster.own


@pytest.mark.thorough
def test_what_answers_where_a_ray_was_on_record_but_is_none_any_more_holds_nobody_up_for_long(tmp_path: Path) -> None:
    """A cluster that dies while it is joined looks so, too: its port was open a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_record(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}")
        with Runtime(tmp_path, limits=ONE_HOST) as runtime:
            assert runtime.run(Napper, 0.0, run_id="nap").output == 1


@pytest.mark.thorough
def test_a_ray_that_is_too_slow_to_start_is_started_once_more_and_who_waits_is_told_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start, tries = ray.init, []

    def slow(**options: Any) -> None:
        tries.append(options["address"])
        if len(tries) == 1:
            time.sleep(SILENT_S)
            raise RuntimeError("The current node timed out during startup. This could happen because …")
        start(**options)

    monkeypatch.setattr(ray, "init", slow)
    with Runtime(tmp_path, limits=ONE_HOST) as runtime:
        handle = runtime.start(Napper, 0.1, run_id="nap")
        assert handle.result().output == runtime.run(Napper, 0.1, run_id="nap").output == 1

        async def story() -> None:
            assert (await handle.result()).output == 1

        asyncio.run(story())
    assert tries == ["local", "local"]
    assert f"perdure: opening {tmp_path}; a Ray takes a while" in capsys.readouterr().err


def test_ctrl_c_while_a_runtime_opens_ends_the_script_with_the_line_that_opens_it(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    script = f"from perdure.actors import Runtime\nwith Runtime({str(tmp_path)!r}):\n    pass"
    command, environment = [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": IMPORT_PATH}
    with startup_lock(tmp_path):  # so that it is still opening when it says that this takes a while
        opening = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert opening.stderr is not None
        assert opening.stderr.readline().startswith("perdure: opening ")
        os.killpg(opening.pid, signal.SIGINT)
    _, said = opening.communicate(timeout=120)
    lines = [line for line in said.splitlines() if not line.startswith("perdure: ")]
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "KeyboardInterrupt"), said
    assert "driver.py" not in said
    assert sum(line.startswith("  File ") for line in lines) <= 3, said


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param("it alone", marks=pytest.mark.thorough),
        "its group",  # by `timeout`, for example
        pytest.param("all that it has started", marks=pytest.mark.thorough),  # by systemd
    ],
)
def test_a_script_that_is_asked_to_end_does_so_soon_and_says_and_leaves_nothing(tmp_path: Path, reached: str) -> None:
    """Whomever else the signal reaches. A GCS that it reaches answers no more, and ends 12 to 20 s later."""
    with script(tmp_path / "data") as (running, _):
        script_process = process_of(running.pid)
        assert script_process is not None
        family = descendants(script_process)
        if reached == "its group":
            os.killpg(running.pid, signal.SIGTERM)
        else:
            for each in [*(family if reached == "all that it has started" else []), script_process]:
                os.kill(each.pid, signal.SIGTERM)
        _, said = running.communicate(timeout=10)
        assert running.returncode == 143
        assert [line for line in said.splitlines() if not line.startswith("perdure: opening")] == []
        assert [each for each in family if is_alive(each)] == []


@pytest.mark.thorough
def test_a_runtime_whose_ray_was_killed_is_closed_without_a_wait_for_its_answers(tmp_path: Path) -> None:
    """Ray would wait 5 s for what is told to its GCS last."""
    with Runtime(tmp_path, limits=ONE_HOST) as runtime:
        assert runtime.run(Napper, 0.0).output == 1
        kill(runtime.cluster.vital().values())
        killed_s = time.monotonic()
    assert time.monotonic() - killed_s < 5


ORPHAN = """
import os, sys, time
from pathlib import Path
from perdure.actors.ray_world.driver import DRIVER, OpenDirectory

while os.getppid() == int(sys.argv[2]):
    time.sleep(0.05)
keeper = OpenDirectory(Path(sys.argv[1]), ensure=lambda own: None)
DRIVER.enter(keeper, None)
DRIVER.leave(keeper)
Path(sys.argv[1], "left").touch()
"""


@pytest.mark.thorough
def test_a_process_whose_parent_is_gone_outlives_the_ray_that_it_leaves(tmp_path: Path) -> None:
    """So does what the init process of a machine or of a container has started."""
    command = ["sh", "-c", '"$@" $$ >&2 & echo $!', "sh", sys.executable, "-c", ORPHAN, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        orphan = process_of(int(shell.stdout.readline()))
    assert orphan is not None
    assert wait_until_gone([orphan], 2 * ORPHANS_S) == []
    assert (tmp_path / "left").exists()


@pytest.mark.thorough
def test_async_code_goes_on_while_a_runtime_opens_and_who_waits_is_told_that_it_was_closed(tmp_path: Path) -> None:
    async def story() -> None:
        ticking, gaps = True, [0.0]

        async def tick() -> None:
            while ticking:
                begun_s = time.monotonic()
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - begun_s)

        ticker = asyncio.create_task(tick())
        async with Runtime(tmp_path, limits=ONE_HOST) as runtime:
            assert len(gaps) > 20
            with pytest.raises(BadRequest, match=r"open on .* already"):
                runtime.open()
            waiting = asyncio.ensure_future(runtime.run(Napper, 600.0, run_id="long"))
            await asyncio.sleep(0.5)
        with pytest.raises(RuntimeClosed, match="it was closed meanwhile"):
            await waiting
        with pytest.raises(BadRequest, match="it was closed"):
            runtime.ps()
        ticking = False
        await ticker

    asyncio.run(story())
