"""A soak on a real Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_ten_minutes_of_stories_with_kills_restarts_and_backups_leave_everything_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perdure.cli", "soak", "--for", "10m", "--seed", "7", "--json", "--data"]
    done = subprocess.run([*command, str(tmp_path / "soak")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["verified"]
    assert told["left_behind"] == []
    kinds = {"fan-out", "jobs", "chat", "messenger", "drill", "stall", "upgrade", "clock", "backup"}
    assert kinds <= set(told["legs"])
    assert sum(told["kills"].values()) > 0
    assert len(told["samples"]) == sum(told["legs"].values())
