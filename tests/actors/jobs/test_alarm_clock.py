"""An agent is awake when its alarm is due, whatever became of its process."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors import Agent, KillPoint, exposed
from tests.kit import Stage, address, play


class Ringer(Agent):
    """Notes when it is rung. What it is to be rung for lies in its state, as the rows of a part would."""

    async def on_start(self) -> None:
        self.look()

    def look(self) -> None:
        at_ms = self.state.get("due_at_ms")
        now_ms = self._perdure.now_ms()
        if at_ms is not None and at_ms <= now_ms:
            with self.transaction():
                self.state["rung_at_ms"] = [*self.state.get("rung_at_ms", []), now_ms]
                self.state["due_at_ms"] = at_ms = None
        self._perdure.alarms.set("test", at_ms, self.look)

    @exposed
    def wake_in(self, ms: int) -> int:
        at_ms = self._perdure.now_ms() + ms
        self.state["due_at_ms"] = at_ms
        self.look()
        return int(at_ms)

    @exposed
    def forget_it(self) -> None:
        del self.state["due_at_ms"]
        self.look()

    @exposed
    def rung(self) -> list[int]:
        return list(self.state.get("rung_at_ms", []))


def is_asleep(stage: Stage) -> bool:
    activation = stage.view.agents.get(address(Ringer, "p"))
    return activation is None or not activation.host_id


async def until_rung(stage: Stage, due_ms: int, after_ms: int, within_ms: int) -> None:
    """It must have rung once so soon after its time."""
    await asyncio.sleep((after_ms + within_ms) / 1000)
    rung = await stage.call(Ringer, "rung")
    assert len(rung) == 1
    assert due_ms <= rung[0] <= due_ms + within_ms


@pytest.mark.parametrize("after_ms", [1, 600_000])
async def test_it_rings_in_time_awake_or_asleep(stage: Stage, after_ms: int) -> None:
    due_ms = await stage.call(Ringer, "wake_in", after_ms)
    if after_ms > 1:
        await stage.until(lambda: is_asleep(stage))
    await until_rung(stage, due_ms, after_ms, 2_000)
    await stage.until(lambda: is_asleep(stage))
    assert address(Ringer, "p") not in stage.view.agents, "an alarm that rang is no reason to be remembered"


@pytest.mark.parametrize("victim", ["host", "supervisor", "everything"])
@pytest.mark.parametrize("when", ["awake", "asleep"])
async def test_it_rings_whoever_was_killed_meanwhile(stage: Stage, victim: str, when: str) -> None:
    due_ms = await stage.call(Ringer, "wake_in", 60_000)
    if when == "asleep":
        await stage.until(lambda: is_asleep(stage))
    if victim == "host":
        for host_id in list(stage.view.hosts):
            stage.simulation.kill(host_id)
    elif victim == "supervisor":
        stage.simulation.kill("supervisor")
    else:
        stage.simulation.cluster.power_off()
        stage.simulation.loop.call_later(3, stage.simulation.cluster.power_on)
    await until_rung(stage, due_ms, 60_000, 5_000)


@pytest.mark.parametrize("when", ["awake", "asleep"])
async def test_a_clock_that_is_set_forward_lets_it_ring_within_seconds(stage: Stage, when: str) -> None:
    """NTP, a person, or a laptop that slept for an hour: nothing else tells the runtime."""
    due_ms = await stage.call(Ringer, "wake_in", 3_600_000)
    await stage.until(lambda: is_asleep(stage)) if when == "asleep" else await asyncio.sleep(0.5)
    stage.simulation.set_clocks(3_600_000)
    await asyncio.sleep(5)
    (rung_ms,) = await stage.call(Ringer, "rung")
    assert due_ms <= rung_ms <= due_ms + 5_000


@pytest.mark.parametrize("when", ["awake", "asleep"])
@pytest.mark.parametrize("booted", [False, True])
async def test_a_clock_that_is_set_back_lets_it_wait_for_its_instant(stage: Stage, when: str, *, booted: bool) -> None:
    due_ms = await stage.call(Ringer, "wake_in", 60_000)
    await stage.until(lambda: is_asleep(stage)) if when == "asleep" else await asyncio.sleep(0.5)
    stage.simulation.set_clocks(-600_000)
    if booted:
        stage.simulation.kill("supervisor")
    await asyncio.sleep(100)
    activation = stage.view.agents[address(Ringer, "p")]
    assert activation.alarm_at_ms == due_ms, "nobody was woken before"
    assert not activation.host_id or when == "awake"
    await asyncio.sleep(570)
    assert [rung_ms - due_ms < 5_000 for rung_ms in await stage.call(Ringer, "rung")] == [True]


async def test_an_alarm_that_was_taken_back_wakes_nobody(stage: Stage) -> None:
    await stage.call(Ringer, "wake_in", 60_000)
    await stage.call(Ringer, "forget_it")
    await stage.until(lambda: is_asleep(stage))
    assert address(Ringer, "p") not in stage.view.agents


def test_dying_in_the_moment_of_the_ring_rings_again() -> None:
    deaths = 3

    def moment(stage: Stage, _process: str, point: KillPoint, _detail: str) -> bool:
        nonlocal deaths
        activation = stage.view.agents.get(address(Ringer, "p"))
        if not deaths or point is not KillPoint.AFTER_COMMIT or activation is None or not activation.owes:
            return False
        deaths -= 1
        return stage.simulation.kill(activation.host_id) and False

    async def story(stage: Stage) -> None:
        due_ms = await stage.call(Ringer, "wake_in", 2_000)
        await until_rung(stage, due_ms, 2_000, 20_000)

    play(story, kill_when=moment)
