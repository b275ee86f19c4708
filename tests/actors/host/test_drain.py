"""Before what serves a directory is stopped: nothing new begins, idle agents leave, and what is at work goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.actors import Agent, exposed
from tests.actors.cast import Boss, Sleeper
from tests.kit import Stage, address, play

WISH_MS = 5_000


async def resting(stage: Stage, seconds: float) -> dict[str, Any]:
    """Ask for rest again and again, as who is about to stop everything does; returns the last answer."""
    told: dict[str, Any] = {}
    for _ in range(int(seconds * 4)):
        told = await stage.client.ask("wind_down")
        await asyncio.sleep(0.25)
    return told


async def test_idle_agents_leave_at_once_nothing_new_begins_and_what_is_at_work_goes_on_to_its_end(
    stage: Stage,
) -> None:
    await stage.client.start(Sleeper, 3_000, run_id="early")
    await stage.until(lambda: stage.status("early") == "running")
    await stage.call(Boss, "told")
    assert await stage.client.ask("wind_down") == {"at_work": 2, "waiting": 0}
    await stage.client.start(Sleeper, 10, run_id="late")
    call = asyncio.ensure_future(stage.call(Boss, "told", name="asleep"))
    assert await resting(stage, 1) == {"at_work": 1, "waiting": 0}
    assert not stage.host_of(address(Boss, "p"))
    assert await resting(stage, 4) == {"at_work": 0, "waiting": 0}
    assert (stage.status("early"), stage.status("late")) == ("completed", "starting")
    assert not call.done()
    await stage.ended("late", "completed")
    assert await call == []


class Keeper(Agent):
    @exposed
    def keep(self, value: str) -> None:
        self.state["kept"] = value


async def test_who_left_has_told_how_far_its_storage_had_come(stage: Stage) -> None:
    """So a commit that the disk loses while nothing serves the directory is missed."""
    before = 0
    for value in ("one", "two"):
        await stage.call(Keeper, "keep", value)
        assert (await resting(stage, 1))["at_work"] == 0
        come = stage.view.asleep[address(Keeper, "p")].reported
        assert come is not None
        assert come > before
        before = come
        await asyncio.sleep(WISH_MS / 1000)


async def test_who_waits_for_a_run_is_not_waited_for(stage: Stage) -> None:
    call = asyncio.ensure_future(stage.call(Boss, "wait_for", "Sleeper", 2_000, "child"))
    await stage.until(lambda: stage.status("child") == "running")
    await asyncio.sleep(0.2)
    assert await stage.client.ask("wind_down") == {"at_work": 1, "waiting": 1}
    assert (await call)["status"] == "completed"


def test_the_wish_is_forgotten_with_the_supervisor_that_heard_it_and_when_nobody_says_it_any_more() -> None:
    async def begins_after(stage: Stage, run_id: str) -> float:
        began_ms = stage.simulation.now_ms()
        await stage.client.start(Sleeper, 1, run_id=run_id)
        await stage.until(lambda: stage.status(run_id) == "completed")
        return stage.simulation.now_ms() - began_ms

    async def story(stage: Stage) -> None:
        await begins_after(stage, "warm")
        await stage.client.ask("wind_down")
        assert await begins_after(stage, "patient") >= WISH_MS
        await stage.client.ask("wind_down")
        stage.simulation.kill("supervisor")
        assert await begins_after(stage, "prompt") < WISH_MS

    play(story)
