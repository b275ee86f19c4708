"""How detached runs are asked for: what names a handler, and who hears when a transaction's request is refused after its commit."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from perdure.actors import Agent, Detached, MilestoneInfo, RunContext, RunInfo, RunResult, exposed
from perdure.ledger import BadRequest
from tests.actors.cast import Sleeper
from tests.kit import Stage


class Dispatcher(Agent):
    """Asks in transactions, and notes what it is told."""

    @exposed
    async def take(self, run_id: str) -> None:
        await self.run_agent_tool(Sleeper, 1, run_id=run_id)  # type: ignore[arg-type]

    @exposed
    def order(self, run_id: str, how: str) -> None:
        follow = {
            "named": Detached(on_finish="on_end"),
            "method": Detached(on_finish=self.on_end, on_milestones=["m"], on_milestone=self.on_stone),
            "give up": Detached(on_give_up=self.on_end),
            "nobody": Detached(),
            "lambda": Detached(on_finish=lambda run, result: None),
            "other's": Detached(on_give_up=Dispatcher.on_end),
            "unknown": Detached(on_milestone="nothing"),
            "no handler": Detached(on_milestones=["m"]),
        }[how]
        with self.transaction():
            self.state["asked"] = run_id
            self.run_agent_tool(Sleeper, 2, run_id=run_id, detached=follow)  # type: ignore[arg-type]

    def on_end(self, run: RunInfo, result: RunResult[Any]) -> None:
        told = [run.run_id, run.detached, result.status, result.reason, result.error, bool(run.delivery_id)]
        with self.transaction():
            self.state["told"] = [*self.state.get("told", []), told]

    def on_stone(self, run: RunInfo, stone: MilestoneInfo) -> None: ...

    @exposed
    def told(self) -> list[list[Any]]:
        return list(self.state.get("told", []))

    async def on_error(self, error: Exception, doing: str) -> None:
        with self.transaction():
            self.state["told"] = [*self.state.get("told", []), [doing]]


class Measured(Agent):
    """Says how far it is."""

    async def run(self, input: float, run: RunContext) -> None:
        await run.report_progress(input)


@pytest.mark.parametrize("how", ["named", "method", "give up"])
@pytest.mark.parametrize("dies", [False, True])
async def test_the_handler_hears_of_a_request_whose_id_is_taken_by_other_content(
    stage: Stage, how: str, dies: bool
) -> None:
    await stage.call(Dispatcher, "take", "taken")
    await stage.call(Dispatcher, "order", "taken", how)
    if dies:
        stage.kill_host_of(next(each for each in stage.view.agents if each.startswith("p@")))
    await asyncio.sleep(5)
    ((run_id, detached, status, reason, error, delivery_id),) = await stage.call(Dispatcher, "told")
    assert (run_id, detached, status, reason) == ("taken", True, "error", "conflicting-request")
    assert "exists with another input" in error
    assert delivery_id
    assert stage.status("taken") == "completed", "the run that has the id is another one"


async def test_without_a_handler_a_refused_request_is_told_to_on_error(stage: Stage) -> None:
    await stage.call(Dispatcher, "take", "taken")
    await stage.call(Dispatcher, "order", "taken", "nobody")
    await asyncio.sleep(5)
    assert await stage.call(Dispatcher, "told") == [["asking for run 'taken'"]]


@pytest.mark.parametrize(
    ("how", "field", "why"),
    [
        ("lambda", "on_finish", "is neither the name of a method nor a method of this agent"),
        ("other's", "on_give_up", "is neither the name of a method nor a method of this agent"),
        ("unknown", "on_milestone", "Dispatcher has no method 'nothing'"),
        ("no handler", "on_milestones", "name the method that is told"),
    ],
)
async def test_a_handler_that_could_not_be_found_again_is_refused_and_nothing_happens(
    stage: Stage, how: str, field: str, why: str
) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        await stage.call(Dispatcher, "order", "r", how)
    assert refused.value.field == field
    assert stage.record("r") is None


@pytest.mark.parametrize("fraction", [-0.1, 1.5, math.nan, math.inf])
async def test_a_fraction_is_between_0_and_1(stage: Stage, fraction: float) -> None:
    result = await stage.client.run(Measured, fraction)
    assert result.error == f"BadRequest: fraction: {fraction} is not a number from 0 to 1"
