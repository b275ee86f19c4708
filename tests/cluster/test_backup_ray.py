"""A directory is backed up while it is served, and while the backup, a host and the supervisor are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure.actors import Runtime
from perdure.actors.ray_world.os_processes import kill
from perdure.ledger.maintenance.manifest import backups_in
from perdure.ledger.maintenance.target import BackupTarget
from perdure.scenarios.cli import app
from tests.actors.runtime.test_backup import Relay
from tests.cluster.test_ray_world import soon
from tests.tidy import IMPORT_PATH

RELAYS, HOPS = 4, 120
PATIENCE_S = 240.0


def perdure(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def told(runtime: Runtime) -> list[list[int]]:
    return [runtime.agent(Relay, f"r{n}").told() for n in range(RELAYS)]


def kill_one(runtime: Runtime, *, supervisor: bool) -> None:
    processes = soon(runtime.cluster.processes)
    kill([info.process for name, info in processes.items() if (name == "supervisor") is supervisor][:1])


@pytest.mark.long
def test_a_backup_that_is_made_amid_work_and_kills_goes_on_from_its_moment_exactly_once(tmp_path: Path) -> None:
    data, copy, target = tmp_path / "data", tmp_path / "copy", tmp_path / "target"
    every = [list(range(HOPS + 1))] * RELAYS
    with Runtime(data) as runtime:
        for n in range(RELAYS):
            runtime.agent(Relay, f"r{n}").begin(HOPS)
        soon(lambda: all(len(each) > 5 for each in told(runtime)))
        command = [sys.executable, "-m", "perdure.cli", "backup", str(data), str(target)]
        killed = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": IMPORT_PATH}, stdout=subprocess.DEVNULL)
        soon(lambda: any(target.rglob("*")))
        killed.kill()
        killed.wait()
        assert backups_in(BackupTarget(str(target))) == []
        kill_one(runtime, supervisor=False)
        kill_one(runtime, supervisor=True)
        said = perdure("backup", data, target)
        assert "Backup 00000001: " in said
        assert told(runtime) != every, "the work was not done yet"
        assert "is served by process" in perdure("doctor", "--data", data)
        end_s = time.monotonic() + PATIENCE_S
        while told(runtime) != every and time.monotonic() < end_s:
            time.sleep(0.5)
        assert told(runtime) == every
    assert "damage" not in perdure("restore", target, copy)
    with Runtime(copy) as runtime:
        at_first = told(runtime)
        assert all(each == list(range(len(each))) for each in at_first)
        end_s = time.monotonic() + PATIENCE_S
        while told(runtime) != every and time.monotonic() < end_s:
            time.sleep(0.5)
        assert told(runtime) == every
    perdure("doctor", "--data", copy, "--deep")
