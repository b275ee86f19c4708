"""Batches: callbacks that are known to be quick are called in one transaction when they are due at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from perdure.actors import KillPoint
from tests.actors.jobs.test_schedules import COMMITS, outcomes
from tests.actors.planners import Planner, do, notes
from tests.kit import ROOMY, Death, Stage, play, staged

AWAKE = replace(ROOMY, idle_ms=60_000)  # so that it stays on a host that knows its callbacks


@pytest.fixture(autouse=True)
def _nothing_fails() -> Iterator[None]:
    yield
    Planner.calls = 0


async def batch(stage: Stage, *payloads: str, callback: str = "picky") -> None:
    """A callback that is known to be quick will be due for all of these in a second, at the same instant."""
    told = await do(stage, "schedule", 0, callback, "first")
    await asyncio.sleep(1)
    Planner.calls = 0
    at = datetime.fromtimestamp(told["created_at_ms"] / 1000 + 5, UTC).isoformat()
    for each in payloads:
        await do(stage, "schedule", f"at {at}", callback, each, schedule_id=each)
    await asyncio.sleep(3)


@pytest.mark.parametrize("callback", ["picky", "picky_too"])
@staged(limits=AWAKE)
async def test_a_batch_of_quick_callbacks_is_called_in_one_transaction(stage: Stage, callback: str) -> None:
    await batch(stage, "a", "b", "c", callback=callback)
    begun = stage.simulation.visits["host", KillPoint.AFTER_HANDLER_COMMIT]
    await asyncio.sleep(10)
    told = await notes(stage)
    assert [note.payload for note in told] == ["first", "a", "b", "c"]
    assert [note.delivery_id.partition("#")[0] for note in told[1:]] == ["a", "b", "c"]
    assert [await outcomes(stage, each) for each in "abc"] == [["completed"]] * 3
    assert stage.simulation.visits["host", KillPoint.AFTER_HANDLER_COMMIT] == begun + 1


@staged(limits=AWAKE)
async def test_one_of_a_batch_that_raises_costs_the_others_nothing(stage: Stage) -> None:
    await batch(stage, "a", "bad", "c")
    await asyncio.sleep(1.1)
    assert sorted(note.payload for note in await notes(stage)) == ["a", "c", "first"]
    assert (await do(stage, "schedules.get", "bad"))["status"] == "retrying"
    assert Planner.calls >= 5, "the two that were called first, and each by itself"


@staged(limits=AWAKE)
async def test_one_of_a_batch_that_is_slow_delays_the_others_a_little(stage: Stage) -> None:
    await batch(stage, "a", "slow", "c", callback="picky_too")
    await asyncio.sleep(2)
    assert [note.payload for note in await notes(stage)] == ["first", "a", "c"]
    await asyncio.sleep(60)
    assert [note.payload for note in await notes(stage)] == ["first", "a", "c", "slow"]


@staged(limits=AWAKE)
async def test_what_one_of_a_batch_cancels_is_not_called_after_it(stage: Stage) -> None:
    await batch(stage, "a", "cancel", "victim", "c")
    await asyncio.sleep(5)
    assert [note.payload for note in await notes(stage)] == ["first", "a", "cancel", "c"]


@pytest.mark.parametrize("callback", ["picky", "picky_too"])
@staged(limits=AWAKE)
async def test_a_line_of_quick_items_is_done_in_order_and_in_few_transactions(stage: Stage, callback: str) -> None:
    await do(stage, "queue", callback, "first")
    await asyncio.sleep(1)
    begun = stage.simulation.visits["host", KillPoint.AFTER_HANDLER_COMMIT]
    asked = [["queue", [callback, f"{number:02d}"], {}] for number in range(30)]
    await stage.call(Planner, "do_all", asked)
    await asyncio.sleep(5)
    assert [note.payload for note in await notes(stage)] == ["first", *(f"{number:02d}" for number in range(30))]
    assert stage.simulation.visits["host", KillPoint.AFTER_HANDLER_COMMIT] - begun <= 2


@staged(limits=AWAKE)
async def test_one_of_a_line_that_raises_or_is_taken_out_costs_the_others_nothing(stage: Stage) -> None:
    await do(stage, "queue", "picky", "first")
    await do(stage, "queue", "cancels", "nobody")
    asked = [["queue", ["picky", each], {}] for each in ("a", "bad", "b", "slow", "c")]
    await stage.call(Planner, "do_all", asked)
    await asyncio.sleep(0.5)
    assert [note.payload for note in await notes(stage)] == ["first", "nobody", "a", "b", "slow", "c"]
    assert [item["payload"] for item in await do(stage, "queued.list")] == ["bad"]


@pytest.mark.parametrize("point", COMMITS)
def test_a_line_that_is_done_together_counts_once_wherever_its_agent_is_killed(point: KillPoint) -> None:
    death = Death(point, when=lambda stage: stage.simulation.now_ms() > 2_000)

    async def story(stage: Stage) -> None:
        await do(stage, "queue", "picky", "first")
        await asyncio.sleep(2)
        await stage.call(Planner, "do_all", [["queue", ["picky", str(number)], {}] for number in range(9)])
        await asyncio.sleep(60)
        assert [note.payload for note in await notes(stage)] == ["first", *map(str, range(9))]
        assert death.left == 0

    play(story, kill_when=death, limits=AWAKE)


@pytest.mark.parametrize("point", COMMITS)
def test_a_batch_counts_once_wherever_its_agent_is_killed(point: KillPoint) -> None:
    death = Death(point, of="a")

    async def story(stage: Stage) -> None:
        await batch(stage, "a", "b", "c")
        await asyncio.sleep(60)
        assert sorted(note.payload for note in await notes(stage)) == ["a", "b", "c", "first"]
        assert death.left == 0

    play(story, kill_when=death, limits=AWAKE)
