"""The weaknesses of fibers that we answer (spec §11, 1 to 17), those that no other test shows to be absent."""

from __future__ import annotations

import asyncio

import pytest

from perdure.ledger import Verb
from tests.actors.fiber_cast import Chatty, Jobs, Recovering
from tests.kit import Stage, address


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    for each in (Jobs.effects, Jobs.seen, Recovering.asked, Recovering.verdicts, Chatty.asked):
        each.clear()


@pytest.mark.shows(fibers="weakness-3")
async def test_what_an_earlier_attempt_says_late_does_not_count(stage: Stage) -> None:
    await stage.call(Jobs, "start", "haunted", None, {"fiber_id": "f", "retry": True})
    told = await stage.call(Jobs, "wait", "f")
    assert (told["status"], told["attempt"], told["snapshot"]) == ("completed", 2, "mine")
    assert Jobs.seen == [False, "late"]


async def test_a_step_that_was_rolled_back_is_done_again_and_one_that_was_not_is_remembered(stage: Stage) -> None:
    """In fibers, and in runs."""
    expected = [[0, None], [2, "in it"]]  # two calls are two steps
    await stage.call(Jobs, "start", "hesitant", None, {"fiber_id": "f", "retry": True})
    assert (await stage.call(Jobs, "wait", "f"))["snapshot"] == expected
    assert (await stage.client.run(Jobs, "hesitate")).output == expected


@pytest.mark.shows(chat_recovery="C-1333", fibers="F16")
async def test_what_this_life_is_at_work_on_is_not_recovered(stage: Stage) -> None:
    await stage.call(Recovering, "start", "slow", None, {"fiber_id": "f"})
    for _ in range(3):
        await asyncio.sleep(0.5)
        await stage.call(Recovering, "look_again")
    told = await stage.call(Recovering, "wait", "f")
    assert (told["status"], told["attempt"]) == ("completed", 1)
    assert Recovering.asked == []


@pytest.mark.shows(fibers="weakness-10 W7 W8")
async def test_a_child_that_was_killed_goes_on_and_sleeps_when_it_has_nothing_more_to_do(stage: Stage) -> None:
    await stage.client.start(Jobs, None, run_id="p")
    await stage.until(lambda: Jobs.effects["slow 1"] == 1)
    stage.kill_host_of(address(Jobs, "p"))
    await stage.until(lambda: Jobs.effects["slow 2"] == 1)
    await stage.client.ask("cancel", "p", None, "enough")
    await stage.until(lambda: not stage.host_of(address(Jobs, "p")))
    told = await stage.call(Jobs, "inspect", "own")
    assert (told["status"], Jobs.effects["slow 0"]) == ("completed", 1)
    await stage.until(lambda: not stage.host_of(address(Jobs, "p")))


@pytest.mark.shows(fibers="weakness-15 W5")
async def test_what_came_of_work_counts_although_its_end_could_not_be_written_down(stage: Stage) -> None:
    await stage.call(Jobs, "start", "quick", None, {"wait_for_completion": True})
    assert await stage.call(Jobs, "lose_the_last_word") == "worked"


@pytest.mark.shows(chat_recovery="C-0810 C-0811 C-0861", fibers="F64 F65 F66 F67 F68 F69 F70")
async def test_a_chat_agent_has_fibers_like_any_other(stage: Stage) -> None:
    assert await stage.call(Chatty, "work") == "worked"
    assert (Chatty.asked, await stage.call(Chatty, "rows")) == (["one", "two"], 0)
    Chatty.asked.clear()
    await stage.call(Chatty, "begin")
    await asyncio.sleep(1)
    stage.kill_host_of(address(Chatty, "p"))
    assert await stage.call(Chatty, "wait") == "completed"
    assert Chatty.asked == [("job", "here")]


@pytest.mark.parametrize("after_s", [0.5, 1.5])
async def test_what_is_cleared_in_the_middle_takes_its_fibers_with_it(stage: Stage, after_s: float) -> None:
    await stage.client.start(Jobs, None, run_id="p")
    await stage.until(lambda: Jobs.effects["slow 0"] == 1)
    await asyncio.sleep(after_s)
    done = Jobs.effects.copy()
    await stage.client.steer_runs(Verb.CLEAR, {}, everything=True)
    await asyncio.sleep(120)
    assert not stage.laboratory.disk.has(address(Jobs, "p"))
    assert not stage.host_of(address(Jobs, "p"))
    assert Jobs.effects == done
