"""Ended runs that are cleared by themselves: those that nobody needs, with their storages, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint, Occurrence, RunContext, RunInfo, RunResult, exposed
from perdure.ledger import ended_in
from perdure.ledger.storage.agent_storages import MemoryDisk
from perdure.policies import Limits
from tests.actors.cast import Boss, Sleeper, Worker
from tests.kit import ROOMY, Stage, address, play, staged

DAY_MS = 86_400_000
BRIEF = replace(ROOMY, idle_ms=5_000, checkpoint_idle_ms=500, ended_kept_ms=60_000)
LATER_S = 120


class Lasting(Agent):
    """A child that goes on after its run: it can be called, and it may plan something."""

    async def run(self, input: float, run: RunContext) -> int:
        self.state["calls"] = 0
        if input:
            self.schedule(input, "wake", None)
        return 1

    def wake(self, _payload: Any, _occurrence: Occurrence) -> None:
        self.state["woken"] = True

    @exposed(repeatable=True)
    def calls(self) -> int:
        self.state["calls"] = self.state.get("calls", 0) + 1
        return int(self.state["calls"])


async def known(stage: Stage, *run_ids: str) -> list[str]:
    return [run_id for run_id in run_ids if await stage.client.ask("inspect", run_id) is not None]


def has_storage(stage: Stage, kind: type[Agent], run_id: str) -> bool:
    return stage.laboratory.disk.has(address(kind, run_id))


@staged(limits=BRIEF)
async def test_an_old_run_goes_with_its_storage_and_what_its_parent_keeps_stays(stage: Stage) -> None:
    for n in range(3):
        await stage.call(Boss, "detach", "Worker", {"steps": 1}, f"w{n}")
        await stage.ended(f"w{n}")
    await stage.client.start(Sleeper, float(DAY_MS), run_id="long")
    assert has_storage(stage, Worker, "w0")
    await asyncio.sleep(LATER_S)
    assert await known(stage, "w0", "w1", "w2", "long") == ["long"]
    assert not has_storage(stage, Worker, "w0")
    assert len(await stage.call(Boss, "told")) == 3, "an agent of its own standing keeps its storage"
    again = await stage.client.run(Worker, {"steps": 1}, run_id="w0")
    assert again.ok, "the id is free"


@staged(limits=replace(BRIEF, ended_kept_ms=float("inf")))
async def test_nothing_goes_unless_it_was_asked_for(stage: Stage) -> None:
    await stage.client.run(Worker, {"steps": 1}, run_id="w")
    await asyncio.sleep(2 * LATER_S)
    assert await known(stage, "w") == ["w"]


@staged(limits=replace(BRIEF, ended_kept_ms=float("inf"), ended_kept_max=3))
async def test_of_too_many_runs_the_oldest_go(stage: Stage) -> None:
    for n in range(7):
        await stage.client.run(Worker, {"steps": 1}, run_id=f"w{n}")
    await asyncio.sleep(LATER_S)
    assert await known(stage, *(f"w{n}" for n in range(7))) == ["w4", "w5", "w6"]


@staged(limits=BRIEF)
async def test_a_run_stays_as_long_as_the_run_of_its_parent_may_ask_for_it_again(stage: Stage) -> None:
    await stage.client.start(Boss, {"wait": ["Worker", {"steps": 1}, "inner"]}, run_id="outer")
    await stage.ended("inner")
    await stage.ended("outer")
    await stage.client.start(Keeper, 200.0, run_id="parent")
    await stage.ended("parent-first")
    await asyncio.sleep(LATER_S)
    assert await known(stage, "outer", "inner", "parent-first") == ["parent-first"]
    stage.kill_host_of(address(Keeper, "parent"))
    run = await stage.ended("parent")
    assert run.status == "completed"
    assert (await stage.client.ask("inspect", "parent"))["output"] == 1, "the first was not made again"
    await asyncio.sleep(2 * LATER_S)
    assert await known(stage, "parent", "parent-first") == []


class Ticking(Agent):
    """Reports for ever, so that the supervisor is never quiet."""

    async def run(self, input: int, run: RunContext) -> None:
        for each in range(input):
            await run.report_progress(milestone=f"tick {each}")
            await asyncio.sleep(0.2)


@staged(limits=BRIEF)
async def test_old_runs_go_also_where_the_supervisor_is_never_quiet(stage: Stage) -> None:
    await stage.client.start(Ticking, 2_000, run_id="ticks")
    await stage.client.run(Worker, {"steps": 1}, run_id="old")
    await asyncio.sleep(2 * LATER_S)
    assert await known(stage, "ticks", "old") == ["ticks"]


class Broken(Boss):
    """Cannot be told of an end."""

    def on_done(self, run: RunInfo, result: RunResult) -> None:
        raise ValueError("not today")


class Keeper(Agent):
    """Waits for a run, rests, and asks for it again; returns in which attempt that was made."""

    async def run(self, input: float, run: RunContext) -> int:
        first = await self.run_agent_tool(Sleeper, 1.0, run_id=f"{run.run_id}-first")
        await asyncio.sleep(input)
        return int(first.output)


@staged(limits=BRIEF)
async def test_a_child_that_somebody_called_or_that_has_plans_stays(stage: Stage) -> None:
    for run_id, plan_s in (("called", 0.0), ("planning", 150.0), ("plain", 0.0)):
        await stage.client.run(Lasting, plan_s, run_id=run_id)
    await stage.until(lambda: not stage.host_of(address(Lasting, "called")))
    assert await stage.call(Lasting, "calls", name="called") == 1
    await asyncio.sleep(LATER_S)
    assert await known(stage, "called", "planning", "plain") == ["called", "planning"]
    await asyncio.sleep(240)
    assert await known(stage, "called", "planning") == ["called"], "its plan was carried out"
    stage.simulation.kill("supervisor")
    await asyncio.sleep(LATER_S)
    assert await stage.call(Lasting, "calls", name="called") == 2


@staged(limits=BRIEF)
async def test_mail_that_waits_for_a_person_keeps_its_run(stage: Stage) -> None:
    await stage.call(Broken, "detach", "Worker", {"steps": 1}, "w")
    await asyncio.sleep(5 * LATER_S)
    assert stage.deliveries()["parked"] == 1
    assert await known(stage, "w") == ["w"]


@pytest.mark.parametrize("visit", [1, 2, 3])
@pytest.mark.parametrize("point", [KillPoint.MID_CLEAR, KillPoint.BEFORE_CHECKPOINT, KillPoint.AFTER_CHECKPOINT])
def test_a_death_half_way_leaves_nothing_behind_and_takes_nothing_else(point: KillPoint, visit: int) -> None:
    visits = 0

    def rule(stage: Stage, _process: str, at: KillPoint, _detail: str) -> bool:
        nonlocal visits
        visits += at is point and bool(stage.view.cleared)
        return at is point and bool(stage.view.cleared) and visits == visit

    async def story(stage: Stage) -> None:
        for n in range(4):
            await stage.client.run(Worker, {"steps": 1}, run_id=f"w{n}")
        await asyncio.sleep(LATER_S)
        await stage.client.run(Worker, {"steps": 1}, run_id="young")
        await asyncio.sleep(30)
        assert await known(stage, "w0", "w1", "w2", "w3", "young") == ["young"]
        assert not any(has_storage(stage, Worker, f"w{n}") for n in range(4))
        assert has_storage(stage, Worker, "young")

    play(story, limits=BRIEF, kill_when=rule)


def test_what_was_cleared_is_gone_from_the_disk_by_one_synchronisation_for_many_before_anything_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    def watched(name: str) -> None:
        true = getattr(MemoryDisk, name)

        def watch(disk: MemoryDisk, *args: object) -> None:
            true(disk, *args)
            events.append(name)

        monkeypatch.setattr(MemoryDisk, name, watch)

    watched("erase")
    watched("settle")

    def rule(stage: Stage, _process: str, at: KillPoint, _detail: str) -> bool:
        if at is KillPoint.BEFORE_CHECKPOINT and stage.view.cleared:
            events.append("said")
        return False

    async def story(stage: Stage) -> None:
        for n in range(40):
            await stage.client.run(Worker, {"steps": 1}, run_id=f"w{n}")
        await asyncio.sleep(LATER_S)
        assert await known(stage, *(f"w{n}" for n in range(40))) == []

    play(story, limits=BRIEF, kill_when=rule)
    told = [name for name, before in zip(events, ["", *events], strict=False) if name != before]
    cycles = ["erase", "settle", "said"] * (len(told) // 3)
    assert told == cycles
    assert events.count("settle") <= 4


def test_the_bounds_are_numbers() -> None:
    with pytest.raises(Exception, match="ended_kept_ms"):
        Limits(ended_kept_ms=-1)


class Many(Agent):
    """Asks for many runs at once, again and again; returns when it was over."""

    async def run(self, input: dict[str, int], run: RunContext) -> int:
        done = 0
        for _ in range(input["times"]):
            done += len(await self.run_agent_tools([(Worker, {"steps": 0})] * input["many"]))
            await asyncio.sleep(input["pause_s"])
        return done


MANY = replace(ROOMY, ended_kept_max=100)


def ended(stage: Stage) -> int:
    return ended_in(stage.view)


async def settled_s(stage: Stage, most: int) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while ended(stage) > most:
        await asyncio.sleep(0.5)
    return loop.time() - began_s


@pytest.mark.thorough
@staged(limits=MANY)
async def test_many_runs_that_are_too_many_go_within_seconds(stage: Stage) -> None:
    many = await stage.client.run(Many, {"times": 1, "many": 600, "pause_s": 1}, run_id="many")
    assert many.output == 600
    assert ended(stage) > 600, "while their parent's run may ask for them again"
    assert await settled_s(stage, 100) < 15
    assert ended(stage) == 100


@pytest.mark.thorough
@staged(limits=replace(MANY, ended_kept_max=20, checkpoint_idle_ms=3000))
async def test_a_directory_that_is_never_quiet_keeps_not_many_more_than_it_may(stage: Stage) -> None:
    most = 0
    for n in range(20):
        await stage.client.run(Many, {"times": 1, "many": 20, "pause_s": 2}, run_id=f"many{n}")
        most = max(most, ended(stage))
    assert 20 < most < 20 + 10 * 20, "what has ended since the snapshot, which is ten seconds old"
    assert await settled_s(stage, 20) < 15
