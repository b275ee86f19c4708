"""Many runs on a real cluster: they are counted, cancelled and cleared by scripts, async code and the command line, and the supervisor is
killed meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure import BadRequest, Runtime
from perdure.actors.ray_world.os_processes import kill
from perdure.scenarios.cli import app
from tests.cluster.test_ray_death import ONE_HOST, Napper
from tests.cluster.test_ray_world import soon

pytestmark = pytest.mark.thorough

COUNT = 1_200  # more than two groups


def test_many_runs_are_steered_by_a_script_a_command_and_async_code_though_the_supervisor_is_killed(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"

    def perdure(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--data", str(data)])
        assert done.exit_code == 0, done.output
        return done.stdout

    async def start_and_cancel(script: Runtime) -> tuple[int, int]:
        async with Runtime(data, limits=ONE_HOST) as runtime:
            await asyncio.gather(*(runtime.start(Napper, 3600.0, run_id=f"nap-{number}") for number in range(COUNT)))
            counted = await runtime.cancel_runs(type=Napper, dry_run=True)
            cancelling = asyncio.ensure_future(runtime.cancel_runs(prefix="nap-1", reason="enough"))
            kill([soon(script.cluster.processes)["supervisor"].process])
            done = await cancelling
            assert done.hit + done.already == done.found == sum(f"{number}".startswith("1") for number in range(COUNT))
            return counted.found, done.found

    with Runtime(data, limits=ONE_HOST) as runtime:
        counted, cancelled = asyncio.run(start_and_cancel(runtime))
        assert counted == COUNT
        with pytest.raises(BadRequest, match="there are runs of"):
            runtime.clear_runs(type=f"{Napper.__module__}:Nappr")
        told = json.loads(perdure("cancel", "--prefix", "nap-", "--yes", "--json"))
        assert (told["hit"], told["refused"]) == (COUNT - cancelled, {})
        assert "there is no run that would be cancelled." in perdure("cancel", "--all")
        assert f"{cancelled:,} runs would be cleared" in perdure("clear", "--error", "ENOUGH", "--dry-run")
        report = runtime.clear_runs(status=["aborted"])
        assert (report.hit + report.already, report.found, report.next) == (COUNT, COUNT, None)
        assert runtime.ps()["runs"]["aborted"] == 0
