"""The queue: items are done in order, one at a time, each once in effect; one that cannot be done holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perdure.actors import KillPoint
from perdure.ledger import BadRequest, ConflictingRequest
from tests.actors.jobs.test_schedules import COMMITS
from tests.actors.planners import Planner, do, notes, payloads
from tests.kit import ROOMY, Death, Stage, address, play, staged

HOME = address(Planner, "p")
STUBBORN = {"attempts_max": 2, "first_ms": 10, "most_ms": 10}


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    yield
    Planner.failures = Planner.calls = 0


@pytest.mark.shows(schedules="S84")
async def test_items_are_done_in_the_order_in_which_they_were_queued(stage: Stage) -> None:
    for pause_ms in (300, 20, 100, 1):
        await do(stage, "queue", "slow", pause_ms)
    await asyncio.sleep(5)
    assert await payloads(stage) == ["300", "20", "100", "1"]
    assert await do(stage, "queued.list") == []


async def test_one_item_is_done_at_a_time(stage: Stage) -> None:
    for _ in range(3):
        await do(stage, "queue", "slow", 1_000)
    await asyncio.sleep(1.5)
    assert len(await do(stage, "queued.list")) == 2
    await asyncio.sleep(3)
    at = [note.at_ms for note in await notes(stage)]
    assert at[1] - at[0] >= 1_000
    assert at[2] - at[1] >= 1_000


@pytest.mark.parametrize("point", COMMITS)
def test_an_item_counts_once_wherever_its_agent_is_killed(point: KillPoint) -> None:
    """Spec W17: upstream such an item waits for the next call of `queue`."""
    death = Death(point, of="", times=3)

    async def story(stage: Stage) -> None:
        await do(stage, "queue", "slow", 1_000)
        told = await do(stage, "queue", "asks", 4)
        for number in range(5):
            await do(stage, "queue", "note", number)
        death.of = told["item_id"]
        stage.kill_host_of(HOME)
        await asyncio.sleep(60)
        assert await payloads(stage) == ["1000", "4", "0", "1", "2", "3", "4", "from a callback"]
        assert await stage.call(Planner, "kept", "doubled") == [8]
        assert death.left == (2 if point is KillPoint.AFTER_HANDLER_COMMIT else 0)

    play(story, kill_when=death)


async def test_a_line_goes_on_by_itself_after_a_kill(stage: Stage) -> None:
    """Nobody calls the agent; spec weakness 28 and 13.7 case 13."""
    for number in range(5):
        await do(stage, "queue", "slow", 1_000 + number)
    await asyncio.sleep(1.5)
    stage.kill_host_of(HOME)
    await asyncio.sleep(20)
    told = await notes(stage)
    assert [note.payload for note in told] == [str(1_000 + number) for number in range(5)]
    assert told[-1].at_ms - told[0].at_ms < 10_000


@pytest.mark.shows(schedules="S85 S86 S147 S148", sub_agents="B179")
async def test_an_item_that_always_raises_is_parked_and_the_others_go_on(stage: Stage) -> None:
    bad = await do(stage, "queue", "poison", "bad", retry=STUBBORN)
    for number in range(3):
        await do(stage, "queue", "note", number)
    await asyncio.sleep(5)
    assert await payloads(stage) == ["0", "1", "2"]
    (parked,) = await do(stage, "queued.list", status="parked")
    assert (parked["item_id"], parked["attempt"], parked["error"]) == (bad["item_id"], 2, "RuntimeError: never")
    assert parked["retry"] == bad["retry"] == STUBBORN
    assert await do(stage, "queued.drop", bad["item_id"])
    assert not await do(stage, "queued.drop", bad["item_id"])


@pytest.mark.shows(schedules="S146")
async def test_an_item_that_waits_to_be_tried_again_holds_up_nobody_and_is_done_in_the_end(stage: Stage) -> None:
    Planner.failures = 1
    await do(stage, "queue", "flaky", "flaky", retry={"first_ms": 10_000, "most_ms": 10_000})
    await do(stage, "queue", "note", "next")
    await asyncio.sleep(30)
    told = await notes(stage)
    assert {note.payload: note.attempt for note in told} == {"next": 1, "flaky": 2}


async def test_a_parked_item_can_be_tried_again(stage: Stage) -> None:
    Planner.failures = 2
    told = await do(stage, "queue", "flaky", "x", retry=STUBBORN)
    await asyncio.sleep(5)
    assert await payloads(stage) == []
    assert await do(stage, "queued.retry", told["item_id"])
    assert not await do(stage, "queued.retry", "nobody")
    await asyncio.sleep(2)
    assert await payloads(stage) == ["x"]


async def test_the_tries_of_an_item_outlive_its_agent_which_sleeps_in_between(stage: Stage) -> None:
    Planner.failures = 2
    retry = {"first_ms": 120_000, "most_ms": 120_000}
    await do(stage, "queue", "flaky", "x", retry=retry)
    await stage.until(lambda: not stage.host_of(HOME))
    await asyncio.sleep(600)
    (note,) = await notes(stage)
    assert note.attempt == 3


async def test_items_are_taken_out_one_by_one_by_callback_or_all_together(stage: Stage) -> None:
    await do(stage, "queue", "slow", 10_000)
    told = [await do(stage, "queue", callback, "x") for callback in ("note", "slow", "note", "flaky", "note")]
    assert [item["callback"] for item in await do(stage, "queued.list", callback="note")] == ["note"] * 3
    assert await do(stage, "queued.drop", told[0]["item_id"])
    assert await do(stage, "queued.drop_all", "note") == 2
    assert [item["callback"] for item in await do(stage, "queued.list")] == ["slow", "slow", "flaky"]
    assert await do(stage, "queued.drop_all") == 3
    await asyncio.sleep(20)
    assert await payloads(stage) == []


async def test_what_an_item_takes_out_of_the_line_is_not_done(stage: Stage) -> None:
    await do(stage, "queue", "slow", 100)
    victim = await do(stage, "queue", "note", "victim", key="victim")
    await do(stage, "queued.drop", victim["item_id"])
    await do(stage, "queue", "cancels", victim["item_id"])
    await do(stage, "queue", "note", "victim", key="victim")
    await asyncio.sleep(5)
    assert await payloads(stage) == ["100", victim["item_id"]]


async def test_a_key_stands_for_the_item_that_waits_under_it(stage: Stage) -> None:
    await do(stage, "queue", "slow", 5_000)
    first = await do(stage, "queue", "note", {"a": 1}, key="k")
    assert (await do(stage, "queue", "note", {"a": 1}, key="k"))["item_id"] == first["item_id"]
    for other in (["note", {"a": 2}], ["slow", {"a": 1}]):
        with pytest.raises(ConflictingRequest, match=r"the key 'k' exists with another .*; drop it"):
            await do(stage, "queue", *other, key="k")
    await asyncio.sleep(10)
    assert len(await notes(stage)) == 2
    await do(stage, "queue", "note", {"a": 2}, key="k")  # it was done, so the key is free
    await asyncio.sleep(2)
    assert len(await notes(stage)) == 3


async def test_an_item_whose_callback_was_taken_away_is_parked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await do(stage, "queue", "slow", 2_000)
    await do(stage, "queue", "flaky", "x")
    await do(stage, "queue", "note", "y")
    monkeypatch.delattr(Planner, "flaky")
    await asyncio.sleep(10)
    assert await payloads(stage) == ["2000", "y"]
    (parked,) = await do(stage, "queued.list")
    assert (parked["status"], "no method 'flaky' any more" in parked["error"]) == ("parked", True)


@staged(limits=replace(ROOMY, queued_max=2))
async def test_the_line_has_an_end(stage: Stage) -> None:
    await do(stage, "queue", "slow", 60_000)
    await do(stage, "queue", "note", 1)
    with pytest.raises(BadRequest, match="queue: this agent has 2 entries, which is the limit"):
        await do(stage, "queue", "note", 2)
