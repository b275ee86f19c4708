"""A person has a run tried again: with all its attempts, its steps and its memory, whoever dies meanwhile, and its parent told once of
each end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.actors import Agent, Detached, KillPoint, RunContext, RunInfo, RunResult, exposed
from perdure.ledger import RetryRefused, UnknownRun, pack
from tests.kit import Stage, play

done: Counter[str] = Counter()
"""What happened, outside of every process; the key `mended` is the bug's end."""


class Fragile(Agent):
    """Does its first step, and then breaks until it is mended."""

    async def run(self, input: str, run: RunContext) -> str:
        await run.step("first", self.first)
        self.state["entered"] = self.state.get("entered", 0) + 1
        await run.report_progress(milestone="begun")
        if not done["mended"]:
            raise ValueError("it broke")
        return f"{input} in entry {self.state['entered']}"

    async def first(self) -> int:
        done["first"] += 1
        return 1


class Brittle(Agent):
    """Waits for one child that works and one that takes long, and breaks meanwhile, until it is mended."""

    async def run(self, input: str, run: RunContext) -> list[str]:
        told = []
        async for result in self.as_completed([(Quick, "quick"), (Slow, "slow")]):
            if not done["mended"]:
                raise ValueError("it broke")
            told.append(result.output if result.ok else result.failure.error)
        return told


class Quick(Agent):
    async def run(self, input: str) -> str:
        done["quick"] += 1
        return input


class Slow(Agent):
    async def run(self, input: str, run: RunContext) -> str:
        await run.step("pause", self.pause)
        return input

    async def pause(self) -> int:
        await asyncio.sleep(5)
        return 1


class Owner(Agent):
    """Writes down what it is told of its detached runs."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS told(delivery_id VARCHAR, status VARCHAR, retries INTEGER, what VARCHAR)")

    @exposed(repeatable=True)
    async def begin(self, run_id: str) -> None:
        follow = Detached(on_finish="on_done", on_milestones=["begun"], on_milestone="on_begun")
        await self.run_agent_tool(Fragile, "glass", run_id=run_id, detached=follow)

    def on_done(self, run: RunInfo, result: RunResult[str]) -> None:
        what = result.output if result.ok else result.failure.error
        self.sql("INSERT INTO told VALUES ($1, $2, $3, $4)", [run.delivery_id, result.status, run.retries, what])

    def on_begun(self, run: RunInfo, milestone: Any) -> None:
        self.sql("INSERT INTO told VALUES ($1, 'begun', $2, '')", [run.delivery_id, run.retries])

    @exposed(repeatable=True)
    async def told(self) -> list[list[Any]]:
        return [list(row) for row in self.sql("SELECT status, retries, what FROM told ORDER BY delivery_id")]


class Months(BaseModel):
    title: str
    months: int


class Planner(Agent):
    async def run(self, input: Months) -> str:
        return input.title * input.months


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    done.clear()


async def _told(stage: Stage) -> list[list[Any]]:
    told: list[list[Any]] = await stage.call(Owner, "told")
    return sorted(told)


async def test_a_failed_run_is_tried_again_with_its_steps_and_its_memory_and_the_parent_is_told_of_each_end_once(
    stage: Stage,
) -> None:
    await stage.call(Owner, "begin", "r")
    await stage.until(lambda: stage.deliveries()["delivered"] == 2)
    done["mended"] = 1
    await stage.client.ask("retry", "r")
    assert (await stage.ended("r", "completed")).attempt == 2
    await stage.until(lambda: stage.deliveries()["delivered"] == 3)
    assert await _told(stage) == [
        ["begun", 0, ""],
        ["completed", 1, "glass in entry 2"],
        ["error", 0, "ValueError: it broke"],
    ]
    assert done["first"] == 1, "a step that was done is remembered"
    kinds = [frame["event"]["kind"] async for frame in stage.client.follow("r")]
    assert [frame async for frame in stage.client.follow_to_end("r", len(kinds) - 1)] == [], (
        "behind the end comes nothing"
    )
    assert len([frame async for frame in stage.client.follow_to_end("r", len(kinds) - 2)]) == 1
    assert [kinds.count(kind) for kind in ("milestone", "error", "retried", "finished")] == [1, 1, 1, 1]
    with pytest.raises(RetryRefused, match="completed"):
        await stage.client.ask("retry", "r")
    with pytest.raises(UnknownRun):
        await stage.client.ask("retry", "nobody")


@pytest.mark.parametrize("victim", ["host", "supervisor", "everything"])
@pytest.mark.parametrize(
    ("point", "about"),
    [(KillPoint.BEFORE_RUN, "r"), (KillPoint.BEFORE_REPORT, "r"), (KillPoint.MID_HANDLER, "r!finish")],
)
def test_whoever_dies_while_it_is_tried_again_the_new_end_is_told_once(
    point: KillPoint, about: str, victim: str
) -> None:
    def strike(stage: Stage, process: str, here: KillPoint, detail: str) -> bool:
        if here is not point or about not in detail or not done["mended"] or done["killed"]:
            return False
        done["killed"] += 1
        if victim == "everything":
            stage.simulation.cluster.power_off()
            stage.simulation.loop.call_later(3, stage.simulation.cluster.power_on)
        elif victim == "supervisor":
            stage.simulation.kill("supervisor")
        return victim == "host"

    async def story(stage: Stage) -> None:
        await stage.call(Owner, "begin", "r")
        await stage.until(lambda: stage.deliveries()["delivered"] == 2)
        done["mended"] = 1
        await stage.client.ask("retry", "r")
        await stage.ended("r", "completed")
        await stage.until(lambda: stage.deliveries()["delivered"] == 3)
        assert [row[:2] for row in await _told(stage)] == [["begun", 0], ["completed", 1], ["error", 0]]
        assert done["killed"] == 1

    play(story, kill_when=strike)


async def test_a_parent_that_failed_is_tried_again_with_the_runs_that_its_failure_cut_off(stage: Stage) -> None:
    failed = await stage.client.run(Brittle, "", run_id="r")
    assert failed.failure.error == "ValueError: it broke"
    done["mended"] = 1
    await stage.client.ask("retry", "r")
    again = await stage.client.run(Brittle, "", run_id="r")
    assert again.output == ["quick", "slow"]
    assert done["quick"] == 1, "what had completed is not done again"


async def test_a_run_whose_stored_input_lacks_a_field_is_parked_with_its_name_and_goes_on_when_it_is_given_up_or_mended(
    stage: Stage,
) -> None:
    asked = stage.client.request(Planner, {"title": "x", "months": 2}, "r", wait=False)
    old = pack({"title": "x"})
    await stage.client.supervisor.begin(asked._replace(input=old, digest="of old code"))
    await stage.until(lambda: bool(stage.run("r").parked))
    said = " ".join(await stage.client.ask("explain", "r"))
    assert "It is parked: its stored input does not fit what `run` of Planner takes now" in said
    assert "months: Field required" in said
    await stage.client.ask("retry", "r")
    await stage.until(lambda: stage.run("r").attempt == 2 and bool(stage.run("r").parked))
    await stage.client.ask("cancel", "r", None, "its input is too old")
    await stage.ended("r", "aborted")
