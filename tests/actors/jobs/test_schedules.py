"""Schedules: callbacks are called at their time, never early, and each occurrence once in effect, whoever dies when.

What the original leaves to be wished (its specification's list), and the test that shows it absent:

| | upstream | here |
|---|---|---|
| 18 | a start does not set the alarm again | `test_an_agent_that_was_killed_before_the_time_calls_back_in_time` |
| 19 | a chain dies when a callback schedules itself idempotently | `test_a_callback_may_schedule_itself_again_under_its_own_key` |
| 20 | due rows run in any order, one after the other | `test_what_is_due_begins_in_the_order_of_its_time`, and the next |
| 20 | a slow one blocks the tree | `test_a_slow_callback_and_one_that_waits_to_be_tried_again_block_no_other` |
| 21 | a round is a snapshot | `test_what_an_earlier_callback_cancels_is_not_run_in_the_same_round` |
| 22 | a failing dispatch is a hot loop | `test_the_tries_and_the_pause_outlive_the_agent` |
| 23 | a row that is put off aborts its batch | the same as the last of 20 |
| 24 | `when` is not validated | `test_a_time_that_is_none_or_is_absurd_is_refused` (policies) |
| 25 | early by up to a second | `test_a_callback_is_called_when_it_is_due_and_not_before` |
| 25 | drift | `test_an_interval_does_not_drift_however_long_its_callback_takes` |
| 25 | UTC only, no jitter | `test_jitter_makes_each_call_later_but_never_earlier` and `tests/policies/test_schedule.py` |
| 25 | no policy for missed runs | `test_ticks_that_were_missed_run_as_one_that_says_how_many_they_were`, and the next |
| 26 | the batch's start counts as each row's | `test_a_callback_that_hangs_is_cut_off_and_tried_again`: each try has its own time |
| 27 | no dead letter, no history | `test_a_single_time_whose_callback_always_raises_is_parked_and_can_be_tried_again` |
| 27 | no pause | `test_a_pause_passes_over_its_ticks_and_delays_a_single_time` |
| 27 | no limit | `test_more_than_may_run_at_once_wait_for_a_place` |
| 28 | the queue is not drained at start, and stops at bad rows | `test_a_line_goes_on_by_itself_after_a_kill` (queue), and the next |
| 28 | ordered by seconds | `test_items_are_done_in_the_order_in_which_they_were_queued` (queue) |
| 28 | an item has the context of whoever called last | cannot arise: a callback's activity is its own occurrence |
| 29 | deaths count at the root alone | `test_a_callback_that_kills_its_agent_again_and_again_is_parked_and_its_neighbours_are_not` |
| 30 | an `onError` that swallows throws `undefined` | `test_an_author_is_told_of_a_callback_that_is_parked` (ends) |

Cases of its section 13.7: 8 is weakness 19, 9 is 21, 10 is 22, 11 is 24, 12 is 18, 13 is 28.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.actors import KillPoint
from perdure.actors.events.observability import subscribe
from perdure.actors.sim_world.simulation import Weather
from tests.actors.planners import Blank, Eager, Note, Patient, Planner, Sluggish, do, notes, payloads
from tests.kit import ROOMY, Death, Stage, address, play, staged

HOME = address(Planner, "p")
COMMITS = [KillPoint.MID_HANDLER, KillPoint.BEFORE_HANDLER_COMMIT, KillPoint.AFTER_HANDLER_COMMIT]


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    yield
    Planner.failures = Planner.calls = Sluggish.starting_s = 0


async def outcomes(stage: Stage, schedule_id: str) -> list[str]:
    return [each["outcome"] for each in await do(stage, "schedules.history", schedule_id)]


# ---------------------------------------------------------------- in time


@pytest.mark.shows(schedules="S89")
async def test_a_callback_is_called_when_it_is_due_and_not_before(stage: Stage) -> None:
    told = await do(stage, "schedule", 10.5, "note", "hello")
    assert (told["type"], told["status"]) == ("delayed", "waiting")
    await asyncio.sleep(30)
    (note,) = await notes(stage)
    assert note.payload == "hello"
    assert note.scheduled_at_ms == told["next_at_ms"] == told["created_at_ms"] + 10_500
    assert note.scheduled_at_ms <= note.at_ms <= note.scheduled_at_ms + 100
    assert (note.attempt, note.missed) == (1, 0)
    assert await do(stage, "schedules.get", told["schedule_id"]) is None
    assert await outcomes(stage, told["schedule_id"]) == ["completed"]


@pytest.mark.shows(schedules="S54")
async def test_an_agent_that_sleeps_is_awake_in_time(stage: Stage) -> None:
    told = await do(stage, "schedule", 300, "named", "hello")
    await stage.until(lambda: not stage.host_of(HOME))
    await asyncio.sleep(320)
    (note,) = await notes(stage)
    assert note.payload == "p hello"
    assert told["next_at_ms"] <= note.at_ms <= told["next_at_ms"] + 1_000


@pytest.mark.shows(chat_recovery="C-1372 C-1373", schedules="S30 S31")
async def test_an_agent_that_was_killed_before_the_time_calls_back_in_time(stage: Stage) -> None:
    """Its alarm may not even have been told: the timer is repaired when it wakes (spec W16, 13.7 case 12)."""
    told = await do(stage, "schedule", 20, "note", "hello")
    stage.kill_host_of(HOME)
    await asyncio.sleep(40)
    (note,) = await notes(stage)
    assert told["next_at_ms"] <= note.at_ms <= told["next_at_ms"] + 1_000


@pytest.mark.shows(chat_recovery="C-0939")
async def test_an_interval_goes_on_in_its_rhythm_in_the_life_after_a_death(stage: Stage) -> None:
    told = await do(stage, "schedule_every", 20, "note", "tick")
    await asyncio.sleep(20.5)
    stage.kill_host_of(HOME)
    await asyncio.sleep(50)
    first_ms = told["next_at_ms"]
    assert [note.scheduled_at_ms for note in await notes(stage)] == [first_ms + 20_000 * n for n in range(3)]
    assert all(0 <= note.at_ms - note.scheduled_at_ms <= 1_000 for note in await notes(stage))


async def test_a_time_that_is_past_runs_at_once(stage: Stage) -> None:
    told = await do(stage, "schedule", "at 2001-02-03T04:05:06+00:00", "note", "late")
    assert told["type"] == "scheduled"
    await asyncio.sleep(1)
    (note,) = await notes(stage)
    assert note.scheduled_at_ms == 981_173_106_000


@pytest.mark.shows(schedules="S10")
async def test_an_interval_does_not_drift_however_long_its_callback_takes(stage: Stage) -> None:
    told = await do(stage, "schedule_every", 10, "slow", 3_000)
    await asyncio.sleep(65)
    times = [note.scheduled_at_ms - told["created_at_ms"] for note in await notes(stage)]
    assert times == [10_000, 20_000, 30_000, 40_000, 50_000, 60_000]


async def test_a_cron_schedule_goes_on_and_on_while_its_agent_sleeps_in_between(stage: Stage) -> None:
    await do(stage, "schedule", "*/10 * * * *", "note", "tick", time_zone="Asia/Kolkata")
    await asyncio.sleep(1500)
    told = await notes(stage)
    assert len(told) == 3
    assert all(note.scheduled_at_ms % 600_000 == 0 and 0 <= note.at_ms - note.scheduled_at_ms < 1_000 for note in told)


async def test_jitter_makes_each_call_later_but_never_earlier(stage: Stage) -> None:
    await do(stage, "schedule_every", 10, "note", "tick", jitter_ms=5_000)
    await asyncio.sleep(205)
    late = [note.at_ms - note.scheduled_at_ms for note in await notes(stage)]
    assert len(late) >= 19
    assert 0 <= min(late) < 2_000
    assert 3_000 < max(late) <= 5_100
    assert len({note.scheduled_at_ms % 10_000 for note in await notes(stage)}) == 1


@pytest.mark.shows(chat_recovery="C-1371", schedules="S28")
@staged(limits=replace(ROOMY, retry_first_ms=5000))
async def test_what_is_due_begins_in_the_order_of_its_time(stage: Stage) -> None:
    for after_s in (3, 1, 2, 1.5):
        await do(stage, "schedule", after_s, "note", after_s)
    stage.kill_host_of(HOME)
    await asyncio.sleep(10)
    assert await payloads(stage) == ["1", "1.5", "2", "3"]


async def test_a_slow_callback_and_one_that_waits_to_be_tried_again_block_no_other(stage: Stage) -> None:
    Planner.failures = 3
    await do(stage, "schedule", 1, "slow", 60_000)
    await do(stage, "schedule", 1, "flaky", "flaky", retry={"first_ms": 20_000, "most_ms": 20_000})
    await do(stage, "schedule", 2, "note", "quick")
    await asyncio.sleep(3)
    assert await payloads(stage) == ["quick"]
    await asyncio.sleep(90)
    assert sorted(await payloads(stage)) == ["60000", "flaky", "quick"]


@staged(limits=replace(ROOMY, schedules_at_once_max=2))
async def test_more_than_may_run_at_once_wait_for_a_place(stage: Stage) -> None:
    for _ in range(5):
        await do(stage, "schedule", 1, "slow", 10_000)
    await asyncio.sleep(15)
    assert len(await notes(stage)) == 2
    await asyncio.sleep(10)
    assert len(await notes(stage)) == 4
    await asyncio.sleep(10)
    assert len(await notes(stage)) == 5


# ---------------------------------------------------------------- once in effect


@pytest.mark.shows(chat_recovery="C-1375 C-1376", schedules="S37 S38")
@pytest.mark.parametrize("point", COMMITS)
@pytest.mark.parametrize("kind", ["once", "cron"])
def test_an_occurrence_counts_once_wherever_its_agent_is_killed(point: KillPoint, kind: str) -> None:
    """Its notes, its run, its mail and its item of the queue; spec W14 and W15."""
    death = Death(point, of="it", times=1 if kind == "once" and point is KillPoint.AFTER_HANDLER_COMMIT else 3)

    async def story(stage: Stage) -> None:
        await do(stage, "schedule", 5 if kind == "once" else "* * * * *", "asks", 4, schedule_id="it")
        await asyncio.sleep(200)
        await do(stage, "schedules.cancel", "it")
        await asyncio.sleep(10)
        told = await notes(stage)
        own = [note for note in told if note.payload == "4"]
        assert len(own) == len({note.delivery_id for note in own}) == (1 if kind == "once" else 4)
        assert [note.payload for note in told].count("from a callback") == len(own)
        assert await stage.call(Planner, "kept", "doubled") == [8] * len(own)
        assert death.left == 0

    play(story, kill_when=death)


async def test_the_whole_cluster_may_die_between_two_ticks(stage: Stage) -> None:
    await do(stage, "schedule_every", 60, "note", "tick")
    for _ in range(3):
        await asyncio.sleep(45)
        for process in [stage.host_of(HOME), "supervisor"]:
            if process:
                stage.simulation.kill(process)
    await asyncio.sleep(110)
    told = await notes(stage)
    assert [note.scheduled_at_ms - told[0].scheduled_at_ms for note in told] == [0, 60_000, 120_000, 180_000]


def test_bad_weather_doubles_nothing_and_loses_nothing() -> None:
    weather = replace(Weather.calm(), lost=0.3, doubled=0.3, late=0.3)

    async def story(stage: Stage) -> None:
        for number in range(5):
            await do(stage, "schedule", 10 + number, "note", number)
        await asyncio.sleep(60)
        assert sorted(await payloads(stage)) == ["0", "1", "2", "3", "4"], "in an order that the weather may change"

    for seed in range(3):
        play(story, seed=seed, weather=weather)


async def test_a_transaction_that_is_rolled_back_schedules_nothing(stage: Stage) -> None:
    asked = [["schedule", [1, "note", "no"], {}], ["queue", ["note", "no"], {}]]
    with pytest.raises(Exception, match="changed my mind"):
        await stage.call(Planner, "do_all", asked, regret=True)
    await stage.call(Planner, "do_all", [["schedule", [1, "note", "yes"], {}], ["queue", ["note", "yes"], {}]])
    await asyncio.sleep(5)
    assert await payloads(stage) == ["yes", "yes"]
    assert await do(stage, "schedules.list") == await do(stage, "queued.list") == []


async def test_callbacks_that_meet_each_other_lose_no_update(stage: Stage) -> None:
    for number in range(30):
        await do(stage, "schedule", 5, "counts", 10 + number)
    await asyncio.sleep(60)
    assert await stage.call(Planner, "kept", "count") == 30
    assert {note.attempt for note in await notes(stage)} == {1}


# ---------------------------------------------------------------- changes meanwhile


@staged(limits=replace(ROOMY, retry_first_ms=5000))
async def test_what_an_earlier_callback_cancels_is_not_run_in_the_same_round(stage: Stage) -> None:
    """Spec weakness 21, 13.7 case 9."""
    await do(stage, "schedule", 2, "note", "later", schedule_id="later")
    await do(stage, "schedule", 1, "cancels", "later")
    stage.kill_host_of(HOME)
    await asyncio.sleep(20)
    assert await payloads(stage) == ["later"]  # the note of the one who cancelled
    assert (await notes(stage))[0].delivery_id.startswith("later") is False


@pytest.mark.parametrize("method", ["schedules.cancel", "schedules.pause"])
async def test_what_is_cancelled_or_paused_while_it_is_at_work_has_no_effect(stage: Stage, method: str) -> None:
    await do(stage, "schedule", 1, "slow", 10_000, schedule_id="it")
    await asyncio.sleep(5)
    assert await do(stage, method, "it")
    await asyncio.sleep(20)
    assert await payloads(stage) == []


async def test_a_callback_may_schedule_itself_again_under_its_own_key(stage: Stage) -> None:
    """Spec weakness 19, 13.7 case 8."""
    told = await do(stage, "schedule", 1, "again", 3, key="chain")
    await asyncio.sleep(20)
    assert await payloads(stage) == ["3", "2", "1", "0"]
    assert len({note.delivery_id for note in await notes(stage)}) == 4
    assert await outcomes(stage, told["schedule_id"]) == ["completed"] * 4


async def test_a_recurring_schedule_may_cancel_itself(stage: Stage) -> None:
    await do(stage, "schedule_every", 1, "cancels", "it", schedule_id="it")
    await asyncio.sleep(10)
    assert await payloads(stage) == ["it"]
    assert await outcomes(stage, "it") == ["completed"]


async def test_a_pause_passes_over_its_ticks_and_delays_a_single_time(stage: Stage) -> None:
    await do(stage, "schedule_every", 10, "note", "tick", schedule_id="tick")
    await do(stage, "schedule", 15, "note", "once", schedule_id="once")
    for each in ("tick", "once"):
        assert await do(stage, "schedules.pause", each)
        assert (await do(stage, "schedules.get", each))["status"] == "paused"
    await asyncio.sleep(34)
    assert await payloads(stage) == []
    for each in ("tick", "once"):
        assert await do(stage, "schedules.resume", each)
        assert not await do(stage, "schedules.resume", each)
    await asyncio.sleep(10)
    assert sorted(await payloads(stage)) == ["once", "tick"]


# ---------------------------------------------------------------- missed and overlapping ticks


async def missed(stage: Stage, catch_up: str) -> list[Note]:
    """What a schedule of each second does whose agent is away for ten of them."""
    await do(stage, "schedule_every", 1, "note", "tick", schedule_id="it", catch_up=catch_up, kind=Sluggish)
    Sluggish.starting_s = 10
    stage.kill_host_of(address(Sluggish, "p"))
    await asyncio.sleep(12.5)
    await do(stage, "schedules.cancel", "it", kind=Sluggish)
    return await notes(stage, Sluggish)


async def test_ticks_that_were_missed_run_as_one_that_says_how_many_they_were(stage: Stage) -> None:
    first, *rest = await missed(stage, "once")
    assert first.missed > 5
    assert {note.missed for note in rest} == {0}
    assert rest[0].scheduled_at_ms == first.scheduled_at_ms + (first.missed + 1) * 1_000


async def test_ticks_that_were_missed_run_one_by_one(stage: Stage) -> None:
    told = await missed(stage, "all")
    times = [note.scheduled_at_ms for note in told]
    assert times == list(range(times[0], times[0] + len(told) * 1_000, 1_000))
    assert len(told) == 12


@staged(limits=replace(ROOMY, schedule_catch_up_max=3))
async def test_of_too_many_missed_ticks_the_oldest_are_folded(stage: Stage) -> None:
    told = await missed(stage, "all")
    assert told[0].missed > 3
    assert sum(note.missed + 1 for note in told) == 12


@staged(limits=replace(ROOMY, schedule_grace_ms=0))
async def test_ticks_that_were_missed_are_dropped_and_the_history_says_so(stage: Stage) -> None:
    told = await missed(stage, "skip")
    history = await do(stage, "schedules.history", "it", kind=Sluggish)
    assert (history[0]["outcome"], history[0]["missed"] > 5) == ("skipped", True)
    assert all(note.at_ms - note.scheduled_at_ms < 100 for note in told)


@pytest.mark.shows(schedules="S11")
@pytest.mark.parametrize(("overlap", "times"), [("skip", [10, 40, 70]), ("queue", [10, 20, 40, 70])])
async def test_ticks_that_come_while_the_callback_is_at_work(stage: Stage, overlap: str, times: list[int]) -> None:
    told = await do(stage, "schedule_every", 10, "slow", 25_000, overlap=overlap)
    await asyncio.sleep(130)
    assert [(note.scheduled_at_ms - told["created_at_ms"]) // 1_000 for note in await notes(stage)][
        : len(times)
    ] == times


# ---------------------------------------------------------------- failures


@pytest.mark.shows(chat_recovery="C-1386 C-1387", schedules="S48 S49 S90 S94 S149")
async def test_a_callback_that_raises_is_tried_again_and_leaves_nothing_of_what_failed(stage: Stage) -> None:
    Planner.failures = 2
    await do(stage, "schedule", 1, "flaky", "x", schedule_id="it")
    await asyncio.sleep(30)
    (note,) = await notes(stage)
    assert note.attempt == 3
    assert await outcomes(stage, "it") == ["failed", "failed", "completed"]


@pytest.mark.shows(chat_recovery="C-1384", schedules="S46")
async def test_the_tries_and_the_pause_outlive_the_agent(stage: Stage) -> None:
    await do(
        stage,
        "schedule",
        1,
        "poison",
        "x",
        schedule_id="it",
        retry={"attempts_max": 3, "first_ms": 30_000, "most_ms": 60_000},
    )
    await asyncio.sleep(2)
    before = await do(stage, "schedules.get", "it")
    assert (before["status"], before["attempt"], before["error"]) == ("retrying", 1, "RuntimeError: never")
    stage.kill_host_of(HOME)
    await asyncio.sleep(5)
    after = await do(stage, "schedules.get", "it")
    assert after["attempt"] > 1 or after == before
    await asyncio.sleep(120)
    assert (await do(stage, "schedules.get", "it"))["attempt"] == 3


@pytest.mark.shows(chat_recovery="C-1377 C-1385 C-1388 C-1389", schedules="S39 S47 S50 S51 S91")
async def test_a_single_time_whose_callback_always_raises_is_parked_and_can_be_tried_again(stage: Stage) -> None:
    Planner.failures = 3
    await do(
        stage,
        "schedule",
        1,
        "flaky",
        "x",
        schedule_id="it",
        retry={"attempts_max": 3, "first_ms": 10, "most_ms": 10},
    )
    await asyncio.sleep(10)
    (parked,) = await do(stage, "schedules.list", status="parked")
    assert (parked["attempt"], parked["error"], parked["next_at_ms"]) == (3, "RuntimeError: not yet", None)
    assert await do(stage, "schedules.pause", "it") is False
    assert await do(stage, "schedules.retry", "it") is True
    await asyncio.sleep(2)
    assert await payloads(stage) == ["x"]
    assert await outcomes(stage, "it") == ["failed", "failed", "parked", "completed"]


@pytest.mark.shows(schedules="S9")
async def test_a_recurring_schedule_goes_on_after_a_failure_and_keeps_it_in_its_history(stage: Stage) -> None:
    Planner.failures = 2
    await do(
        stage,
        "schedule_every",
        10,
        "flaky",
        "x",
        schedule_id="it",
        retry={"attempts_max": 2, "first_ms": 10, "most_ms": 10},
    )
    await asyncio.sleep(25)
    assert [note.attempt for note in await notes(stage)] == [1]
    assert await outcomes(stage, "it") == ["failed", "failed", "completed"]
    assert (await do(stage, "schedules.history", "it"))[1]["error"] == "RuntimeError: not yet"


async def test_a_callback_that_was_taken_away_parks_its_schedule(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await do(stage, "schedule_every", 5, "note", "x", schedule_id="it")
    monkeypatch.delattr(Planner, "note")
    await asyncio.sleep(20)
    parked = await do(stage, "schedules.get", "it")
    words = "BadRequest: callback: Planner has no method 'note' any more; give it back and retry 'it', or cancel it"
    assert (parked["status"], parked["error"].startswith(words)) == ("parked", True), parked["error"]
    monkeypatch.undo()
    assert await do(stage, "schedules.retry", "it")
    await asyncio.sleep(7)
    assert len(await notes(stage)) >= 1


@pytest.mark.shows(schedules="S12")
@staged(limits=replace(ROOMY, handler_timeout_ms=5000))
async def test_a_callback_that_hangs_is_cut_off_and_tried_again(stage: Stage) -> None:
    await do(stage, "schedule", 1, "slow", 60_000, schedule_id="it", retry={"attempts_max": 2})
    await asyncio.sleep(60)
    parked = await do(stage, "schedules.get", "it")
    assert (parked["status"], parked["error"]) == ("parked", "the callback did not return within 5000 ms")


@pytest.mark.shows(chat_recovery="C-1379 C-1380 C-1381", schedules="S41 S42 S43")
def test_a_callback_that_kills_its_agent_again_and_again_is_parked_and_its_neighbours_are_not() -> None:
    death = Death(KillPoint.MID_HANDLER, of="bad", times=1_000)

    async def story(stage: Stage) -> None:
        for number in range(3):
            await do(stage, "schedule", 1, "note", number)
        await do(stage, "schedule", 1, "note", "bad", schedule_id="bad")
        await asyncio.sleep(400)
        parked = await do(stage, "schedules.get", "bad")
        assert (parked["status"], "may be what kills it" in parked["error"]) == ("parked", True)
        assert sorted(await payloads(stage)) == ["0", "1", "2"]

    play(story, kill_when=death, limits=replace(ROOMY, callback_losses_max=3))


def test_slow_neighbours_of_a_callback_that_kills_its_agent_are_called_apart_from_it_and_not_parked_with_it() -> None:
    death = Death(KillPoint.MID_HANDLER, of="bad", times=1_000)

    async def story(stage: Stage) -> None:
        for number in range(3):
            await do(stage, "schedule", 1, "slow", 15_000 + number)
        await do(stage, "schedule", 1, "note", "bad", schedule_id="bad")
        await asyncio.sleep(800)
        assert (await do(stage, "schedules.get", "bad"))["status"] == "parked"
        assert sorted(await payloads(stage)) == ["15000", "15001", "15002"]

    play(story, kill_when=death, limits=replace(ROOMY, callback_losses_max=3))


@pytest.mark.shows(schedules="S155 S156 S157")
async def test_the_class_says_how_often_a_callback_is_tried_unless_the_schedule_does(stage: Stage) -> None:
    await do(stage, "schedule", 1, "poison", "a", schedule_id="a", kind=Patient)
    await do(stage, "schedule", 1, "poison", "b", schedule_id="b", kind=Patient, retry={"attempts_max": 2})
    await asyncio.sleep(10)
    assert [(await do(stage, "schedules.get", each, kind=Patient))["attempt"] for each in "ab"] == [5, 2]


@pytest.mark.shows(chat_recovery="C-1374 C-1421", schedules="S14 S16 S55")
async def test_what_is_planned_on_start_is_planned_once_however_often_the_agent_starts(stage: Stage) -> None:
    for _ in range(3):
        assert len(await do(stage, "schedules.list", kind=Eager)) == 2
        stage.kill_host_of(address(Eager, "p"))
        await asyncio.sleep(3)
    await asyncio.sleep(120)
    assert [note.payload for note in await notes(stage, Eager)].count("interval") == 2


@pytest.mark.shows(sub_agents="B167")
def test_what_happens_to_a_schedule_is_told_on_its_channel() -> None:
    async def story(stage: Stage) -> list[str]:
        heard: list[str] = []
        leave = subscribe("schedule", lambda event: heard.append(event.type))
        Planner.failures = 3
        await do(
            stage,
            "schedule",
            1,
            "flaky",
            "x",
            schedule_id="it",
            retry={"attempts_max": 2, "first_ms": 10, "most_ms": 10},
        )
        await do(stage, "schedule", 60, "note", "y", schedule_id="other")
        await do(stage, "schedules.cancel", "other")
        await asyncio.sleep(5)
        await do(stage, "schedules.retry", "it")
        await asyncio.sleep(5)
        await do(stage, "queue", "note", "z")
        await asyncio.sleep(1)
        leave()
        return heard

    expected = ["schedule:create", "schedule:create", "schedule:cancel", "schedule:retry", "schedule:error"]
    assert play(story) == [*expected, "schedule:retry", "schedule:execute", "queue:create", "queue:execute"]


def test_an_agent_that_begins_with_a_copy_of_itself_goes_on_with_its_plans(tmp_path: Path) -> None:
    async def before(stage: Stage) -> None:
        await do(stage, "schedule", 30, "count", kind=Blank)
        await do(stage, "schedule", 30, "count", kind=Blank)
        await do(stage, "storage.snapshot", str(tmp_path / "copy"), kind=Blank)

    async def after(stage: Stage) -> None:
        await do(stage, "storage.restore", str(tmp_path / "copy"), kind=Blank)
        await stage.until(lambda: not stage.host_of(address(Blank, "p")))
        await asyncio.sleep(60)
        assert await stage.call(Blank, "kept", "count") == 2

    play(before)
    play(after)
