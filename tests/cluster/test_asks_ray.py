"""Questions to people on a real cluster: sync and async code ask, the command, a script and a cold directory answer, and the supervisor is
killed in between."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from perdure import Agent, AlreadyAnswered, BadRequest, RunContext, Runtime
from perdure.actors.ray_world.os_processes import kill
from perdure.scenarios.cli import app
from tests.cluster.test_ray_death import ONE_HOST
from tests.cluster.test_ray_world import soon

LIMITS = replace(ONE_HOST, wait_in_memory_ms=500)


class Size(BaseModel):
    """How much."""

    boxes: int


class Clerk(Agent):
    """Asks from sync code."""

    def run(self, input: str, run: RunContext) -> list[Any]:
        way = run.ask(f"How does {input} go?", ["fast", "slow"], args={"count": 40})
        size = run.ask("How much?", Size)
        return [way.value, way.who, way.args, size.value.boxes, run.attempt > 1]


class Gate(Agent):
    """Asks from async code."""

    async def run(self, run: RunContext) -> str:
        return "open" if await run.ask("Open?", to="ops", expires=3600, otherwise=False) else "shut"


def asked(runtime: Runtime, *names: str) -> None:
    """Wait until these questions are open, and nobody is at work on them."""
    while {each["ask_id"] for each in runtime.asks()} < {*names}:
        time.sleep(0.1)
    while not all((runtime.inspect(name.partition(":")[0]) or {})["waits"] for name in names):
        time.sleep(0.1)


def test_questions_of_sync_and_async_code_are_answered_by_a_command_a_script_and_in_a_cold_directory(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"

    def perdure(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words, "--data", str(data)])
        assert done.exit_code == code, done.output
        return done.stdout

    with Runtime(data, limits=LIMITS) as runtime:
        run = runtime.start(Clerk, "tea", run_id="clerk")
        runtime.start(Gate, run_id="gate")
        asked(runtime, "clerk:1", "gate:1")
        kill([soon(runtime.cluster.processes)["supervisor"].process])
        listed = perdure("asks")
        assert "How does tea go?" in listed
        assert "fast or slow" in listed
        assert [each["ask_id"] for each in json.loads(perdure("asks", "--to", "ops", "--json"))] == ["gate:1"]
        assert "It asks ops" in perdure("explain", "gate")
        answer = perdure("answer", "clerk:1", "slow", "--as", "ada", "--edit", '{"count": 3}')
        assert "is answered" in answer
        with pytest.raises(AlreadyAnswered, match=r"by ada \(cli\)"):
            runtime.answer("clerk:1", "fast")
        asked(runtime, "clerk:2", "gate:1")
        with pytest.raises(BadRequest, match=r"value\.boxes: 'many' is not of type 'integer'"):
            runtime.answer("clerk:2", {"boxes": "many"})
        assert runtime.answer("clerk:2", Size(boxes=2), who="bob")["status"] == "answered"
        assert run.result().output == ["slow", "ada", {"count": 3}, 2, True]
    perdure("stop")
    assert "gate:1" in perdure("asks")
    assert "its run goes on" in perdure("answer", "gate:1", "yes")
    with Runtime(data, limits=LIMITS) as runtime:
        assert runtime.run(Gate, run_id="gate").output == "open"
        assert runtime.asks() == []
        assert [each["status"] for each in runtime.asks(closed=True) if each["run_id"] == "gate"] == ["answered"]
