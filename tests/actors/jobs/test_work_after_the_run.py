"""What a child left open when its run ended: fibers, schedules, queued items come to their end, whoever dies; others are not woken."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, Detached, FiberContext, KillPoint, Occurrence, RunContext, RunInfo, RunResult, exposed
from tests.actors.cast import Doubler
from tests.actors.jobs.test_fiber_deaths import Strike
from tests.actors.supervisor.test_deaths import at
from tests.kit import ROOMY, Stage, address, play, staged

OPEN = {"fiber": 1, "tick": 1, "item": 1}


class Leaving(Agent):
    """Its run begins other work of each kind, and has a result before that is done."""

    stands_alone = True

    done: ClassVar[Counter[str]] = Counter()  # of this process

    async def run(self, input: float, run: RunContext) -> str:
        self.start_fiber("work", "work", fiber_id="work", retry=True)
        self.schedule(20, "note", "tick", key="tick")
        self.queue("note", "item")
        await asyncio.sleep(input)
        return "done"

    async def work(self, fiber: FiberContext) -> None:
        await asyncio.sleep(10)
        self.done["fiber"] += 1

    def note(self, payload: str, occurrence: Occurrence) -> None:
        self.done[payload] += 1
        self.state[payload] = self.state.get(payload, 0) + 1

    @exposed(repeatable=True)
    async def kept(self) -> list[Any]:
        told = self.inspect_fiber("work")
        return [self.state.get("tick"), self.state.get("item"), told and told.status]


class Once(Leaving):
    """Has one attempt, and no alarm by which it would be woken anyhow."""

    attempts_max = 1

    async def run(self, input: float, run: RunContext) -> str:
        self.start_fiber("work", "work", fiber_id="work", retry=True)
        await asyncio.sleep(input)
        return "done"


class Last(Leaving):
    """Begins a fiber as the last thing that it does: its run ends in the same turn of the loop."""

    async def run(self, input: float, run: RunContext) -> str:
        await asyncio.sleep(input)
        self.start_fiber("work", "work", fiber_id="work")
        return "done"


class Telling(Agent):
    """Asks for a detached run in a transaction, as the last thing that it does."""

    async def run(self, input: str, run: RunContext) -> str:
        with self.transaction():
            self.state["asked"] = True
            self.run_agent_tool(Doubler, {"n": 2}, run_id=input, detached=Detached(on_finish="on_double"))
        return "asked"

    def on_double(self, run: RunInfo, result: RunResult) -> None:
        self.state["told"] = result.output


@pytest.fixture(autouse=True)
def _nothing_is_done_yet() -> None:
    Leaving.done.clear()


async def comes_to_its_end(stage: Stage, kind: type[Leaving]) -> None:
    await stage.until(lambda: len(Leaving.done) == len(OPEN))
    assert await stage.call(kind, "kept", name="c") == [1, 1, "completed"]
    assert Leaving.done == OPEN


async def test_a_child_whose_host_dies_after_its_run_has_ended_goes_on_with_what_it_left_open(stage: Stage) -> None:
    assert (await stage.client.run(Leaving, 0.0, run_id="c")).output == "done"
    await asyncio.sleep(1)
    stage.kill_host_of(address(Leaving, "c"))
    await comes_to_its_end(stage, Leaving)
    assert stage.run("c").attempt == 1


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
async def test_a_fiber_that_a_run_begins_with_its_last_line_comes_to_its_end(stage: Stage, pause_s: float) -> None:
    assert (await stage.client.run(Last, pause_s, run_id="c")).output == "done"
    await stage.until(lambda: Leaving.done["fiber"] == 1)


@pytest.mark.parametrize("moment", [KillPoint.AFTER_RESULT_COMMIT, KillPoint.BEFORE_REPORT])
def test_a_child_that_dies_between_its_result_and_its_report_hands_it_over_and_goes_on(moment: KillPoint) -> None:
    strike = Strike(at(moment, about="c"))

    async def story(stage: Stage) -> None:
        assert (await stage.client.run(Leaving, 0.0, run_id="c")).output == "done"
        assert stage.run("c").attempt == 2
        await comes_to_its_end(stage, Leaving)

    play(story, kill_when=strike)
    assert strike.struck


async def test_a_child_that_has_used_up_its_attempts_goes_on_with_its_other_work_all_the_same(stage: Stage) -> None:
    running = asyncio.ensure_future(stage.client.run(Once, 3_600.0, run_id="c"))
    await asyncio.sleep(2)
    stage.kill_host_of(address(Once, "c"))
    assert (await running).status == "error"
    await stage.until(lambda: Leaving.done["fiber"] == 1)
    assert await stage.call(Once, "kept", name="c") == [None, None, "completed"]


async def test_a_child_that_dies_while_it_is_stopped_goes_on_with_its_other_work(stage: Stage) -> None:
    running = asyncio.ensure_future(stage.client.run(Leaving, 3_600.0, run_id="c"))
    await asyncio.sleep(2)
    host = stage.host_of(address(Leaving, "c"))
    await stage.client.ask("cancel", "c", None, "enough")
    if stage.host_of(address(Leaving, "c")) == host:
        stage.kill_host_of(address(Leaving, "c"))
    assert (await running).status == "aborted"
    await comes_to_its_end(stage, Leaving)


def test_what_a_child_asked_for_in_its_last_transaction_is_asked_for_by_whoever_hands_its_result_over() -> None:
    strike = Strike(at(KillPoint.BEFORE_REPORT, about="c"))

    async def story(stage: Stage) -> None:
        assert (await stage.client.run(Telling, "d", run_id="c")).output == "asked"
        assert (await stage.ended("d")).status == "completed"
        await stage.until(lambda: stage.deliveries()["delivered"] == 1)

    play(story, kill_when=strike)
    assert strike.struck


@staged(limits=replace(ROOMY, hosts_max=2))
async def test_children_that_ended_and_owe_nothing_are_not_woken_when_their_hosts_die(stage: Stage) -> None:
    runs = [stage.client.run(Doubler, {"n": number}, run_id=f"d{number}") for number in range(40)]
    ended = await asyncio.gather(*runs)
    assert [result.output for result in ended] == [2 * number for number in range(40)]
    lives = stage.view.incarnation
    for host in list(stage.view.hosts):
        stage.simulation.kill(host)
    await asyncio.sleep(60)
    assert stage.view.incarnation == lives
    assert not stage.view.agents
