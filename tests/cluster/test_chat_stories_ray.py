"""`perdure run chat-recovery` and `tool-disconnect` as a visitor runs them: real processes, real kills, a real provider on real sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tidy import ROOT


def perdure(*words: str | Path, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "perdure.scenarios.cli", "run", *map(str, words), "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["verified"]
    assert told["side_effects"]["doubled"] == told["side_effects"]["lost"] == 0
    return told


@pytest.mark.slow
def test_processes_that_are_killed_in_a_turn_change_nothing(tmp_path: Path) -> None:
    told = perdure("chat-recovery", "--points", "2", "--seed", "1", "--data", tmp_path)
    assert told["turns"] == {"asked": 3, "completed": 3, "error": 0}
    assert sum(told["kills"].values()) >= 1
    assert told["illegal"] == 0


@pytest.mark.long
def test_connections_that_break_in_a_turn_change_nothing(tmp_path: Path) -> None:
    told = perdure("tool-disconnect", "--points", "2", "--seed", "1", "--data", tmp_path)
    assert told["turns"] == {"asked": 3, "completed": 3, "error": 0}
    assert told["recoveries"] >= 1
    assert told["side_effects"]["unknown"] == told["illegal"] == 0
