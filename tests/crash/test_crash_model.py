"""Every crash of a sample is survived: kills, torn writes, power cuts, failed changes, and disks that are really full.

What the states are is said in `disk`, what is lived and what must be true afterwards in `ledger_lives` and `agent_lives`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.explore import WORKLOADS
from tests.crash.recording import COMPILER, compiled, preload
from tests.tidy import IMPORT_PATH, ROOT

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler, for the recorder of changes")

ALONE = ("unshare", "--mount")  # file systems that are mounted are seen by nobody else, and gone with the process
ROOMS = (16, 64, 112, 208, 304, 512, 1_024, 2_048)  # in KiB
PARTS = 8  # of all states of a workload
SAMPLE = 80  # states of each workload; there are some two thousand
Explore = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def explore(tmp_path_factory: pytest.TempPathFactory) -> Explore:
    environment = preload(compiled(tmp_path_factory.mktemp("recorder")))

    def explored(workload: str, *options: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
        command = [*before, sys.executable, "-m", "tests.crash.explore", workload, *options]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return explored


def report(result: dict[str, Any]) -> str:
    """Which states were found wrong, each as an argument of `tests.crash.explore`."""
    lines = [f"{state}: {verdict[:300]}" for state, verdict in result["wrong"].items()]
    return "\n".join([json.dumps(result["counts"]), *lines])


def wrong(result: dict[str, Any]) -> set[str]:
    return {verdict.partition(":")[0] for verdict in result["wrong"].values()}


@pytest.mark.thorough
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_sample_of_all_crashes_is_survived(workload: str, explore: Explore) -> None:
    result = explore(workload, "--sample", str(SAMPLE))
    assert sum(sum(each.values()) for each in result["counts"].values()) > 0.8 * SAMPLE
    assert not wrong(result), report(result)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("workload", "file"),
    [
        ("ledger", "ledger.journal"),
        ("ledger", "ledger.db"),
        ("storage", ".db"),
        ("log", ".db"),
        ("move", ".db"),
        ("together", ".shared"),
    ],
)
def test_a_power_cut_after_a_kill_takes_nothing_that_the_next_life_was_shown(
    workload: str, file: str, explore: Explore
) -> None:
    """The kill comes before a synchronisation, so that the next life sees what may not be on the disk."""
    syncs = [number for number, name in explore(workload, "kill:1")["syncs"] if re.search(rf"{file}(\.\d+)?$", name)]
    result = explore(workload, *(f"twice:{number}" for number in syncs[:: len(syncs) // 5 or 1]))
    assert result["counts"]["twice"]["well"] >= 4
    assert not result["wrong"], report(result)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_crash_is_survived(workload: str, part: int, explore: Explore) -> None:
    """All states of a workload, in parts of which each takes a minute or two."""
    result = explore(workload, "--part", str(part), str(PARTS))
    assert sum(sum(each.values()) for each in result["counts"].values()) > 0
    assert not wrong(result), report(result)


@pytest.mark.thorough
@pytest.mark.parametrize("workload", [name for name, each in WORKLOADS.items() if each.faults])
def test_what_was_acknowledged_is_there_when_a_full_disk_has_room_again(workload: str, explore: Explore) -> None:
    if subprocess.run([*ALONE, "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    result = explore(workload, *(f"room:{size}" for size in ROOMS), before=ALONE)
    assert not wrong(result), report(result)


@pytest.mark.long
@pytest.mark.parametrize("workload", ["ledger", "log", "rest", "storage", "together", "forget"])
@pytest.mark.parametrize("system", ["ext4", "xfs"])
def test_a_power_cut_on_a_real_file_system_is_survived(system: str, workload: str, tmp_path: Path) -> None:
    """The disk is copied as it is whenever something was said."""
    if shutil.which(f"mkfs.{system}") is None or not (losetup := shutil.which("losetup")):
        pytest.skip(f"there is no mkfs.{system} here, or no losetup")
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(4 << 20))
    device = subprocess.run([losetup, "--find", "--show", probe], check=False, capture_output=True, text=True)
    if device.returncode:
        pytest.skip(f"no loop device may be used here: {device.stderr.strip()}")
    subprocess.run([losetup, "--detach", device.stdout.strip()], check=True)
    command = [*ALONE, sys.executable, "-m", "tests.crash.real_disk", system, workload]
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)
    assert len(verdicts) > 15
    assert not [each for each in verdicts if each[1]]
