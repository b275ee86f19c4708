"""Who died × what was going on: a child is asked for, works, ends, and its end is handled, whoever is killed at whatever moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint, Occurrence, exposed
from perdure.actors.runtime.stopping import let_idle_agents_leave
from perdure.ledger import StorageLost
from tests.actors.cast import Boss, Sleeper, Worker
from tests.actors.fiber_cast import Jobs
from tests.kit import ROOMY, Moment, Stage, address, play, staged

WORK = {"steps": 3, "pause_ms": 400}
EXPECTED = {"steps": [0, 1, 2]}

Here = Callable[[Stage, KillPoint, str], bool]


def finish_is_pending(stage: Stage, point: KillPoint, _detail: str) -> bool:
    run = stage.record("c")
    return point is KillPoint.AFTER_COMMIT and run is not None and run.slots.get("finish") == "pending"


def at(*points: KillPoint, about: str) -> Here:
    return lambda _stage, point, detail: point in points and about in detail


MOMENTS: dict[str, Here] = {
    "requested, but nowhere yet": lambda stage, point, _: (
        point is KillPoint.AFTER_COMMIT and stage.status("c") == "starting"
    ),
    "before its start": at(KillPoint.BEFORE_RUN, about="c"),
    "running": at(KillPoint.MID_RUN, about="progress"),
    "result committed, but unreported": at(KillPoint.BEFORE_REPORT, about="c"),
    "reported, but undelivered": finish_is_pending,
    "in the handler": at(KillPoint.MID_HANDLER, about="c!finish"),
    "before the handler's commit": at(KillPoint.BEFORE_HANDLER_COMMIT, about="c!finish"),
    "after the handler's commit": at(KillPoint.AFTER_HANDLER_COMMIT, about="c!finish"),
    "going to sleep": at(KillPoint.MID_PASSIVATION, about="Boss"),
}
VICTIMS = ["child", "parent", "supervisor", "cluster"]


class Strike:
    """Kills one victim, `times` times, when the moment comes."""

    def __init__(self, victim: str, here: Here, times: int = 1, kind: type = Worker) -> None:
        self.victim, self.here, self.left, self.kind = victim, here, times, kind
        self.struck = 0

    def __call__(self, stage: Stage, process: str, point: KillPoint, detail: str) -> bool:
        if not self.left or process == "client" or not self.here(stage, point, detail):
            return False
        self.left -= 1
        self.struck += 1
        if self.victim == "cluster":
            stage.simulation.cluster.power_off()
            stage.simulation.loop.call_later(3, stage.simulation.cluster.power_on)
            return True
        name = "supervisor"
        if self.victim != "supervisor":
            name = stage.host_of(address(self.kind, "c") if self.victim == "child" else address(Boss, "p"))
        return stage.simulation.kill(name) and name == process


async def until_told(stage: Stage, *expected: str) -> list[list[Any]]:
    """Wait until the parent has written this many lines, and a while longer, in which nothing more may come."""
    for _ in range(300):
        told: list[list[Any]] = await stage.call(Boss, "told")
        if len(told) >= len(expected):
            break
        await asyncio.sleep(1)
    await asyncio.sleep(30)
    told = await stage.call(Boss, "told")
    assert [row[2] for row in told] == list(expected)
    return told


@pytest.mark.shows(agent_tools="100 139 W-01", chat_recovery="C-0893 C-0911")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_the_end_of_a_detached_run_takes_effect_exactly_once(victim: str, moment: str) -> None:
    strike = Strike(victim, MOMENTS[moment], times=2)

    async def story(stage: Stage) -> None:
        await stage.call(Boss, "detach", "Worker", WORK, "c")
        await until_told(stage, "completed")
        told = await stage.call(Boss, "inspect", "c")
        assert told["status"] == "completed"
        assert told["output"]["steps"] == [0, 1, 2], "what was stepped is not stepped again"
        assert stage.deliveries()["delivered"] == 1

    play(story, kill_when=strike)
    assert strike.struck or moment == "going to sleep"


@pytest.mark.parametrize("moment", [key for key in MOMENTS if "handler" not in key and "undelivered" not in key])
@pytest.mark.parametrize("victim", ["child", "supervisor", "cluster"])
def test_who_waits_for_a_run_is_given_its_end(victim: str, moment: str) -> None:
    strike = Strike(victim, MOMENTS[moment], times=2)

    async def story(stage: Stage) -> None:
        result = await stage.client.run(Worker, WORK, run_id="c")
        assert result.status == "completed"
        assert result.output["steps"] == [0, 1, 2]

    play(story, kill_when=strike)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_cancel_ends_the_run_whoever_dies_during_it(victim: str, times: int) -> None:
    strike = Strike(victim, at(KillPoint.MID_CANCEL, about="c@"), times, Sleeper)

    async def story(stage: Stage) -> None:
        await stage.call(Boss, "detach", "Sleeper", 3_600_000, "c")
        await stage.until(lambda: stage.status("c") == "running")
        await stage.call(Boss, "cancel", "c", "enough")
        await until_told(stage, "aborted")
        await stage.until(lambda: not stage.host_of(address(Sleeper, "c")))

    play(story, kill_when=strike)
    assert strike.struck


CLEARING: dict[str, Moment] = {
    "the supervisor after the tombstone": Strike(
        "supervisor", lambda s, point, _: point is KillPoint.AFTER_COMMIT and bool((r := s.record("c")) and r.cleared)
    ),
    "the supervisor before the deletion is recorded": Strike(
        "supervisor",
        lambda s, point, _: point is KillPoint.BEFORE_CHECKPOINT and bool((r := s.record("c")) and r.cleared),
    ),
    "the supervisor while storage is deleted": Strike("supervisor", at(KillPoint.MID_CLEAR, about="c@")),
    "the child while it is stopped": Strike("child", at(KillPoint.MID_CANCEL, about="c@")),
    "the parent while its child is stopped": Strike("parent", at(KillPoint.MID_CANCEL, about="c@")),
    "the cluster while the child is stopped": Strike("cluster", at(KillPoint.MID_CANCEL, about="c@")),
}


@pytest.mark.parametrize("who", CLEARING)
def test_nothing_that_was_cleared_comes_back_whoever_dies_during_it(who: str) -> None:
    strike = CLEARING[who]

    async def story(stage: Stage) -> None:
        await stage.call(Boss, "detach", "Worker", {"steps": 10_000, "pause_ms": 100}, "c")
        await stage.until(lambda: bool((run := stage.record("c")) and run.signal_at_ms))
        child = address(Worker, "c")
        assert stage.laboratory.disk.has(child)
        await stage.call(Boss, "clear")
        await stage.until(lambda: stage.record("c") is None and not stage.laboratory.disk.has(child))
        await asyncio.sleep(60)
        assert not stage.laboratory.disk.has(child)
        assert stage.record("c") is None
        assert await stage.call(Boss, "inspect", "c") is None
        assert await stage.call(Boss, "told") == []

    play(story, kill_when=strike)
    assert isinstance(strike, Strike)
    assert strike.struck


async def test_a_cold_restart_in_the_middle_of_a_fan_out_loses_and_repeats_nothing(stage: Stage) -> None:
    for number in range(12):
        await stage.call(Boss, "detach", "Worker", {"steps": 2, "pause_ms": 100 * number}, f"c{number}")
    for _ in range(3):
        await asyncio.sleep(0.7)
        stage.simulation.cluster.power_off()
        await asyncio.sleep(1)
        stage.simulation.cluster.power_on()
    told = await until_told(stage, *["completed"] * 12)
    assert sorted(row[1] for row in told) == sorted(f"c{number}" for number in range(12))


class AtMostOnce(Sleeper):
    attempts_max = 1


async def come_to_work(stage: Stage, run_id: str, attempt: int) -> None:
    def is_there() -> bool:
        run = stage.record(run_id)
        return run is not None and run.attempt == attempt and run.confirmed

    await stage.until(is_there)


async def stop_and_begin_again(stage: Stage) -> None:
    await stage.laboratory.supervisors[-1].stop()
    await stage.until(lambda: not stage.laboratory.supervisors)
    stage.simulation.cluster.power_off()
    stage.simulation.cluster.power_on()


async def test_a_system_that_is_stopped_on_purpose_costs_what_is_at_work_no_attempt(stage: Stage) -> None:
    run = asyncio.ensure_future(stage.client.run(Sleeper, 60_000, run_id="r"))
    once = asyncio.ensure_future(stage.client.run(AtMostOnce, 60_000, run_id="once"))
    for attempt in range(1, 7):
        await come_to_work(stage, "r", attempt)
        await stop_and_begin_again(stage)
    result, lost = await asyncio.gather(run, once)
    assert (result.status, result.output) == ("completed", 7)
    assert (stage.run("r").losses, stage.run("r").counted_attempts) == (0, 7), "recovery_work_max counts it"
    assert (lost.status, "its host was stopped (with its whole system, on purpose)" in lost.error) == (
        "error",
        True,
    )


async def test_nor_does_it_cost_a_fiber_one_unless_that_may_be_entered_once(stage: Stage) -> None:
    for name, retry in (("f", True), ("once", {"attempts_max": 1})):
        await stage.call(Jobs, "start", "forever", None, {"fiber_id": name, "retry": retry}, name="a")
    for attempt in range(2, 9):
        await asyncio.sleep(5)
        await stop_and_begin_again(stage)
        await asyncio.sleep(5)
        told = await stage.call(Jobs, "inspect", "f", name="a")
        assert (told["status"], told["attempt"]) == ("running", attempt)
    told = await stage.call(Jobs, "inspect", "once", name="a")
    assert (told["status"], told["attempt"]) == ("interrupted", 1)


class Slow(Agent):
    @exposed
    def begin(self) -> None:
        self.queue("work")

    async def work(self, _payload: None, _occurrence: Occurrence) -> None:
        await asyncio.sleep(20)
        self.state["is_done"] = True

    @exposed
    def is_done(self) -> bool:
        return "is_done" in self.state


@staged(limits=replace(ROOMY, callback_losses_max=3))
async def test_nor_does_it_count_against_a_callback(stage: Stage) -> None:
    await stage.call(Slow, "begin", name="a")
    for _ in range(6):
        await asyncio.sleep(5)
        await stop_and_begin_again(stage)
    await asyncio.sleep(60)
    assert await stage.call(Slow, "is_done", name="a")


async def test_hosts_that_die_after_a_stopped_system_began_anew_count_again(stage: Stage) -> None:
    run = asyncio.ensure_future(stage.client.run(Sleeper, 60_000, run_id="r"))
    await come_to_work(stage, "r", 1)
    await stop_and_begin_again(stage)
    for attempt in range(2, 8):
        await come_to_work(stage, "r", attempt)
        if attempt == 6:  # its last one
            await stop_and_begin_again(stage)
            continue
        stage.kill_host_of(address(Sleeper, "r"))
    assert (await run).status == "error"


@pytest.mark.parametrize("everything_ended", [True, False])
def test_hosts_that_ended_with_everything_else_are_no_warning(
    caplog: pytest.LogCaptureFixture, *, everything_ended: bool
) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.start(Sleeper, 600_000, run_id="r")
        await stage.until(lambda: stage.status("r") == "running")
        caplog.clear()
        if everything_ended:
            stage.simulation.cluster.power_off()
            await asyncio.sleep(3)
            stage.simulation.cluster.power_on()
        else:
            stage.kill_host_of(address(Sleeper, "r"))
        await asyncio.sleep(10)

    with caplog.at_level(logging.INFO, logger="perdure.supervisor"):
        play(story)
    told = {record.levelname for record in caplog.records if "has ended: " in record.getMessage()}
    assert told == ({"INFO"} if everything_ended else {"WARNING"})


async def test_before_a_ray_ends_idle_agents_say_how_far_they_have_come_so_that_a_lost_storage_is_missed(
    stage: Stage,
) -> None:
    await stage.call(Boss, "told")
    assert stage.host_of(address(Boss, "p"))
    await let_idle_agents_leave(stage.client)
    assert not stage.host_of(address(Boss, "p"))
    stage.laboratory.disk.erase(address(Boss, "p"), None)
    stage.simulation.kill("supervisor")
    await asyncio.sleep(20)
    with pytest.raises(StorageLost):
        await stage.call(Boss, "told")
