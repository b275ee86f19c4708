"""Runs that wait without a process, on real Ray: their hosts, the supervisor and the whole cluster die meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from perdure.actors import Agent, RunContext, Runtime, tell
from perdure.policies import Limits
from perdure.scenarios.cli import app

LIMITS = Limits(hosts_max=2, wait_in_memory_ms=200)


class Editor(Agent):
    """Sleeps, waits for two events at once, and reads its mail."""

    async def run(self, run: RunContext) -> list[Any]:
        await run.step("begin", self.begin)
        await run.sleep(1)
        async with asyncio.TaskGroup() as group:
            approvals = [group.create_task(run.wait_for(name)) for name in ("ada", "ben")]
        message = await run.receive()
        return [*(approval.result() for approval in approvals), message.value, self.state["begun"]]

    def begin(self) -> None:
        self.state["begun"] = self.state.get("begun", 0) + 1


class Clerk(Agent):
    """The same in sync code."""

    def run(self, run: RunContext) -> list[Any]:
        run.sleep(1)
        approvals = [run.wait_for(name) for name in ("ada", "ben")]
        return [*approvals, next(iter(run.messages())).value, 1]


def test_runs_that_wait_take_no_host_and_lose_nothing_to_any_death(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Runtime(data, limits=LIMITS) as runtime:
        runs = [runtime.start(kind, run_id=kind.__name__) for kind in (Editor, Clerk)]
        runs[0].send("ada", "yes")
        until(lambda: all(waits_for(runtime, run.run_id) for run in runs))
        assert sum(host["tenants"] for host in runtime.ps()["hosts"]) == 0
        assert CliRunner().invoke(app, ["kill", "supervisor", "--data", data]).exit_code == 0
        for run in runs:
            run.send("ben", "no")
        runs[1].send("ada", "yes")
    with Runtime(data, limits=LIMITS) as runtime:  # another client, and the next Ray if the first has gone
        until(lambda: all(waits_for(runtime, kind.__name__) == ["mail"] for kind in (Editor, Clerk)))
        for kind in (Editor, Clerk):
            tell(runtime.start(kind, run_id=kind.__name__), "go to press")
        for kind in (Editor, Clerk):
            result = runtime.run(kind, run_id=kind.__name__)
            assert result.output == ["yes", "no", "go to press", 1]
        assert runtime.audit()["balanced"]
        assert runtime.audit()["delivered"] == 6


def waits_for(runtime: Runtime, run_id: str) -> list[str]:
    waits = runtime.ask("show", run_id)["waits"]
    return [] if waits is None else list(waits["events"])


def until(holds: Any) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)
