"""An agent that kills its process: it is alone before it costs its neighbours more than a few attempts, and no run its last one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint
from tests.actors.cast import Sleeper
from tests.actors.fiber_cast import Jobs
from tests.kit import ROOMY, Stage, address, play, staged

LIMITS = replace(ROOMY, hosts_max=2)


class TwoAtATime(Agent):
    """Waits for so many children that take 100 s each."""

    max_concurrent_agent_tools = 2

    async def run(self, input: int) -> None:
        found = await self.run_agent_tools((Sleeper, 100_000) for _ in range(input))
        assert {each.status for each in found} == {"completed"}


class Poison:
    """A fiber that kills its process at each attempt. Remembers who else lived there."""

    def __init__(self) -> None:
        self.company: list[int] = []

    def __call__(self, stage: Stage, process: str, point: KillPoint, detail: str) -> bool:
        if point is not KillPoint.BEFORE_RUN or detail != "fiber poison":
            return False
        self.company.append(len(stage.view.hosts[process].tenants) - 1)
        return True


@pytest.mark.parametrize(("neighbours", "hosts_max"), [(3, 2), (12, 4)])
def test_a_fiber_that_kills_its_host_ends_by_its_attempts_and_its_neighbours_fibers_go_on(
    neighbours: int, hosts_max: int
) -> None:
    poison = Poison()
    names = [f"n{number}" for number in range(neighbours)]

    async def story(stage: Stage) -> None:
        for name in names:
            await stage.call(Jobs, "start", "forever", None, {"fiber_id": "f", "retry": True}, name=name)
        await stage.call(Jobs, "start", "forever", None, {"fiber_id": "poison", "retry": True}, name="p")
        told = await stage.call(Jobs, "wait", "poison", name="p")
        assert (told["status"], told["attempt"]) == ("interrupted", 5)
        assert "had 5 attempts" in told["error"]
        await asyncio.sleep(60)
        found = [await stage.call(Jobs, "inspect", "f", name=name) for name in names]
        assert {each["status"] for each in found} == {"running"}
        assert max(each["attempt"] for each in found) <= 1 + LIMITS.alone_after_losses

    play(story, limits=replace(LIMITS, hosts_max=hosts_max), kill_when=poison)
    assert poison.company[0] > 0
    assert poison.company[LIMITS.alone_after_losses :] == [0, 0, 0], poison.company


def test_it_is_alone_also_if_it_sleeps_between_its_attempts() -> None:
    poison = Poison()
    retry = {"attempts_max": 8, "first_ms": 60_000, "most_ms": 60_000}

    async def story(stage: Stage) -> None:
        for name in ("a", "b", "c"):
            await stage.call(Jobs, "start", "forever", None, {"fiber_id": "f", "retry": True}, name=name)
        await stage.call(Jobs, "start", "forever", None, {"fiber_id": "poison", "retry": retry}, name="p")
        await stage.until(lambda: len(poison.company) == 8, timeout_ms=3_600_000)
        await asyncio.sleep(60)
        assert not any(poison.company[4:]), poison.company
        for name in ("a", "b", "c"):
            told: dict[str, Any] = await stage.call(Jobs, "inspect", "f", name=name)
            assert (told["status"], told["attempt"] < 5) == ("running", True)

    play(story, limits=LIMITS, kill_when=poison)


@staged(limits=LIMITS)
async def test_the_death_of_a_crowded_host_isolates_nobody(stage: Stage) -> None:
    names = [f"n{number}" for number in range(30)]
    for name in names:
        await stage.call(Jobs, "start", "forever", None, {"fiber_id": "f", "retry": True}, name=name)
    for _ in range(2):
        for host in list(stage.view.hosts):
            stage.simulation.kill(host)
        await asyncio.sleep(5)
    await stage.until(lambda: all(stage.host_of(address(Jobs, name)) for name in names))
    assert len(stage.view.hosts) <= 2 * LIMITS.hosts_max
    assert max(len(host.tenants) for host in stage.view.hosts.values()) >= 10


def test_runs_beside_those_that_kill_their_process_all_complete() -> None:
    def kill(_stage: Stage, _process: str, point: KillPoint, detail: str) -> bool:
        return point is KillPoint.BEFORE_RUN and detail.endswith("7")

    async def story(stage: Stage) -> None:
        told = await asyncio.gather(*(stage.client.run(Sleeper, 1_000, run_id=f"r{number}") for number in range(60)))
        assert {each.run_id for each in told if each.status != "completed"} == {
            f"r{ten}7" for ten in ("", *range(1, 6))
        }

    play(story, limits=LIMITS, kill_when=kill)


@pytest.mark.parametrize("packed", [False, True])
def test_runs_that_wait_long_for_those_before_them_are_not_given_up_when_their_hosts_and_their_parent_died(
    packed: bool,
) -> None:
    async def story(stage: Stage) -> None:
        if packed:
            asked = [asyncio.ensure_future(stage.client.run(TwoAtATime, 12, run_id="parent"))]
        else:
            asked = [asyncio.ensure_future(stage.client.run(Sleeper, 100_000, run_id=f"r{n}")) for n in range(12)]
        await asyncio.sleep(30)
        for host in list(stage.view.hosts):
            stage.simulation.kill(host)
        assert {each.status for each in await asyncio.gather(*asked)} == {"completed"}

    play(story, limits=replace(LIMITS, pack_max=1000 if packed else 1))
