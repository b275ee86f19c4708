"""A look changes nothing: commands that read join what serves a directory, or read its ledger, and start nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure.actors import Runtime
from perdure.actors.ray_world.cluster_record import RECORD, write_record
from perdure.actors.ray_world.os_processes import children, descendants, process_of, this_process, wait_until_gone
from perdure.actors.ray_world.os_processes import kill as kill_processes
from perdure.actors.ray_world.ray_connection import connection
from perdure.actors.ray_world.ray_internals import GCS, SESSION
from perdure.actors.ray_world.world import RayCluster
from perdure.ledger import SupervisorUnreachable
from perdure.scenarios.cli import app
from tests.cluster.test_ray_death import ONE_HOST, ORPHANS_S, Napper, script
from tests.cluster.test_ray_world import soon
from tests.tidy import IMPORT_PATH

LOOKS = [["ps", "--all"], ["show", "nap"], ["show"], ["explain", "nap"], ["audit"]]
COLD = "No supervisor serves"


def test_a_look_at_a_directory_whose_ray_was_killed_starts_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with script(data) as (running, actors):
        driver = process_of(running.pid)
        assert driver is not None
        kill_processes([*children(driver, GCS), driver])
        assert wait_until_gone(actors, ORPHANS_S) == []
    record = (data / RECORD).read_text(encoding="utf-8")
    for words in [*LOOKS, ["doctor"]]:
        looked = CliRunner().invoke(app, [*words, "--data", str(data)])
        assert looked.exit_code == 0, looked.output
        assert (COLD in looked.stderr) == (words != ["doctor"])
    assert connection() is None
    assert descendants(this_process(), SESSION) == []
    assert (data / RECORD).read_text(encoding="utf-8") == record


@pytest.mark.thorough
def test_a_look_finds_a_supervisor_and_makes_none(tmp_path: Path) -> None:
    """Not even in a Ray that has a record's address by now and never heard of the directory, or has lost its supervisor."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with pytest.raises(SupervisorUnreachable, match="nothing serves"), Runtime(data, may_start=False):
        pass
    assert not data.exists()
    with Runtime(elsewhere, limits=ONE_HOST) as runtime:
        for directory in (elsewhere, data):
            with Runtime(directory, limits=ONE_HOST) as beside:
                assert beside.run(Napper, 0.0, run_id="nap").ok
        served = CliRunner().invoke(app, ["doctor", "--data", str(elsewhere)])
        assert "is served by process" in served.stdout, served.output
        assert served.exit_code == 0
        cluster = RayCluster.start(data)  # without a client, which would make another supervisor
        process = soon(cluster.processes)["supervisor"].process
        assert looked_from_outside(data) == ""
        cluster.close()
        assert wait_until_gone([process], ORPHANS_S) == []
        write_record(data, runtime.cluster.address)
        assert COLD in looked_from_outside(data)
        assert runtime.cluster.neighbours() == []


def looked_from_outside(data: Path) -> str:
    """What `perdure show` says beside its answer."""
    asked = [sys.executable, "-m", "perdure.cli", "show", "nap", "--data", str(data)]
    done = subprocess.run(
        asked, env={"PYTHONPATH": IMPORT_PATH, "HOME": str(Path.home())}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout
    return done.stderr
