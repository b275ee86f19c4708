"""The end of an agent that has plans, and what keeps one awake that has none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from perdure.actors import KillPoint
from tests.actors.planners import Leaver, do, notes
from tests.kit import Death, Stage, address, play

HOME = address(Leaver, "p")


@pytest.fixture(autouse=True)
def _nothing_was_said() -> Iterator[None]:
    yield
    Leaver.troubles.clear()


async def leaves(stage: Stage) -> None:
    """It has plans for now and for later, and ends itself in between."""
    await do(stage, "schedule", 60, "note", "later", kind=Leaver)
    await do(stage, "schedule_every", 10, "note", "tick", kind=Leaver)
    await do(stage, "queue", "note", "first", kind=Leaver)
    await do(stage, "schedule", 15, "leave", "leave", schedule_id="leave", kind=Leaver)
    await asyncio.sleep(100)
    assert stage.host_of(HOME) == ""
    assert HOME not in stage.view.agents, "nobody wakes it any more"
    assert await notes(stage, Leaver) == [], "whoever has its name now begins with nothing"
    assert await do(stage, "schedules.list", kind=Leaver) == []


@pytest.mark.shows(chat_recovery="C-1422", schedules="S53 S56 S60")
def test_a_callback_may_end_its_agent_and_all_its_plans_with_it() -> None:
    play(leaves)


@pytest.mark.shows(schedules="S57")
@pytest.mark.parametrize("point", [KillPoint.MID_CANCEL, KillPoint.MID_CLEAR, KillPoint.AFTER_COMMIT])
def test_the_end_of_an_agent_by_its_own_callback_is_seen_through_whoever_dies(point: KillPoint) -> None:
    death = Death(point, when=lambda stage: stage.simulation.now_ms() > 15_000)
    play(leaves, kill_when=death)
    assert death.left == 0


async def test_an_author_is_told_of_a_callback_that_is_parked(stage: Stage) -> None:
    """Spec weakness 30: what the hook does with it changes nothing."""
    await do(stage, "schedule", 1, "poison", "x", schedule_id="it", retry={"attempts_max": 1}, kind=Leaver)
    await asyncio.sleep(5)
    assert Leaver.troubles == ["the callback of 'it', which is parked: never"]
    assert (await do(stage, "schedules.get", "it", kind=Leaver))["status"] == "parked"


@pytest.mark.shows(schedules="S71 S75 S76 S83")
@pytest.mark.parametrize("regrets", [False, True])
async def test_who_is_kept_alive_twice_is_awake_until_both_have_ended_and_has_no_schedule_for_it(
    stage: Stage, regrets: bool
) -> None:
    far = await do(stage, "schedule", 86_400, "note", "far", kind=Leaver)
    await stage.call(Leaver, "stay", 20, 40, regrets)
    for _ in range(2):
        await asyncio.sleep(19)
        assert stage.host_of(HOME)
    assert await do(stage, "schedules.list", kind=Leaver) == [far]
    await asyncio.sleep(20)
    assert stage.host_of(HOME) == ""
    assert stage.view.agents[HOME].alarm_at_ms == far["next_at_ms"], "what is planned is all it wakes for"


async def test_a_death_ends_what_kept_an_agent_awake(stage: Stage) -> None:
    await stage.call(Leaver, "stay", 600, 600)
    stage.kill_host_of(HOME)
    await asyncio.sleep(30)
    assert stage.host_of(HOME) == ""
