"""`on_agent_tool_start`: once for each run, wherever it is asked for, and whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perdure.actors import KillPoint
from perdure.actors.sim_world.simulation import Weather
from tests.actors.cast import Hooked, Sleeper
from tests.actors.stories import settled, told_by
from tests.kit import ROOMY, Stage, address, play, staged


@pytest.fixture(autouse=True)
def _nothing_is_refused() -> Iterator[None]:
    yield
    Hooked.refusals = 0


async def told_of(stage: Stage, count: int) -> Counter[tuple[str, str]]:
    return Counter((row.what, row.run_id) for row in await settled(stage, Hooked, count))


async def test_a_run_that_a_transaction_asks_for_is_told_once_it_is_accepted_and_before_its_end(stage: Stage) -> None:
    await stage.call(Hooked, "detach_together", 3)
    rows = await settled(stage, Hooked, 9)
    assert Counter((row.what, row.run_id) for row in rows) == {
        (what, f"s{n}"): 1 for what in ("start", "hook", "done") for n in range(3)
    }
    assert [row.what for row in rows if row.run_id == "s0"] == ["start", "hook", "done"]
    assert {row.status for row in rows if row.what == "start"} == {"starting"}


async def test_a_run_that_a_handler_asks_for_is_told_too(stage: Stage) -> None:
    await stage.call(Hooked, "detach_together", 1, "on_chain")
    told = await told_of(stage, 5)
    assert told == {("start", "s0"): 1, ("hook", "s0"): 1} | {
        (what, "after s0"): 1 for what in ("start", "hook", "done")
    }


async def test_a_transaction_that_asks_again_tells_nobody_again(stage: Stage) -> None:
    for _ in range(3):
        await stage.call(Hooked, "detach_together", 2)
        await settled(stage, Hooked, 6)
    await stage.call(Hooked, "detach", "Sleeper", 10, "s0")
    assert set((await told_of(stage, 6)).values()) == {1}


@pytest.mark.parametrize(
    "point",
    [
        KillPoint.AFTER_COMMIT,
        KillPoint.BEFORE_EFFECT,
        KillPoint.MID_HANDLER,
        KillPoint.BEFORE_HANDLER_COMMIT,
        KillPoint.AFTER_HANDLER_COMMIT,
        KillPoint.MID_STORAGE,
    ],
)
def test_whoever_dies_the_hook_s_effects_are_there_once(point: KillPoint) -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Hooked, "detach_together", 3)
        assert set((await told_of(stage, 9)).values()) == {1}
        assert seen[point] >= 3

    for which in (1, 2, 3):
        seen: Counter[KillPoint] = Counter()

        def rule(_stage: Stage, _process: str, at: KillPoint, _detail: str, which: int = which) -> bool:
            seen[at] += 1  # noqa: B023 - it is called within this turn of the loop
            return at is point and seen[at] == which  # noqa: B023

        play(story, kill_when=rule)


def test_bad_roads_tell_nobody_twice() -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Hooked, "detach_together", 3, "on_chain")
        assert set((await told_of(stage, 15)).values()) == {1}

    for seed in range(3):
        play(story, seed=seed, weather=replace(Weather.calm(), lost=0.3, doubled=0.3, late=0.3))


async def test_a_hook_that_raises_after_the_transaction_is_called_again_and_refuses_nothing(stage: Stage) -> None:
    Hooked.refusals = 2
    await stage.call(Hooked, "detach_together", 1)
    assert await told_of(stage, 3) == {("start", "s0"): 1, ("hook", "s0"): 1, ("done", "s0"): 1}
    assert Hooked.refusals == 0


@staged(limits=replace(ROOMY, handler_attempts_max=2))
async def test_a_hook_that_always_raises_after_the_transaction_is_parked_and_the_run_goes_on(stage: Stage) -> None:
    Hooked.refusals = 1_000
    await stage.call(Hooked, "detach_together", 1)
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    (parked,) = (await stage.client.ask("audit"))["parked_mail"]
    assert (parked["mail_id"], parked["error"]) == (stage.run("s0").mail_id("start"), "RuntimeError: not today")
    assert [row.what for row in await settled(stage, Hooked, 2)] == ["hook", "done"]


async def test_a_parent_that_is_entered_again_does_not_tell_of_its_runs_again(stage: Stage) -> None:
    waiting = asyncio.create_task(stage.client.run(Hooked, {"wait": ["Sleeper", 5_000, "s"]}, run_id="p"))
    await stage.until(lambda: bool(stage.host_of(address(Sleeper, "s"))))
    stage.kill_host_of(address(Hooked, "p"))
    assert (await waiting).ok
    assert [row.what for row in await told_by(stage, Hooked)].count("start") == 1


async def test_who_asks_for_the_same_run_at_the_same_time_shares_one_call_of_the_hook_and_its_refusal(
    stage: Stage,
) -> None:
    Hooked.refusals = 1
    asking = [stage.call(Hooked, "wait_for", "Sleeper", 10, "s") for _ in range(3)]
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["RuntimeError: not today"] * 3
    assert stage.record("s") is None
