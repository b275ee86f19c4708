"""Drill-in: whoever may, reaches the child of a run, and nobody else brings one to life (seed 003, *Drill in and gate access*)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, exposed
from perdure.ledger import AgentUnreachable, BadRequest, path_of, sub_agent_id, type_of
from tests.actors.family_cast import Kid
from tests.kit import ROOMY, Stage, address, staged


class Digger(Agent):
    """Keeps rows while it runs; has a run and a kid of its own."""

    async def run(self, input: float, run: RunContext) -> int:
        self.add(f"attempt {run.attempt}")
        await self.sub_agent(Kid, "helper").note("dug")  # type: ignore[misc]
        if input > 10:
            await self.run_agent_tool(Digger, 0.0, run_id=f"below {self.name}")
        await asyncio.sleep(input)
        return len(self.sql("SELECT * FROM found"))

    @exposed(repeatable=True)
    async def linger(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @exposed
    def rows(self) -> list[str]:
        return [str(what) for (what,) in self.sql("SELECT * FROM found")]

    @exposed
    def add(self, word: str) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS found(what VARCHAR)")
        self.sql("INSERT INTO found VALUES ($1)", [word])


class Owner(Agent):
    """Has diggers, and lets calls pass as long as it is open."""

    async def on_before_sub_agent(self, agent_type: str, name: str) -> bool:
        return not self.state.get("closed") and await super().on_before_sub_agent(agent_type, name)

    @exposed
    async def dig(self, run_id: str, seconds: float) -> None:
        await self.run_agent_tool(Digger, seconds, run_id=run_id, detached=True)

    @exposed
    async def linger_with(self, name: str, seconds: float) -> None:
        await self.sub_agent(Digger, name).linger(seconds)  # type: ignore[misc]

    @exposed
    async def look(self, name: str) -> list[str]:
        return list(await self.sub_agent(Digger, name).rows())  # type: ignore[misc]

    @exposed
    async def tell_it(self, name: str, word: str, *, together: bool) -> None:
        if together:
            with self.transaction():
                self.sub_agent(Digger, name).add.tell(word)  # type: ignore[attr-defined]
        else:
            await self.sub_agent(Digger, name).add.tell(word)  # type: ignore[attr-defined]

    @exposed
    def close(self) -> None:
        self.state["closed"] = True

    @exposed
    def family(self) -> list[str]:
        return [each.name for each in self.sub_agents.list()]

    @exposed
    async def clear(self) -> int:
        return int(await self.clear_agent_tool_runs())


Way = Callable[[Stage, str], Awaitable[list[str]]]


async def _through_parent(stage: Stage, run_id: str) -> list[str]:
    owner = stage.client.agent(Owner, "p")
    return await stage.client.agent(Digger, run_id, of=owner).rows()  # type: ignore[misc, no-any-return]


async def _by_own_address(stage: Stage, run_id: str) -> list[str]:
    return await stage.client.agent(Digger, run_id).rows()  # type: ignore[misc, no-any-return]


async def _from_inside(stage: Stage, run_id: str) -> list[str]:
    return list(await stage.call(Owner, "look", run_id))


WAYS = pytest.mark.parametrize("way", [_through_parent, _by_own_address, _from_inside])


def addresses(stage: Stage, name: str) -> set[str]:
    """All that is on record of a digger of this name: who is awake, whose storage lies there, who is known to owe something."""
    own, type_name = address(Digger, name), type_of(address(Digger, name))
    known = {*stage.view.agents, *stage.view.asleep, *stage.view.mailbox}
    possible = {own, sub_agent_id(address(Owner, "p"), type_name, name)}
    found = {each for each in known if (type_name, name) in path_of(each)}
    return found | {each for each in possible if stage.laboratory.disk.has(each)}


@pytest.mark.shows(agent_tools="180")
@WAYS
async def test_the_child_of_a_run_is_reached_while_it_runs_after_it_and_after_a_death(stage: Stage, way: Way) -> None:
    await stage.call(Owner, "dig", "r", 5.0)
    child = address(Digger, "r")
    await stage.until(lambda: stage.laboratory.disk.has(child))
    assert await way(stage, "r") == ["attempt 1"]
    stage.kill_host_of(child)
    await stage.until(lambda: stage.run("r").attempt == 2)
    await asyncio.sleep(1)
    assert await way(stage, "r") == ["attempt 1", "attempt 2"]
    assert (await stage.ended("r")).status == "completed"
    assert await way(stage, "r") == ["attempt 1", "attempt 2"]
    await asyncio.sleep(20)
    assert child not in stage.view.agents, "it sleeps"
    assert await way(stage, "r") == ["attempt 1", "attempt 2"]
    assert await stage.call(Owner, "family") == []
    assert {each for each in addresses(stage, "r") if type_of(each) == type_of(child)} == {child}


@WAYS
@staged(limits=replace(ROOMY, retained_in_memory=0, checkpoint_idle_ms=100))
async def test_a_child_is_reached_whose_run_memory_has_let_go_of(stage: Stage, way: Way) -> None:
    await stage.call(Owner, "dig", "r", 0.0)
    await stage.ended("r")
    await stage.until(lambda: stage.record("r") is None)
    assert await way(stage, "r") == ["attempt 1"]
    with pytest.raises(AgentUnreachable):
        await _by_own_address(stage, "guess")


async def test_what_belongs_to_a_child_is_reached_through_it_and_through_all_above_it(stage: Stage) -> None:
    await stage.call(Owner, "dig", "r", 11.0)
    await stage.ended("r")
    owner = stage.client.agent(Owner, "p")
    for of in (owner, None):
        digger = stage.client.agent(Digger, "r", of=of)
        assert await stage.client.agent(Kid, "helper", of=digger).notes() == ["dug"]  # type: ignore[misc]
        below: Any = stage.client.agent(Digger, "below r", of=digger)
        assert await below.rows() == ["attempt 1"]
    assert await _by_own_address(stage, "below r") == ["attempt 1"]
    await stage.call(Owner, "close")
    for closed in (digger.rows(), below.rows(), _by_own_address(stage, "below r"), _by_own_address(stage, "r")):
        with pytest.raises(AgentUnreachable, match="its parent has no such child, or lets no call pass"):
            await closed


@pytest.mark.shows(agent_tools="176 181")
async def test_a_guessed_id_is_refused_at_every_door_and_leaves_nothing_on_record(stage: Stage) -> None:
    await stage.call(Owner, "dig", "r", 0.0)
    await stage.ended("r")
    owner, guess = stage.client.agent(Owner, "p"), stage.client.agent(Digger, "guess")
    inner: Any = stage.client.agent(Digger, "guess", of=owner)
    doors = [
        guess.rows,
        inner.rows,
        lambda: guess.add.tell("x"),  # type: ignore[attr-defined]
        lambda: inner.add.tell("x"),
        lambda: stage.client.agent(Kid, "helper", of=guess).notes(),
        lambda: stage.client.agent(Kid, "helper", of=inner).notes(),
        lambda: stage.client.agent(Digger, "r", of=stage.client.agent(Owner, "q")).rows(),
        lambda: stage.client.agent(Kid, "r", of=owner).notes(),  # another class than that of the run
        lambda: stage.client.agent(Digger, "r").add.tell("only relatives tell it"),  # type: ignore[attr-defined]
    ]
    for door in doors:
        with pytest.raises(AgentUnreachable) as refused:
            await door()  # type: ignore[no-untyped-call]
        assert isinstance(refused.value, BadRequest)
        assert refused.value.field == "agent"
    assert addresses(stage, "guess") == set()
    assert await stage.call(Owner, "family") == []


@pytest.mark.parametrize("together", [True, False])
async def test_a_parent_tells_the_child_of_its_run_something(stage: Stage, together: bool) -> None:
    await stage.call(Owner, "dig", "r", 0.0)
    await stage.ended("r")
    await stage.call(Owner, "tell_it", "r", "later", together=together)
    await asyncio.sleep(1)
    assert await _through_parent(stage, "r") == ["attempt 1", "later"]


@WAYS
async def test_the_child_of_a_cleared_run_is_gone_and_its_name_brings_nobody_to_life(stage: Stage, way: Way) -> None:
    await stage.call(Owner, "dig", "r", 0.0)
    await stage.ended("r")
    await stage.call(Owner, "clear")
    if way is not _from_inside:  # a parent that asks for a sub-agent gets one
        for _ in range(2):
            with pytest.raises(AgentUnreachable):
                await way(stage, "r")
            await stage.until(lambda: stage.record("r") is None)
        assert addresses(stage, "r") == set()


@pytest.mark.parametrize("from_inside", [False, True])
async def test_a_call_of_a_child_whose_run_is_cleared_meanwhile_is_refused_and_not_repeated(
    stage: Stage, from_inside: bool
) -> None:
    """A repetition would bring the child back, to be ended again, for ever."""
    await stage.call(Owner, "dig", "r", 0.0)
    await stage.ended("r")
    child: Any = stage.client.agent(Digger, "r", of=stage.client.agent(Owner, "p"))
    asked = stage.call(Owner, "linger_with", "r", 10.0) if from_inside else child.linger(10.0)
    lingering = asyncio.ensure_future(asked)
    await asyncio.sleep(1)
    await stage.call(Owner, "clear")
    with pytest.raises(AgentUnreachable, match="its run was cleared"):
        async with asyncio.timeout(60):
            await lingering
    await stage.until(lambda: stage.record("r") is None)
    assert addresses(stage, "r") == set()


async def test_a_child_that_an_earlier_version_let_stand_alone_is_still_reached(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Digger, "stands_alone", True)
    await stage.client.agent(Digger, "old").add("long ago")  # type: ignore[func-returns-value]
    monkeypatch.setattr(Digger, "stands_alone", False)
    await asyncio.sleep(20)
    assert await _by_own_address(stage, "old") == ["long ago"]
