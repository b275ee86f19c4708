"""`perdure ps --watch` on a real terminal, before a real Ray: keys are pressed, and the screen is read."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from perdure.actors import Agent, RunContext, Runtime
from perdure.actors.ray_world.os_processes import kill
from tests.cluster.terminal import terminal
from tests.cluster.test_ray_death import ONE_HOST
from tests.tidy import IMPORT_PATH

pytestmark = pytest.mark.shared_ray
DOWN, ESCAPE, ENTER, BACKSPACE = "\x1b[B", "\x1b", "\r", "\x7f"


class Reader(Agent):
    """Waits for ever, or fails."""

    async def run(self, input: str, run: RunContext) -> None:
        if input == "fail":
            raise ValueError("as asked")
        await run.report_progress(0.25, phase="reading")
        await run.report_progress(milestone="opened")
        await asyncio.Event().wait()


def test_runs_are_chosen_opened_explained_cancelled_found_tried_again_and_cleared_by_keys(tmp_path: Path) -> None:
    data = tmp_path / "data"
    watch = [sys.executable, "-m", "perdure.cli", "ps", "--watch", "--data", str(data)]
    with Runtime(data, limits=ONE_HOST) as runtime:
        runtime.run(Reader, "fail", run_id="spoilt")
        runtime.start(Reader, "wait", run_id="patient")
        with terminal(watch, {**os.environ, "PYTHONPATH": IMPORT_PATH}) as screen:
            seen = screen.until("patient", "reading", "1 running", "1 error", "↑↓ choose")
            assert "spoilt" not in seen, "it has ended"
            screen.press(DOWN + ENTER)
            screen.until("patient  ", "running  attempt 1", "milestone  name: opened", "⏎ back")
            screen.press("e")
            screen.until("Run patient of ", "Its child is at work on host ")
            screen.press(ESCAPE)
            screen.until("↑↓ choose", without=["⏎ back"])

            screen.press("c")
            screen.until("cancel patient? y or n")
            screen.press("n")
            screen.until("nothing was done")
            assert runtime.ask("show", "patient")["status"] == "running"
            kill([runtime.cluster.processes()["supervisor"].process])
            screen.until("life 2", "patient", without=["silent for"])
            screen.press("c")
            screen.until("cancel patient? y or n")
            screen.press("y")
            screen.until("patient was cancelled")
            assert runtime.ask("show", "patient")["status"] == "aborted"

            screen.press("a")
            screen.until("spoilt", "patient", "as asked")
            screen.press("/SPOX")
            screen.until("/SPOX", without=["as asked"])
            screen.press(BACKSPACE + ENTER)
            screen.until("/SPO  ↑↓", "as asked", without=["patient"])
            screen.press(DOWN + "r")
            screen.until("spoilt will be tried again")
            screen.press("x")
            screen.until("clear spoilt? y or n")
            screen.press("y")
            screen.until("spoilt was cleared")
            screen.press("q")
            assert screen.ended() == 0
        assert runtime.inspect("spoilt") is None
