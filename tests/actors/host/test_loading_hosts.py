"""An agent that has lost its host goes on at once where its code is there already, and hosts that come up load it meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from perdure.policies import Limits
from tests.actors.cast import Boss, Sleeper
from tests.kit import Stage, address, play, played, staged

BOSS = address(Boss, "boss")


def with_an_agent_and_its_run(story: Callable[[Stage, str], Awaitable[None]]) -> None:
    """Play a story with an agent that waits for a run, whose child is on a host of its own."""

    async def whole(stage: Stage) -> None:
        call = asyncio.ensure_future(stage.call(Boss, "wait_for", "Sleeper", 60_000, "r", name="boss"))
        await stage.until(lambda: stage.status("r") == "running")
        child = stage.run("r").child
        assert stage.host_of(BOSS) != stage.host_of(child)
        await story(stage, child)
        call.cancel()

    play(whole, limits=Limits(hosts_max=2, hosts_warm=2))


@played(with_an_agent_and_its_run)
async def test_an_agent_that_has_lost_its_host_does_not_wait_for_a_new_one(stage: Stage, child: str, /) -> None:
    lost = stage.host_of(BOSS)
    stage.simulation.kill(lost)
    await stage.until(lambda: stage.host_of(BOSS) not in ("", lost))
    assert stage.host_of(BOSS) == stage.host_of(child)


@played(with_an_agent_and_its_run)
async def test_a_run_that_has_lost_its_host_waits_for_one_of_its_own(stage: Stage, child: str, /) -> None:
    lost = stage.host_of(child)
    stage.simulation.kill(lost)
    await stage.until(lambda: stage.host_of(child) not in ("", lost))
    assert stage.host_of(BOSS) != stage.host_of(child)


@played(with_an_agent_and_its_run)
async def test_a_new_host_loads_the_code_of_those_that_are_awake_and_tells_when_that_is_done(
    stage: Stage, child: str, /
) -> None:
    known = set(stage.view.hosts)
    stage.simulation.kill(stage.host_of(child))
    await stage.until(lambda: any(host.up for key, host in stage.view.hosts.items() if key not in known))
    (new,) = [host for key, host in stage.view.hosts.items() if key not in known]
    assert new.is_loading
    await stage.until(lambda: not new.is_loading, 1_000)


@staged(limits=Limits(hosts_max=2, hosts_warm=2))
async def test_many_runs_that_have_lost_a_host_are_spread_over_all_that_are_there_when_it_is_replaced(
    stage: Stage,
) -> None:
    runs = [f"r{n}" for n in range(50)]
    going = [asyncio.ensure_future(stage.client.run(Sleeper, 600_000, run_id=each)) for each in runs]

    def spread() -> Counter[str]:
        return Counter(stage.host_of(stage.run(each).child) for each in runs)

    await stage.until(lambda: all(each in stage.view.runs and stage.status(each) == "running" for each in runs))
    for _ in range(2):
        lost = max(spread())
        stage.simulation.kill(lost)
        await stage.until(lambda host=lost: not {"", host} & spread().keys(), 10_000)
        assert max(spread().values()) <= 30
    for each in going:
        each.cancel()
