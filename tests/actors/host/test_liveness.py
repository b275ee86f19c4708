"""A busy host is not a dead host: who is ended for silence, who is not, and what is told of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, exposed
from perdure.actors.sim_world.process import current_process
from perdure.actors.sim_world.simulation import Weather
from tests.actors.cast import Boss, Sleeper
from tests.kit import ROOMY, Stage, address, play, staged

PACKED = replace(ROOMY, hosts_max=1, hosts_warm=1)
HOUR_MS = 3_600_000


class Blocker(Agent):
    """Keeps the event loop of its host for as long as it is told, in its first attempts."""

    async def run(self, input: dict[str, Any], run: RunContext) -> int:
        process = current_process()
        assert process is not None
        await asyncio.sleep(input.get("after_ms", 0) / 1000)
        if run.attempt <= input.get("attempts", 1):
            process.hang(input["ms"], address(Blocker, run.run_id))
        await asyncio.sleep(0.001)
        return run.attempt


async def begun(stage: Stage, count: int, ms: float = HOUR_MS) -> list[str]:
    """Children that sleep, all at work."""
    names = [f"s{number}" for number in range(count)]
    for name in names:
        await stage.call(Boss, "detach", "Sleeper", ms, name)
    await stage.until(lambda: all(stage.status(name) == "running" for name in names))
    return names


@staged(limits=PACKED)
async def test_a_host_that_is_behind_with_its_work_loses_nothing_however_long(stage: Stage) -> None:
    names = await begun(stage, 5, ms=200_000)
    for host in stage.simulation.live_hosts():
        stage.simulation.hang(host, 150_000, culprit=None)
    for name in names:
        assert (await stage.ended(name, "completed")).attempt == 1
    assert not stage.simulation.crashes


@staged(limits=PACKED)
async def test_what_has_not_started_on_a_host_that_is_behind_is_not_given_up(stage: Stage) -> None:
    await begun(stage, 1)
    (host,) = [each for each in stage.simulation.live_hosts() if stage.view.hosts[each].tenants]
    stage.simulation.hang(host, 120_000, culprit=None)
    await stage.client.start(Sleeper, 1, run_id="late")
    run = await stage.ended("late", "completed")
    assert (run.attempt, run.reason) == (1, "")


@staged(limits=PACKED)
async def test_a_machine_that_stands_still_costs_no_attempt(stage: Stage) -> None:
    names = await begun(stage, 5, ms=200_000)
    await stage.client.start(Sleeper, 200_000, run_id="fresh")
    stage.simulation.stand_still(100_000)
    for name in [*names, "fresh"]:
        assert (await stage.ended(name, "completed")).attempt == 1
    assert not stage.simulation.crashes


async def test_a_host_that_alone_stands_still_is_ended(stage: Stage) -> None:
    await begun(stage, 1)
    host = stage.run("s0").host_id
    at_ms = stage.simulation.now_ms()
    stage.simulation.stop(host, HOUR_MS)
    await stage.until(lambda: stage.run("s0").attempt == 2)
    assert stage.simulation.now_ms() - at_ms < 20_000
    assert "neither answered nor computed" in stage.run("s0").cause


async def test_a_supervisor_that_stood_still_blames_nobody(stage: Stage) -> None:
    names = await begun(stage, 3, ms=200_000)
    stage.simulation.hang("supervisor", 100_000)
    for name in names:
        assert (await stage.ended(name, "completed")).attempt == 1
    assert not stage.simulation.crashes


async def test_a_slow_disk_of_the_supervisor_costs_no_attempt(stage: Stage) -> None:
    names = await begun(stage, 3, ms=60_000)
    await stage.client.start(Sleeper, 60_000, run_id="fresh")
    stage.simulation.change_weather(
        Weather(commit_slow=1, commit_slow_ms=Weather().hang_ms._replace(low=40_000, high=40_000))
    )
    await stage.until(lambda: stage.simulation.now_ms() > 130_000)
    stage.simulation.heal()
    for name in [*names, "fresh"]:
        assert (await stage.ended(name, "completed")).attempt == 1
    assert not stage.simulation.crashes


@staged(limits=PACKED)
async def test_an_agent_that_blocks_its_host_for_a_while_is_named_and_nobody_is_lost(stage: Stage) -> None:
    await begun(stage, 3, ms=100_000)
    blocker = asyncio.create_task(stage.client.run(Blocker, {"ms": 25_000}, run_id="b"))
    await stage.until(lambda: any(host.blocked for host in stage.view.hosts.values()))
    said = " ".join(await stage.client.ask("explain", "b"))
    assert f"its event loop stands in run of {address(Blocker, 'b')}" in said
    assert "blocked_max_ms" in said
    assert (await blocker).output == 1
    assert list(stage.view.blockers) == [address(Blocker, "b")]
    assert not stage.simulation.crashes
    await stage.until(lambda: not any(host.blocked for host in stage.view.hosts.values()))


@staged(limits=PACKED)
async def test_a_loop_that_never_comes_back_is_ended_and_the_blocker_is_alone_from_then_on(stage: Stage) -> None:
    names = await begun(stage, 3)
    at_ms = stage.simulation.now_ms()
    blocker = asyncio.create_task(stage.client.run(Blocker, {"ms": HOUR_MS, "after_ms": 100}, run_id="b"))
    await stage.until(lambda: stage.status("b") == "running" and stage.run("b").attempt == 1)
    together = stage.run("b").host_id
    assert stage.run("s0").host_id == together
    await stage.until(lambda: stage.run("b").attempt == 2)
    assert 60_000 <= stage.simulation.now_ms() - at_ms < 90_000
    cause = f"its event loop stands in run of {address(Blocker, 'b')}, and had not turned for 60000 ms"
    for name in [*names, "b"]:
        assert cause in stage.run(name).cause
    assert stage.view.hosts[stage.run("b").host_id].exclusive
    assert (await blocker).output == 2


@staged(limits=replace(PACKED, attempts_max=2))
async def test_who_blocks_in_every_attempt_fails_with_that_reason(stage: Stage) -> None:
    failed = await stage.client.run(Blocker, {"ms": HOUR_MS, "attempts": 9}, run_id="b")
    assert failed.status == "error"
    assert "had not turned for 60000 ms" in failed.error
    assert f"run of {address(Blocker, 'b')}" in failed.error


async def test_a_host_that_comes_up_late_in_a_supervisors_life_is_waited_for(stage: Stage) -> None:
    await asyncio.sleep(120)
    slow = replace(stage.simulation.weather, spawn_ms=Weather().spawn_ms._replace(low=50_000, high=50_000))
    stage.simulation.change_weather(slow)
    for host in stage.simulation.live_hosts():
        stage.simulation.kill(host)
    await asyncio.sleep(1)
    kills = len(stage.simulation.crashes)
    assert (await stage.client.run(Sleeper, 1, run_id="r")).output == 1
    assert len(stage.simulation.crashes) == kills


class Writer(Agent):
    """Takes a number of steps, and each is written."""

    async def run(self, input: int, run: RunContext) -> int:
        for number in range(input):
            await run.step(f"step {number}", self.nothing)
        return run.attempt

    async def nothing(self) -> None:
        """Writing it down is the work."""


SLOW_WRITES = Weather(thread_ms=Weather().thread_ms._replace(low=100, high=100))


@pytest.mark.parametrize("crowded", [False, True])
def test_the_storages_of_a_crowded_host_are_written_beside_its_loop(crowded: bool) -> None:
    async def story(stage: Stage) -> None:
        at_ms = stage.simulation.now_ms()
        assert (await stage.client.run(Writer, 10)).output == 1
        assert (stage.simulation.now_ms() - at_ms > 1_200) is crowded, "ten steps, the result and the close"

    play(story, weather=SLOW_WRITES, limits=replace(ROOMY, inline_agents_max=0 if crowded else 16))


class Register(Agent):
    """Keeps a number in its storage."""

    @exposed
    def add(self) -> int:
        """Count one more, in a sync method, so beside the loop."""
        with self.transaction():
            self.state["number"] = self.state.get("number", 0) + 1
        return int(self.state["number"])

    @exposed
    async def number(self) -> int:
        return int(self.state.get("number", 0))


@pytest.mark.thorough
@staged(weather=SLOW_WRITES, limits=replace(PACKED, pack_max=200, inline_agents_max=0, idle_ms=500))
async def test_a_host_that_cannot_keep_up_with_its_writes_gets_fewer_runs_and_its_calls_do_not_wait_for_them(
    stage: Stage,
) -> None:
    await stage.call(Register, "add")
    names = [f"w{number}" for number in range(220)]
    await asyncio.gather(*(stage.client.start(Writer, 3, run_id=name) for name in names))
    (host,) = [host for host in stage.view.hosts.values() if host.tenants]
    assert host.load >= 200
    await stage.until(lambda: host.room < 200)
    longest, is_relieved = 0.0, False
    while any(not stage.run(name).has_ended for name in names):
        at_ms = stage.simulation.now_ms()
        await stage.call(Register, "number")
        longest = max(longest, stage.simulation.now_ms() - at_ms)
        is_relieved |= host.load < 105 and bool(stage.view.queues)
        await asyncio.sleep(1)
    assert longest < 600, "the write that is under way, and the own look into the storage: 100 ms each"
    assert is_relieved
    assert {stage.run(name).attempt for name in names} == {1}


@staged(weather=SLOW_WRITES, limits=replace(PACKED, inline_agents_max=0))
async def test_agents_on_a_crowded_host_end_one_after_the_other_and_not_all_at_the_end(stage: Stage) -> None:
    names = [f"w{number}" for number in range(60)]
    await asyncio.gather(*(stage.client.start(Writer, 3, run_id=name) for name in names))
    ended = [0]
    while ended[-1] < len(names):
        await asyncio.sleep(0.5)
        ended.append(sum(stage.run(name).has_ended for name in names))
    half_way = ended[len(ended) // 2]
    assert 20 <= half_way <= 40, ended


@pytest.mark.parametrize("seed", range(4))
def test_work_comes_to_its_end_on_slow_hosts_and_on_a_machine_that_stops_now_and_then(seed: int) -> None:
    async def story(stage: Stage) -> None:
        names = [f"s{number}" for number in range(10)]
        for name in names:
            await stage.client.start(Sleeper, 20_000, run_id=name)
        for name in names:
            await stage.ended(name, "completed")

    play(story, seed=seed, weather=Weather(slow=0.02, stopped=0.01, hung=0.01), limits=PACKED)
