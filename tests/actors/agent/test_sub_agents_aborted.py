"""An abort ends lives, not work: what was owed is done by the lives that come after."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors import KillPoint
from perdure.ledger import AgentAborted
from tests.actors.family_cast import Elder, Kid, ask, kid
from tests.kit import Stage, play


@pytest.mark.shows(sub_agents="weakness-33")
async def test_a_fiber_goes_on_in_the_next_life_although_nobody_calls(stage: Stage) -> None:
    Kid.effects.clear()
    await ask(stage, ["a", "b"], "begin", 10, 5)
    await asyncio.sleep(12)
    await stage.call(Elder, "abort", "a")
    assert not stage.host_of(kid("a"))
    await asyncio.sleep(120)
    assert await ask(stage, ["a", "b"], "fiber_status") == "completed"
    assert Kid.effects["step"] == 10, "what it remembered was not done again"


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.5, 3.0])
async def test_what_was_told_planned_and_queued_before_the_abort_is_done_after_it(stage: Stage, after_s: float) -> None:
    Kid.effects.clear()
    words = [str(number) for number in range(20)]
    await ask(stage, ["a"], "plan", 2, "planned")
    await ask(stage, ["a"], "line_up", *words)
    await ask(stage, ["a"], "tell_kid", "b", *words)
    await asyncio.sleep(after_s)
    await stage.call(Elder, "abort", "a")
    await asyncio.sleep(60)
    assert sorted(await ask(stage, ["a", "b"], "notes")) == sorted(words)
    assert sorted(await ask(stage, ["a"], "notes")) == sorted([*words, "planned"])


async def test_who_waits_for_an_aborted_family_is_told_why_and_others_are_not_disturbed(stage: Stage) -> None:
    calls = [asyncio.ensure_future(ask(stage, names, "hang")) for names in (["a", "b"], ["c"])]
    await asyncio.sleep(1)
    await stage.call(Elder, "abort", "a", "tidying up")
    with pytest.raises(AgentAborted, match="was aborted: tidying up"):
        await calls[0]
    assert not calls[1].done()
    await stage.call(Elder, "abort", "nobody")
    assert await ask(stage, ["a", "b"], "way") == ["p", "a", "b"]


@pytest.mark.shows(sub_agents="G71 G72 G86")
async def test_an_aborted_life_runs_nothing_any_more_and_the_way_is_the_same_afterwards(stage: Stage) -> None:
    await ask(stage, ["a"], "note", "x")
    await ask(stage, ["a"], "plan_every", 10, "tick")
    await stage.call(Elder, "abort", "a")
    await asyncio.sleep(35)
    assert await ask(stage, ["a"], "notes") == ["x", "tick", "tick", "tick"]
    assert await ask(stage, ["a"], "way") == ["p", "a"]
    assert await ask(stage, ["a"], "parents_name") == "p"


@pytest.mark.parametrize("after_ms", [2, 6, 10, 14])
async def test_what_was_durably_told_when_the_abort_came_is_said_by_the_next_life(stage: Stage, after_ms: int) -> None:
    Kid.effects.clear()
    await ask(stage, ["a"], "way")
    telling = asyncio.ensure_future(ask(stage, ["a"], "tell_kid", "b", "told"))
    await asyncio.sleep(after_ms / 1000)
    await stage.call(Elder, "abort", "a")
    (problem,) = await asyncio.gather(telling, return_exceptions=True)
    was_told = problem is None or stage.laboratory.disk.has(kid("a"))
    await asyncio.sleep(30)
    assert Kid.effects["noted told"] == was_told


@pytest.mark.parametrize("moment", [KillPoint.AFTER_COMMIT, KillPoint.BEFORE_EFFECT])
def test_an_abort_that_was_decided_ends_the_lives_although_the_supervisor_dies(moment: KillPoint) -> None:
    struck = list[str]()

    def is_decided(stage: Stage, process: str, point: KillPoint, _detail: str) -> bool:
        if struck or process != "supervisor" or point is not moment:
            return False
        struck.extend(each.agent_id for each in stage.view.agents.values() if each.stopping)
        return bool(struck)

    async def story(stage: Stage) -> None:
        Kid.effects.clear()
        await ask(stage, ["a", "b"], "begin", 100, 1)
        await asyncio.sleep(3)
        lives = {key: stage.view.agents[kid(*key)].incarnation for key in (("a",), ("a", "b"))}
        await stage.call(Elder, "abort", "a")
        await asyncio.sleep(60)
        for key, incarnation in lives.items():
            life = stage.view.agents.get(kid(*key))
            assert life is None or life.incarnation > incarnation, key
        await asyncio.sleep(120)
        assert await ask(stage, ["a", "b"], "fiber_status") == "completed"
        assert Kid.effects["step"] == 100

    play(story, kill_when=is_decided)
    assert struck == [kid("a"), kid("a", "b")]
