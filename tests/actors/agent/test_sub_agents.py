"""Sub-agents: agents that belong to another one, are reached by way of it, and go with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint, exposed
from perdure.actors.sim_world.simulation import Weather
from perdure.ledger import (
    AgentAborted,
    BadRequest,
    OutcomeUnknown,
    agent_id,
    is_within,
    parent_of,
    path_of,
    sub_agent_id,
)
from tests.actors.cast import Doubler
from tests.kit import ROOMY, Death, Stage, address, play

PARENT_ID = "root@m:Root"


class Counter(Agent):
    """Counts in storage of its own."""

    @exposed
    def add(self, n: int = 1) -> int:
        with self.transaction():
            self.state["n"] = self.state.get("n", 0) + n
            return int(self.state["n"])

    @exposed
    def fail(self) -> None:
        raise ValueError("no such thing")

    @exposed
    async def hang(self) -> None:
        await asyncio.sleep(10_000)

    @exposed
    def own_name(self) -> str:
        return self.name

    @exposed
    def where(self) -> list[tuple[str, str]]:
        return self.path

    @exposed
    async def ask_parent(self) -> list[str]:
        return list(await self.parent.names())

    @exposed
    async def nest(self, name: str) -> int:
        return int(await self.sub_agent(Counter, name).add())

    @exposed
    async def end_it(self) -> None:
        await self.destroy()

    @exposed
    async def start(self, run_id: str) -> None:
        await self.run_agent_tool(Doubler, {"n": 1}, run_id=run_id, detached=True)


class Root(Agent):
    """Has counters."""

    opens: list[str] | None = None

    async def on_before_sub_agent(self, agent_type: str, name: str) -> bool:
        return name.startswith("open") or await super().on_before_sub_agent(agent_type, name)

    @exposed
    async def add(self, name: str, n: int = 1) -> int:
        return await self.sub_agent(Counter, name).add(n)  # type: ignore[misc]

    @exposed
    async def ask(self, name: str, method: str, *args: Any) -> Any:
        return await getattr(self.sub_agent(Counter, name), method)(*args)

    @exposed
    async def what_is_raised(self, name: str) -> str:
        try:
            await self.sub_agent(Counter, name).fail()  # type: ignore[func-returns-value]
        except ValueError as problem:
            return f"{isinstance(problem, ValueError)}: {problem}"
        return ""

    @exposed
    def names(self) -> list[str]:
        return [each.name for each in self.sub_agents.list(Counter)]

    @exposed
    async def abort(self, name: str) -> str:
        hanging = asyncio.ensure_future(self.sub_agent(Counter, name).hang())  # type: ignore[arg-type]
        await asyncio.sleep(1)
        await self.sub_agents.abort(Counter, name, "enough")
        try:
            await hanging
        except AgentAborted as problem:
            return str(problem)
        return ""

    @exposed
    async def mail(self, name: str) -> None:
        await self.sub_agent(Counter, name).add.tell()  # type: ignore[attr-defined]

    @exposed
    async def end_life(self, name: str) -> None:
        await self.sub_agents.abort(Counter, name, "enough")

    @exposed
    def drop(self, name: str) -> None:
        self.sub_agents.delete(Counter, name)

    @exposed
    def drop_and_fail(self, name: str) -> None:
        with self.transaction():
            self.sub_agent(Counter, "new")
            self.sub_agents.delete(Counter, name)
            raise RuntimeError("never mind")


def below(*names: str) -> str:
    """The address of a counter under the root, and of counters below it."""
    agent = address(Root, "p")
    for name in names:
        agent = sub_agent_id(agent, address(Counter, "x").rpartition("@")[2], name)
    return agent


@pytest.mark.shows(sub_agents="R14")
def test_an_address_tells_the_way_and_no_name_can_fake_it() -> None:
    child = sub_agent_id(PARENT_ID, "m:Kid", "a>b@m:X%20/c")
    assert parent_of(child) == PARENT_ID
    assert path_of(child) == [("m:Root", "root"), ("m:Kid", "a>b@m:X%20/c")]
    grandchild = sub_agent_id(child, "m:Kid", "")
    assert [name for _, name in path_of(grandchild)] == ["root", "a>b@m:X%20/c", ""]
    assert is_within(grandchild, PARENT_ID)
    assert not is_within("root@m:Roots", PARENT_ID)
    assert parent_of(agent_id("m:Root", "user@example.org>x")) == ""
    assert parent_of(PARENT_ID) == ""


@pytest.mark.shows(sub_agents="G1 G2 G3 G77 R62")
async def test_sub_agents_are_apart_and_outlive_their_lives(stage: Stage) -> None:
    assert await stage.call(Root, "add", "a") == 1
    assert await stage.call(Root, "add", "b", 5) == 5
    for host in list(stage.view.hosts):
        stage.simulation.kill(host)
    await asyncio.sleep(15)
    assert await stage.call(Root, "add", "a") == 2
    assert await stage.call(Root, "names") == ["a", "b"]


async def test_names_that_look_alike_are_different_agents(stage: Stage) -> None:
    for name in ("a/b", "a_b", "a%2Fb", "a>b", "ä b", "A/b"):
        assert await stage.call(Root, "add", name) == 1
    assert len(await stage.call(Root, "names")) == 6


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "x" * 300])
async def test_a_name_that_is_none_is_refused(stage: Stage, name: str) -> None:
    with pytest.raises(BadRequest, match="name"):
        await stage.call(Root, "add", name)
    assert await stage.call(Root, "names") == []


@pytest.mark.shows(sub_agents="G7 G19 G23 G59 G63 G83 G84 G85")
async def test_a_sub_agent_knows_its_way_and_reaches_its_parent_and_has_children_of_its_own(stage: Stage) -> None:
    way = await stage.call(Root, "ask", "a", "where")
    assert [name for _, name in way] == ["p", "a"]
    assert await stage.call(Root, "ask", "a", "ask_parent") == ["a"]
    assert await stage.call(Root, "ask", "a", "nest", "leaf") == 1
    assert stage.host_of(below("a", "leaf"))
    assert await stage.call(Root, "ask", "a b>c", "own_name") == "a b>c"


async def test_what_a_sub_agent_raises_is_raised_as_what_it_is(stage: Stage) -> None:
    assert await stage.call(Root, "what_is_raised", "a") == "True: ValueError: no such thing"


@pytest.mark.shows(sub_agents="R3 R8 R9 R11 R63 R64 R66")
async def test_from_outside_a_sub_agent_is_reached_by_way_of_its_ancestors_and_what_they_allow(stage: Stage) -> None:
    root = stage.client.agent(Root, "p")
    inner = stage.client.agent(Counter, "a", of=root)
    with pytest.raises(BadRequest, match="cannot be reached: its parent has no such child"):
        await inner.add()  # type: ignore[misc]
    assert await stage.call(Root, "names") == [], "nobody was made by asking"
    await stage.call(Root, "add", "a")
    assert await inner.add() == 2  # type: ignore[misc]
    assert await stage.client.agent(Counter, "open 1", of=root).add() == 1  # type: ignore[misc]
    leaf = stage.client.agent(Counter, "leaf", of=inner)
    with pytest.raises(BadRequest, match=r">leaf@.* its parent has no such child"):
        await leaf.add()  # type: ignore[misc]
    await inner.nest("leaf")  # type: ignore[misc]
    assert await leaf.add() == 2  # type: ignore[misc]
    with pytest.raises(BadRequest, match="no exposed method"):
        await leaf.destroy()


@pytest.mark.shows(sub_agents="G5")
async def test_an_abort_ends_a_life_and_not_its_storage(stage: Stage) -> None:
    await stage.call(Root, "add", "a", 7)
    assert await stage.call(Root, "abort", "a") == f"{below('a')} was aborted: enough"
    assert await stage.call(Root, "add", "a") == 8


def deleted(stage: Stage, agent: str) -> bool:
    known = [*stage.view.agents, *(each for each in (agent, below("a", "leaf")) if stage.laboratory.disk.has(each))]
    return not stage.view.doomed and not any(is_within(each, agent) for each in known)


@pytest.mark.shows(sub_agents="G6 G88")
async def test_deleting_takes_storages_runs_and_descendants_and_frees_the_name(stage: Stage) -> None:
    await stage.call(Root, "add", "a", 7)
    await stage.call(Root, "ask", "a", "nest", "leaf")
    await stage.call(Root, "ask", "a", "start", "mine")
    await stage.ended("mine")
    await stage.call(Root, "drop", "a")
    assert await stage.call(Root, "names") == []
    await stage.until(lambda: deleted(stage, below("a")))
    await stage.until(lambda: stage.record("mine") is None)
    assert await stage.call(Root, "add", "a") == 1
    assert await stage.call(Root, "ask", "a", "nest", "leaf") == 1


async def test_a_name_that_is_being_deleted_is_waited_for(stage: Stage) -> None:
    await stage.call(Root, "add", "a", 7)
    await stage.call(Root, "drop", "a")
    assert await stage.call(Root, "add", "a") == 1


@pytest.mark.shows(sub_agents="G96 G97")
async def test_deleting_what_does_not_exist_is_harmless_and_a_rollback_deletes_nothing(stage: Stage) -> None:
    await stage.call(Root, "drop", "nobody")
    await stage.call(Root, "add", "a", 7)
    with pytest.raises(Exception, match="never mind"):
        await stage.call(Root, "drop_and_fail", "a")
    assert await stage.call(Root, "names") == ["a"]
    assert await stage.call(Root, "add", "a") == 8
    for _ in range(2):
        await stage.call(Root, "drop", "a")
    assert await stage.call(Root, "names") == []
    assert await stage.call(Root, "add", "a") == 1


async def test_an_agent_can_end_itself_and_its_parent_forgets_it(stage: Stage) -> None:
    await stage.call(Root, "add", "a", 7)
    await stage.call(Root, "ask", "a", "end_it")
    await stage.until(lambda: deleted(stage, below("a")))
    assert await stage.call(Root, "names") == []
    assert await stage.call(Root, "add", "a") == 1


def test_the_next_one_of_a_deleted_name_need_not_have_what_the_last_one_reported() -> None:
    """The snapshot has the report of the deleted one: the supervisor dies before it has written the next."""
    death = Death(KillPoint.BEFORE_CHECKPOINT, when=lambda stage: below("a") in stage.view.deleted)

    async def story(stage: Stage) -> None:
        await stage.call(Root, "add", "a")
        await stage.call(Root, "mail", "a")
        await asyncio.sleep(100)
        assert stage.view.agents[below("a")].reported
        await stage.call(Root, "drop", "a")
        await stage.until(lambda: not death.left)
        for _ in range(2):
            assert await stage.call(Root, "ask", "a", "own_name") == "a"
            await stage.call(Root, "end_life", "a")
            await stage.until(lambda: not stage.host_of(below("a")))
        assert await stage.call(Root, "add", "a") == 1
        assert below("a") in stage.view.deleted, "no checkpoint came in between"
        await asyncio.sleep(100)
        assert not stage.view.deleted
        assert await stage.call(Root, "add", "a") == 2

    play(story, kill_when=death, limits=replace(ROOMY, idle_ms=600_000, checkpoint_idle_ms=30_000))


@pytest.mark.parametrize("victim", ["supervisor", "hosts", "cluster"])
@pytest.mark.parametrize("point", [KillPoint.AFTER_COMMIT, KillPoint.BEFORE_EFFECT, KillPoint.MID_CLEAR])
def test_a_deletion_is_seen_through_whoever_dies(victim: str, point: KillPoint) -> None:
    left = 2

    def moment(stage: Stage, process: str, at: KillPoint, _detail: str) -> bool:
        nonlocal left
        if not left or at is not point or not stage.view.doomed:
            return False
        left -= 1
        if victim == "cluster":
            stage.simulation.cluster.power_off()
            stage.simulation.loop.call_later(3, stage.simulation.cluster.power_on)
            return True
        for name in ["supervisor"] if victim == "supervisor" else list(stage.view.hosts):
            stage.simulation.kill(name)
        return victim == "supervisor" and process == "supervisor"

    async def story(stage: Stage) -> None:
        await stage.call(Root, "add", "a", 7)
        await stage.call(Root, "ask", "a", "nest", "leaf")
        with suppress(OutcomeUnknown):
            await stage.call(Root, "drop", "a")
        await stage.until(lambda: not left)
        await stage.until(lambda: bool(stage.laboratory.supervisors) and deleted(stage, below("a")))
        await asyncio.sleep(30)
        assert await stage.call(Root, "add", "a") == 1

    play(story, kill_when=moment, weather=Weather())
