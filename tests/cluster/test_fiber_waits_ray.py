"""Fibers that wait, on real Ray: the host of their agent dies while they wait, and the supervisor dies while the agent sleeps."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure.actors import Agent, FiberContext, FiberInspection, Runtime, exposed
from perdure.policies import Limits
from perdure.scenarios.cli import app

LIMITS = Limits(hosts_max=2, wait_in_memory_ms=200, idle_ms=1_000)
BODIES = ("edits", "edits_in_sync_code")


class Desk(Agent):
    stands_alone = True

    @exposed
    def begin(self) -> int:
        """Begin all. Returns the process."""
        for body in BODIES:
            self.start_fiber(body, body, fiber_id=body)
        self.fibers.start([{"name": "many", "fn_name": "naps", "fiber_id": f"n{n}"} for n in range(100)])
        return os.getpid()

    @exposed(repeatable=True)
    def send(self, event: str, value: Any, event_id: str) -> None:
        for body in BODIES:
            self.fibers.send(body, event, value, event_id)

    @exposed(repeatable=True)
    def end_of(self, fiber_id: str) -> FiberInspection:
        return self.fibers.wait(fiber_id)  # type: ignore[return-value]

    @exposed(repeatable=True)
    def waiting(self) -> int:
        return sum(each.waits is not None for each in self.list_fibers("running", limit=500))

    async def edits(self, fiber: FiberContext) -> None:
        fiber.step("begin", partial(self.note, fiber.id))
        await fiber.sleep(1)
        fiber.stash([await fiber.wait_for("ada"), await fiber.wait_for("ben", timeout=3_600)])

    def edits_in_sync_code(self, fiber: FiberContext) -> None:
        fiber.step("begin", partial(self.note, fiber.id))
        fiber.sleep(1)
        fiber.stash([fiber.wait_for("ada"), fiber.wait_for("ben", timeout=3_600)])

    async def naps(self, fiber: FiberContext) -> None:
        fiber.step("begin", partial(self.note, fiber.id))
        await fiber.sleep(30)

    def note(self, fiber_id: str) -> None:
        self.state[fiber_id] = self.state.get(fiber_id, 0) + 1

    @exposed(repeatable=True)
    def begun(self) -> list[int]:
        return list(self.state.values())


@pytest.mark.long
def test_fibers_that_wait_lose_nothing_to_the_death_of_their_host_and_need_none(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with Runtime(data, limits=LIMITS) as runtime:
        desk: Any = runtime.agent(Desk, "d")
        process = desk.begin()
        until(lambda: desk.waiting() == 102)
        os.kill(process, signal.SIGKILL)
        desk.send("ada", "yes", "1")
        desk.send("ada", "again", "1")
        until(lambda: all("ben" in (row["waits"] or {"events": []})["events"] for row in rows(data)))
        until(lambda: sum(host["tenants"] for host in runtime.ps()["hosts"]) == 0)
        assert CliRunner().invoke(app, ["kill", "supervisor", "--data", data]).exit_code == 0
        told = desk.end_of("n7")
        assert (told.status, told.attempt) == ("completed", 2)
        desk.send("ben", "no", "2")
        for body in BODIES:
            told = desk.end_of(body)
            assert (told.status, told.snapshot, told.recoveries) == ("completed", ["yes", "no"], 0)
        until(lambda: desk.waiting() == 0)
        assert desk.begun() == [1] * 102
        assert runtime.audit()["balanced"]


def rows(data: str) -> list[dict[str, Any]]:
    told = CliRunner().invoke(app, ["fibers", "--data", data, "--limit", "500", "--json"])
    assert told.exit_code == 0, told.output
    return [row for row in json.loads(told.stdout)["fibers"] if row["name"] in BODIES]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.1)
