"""Sub-agents of children of runs: they live as long as the run is retained, and go with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, exposed
from perdure.ledger import BadRequest, is_within, sub_agent_id
from tests.actors.family_cast import Kid
from tests.kit import Stage, address, play


class Helped(Agent):
    """Does its run with the help of a kid."""

    async def run(self, input: str, run: RunContext) -> list[str]:
        helper: Any = self.sub_agent(Kid, "helper")
        await helper.plan_every(20, "tick")
        if input == "hang":
            await helper.hang()
        if input == "destroy":
            await self.destroy()
        return list(await helper.note(input))


class Keeper(Agent):
    """Has helped ones."""

    @exposed
    async def work(self, run_id: str, input: str) -> None:
        await self.run_agent_tool(Helped, input, run_id=run_id, detached=True)

    @exposed
    async def clear(self) -> int:
        return int(await self.clear_agent_tool_runs())


def helper_of(run_id: str) -> str:
    return sub_agent_id(address(Helped, run_id), address(Kid, "x").rpartition("@")[2], "helper")


@pytest.mark.parametrize("input", ["quick", "hang"])
def test_sub_agents_of_a_run_outlive_its_child_and_are_cleared_with_the_run(input: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Keeper, "work", "r", input)
        if input == "quick":
            assert (await stage.ended("r")).status == "completed"
        await asyncio.sleep(50)
        assert Kid.effects["tick"] >= 2
        await stage.call(Keeper, "clear")
        worker = address(Helped, "r")
        await stage.until(
            lambda: stage.record("r") is None and not any(is_within(e, worker) for e in stage.view.agents)
        )
        before = Kid.effects["tick"]
        await asyncio.sleep(100)
        assert Kid.effects["tick"] == before
        assert not any(stage.laboratory.disk.has(each) for each in (worker, helper_of("r")))
        assert not stage.view.doomed
        await stage.call(Keeper, "work", "r", "again")
        assert (await stage.ended("r")).status == "completed"

    Kid.effects.clear()
    play(story)


async def test_the_child_of_a_run_cannot_end_itself(stage: Stage) -> None:
    result = await stage.client.run(Helped, "destroy", run_id="r")
    assert result.status == "error"
    assert BadRequest.__name__ in result.error or "goes when its run is cleared" in result.error


async def test_a_client_reaches_the_sub_agent_of_a_run_by_way_of_its_child(stage: Stage) -> None:
    await stage.client.run(Helped, "x", run_id="r")
    worker = stage.client.agent(Helped, "r")
    helper: Any = stage.client.agent(Kid, "helper", of=worker)
    assert "x" in await helper.notes()
