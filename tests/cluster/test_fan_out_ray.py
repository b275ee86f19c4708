"""`perdure run fan-out` as a visitor runs it: real processes, real kills, everything dead in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tidy import ROOT

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-m", "perdure.scenarios.cli"]


def perdure(*words: str | Path) -> dict[str, Any]:
    command = [*COMMAND, *map(str, words), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_kills_of_every_kind_and_a_cold_restart_change_nothing(tmp_path: Path) -> None:
    told = perdure(
        "run",
        "fan-out",
        "--children",
        "14",
        "--kills",
        "3",
        "--pace",
        "6",
        "--seed",
        "4",
        "--cold-restart",
        "--data",
        tmp_path,
    )
    assert told["verified"]
    assert told["kills"] == {"child": 1, "parent": 1, "supervisor": 1, "cluster": 1}
    assert (told["deliveries"]["duplicated"], told["deliveries"]["lost"]) == (0, 0)
    assert perdure("audit", "--data", tmp_path)["delivered"] == 14


def test_ctrl_c_stops_and_resume_carries_on(tmp_path: Path) -> None:
    words = ["run", "fan-out", "--children", "12", "--kills", "0", "--pace", "24", "--data", str(tmp_path)]
    running = subprocess.Popen([*COMMAND, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _wait_until_under_way(tmp_path)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 130
    assert "--resume" in said
    left = perdure("ps", "--data", tmp_path)
    assert left["supervisor"] is None
    assert len(left["live"]) > 0
    told = perdure("run", "fan-out", "--resume", "--data", tmp_path)
    assert told["verified"]
    assert told["runs"]["completed"] == 12


def _wait_until_under_way(data: Path) -> None:
    record, end_s = data / "scenario.json", time.monotonic() + 120
    while time.monotonic() < end_s:
        if record.exists() and perdure("ps", "--data", data)["live"]:
            return
        time.sleep(0.1)
    raise AssertionError("the fan-out did not begin")
