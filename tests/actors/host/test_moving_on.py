"""Agents with older code leave when newer code comes, as soon as they are at rest (`perdure upgrade`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.ledger import Adopt
from tests.actors.cast import Boss, Sleeper
from tests.kit import Stage, address


async def test_who_is_at_rest_leaves_and_wakes_with_the_newest_code_and_who_is_at_work_stays_with_the_reason(
    stage: Stage,
) -> None:
    busy = asyncio.ensure_future(stage.call(Boss, "wait_for", "Sleeper", 60_000, "child", name="busy"))
    await stage.until(lambda: stage.status("child") == "running")
    late = asyncio.ensure_future(stage.call(Boss, "wait_for", "Sleeper", 1_000, "brief", name="late"))
    await stage.until(lambda: stage.status("brief") == "running")
    await stage.call(Boss, "told", name="idle")
    stage.client.peer.push(Adopt("new", {"tests": "digest"}))
    kind = "tests.actors.cast:Boss"

    async def boss(*, now: bool = False, asked: str | None = None) -> dict[str, Any]:
        rows = await stage.client.ask("upgrade", asked, now)
        return next(row for row in rows if row["agent_type"] == kind)

    await stage.until(lambda: not stage.host_of(address(Boss, "idle")))
    assert {key: (await boss())[key] for key in ("newest", "awake", "awake_older")} == {
        "newest": "new", "awake": 2, "awake_older": 2,
    }  # fmt: skip
    assert (await late)["status"] == "completed"
    await stage.until(lambda: not stage.host_of(address(Boss, "late")))
    (stays,) = (await boss(now=True))["agents_with_older_code"]
    assert stays == {"agent": address(Boss, "busy"), "version": "", "because": "it waits for a run"}
    assert not busy.done()
    await stage.call(Boss, "told", name="idle")
    stage.client.peer.push(Adopt("newer", {"tests": "other"}))
    await stage.call(Boss, "told", name="idle")
    now = await boss()
    assert (now["awake"], now["awake_older"]) == (2, 1), "it has the newest code"
    assert (await busy)["status"] == "completed"


async def test_a_run_is_never_moved_and_is_listed_with_its_version(stage: Stage) -> None:
    waiting = asyncio.ensure_future(stage.call(Boss, "wait_for", "Sleeper", 5_000, "child"))
    await stage.until(lambda: stage.status("child") == "running")
    stage.client.peer.push(Adopt("new", {"tests": "digest"}))
    rows = {row["agent_type"]: row for row in await stage.client.ask("upgrade", None, True)}
    assert rows["tests.actors.cast:Sleeper"]["runs_with_older_code"] == [{"run_id": "child", "version": ""}]
    assert rows["tests.actors.cast:Sleeper"]["awake"] == 0, "the child of a run has the code of the run"
    assert (await stage.client.ask("ps", 0))["code"] == {
        "parked_runs": 0, "agents_with_older_code": 1, "runs_with_older_code": 1,
    }  # fmt: skip
    assert (await waiting)["status"] == "completed"


async def test_who_asks_again_for_a_live_run_is_told_that_it_has_older_code(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    first = await stage.client.start(Sleeper, 60_000, run_id="r")
    await stage.until(lambda: stage.status("r") == "running")
    await stage.client.start(Sleeper, 60_000, run_id="r")
    stage.client.peer.push(Adopt("new", {"tests": "digest"}))
    assert not caplog.messages, "no newer code has come until now"
    again = await stage.client.start(Sleeper, 60_000, run_id="r")
    assert (again.status, len(caplog.messages)) == ("running", 1)
    assert await stage.client.run(Sleeper, 60_000, run_id="r") == await first.result()
    assert {text.partition(";")[0] for text in caplog.messages} == {
        "run 'r' of tests.actors.cast:Sleeper existed before, and goes on with the code with which it was requested"
    }
    said = len(caplog.messages)
    await stage.client.run(Sleeper, 60_000, run_id="r")
    await stage.client.run(Sleeper, 1, run_id="other")
    assert len(caplog.messages) == said, "neither one that has ended nor a new one goes on with older code"
