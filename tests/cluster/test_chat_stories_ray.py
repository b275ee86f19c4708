"""`perdure run chat-recovery` and `tool-disconnect` as a visitor runs them: real processes, real kills, a real provider on real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models.function import FunctionModel

from perdure.actors import ChatAgent, Runtime
from perdure.ledger import RuntimeClosed
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


@pytest.mark.shows(chat_recovery="C-1314", transport_recovery="A2")
@pytest.mark.long
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


async def _slowly(_messages: object, _info: object) -> AsyncIterator[str]:
    for number in range(600):
        yield f"word {number} "
        await asyncio.sleep(0.1)


class Slow(ChatAgent):
    """Speaks for a minute."""

    model = FunctionModel(stream_function=_slowly)


class Heard:
    """A callback that remembers its ends."""

    def __init__(self) -> None:
        self.events = 0
        self.ends: list[Any] = []

    def on_event(self, _event: object) -> None:
        self.events += 1

    def on_done(self) -> None:
        self.ends.append("done")

    def on_error(self, text: str) -> None:
        self.ends.append(text)

    def on_interrupted(self, info: Any) -> None:
        self.ends.append((info.outcome, info.cause))


@pytest.mark.long
def test_a_callback_hears_one_end_when_everything_is_killed(tmp_path: Path) -> None:
    """Its caller gets an error; nobody knows what becomes of the turn."""
    runtime, callback = Runtime(tmp_path / "data"), Heard()
    runtime.open()
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(lambda: runtime.agent(Slow, "alice").chat("Speak.", callback, request_id="asked"))
        while callback.events < 5:
            time.sleep(0.05)
        runtime.kill_everything()
        assert isinstance(asking.exception(60), RuntimeClosed)
    deadline_s = time.monotonic() + 60
    while not callback.ends and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert callback.ends == [("unknown", "connection")]
