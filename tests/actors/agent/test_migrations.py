"""Agents whose class has another version than what they keep."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, KillPoint, RunContext, exposed
from perdure.ledger import BadRequest, MigrationFailed, StorageTooNew
from tests.kit import Death, Stage, play


class Till(Agent):
    """Its version is that of this process; a test sets it between two lives."""

    broken: ClassVar[bool] = False
    calls: ClassVar[list[int]] = []

    def migrate(self, from_version: int) -> None:
        self.calls.append(from_version)
        self.state["cents"] = self.state.get("euros", 0) * 100
        if self.broken:
            raise ValueError("a coin is missing")

    @exposed
    def put(self, euros: int) -> None:
        self.state["euros"] = euros

    @exposed
    def kept(self) -> dict[str, Any]:
        return dict(self.state)


class Stepped(Till):
    """A run in several attempts."""

    async def run(self, input: int, run: RunContext) -> dict[str, Any]:
        self.state["euros"] = input
        if run.attempt == 1:
            type(self).__perdure_version__ = 2
            await run.step("wait", self.for_ever)
        return dict(self.state)

    async def for_ever(self) -> None:
        await asyncio.sleep(10_000)


@pytest.fixture(autouse=True)
def _first_version() -> Any:
    yield
    for kind in (Till, Stepped):
        kind.__perdure_version__, kind.broken = 1, False
    Till.calls.clear()


class Second(Agent, version=2):
    """Says its version, and has a method that is called like that."""

    @exposed
    def version(self) -> int:
        return self.__perdure_version__


def test_a_class_says_its_version_and_may_have_a_method_of_that_name() -> None:
    async def story(stage: Stage) -> None:
        assert await stage.call(Second, "version") == 2

    play(story)
    with pytest.raises(BadRequest, match="version"):
        type("Zeroth", (Agent,), {}, version=0)


async def asleep(stage: Stage) -> None:
    await stage.until(lambda: not stage.view.agents)


async def test_a_sleeping_agent_is_brought_to_the_new_version_once_when_it_wakes_and_no_older_code_opens_it_after_that(
    stage: Stage,
) -> None:
    await stage.call(Till, "put", 3)
    await asleep(stage)
    Till.__perdure_version__ = 2
    assert await stage.call(Till, "kept") == {"euros": 3, "cents": 300}
    await asleep(stage)
    assert await stage.call(Till, "kept") == {"euros": 3, "cents": 300}
    assert Till.calls == [1]
    await asleep(stage)
    Till.__perdure_version__ = 1
    with pytest.raises(StorageTooNew, match="version 2 of its class, and this code is version 1"):
        await stage.call(Till, "kept")


@pytest.mark.parametrize("point", [KillPoint.BEFORE_HANDLER_COMMIT, KillPoint.AFTER_HANDLER_COMMIT])
def test_a_death_in_the_middle_migrates_it_once(point: KillPoint) -> None:
    async def story(stage: Stage) -> None:
        await stage.call(Till, "put", 3)
        await asleep(stage)
        Till.__perdure_version__ = 2
        with pytest.raises(Exception, match=r"died|lost|unknown"):
            await stage.call(Till, "kept")
        assert await stage.call(Till, "kept") == {"euros": 3, "cents": 300}
        assert Till.calls == ([1, 1] if point is KillPoint.BEFORE_HANDLER_COMMIT else [1])

    play(story, kill_when=Death(point, of="migrate"))


async def test_an_agent_whose_migration_fails_keeps_what_it_had_and_says_so_until_other_code_comes(
    stage: Stage,
) -> None:
    await stage.call(Till, "put", 3)
    await asleep(stage)
    Till.__perdure_version__, Till.broken = 2, True
    with pytest.raises(MigrationFailed, match="from version 1 to 2 raised ValueError: a coin is missing") as failed:
        await stage.call(Till, "kept")
    assert (failed.value.version, failed.value.wanted) == (1, 2)
    Till.__perdure_version__ = 1
    assert await stage.call(Till, "kept") == {"euros": 3}
    await asleep(stage)
    Till.__perdure_version__, Till.broken = 3, False
    assert await stage.call(Till, "kept") == {"euros": 3, "cents": 300}


async def test_an_agent_that_is_born_with_a_version_is_not_migrated(stage: Stage) -> None:
    Till.__perdure_version__ = 2
    await stage.call(Till, "put", 3)
    await asleep(stage)
    assert await stage.call(Till, "kept") == {"euros": 3}
    assert Till.calls == []


async def test_a_run_whose_agent_cannot_be_migrated_is_parked_and_goes_on_with_code_that_can(stage: Stage) -> None:
    await stage.client.start(Stepped, 3, run_id="r")
    await stage.until(lambda: Stepped.__perdure_version__ == 2)
    Stepped.broken = True
    stage.kill_host_of(stage.run("r").child)
    await stage.until(lambda: bool(stage.run("r").parked))
    assert "migrate from version 1 to 2 raised ValueError" in stage.run("r").parked
    Stepped.broken = False
    await stage.client.ask("retry", "r")
    assert (await stage.client.run(Stepped, 3, run_id="r")).output == {"euros": 3, "cents": 300}
