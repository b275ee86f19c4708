"""`perdure run messenger` as a visitor runs it: real webhooks, real kills, and a pretended Telegram on real sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.scenarios.cast.clerk import PRETENDED_SECRET, PRETENDED_TOKEN
from tests.actors.secret_cast import found_in
from tests.tidy import ROOT


@pytest.mark.long
def test_messages_are_answered_once_although_processes_are_killed(tmp_path: Path) -> None:
    words = ["--updates", "3", "--kills", "2", "--chats", "2", "--seed", "1", "--data", str(tmp_path), "--json"]
    command = [sys.executable, "-m", "perdure.scenarios.cli", "run", "messenger", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["verified"]
    assert told["answered"] == told["messages"] >= 3
    assert sum(told["kills"].values()) == 2
    assert found_in(tmp_path, PRETENDED_TOKEN) + found_in(tmp_path, PRETENDED_SECRET) == []
