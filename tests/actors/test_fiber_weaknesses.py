"""The weaknesses of the fibers that we answer (spec §11, 1 to 17), the windows for a crash (§9, W1 to W13), and the cases that a better
system should add (§13.7, 1 to 7), each shown by a story below or by a test that is named."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors.fiber_cast import Chatty, Jobs, Recovering
from tests.kit import Stage, address, is_test, play

SHOWN_BY = """
1  test_fiber_deaths.py::test_a_death_in_the_hook_has_it_called_again_after_a_longer_pause_each_time
2  test_fiber_deaths.py::test_while_it_is_being_recovered_it_is_not_over_and_whoever_waits_goes_on_waiting
3  test_fiber_weaknesses.py::test_what_an_earlier_attempt_says_late_does_not_count
4  test_fiber_recovery.py::test_a_hook_that_hangs_is_cancelled_and_holds_up_nobody
5  test_fiber_recovery.py::test_a_hook_that_hangs_is_cancelled_and_holds_up_nobody
6  test_fiber_recovery.py::test_many_are_recovered_a_few_at_a_time_the_oldest_first
7  test_fiber_deaths.py::test_a_death_in_the_hook_has_it_called_again_after_a_longer_pause_each_time
8  test_fiber_recovery.py::test_a_hook_that_fails_at_first_may_succeed_later_also_after_the_agent_slept
9  test_fiber_deaths.py::test_a_fiber_with_retry_comes_to_its_end_whenever_it_is_killed
10 test_fiber_weaknesses.py::test_a_child_that_was_killed_goes_on_and_sleeps_when_it_has_nothing_more_to_do
11 test_fibers.py::test_a_wait_may_have_a_limit_and_the_fiber_goes_on
12 test_fiber_records.py::test_what_was_settled_long_ago_goes_by_itself
13 test_fibers.py::test_the_same_identity_with_other_content_is_a_conflict
14 test_fibers.py::test_a_body_that_goes_on_after_a_cancel_changes_nothing_any_more
15 test_fiber_weaknesses.py::test_what_came_of_work_counts_although_its_end_could_not_be_written_down
16 test_fiber_recovery.py::test_no_recovery_begins_before_the_agent_has_come_up
17 test_fibers.py::test_a_cancel_is_durable_at_once_and_stops_async_code
W1  test_fiber_deaths.py::test_a_fiber_with_retry_comes_to_its_end_whenever_it_is_killed
W2  test_fiber_deaths.py::test_a_fiber_with_retry_comes_to_its_end_whenever_it_is_killed
W3  test_fiber_recovery.py::test_unmanaged_work_that_died_is_told_to_the_hook_once_with_what_it_stashed
W4  test_fiber_swarm.py::test_fibers_come_to_their_ends_wherever_somebody_dies
W5  test_fiber_weaknesses.py::test_what_came_of_work_counts_although_its_end_could_not_be_written_down
W6  test_fiber_deaths.py::test_a_fiber_with_retry_comes_to_its_end_whenever_it_is_killed
W7  test_fiber_weaknesses.py::test_a_child_that_was_killed_goes_on_and_sleeps_when_it_has_nothing_more_to_do
W8  test_fiber_weaknesses.py::test_a_child_that_was_killed_goes_on_and_sleeps_when_it_has_nothing_more_to_do
W9  test_fiber_deaths.py::test_a_death_in_the_hook_has_it_called_again_after_a_longer_pause_each_time
W10 test_fiber_deaths.py::test_a_death_in_the_hook_has_it_called_again_after_a_longer_pause_each_time
W11 test_fiber_recovery.py::test_a_hook_may_resolve_the_fiber_itself_and_start_another
W12 test_fiber_deaths.py::test_a_cancelled_fiber_is_not_recovered
W13 test_fiber_deaths.py::test_while_it_is_being_recovered_it_is_not_over_and_whoever_waits_goes_on_waiting
13.7-1 test_fiber_deaths.py::test_a_death_in_the_hook_has_it_called_again_after_a_longer_pause_each_time
13.7-2 test_fiber_deaths.py::test_while_it_is_being_recovered_it_is_not_over_and_whoever_waits_goes_on_waiting
13.7-3 test_fiber_recovery.py::test_a_hook_that_hangs_is_cancelled_and_holds_up_nobody
13.7-4 test_fiber_recovery.py::test_many_are_recovered_a_few_at_a_time_the_oldest_first
13.7-5 test_fiber_deaths.py::test_a_death_in_the_hook_has_it_called_again_after_a_longer_pause_each_time
13.7-6 test_fiber_deaths.py::test_a_fiber_with_retry_comes_to_its_end_whenever_it_is_killed
13.7-7 test_fiber_recovery.py::test_an_agent_that_is_stopped_in_the_middle_goes_on_with_its_fibers
"""
TABLE = [row.split() for row in SHOWN_BY.strip().splitlines()]


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    for each in (Jobs.effects, Jobs.seen, Recovering.asked, Recovering.verdicts, Chatty.asked):
        each.clear()


def test_every_weakness_is_shown_absent_by_a_test_that_exists() -> None:
    assert [row[0] for row in TABLE] == [
        *(str(n) for n in range(1, 18)),
        *(f"W{n}" for n in range(1, 14)),
        *(f"13.7-{n}" for n in range(1, 8)),
    ]
    assert [row for row in TABLE if not is_test(f"tests/actors/{row[1]}")] == []


def test_what_an_earlier_attempt_says_late_does_not_count() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Jobs, "start", "haunted", None, {"fiber_id": "f", "retry": True})
        told = await stage.call(Jobs, "wait", "f")
        assert (told["status"], told["attempt"], told["snapshot"]) == ("completed", 2, "mine")
        assert Jobs.seen == [False, "late"]

    play(story)


def test_a_step_that_was_rolled_back_is_done_again_and_one_that_was_not_is_remembered() -> None:
    """In fibers, and in runs."""
    expected = [[0, None], [2, "in it"]]  # two calls are two steps

    async def story(stage: Stage) -> None:
        await stage.call(Jobs, "start", "hesitant", None, {"fiber_id": "f", "retry": True})
        assert (await stage.call(Jobs, "wait", "f"))["snapshot"] == expected
        assert (await stage.client.run(Jobs, "hesitate")).output == expected

    play(story)


def test_what_this_life_is_at_work_on_is_not_recovered() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Recovering, "start", "slow", None, {"fiber_id": "f"})
        for _ in range(3):
            await asyncio.sleep(0.5)
            await stage.call(Recovering, "look_again")
        told = await stage.call(Recovering, "wait", "f")
        assert (told["status"], told["attempt"]) == ("completed", 1)
        assert Recovering.asked == []

    play(story)


def test_a_child_that_was_killed_goes_on_and_sleeps_when_it_has_nothing_more_to_do() -> None:
    async def story(stage: Stage) -> None:
        await stage.client.start(Jobs, None, run_id="p")
        await stage.until(lambda: Jobs.effects["slow 1"] == 1)
        stage.kill_host_of(address(Jobs, "p"))
        await stage.until(lambda: Jobs.effects["slow 2"] == 1)
        await stage.client.ask("cancel", "p", None, "enough")
        await stage.until(lambda: not stage.host_of(address(Jobs, "p")))
        told = await stage.call(Jobs, "inspect", "own")
        assert (told["status"], Jobs.effects["slow 0"]) == ("completed", 1)
        await stage.until(lambda: not stage.host_of(address(Jobs, "p")))

    play(story)


def test_what_came_of_work_counts_although_its_end_could_not_be_written_down() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Jobs, "start", "quick", None, {"wait_for_completion": True})
        assert await stage.call(Jobs, "lose_the_last_word") == "worked"

    play(story)


def test_a_chat_agent_has_fibers_like_any_other() -> None:
    async def story(stage: Stage) -> None:
        assert await stage.call(Chatty, "work") == "worked"
        assert (Chatty.asked, await stage.call(Chatty, "rows")) == (["one", "two"], 0)
        Chatty.asked.clear()
        await stage.call(Chatty, "begin")
        await asyncio.sleep(1)
        stage.kill_host_of(address(Chatty, "p"))
        assert await stage.call(Chatty, "wait") == "completed"
        assert Chatty.asked == [("job", "here")]

    play(story)


@pytest.mark.parametrize("after_s", [0.5, 1.5])
def test_what_is_cleared_in_the_middle_takes_its_fibers_with_it(after_s: float) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.start(Jobs, None, run_id="p")
        await stage.until(lambda: Jobs.effects["slow 0"] == 1)
        await asyncio.sleep(after_s)
        done = Jobs.effects.copy()
        await stage.client.clear()
        await asyncio.sleep(120)
        assert not stage.laboratory.disk.has(address(Jobs, "p"))
        assert not stage.host_of(address(Jobs, "p"))
        assert Jobs.effects == done

    play(story)
