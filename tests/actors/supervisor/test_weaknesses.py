"""The weaknesses of the system that we answer (spec §16), those that no other test shows to be absent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors.sim_world.simulation import Span, Weather
from tests.actors.cast import Boss, Hooked, Sleeper, Talker
from tests.actors.crew import BadHook
from tests.actors.stories import Told, settled, told_by
from tests.kit import ROOMY, Stage, address, play, staged

HOUR_MS = 3_600_000


@pytest.mark.shows(agent_tools="W-10")
async def test_w10_a_follower_goes_on_hearing_a_detached_run_after_the_supervisor_died(stage: Stage) -> None:
    signals = [{"chunk": n, "after_ms": 500} for n in range(10)]
    await stage.call(Hooked, "detach", "Talker", [*signals, {"fraction": 0.5}], "t")
    following = asyncio.create_task(follow(stage, "t"))
    await asyncio.sleep(2)
    stage.simulation.kill("supervisor")
    heard = await following
    assert [frame["sequence"] for frame in heard] == list(range(len(heard)))
    assert [frame["event"]["body"] for frame in heard if frame["event"]["kind"] == "chunk"] == list(range(10))
    assert Told("progress", "t", "0.5") in await told_by(stage, Hooked)


async def follow(stage: Stage, run_id: str) -> list[dict[str, Any]]:
    return [frame async for frame in stage.client.follow(run_id)]


@pytest.mark.shows(agent_tools="W-11")
def test_w11_a_hook_that_raises_does_not_rewrite_how_the_run_ended() -> None:
    async def story(stage: Stage) -> None:
        BadHook.failures = 1_000
        assert (await stage.call(BadHook, "wait_for", "Doubler", {"n": 1}, "d"))["status"] == "completed"
        await stage.until(lambda: stage.deliveries()["parked"] == 1)
        assert stage.status("d") == "completed"
        ends = [frame for frame in await stage.client.ask("frames", "d", -1) if frame["event"]["kind"] != "started"]
        assert [frame["event"]["kind"] for frame in ends] == ["finished"]

    try:
        play(story)
    finally:
        BadHook.failures = 0


@pytest.mark.shows(agent_tools="W-12")
async def test_w12_whoever_asks_at_the_same_time_the_hook_hears_of_one_end(stage: Stage) -> None:
    asking = [stage.call(Hooked, "wait_for", "Sleeper", 500, "s") for _ in range(3)]
    assert [told["status"] for told in await asyncio.gather(*asking)] == ["completed"] * 3
    told = await settled(stage, Hooked, 2)
    assert [row.what for row in told] == ["start", "hook"]


@pytest.mark.shows(agent_tools="W-14")
async def test_w14_a_parent_that_re_attached_can_still_be_cancelled_with_what_it_waits_for(stage: Stage) -> None:
    waiting = asyncio.create_task(stage.client.run(Boss, {"wait": ["Sleeper", HOUR_MS, "c"]}, run_id="p"))
    await stage.until(lambda: stage.status("c") == "running")
    stage.kill_host_of(address(Boss, "p"))
    await stage.until(lambda: bool((run := stage.record("c")) and run.reattached_at_ms))
    await stage.client.ask("cancel", "p", None, "enough")
    assert (await waiting).status == "aborted"
    assert stage.status("c") == "aborted"
    await stage.until(lambda: not stage.host_of(address(Sleeper, "c")))


@pytest.mark.shows(agent_tools="W-15")
async def test_w15_a_cancel_is_final_at_once_also_if_the_child_cannot_be_reached(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", 20_000, "s")
    await stage.until(lambda: stage.status("s") == "running")
    stage.simulation.partition(stage.host_of(address(Sleeper, "s")), 30_000)
    at_ms = stage.simulation.now_ms()
    await stage.call(Boss, "cancel", "s")
    assert stage.simulation.now_ms() - at_ms < 1_000
    assert await settled(stage, Boss, 1) == [Told("done", "s", "aborted")]
    assert stage.status("s") == "aborted"


@pytest.mark.shows(agent_tools="102 W-16 W-38", chat_recovery="C-0895")
async def test_w16_detached_ends_do_not_wait_for_the_recovery_of_awaited_runs(stage: Stage) -> None:
    asyncio.create_task(stage.client.run(Boss, {"wait": ["Sleeper", HOUR_MS, "slow"]}, run_id="p"))  # noqa: RUF006
    await stage.call(Boss, "detach", "Sleeper", 5_000, "quick", name="q")
    await stage.until(lambda: stage.status("slow") == "running")
    stage.simulation.cluster.power_off()
    stage.simulation.cluster.power_on()
    at_ms = stage.simulation.now_ms()
    await stage.until(lambda: stage.status("quick") == "completed" and stage.deliveries()["delivered"] == 1)
    assert stage.simulation.now_ms() - at_ms < 15_000
    assert stage.status("slow") in ("starting", "running")


@pytest.mark.shows(agent_tools="W-17")
async def test_w17_one_hung_host_delays_nothing_that_lives_elsewhere(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "hung", {"max_budget_ms": 1_000})
    await stage.until(lambda: stage.status("hung") == "running")
    stage.simulation.hang(stage.host_of(address(Sleeper, "hung")), 60_000)
    at_ms = stage.simulation.now_ms()
    await stage.call(Boss, "detach", "Sleeper", 10, "fine")
    await stage.until(lambda: stage.deliveries()["delivered"] >= 1 and stage.status("fine") == "completed")
    assert stage.simulation.now_ms() - at_ms < 3_000
    rows = await settled(stage, Boss, 2)
    assert {(row.run_id, row.status) for row in rows} == {("fine", "completed"), ("hung", "interrupted")}


@pytest.mark.shows(agent_tools="178 W-34 W-35")
@staged(limits=replace(ROOMY, retained_in_memory=1))
async def test_w34_and_w35_the_events_of_old_runs_are_replayed_without_waking_anybody(stage: Stage) -> None:
    for number in range(5):
        await stage.client.run(Talker, [{"chunk": number}], run_id=f"t{number}")
    await asyncio.sleep(1_200)
    assert "t0" not in stage.view.runs, "it has left memory"
    lives = stage.view.incarnation
    frames = await stage.client.ask("frames", "t0", -1)
    assert [frame["event"]["kind"] for frame in frames] == ["started", "chunk", "finished"]
    assert (await stage.client.ask("show", "t0"))["status"] == "completed"
    assert stage.view.incarnation == lives


@pytest.mark.shows(agent_tools="W-40 W-41")
def test_w40_and_w41_every_transition_is_observed_with_its_typed_reason() -> None:
    seen: list[tuple[str, Any]] = []

    async def story(stage: Stage) -> None:
        stage.client.subscribe("agent_tool", lambda event: seen.append((event.type, event.payload.get("reason"))))
        await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": 500})
        await settled(stage, Boss, 1, quiet_s=1)
        await stage.call(Boss, "cancel", "s")
        await stage.call(Boss, "clear")
        await asyncio.sleep(5)

    play(story)
    names = [name for name, _ in seen if not name.endswith(("started", "attempt"))]
    assert names == ["agent_tool:dispatched", "agent_tool:gave_up", "agent_tool:cancelled", "agent_tool:cleared"]
    assert ("agent_tool:gave_up", "budget-exceeded") in seen


async def test_w52_a_clock_that_is_set_forward_once_gives_nobody_up_and_the_budget_ends_when_it_would_have(
    stage: Stage,
) -> None:
    await stage.call(Boss, "detach", "Sleeper", HOUR_MS, "s", {"max_budget_ms": 60_000})
    await asyncio.sleep(20)
    before_ms = stage.view.at_ms
    stage.simulation.set_clocks(86_400_000)
    await asyncio.sleep(35)
    assert not await stage.call(Boss, "told")
    assert stage.laboratory.supervisors[-1].clock.now_ms() >= before_ms + 86_400_000, "stamps follow the wall clock"
    await asyncio.sleep(10)
    assert await stage.call(Boss, "told")


@pytest.mark.shows(agent_tools="W-52")
def test_w52_a_clock_that_jumps_gives_nobody_up() -> None:
    weather = replace(Weather.calm(), clock_jump_every_ms=2_000, clock_jump_ms=Span(-600_000, 600_000))

    async def story(stage: Stage) -> None:
        signals = [{"fraction": 0.1 * n, "after_ms": 3_000} for n in range(8)]
        followed = {"max_budget_ms": 60_000, "no_progress_budget_ms": 20_000}
        await stage.call(Boss, "detach", "Talker", signals, "t", followed)
        assert await settled(stage, Boss, 1) == [Told("done", "t", "completed")]

    for seed in range(3):
        play(story, seed=seed, weather=weather)
