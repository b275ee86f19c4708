"""What sub-agents do by the clock and in the background is theirs alone: each in its own storage, with its own alarm."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors.events.observability import ObservedEvent, subscribe
from tests.actors.family_cast import Elder, Kid, ask, kid
from tests.kit import Stage, address, play


@pytest.mark.shows(sub_agents="G25 G26 G32 G36")
async def test_a_sub_agent_calls_back_in_time_while_its_whole_family_sleeps(stage: Stage) -> None:
    Kid.effects.clear()
    await ask(stage, ["a", "b"], "plan", 120, "once")
    await ask(stage, ["a"], "plan_every", 50, "often")
    await ask(stage, ["a"], "plan_cron", "*/2 * * * *", "cron")
    await stage.until(lambda: not any(stage.host_of(each) for each in (kid("a", "b"), kid("a"))))
    elder = address(Elder, "p")
    await stage.until(lambda: not stage.host_of(elder))
    await asyncio.sleep(90)
    assert not stage.host_of(elder), "nobody has to be woken for it"
    await asyncio.sleep(90)
    assert Kid.effects["once"] == 1
    assert Kid.effects["often"] >= 3
    assert Kid.effects["cron"] >= 1
    assert await ask(stage, ["a", "b"], "notes") == ["once"]
    assert len(await ask(stage, ["a"], "plans")) == 2
    assert await ask(stage, [], "plans") == []


@pytest.mark.shows(sub_agents="G27 G28 G37 G38 G70")
async def test_siblings_and_parents_neither_see_nor_cancel_each_others_schedules(stage: Stage) -> None:
    for name in ("a", "b"):
        await ask(stage, [name], "plan", 5, "same", "key")
    (mine,) = await ask(stage, ["a"], "plans")
    assert await ask(stage, [], "plans") == []
    assert not await ask(stage, [], "unplan", mine)
    assert await ask(stage, ["a"], "unplan", mine)
    assert await ask(stage, ["a"], "plans") == []
    assert len(await ask(stage, ["b"], "plans")) == 1, "the same key of somebody else is another schedule"
    await asyncio.sleep(10)
    assert await ask(stage, ["a"], "notes") == []
    assert await ask(stage, ["b"], "notes") == ["same"]


@pytest.mark.shows(sub_agents="G40")
async def test_a_callback_of_a_sub_agent_may_cancel_its_own_schedule(stage: Stage) -> None:
    await ask(stage, ["a"], "plan_every", 2, "only once")
    await asyncio.sleep(20)
    assert await ask(stage, ["a"], "notes") == ["only once"]
    assert await ask(stage, ["a"], "plans") == []


@pytest.mark.shows(sub_agents="G34 G35 R17 R31")
async def test_names_that_are_patterns_or_ways_touch_no_sibling(stage: Stage) -> None:
    names = ["a", "a/b", "a>b", "a%", "_", "%", "*", "sub", "Kid", "a@x:Y", "..", "ä", "constructor", "__class__"]
    for name in names:
        await ask(stage, [name], "plan", 30, name)
    await stage.call(Elder, "drop", "%")
    await stage.call(Elder, "drop", "a")
    await asyncio.sleep(60)
    left = [name for name in names if name not in ("%", "a")]
    assert sorted(await stage.call(Elder, "kids")) == sorted(left)
    for name in left:
        assert await ask(stage, [name], "notes") == [name]


@pytest.mark.shows(sub_agents="G51 G52")
async def test_a_fiber_keeps_its_sub_agent_awake_and_no_other(stage: Stage) -> None:
    await ask(stage, ["a"], "begin", 10, 10)
    await asyncio.sleep(60)
    assert stage.host_of(kid("a"))
    assert not stage.host_of(address(Elder, "p"))
    await asyncio.sleep(90)
    assert not stage.host_of(kid("a"))
    assert await ask(stage, ["a"], "fiber_status") == "completed"


@pytest.mark.shows(sub_agents="G53 G54 G56")
async def test_a_fiber_of_a_sub_agent_is_recovered_once_without_its_parents(stage: Stage) -> None:
    Kid.effects.clear()
    await ask(stage, ["a", "b"], "begin", 8, 5)
    await asyncio.sleep(12)
    stage.kill_host_of(kid("a", "b"))
    await asyncio.sleep(90)
    assert await ask(stage, ["a", "b"], "fiber_status") == "completed"
    assert 8 <= Kid.effects["step"] <= 9, "a step that was under way may be done again"
    assert not stage.host_of(kid("a", "b")) or await ask(stage, ["a"], "fiber_status") == ""


@pytest.mark.shows(sub_agents="G45")
def test_what_happens_to_a_schedule_of_a_sub_agent_is_told_of_it_alone() -> None:
    heard: list[ObservedEvent] = []

    async def story(stage: Stage) -> None:
        await ask(stage, ["a"], "way")
        leave = subscribe("schedule", heard.append)
        await ask(stage, ["a"], "unplan", await ask(stage, ["a"], "plan", 60, "x"))
        await ask(stage, ["a"], "plan", 1, "y")
        await asyncio.sleep(5)
        leave()

    play(story)
    assert [each.type for each in heard] == [
        "schedule:create",
        "schedule:cancel",
        "schedule:create",
        "schedule:execute",
    ]
    assert {f"{each.agent_name}@{each.agent_type}" for each in heard} == {kid("a")}


@pytest.mark.shows(sub_agents="R68 R69 R70 R71 R74 R75")
async def test_what_a_run_comes_to_is_told_to_the_sub_agent_that_asked_for_it_and_to_nobody_else(stage: Stage) -> None:
    await ask(stage, ["a", "b"], "start_run", "good", 5)
    await ask(stage, ["a", "b"], "start_run", "bad", 3)
    await stage.call(Elder, "cousin", "c", "begun")
    await asyncio.sleep(1)
    await stage.call(Elder, "abort", "a")
    await asyncio.sleep(30)
    assert sorted(await ask(stage, ["a", "b"], "notes")) == ["bad error", "good completed"]
    assert await ask(stage, ["a"], "notes") == await ask(stage, [], "notes") == []
    told = sorted(await stage.call(Elder, "cousin", "c", "end"))
    assert told[:2] == ["begun", "end"]
    assert told[2].endswith(" completed"), "a run may be asked for while its agent comes up"
    assert len(told) == 3
