"""The weaknesses of sub-agents and of the base agent (spec §11, 30-36) that no other test shows to be absent."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors import Agent, exposed
from perdure.ledger import BadRequest, PerdureError
from tests.actors.family_cast import Elder, Kid, ask, kid
from tests.kit import Stage, address


class Unlucky(Agent):
    """Fails in the background, and its hook for errors fails, too."""

    async def on_state_changed(self, state: dict[str, int]) -> None:
        raise RuntimeError("in the background")

    async def on_error(self, error: Exception, doing: str) -> None:
        Kid.effects[f"{doing}: {error}"] += 1
        raise RuntimeError("once more")

    @exposed
    def put(self, n: int) -> int:
        self.state["n"] = n
        return int(self.state["n"])


@pytest.mark.shows(sub_agents="weakness-30")
async def test_30_what_goes_wrong_in_the_background_is_told_once_and_what_on_error_does_with_it_changes_nothing(
    stage: Stage,
) -> None:
    Kid.effects.clear()
    assert await stage.call(Unlucky, "put", 1) == 1
    await asyncio.sleep(1)
    assert dict(Kid.effects) == {"on_state_changed: in the background": 1}
    assert await stage.call(Unlucky, "put", 2) == 2


@pytest.mark.shows(sub_agents="weakness-31")
async def test_31_children_work_by_the_clock_while_their_parents_sleep_and_are_not_begun_again_by_each_call(
    stage: Stage,
) -> None:
    for _ in range(5):
        await ask(stage, ["a"], "note", "x")
    assert stage.view.agents[kid("a")].incarnation < 5, "one life answered all"
    await ask(stage, ["a"], "plan_every", 100, "tick")
    await stage.until(lambda: not stage.host_of(address(Elder, "p")))
    await asyncio.sleep(250)
    assert not stage.host_of(address(Elder, "p"))
    assert (await ask(stage, ["a"], "notes"))[5:] == ["tick", "tick"]


@pytest.mark.shows(sub_agents="weakness-32")
async def test_32_a_depth_has_its_limit_and_every_child_is_on_record_until_it_is_deleted(stage: Stage) -> None:
    with pytest.raises(BadRequest, match="its sub-agents can have none"):
        await ask(stage, ["x"] * 40, "way")
    await stage.call(Elder, "drop", "x")
    await stage.until(lambda: not stage.view.doomed)
    assert await stage.call(Elder, "kids") == []


@pytest.mark.shows(sub_agents="weakness-36")
async def test_36_nothing_is_done_any_more_for_who_is_being_deleted(stage: Stage) -> None:
    await ask(stage, ["a", "b"], "note", "old")
    calls = [asyncio.ensure_future(ask(stage, ["a", "b"], "note", str(number))) for number in range(5)]
    dropping = asyncio.ensure_future(stage.call(Elder, "drop", "a"))
    calls += [asyncio.ensure_future(ask(stage, ["a", "b"], "note", str(number))) for number in range(5, 10)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    await dropping
    for answer in answers:
        assert isinstance(answer, list | PerdureError)
    news = [each for each in answers if isinstance(each, list) and "old" not in each]
    left = await ask(stage, ["a", "b"], "notes")
    assert "old" not in left
    assert all(set(each) <= set(left) for each in news), "what the new one was told is not lost"
