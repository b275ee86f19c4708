"""What a chat child's tools report is reported of its run: to its parent, in its events, and as lasting milestones, each once
(seed 003: *from within a child, including from inside its tools*)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Agent, Detached, KillPoint, MilestoneInfo, RunInfo, ToolContext, exposed, tool
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.room import Room, visit
from tests.kit import Death

STONES = ["began", "done"]


@tool(effect="idempotent")
async def dig(n: int, context: ToolContext) -> str:
    """Dig, in a host of its own."""
    await context.report_progress(milestone="began", data={"n": n})  # type: ignore[misc]
    Outside.effects["dig", n] += 1
    await context.report_progress(n / 10, phase="digging")  # type: ignore[misc]
    await asyncio.sleep(2)
    await context.report_progress(milestone="done", data={"n": n})  # type: ignore[misc]
    return f"dug {n}"


class Digger(Adder):
    """Digs elsewhere, and here."""

    def tools(self) -> list[Any]:
        return [dig]

    @tool(effect="idempotent")
    async def dig_here(self, n: int) -> str:
        """Dig in this very process."""
        await self.report_progress(milestone="began", data={"n": n})
        Outside.effects["dig_here", n] += 1
        await self.report_progress(n / 10, phase="digging")
        await asyncio.sleep(2)
        await self.report_progress(milestone="done", data={"n": n})
        return f"dug {n}"


class Foreman(Agent):
    """Has a digger, and is told."""

    heard: list[tuple[str, Any]] = []  # noqa: RUF012 - one for the test

    @exposed
    async def ask(self, question: str) -> None:
        follow = Detached(on_milestones=STONES, on_milestone="on_stone")
        await self.run_agent_tool(Digger, question, run_id="one", detached=follow)

    async def on_progress(self, run: RunInfo, progress: dict[str, Any]) -> None:
        self.heard.append((run.run_id, progress.get("milestone") or progress["phase"]))

    def on_stone(self, run: RunInfo, stone: MilestoneInfo) -> None:
        with self.transaction():
            self.state["stones"] = [*self.state.get("stones", []), stone.name]

    @exposed
    def stones(self) -> list[str]:
        return list(self.state.get("stones", []))


def _script(name: str) -> Script:
    each = [Round(calls=(ScriptedCall(name=name, arguments={"n": number}),)) for number in (1, 2)]
    return Script(questions=(ScriptedQuestion(asks="dig", rounds=tuple(each)),))


async def _dug(room: Room, kill_at: float | None) -> list[tuple[str, int]]:
    """Ask, perhaps kill the child, and give the milestones of its run."""
    Foreman.heard.clear()
    await room.client.call(Foreman, "f", "ask", ("dig",), {})
    if kill_at is not None:
        await room.until(lambda: sum(Outside.effects.values()))
        await asyncio.sleep(kill_at)
        room.kill("one")
    await room.until(lambda: "one" in room.view.runs and room.view.runs["one"].is_hard)
    told = await room.client.ask("inspect", "one")
    assert told["status"] == "completed", told["error"]
    assert [each["sequence"] for each in told["milestones"]] == list(range(len(told["milestones"])))
    await asyncio.sleep(2)
    assert await room.client.call(Foreman, "f", "stones", (), {}) == STONES
    frames = await room.client.ask("frames", "one", -1)
    stones = [(each["name"], each["data"]["n"]) for each in told["milestones"]]
    assert [
        (e["event"]["name"], e["event"]["data"]["n"]) for e in frames if e["event"]["kind"] == "milestone"
    ] == stones
    assert (told["progress"]["phase"], told["progress"]["fraction"]) == ("digging", 0.2)
    return stones


@pytest.mark.parametrize("name", ["dig", "dig_here"])
def test_a_parent_hears_the_progress_and_the_milestones_of_its_chat_childs_tools(name: str) -> None:
    async def story(room: Room) -> None:
        assert await _dug(room, None) == [("began", 1), ("done", 1), ("began", 2), ("done", 2)]
        assert Foreman.heard == [("one", what) for what in ("began", "digging", "done") * 2]

    visit(Digger, story, _script(name))


@pytest.mark.parametrize("name", ["dig", "dig_here"])
@pytest.mark.parametrize("kill_at", [0.0, 2.3])
def test_after_the_childs_death_the_tools_of_the_recovered_turn_are_heard_once(name: str, kill_at: float) -> None:
    """The turn goes on before its run is entered again; what is executed again repeats no milestone."""

    async def story(room: Room) -> None:
        assert await _dug(room, kill_at) == [("began", 1), ("done", 1), ("began", 2), ("done", 2)]
        assert Foreman.heard[-1] == ("one", "done")

    visit(Digger, story, _script(name))


def test_a_tools_own_death_repeats_no_milestone_either() -> None:
    death = Death(KillPoint.MID_RUN, of="milestone began")

    async def story(room: Room) -> None:
        assert await _dug(room, None) == [("began", 1), ("done", 1), ("began", 2), ("done", 2)]
        assert death.victims

    visit(Digger, story, _script("dig"), kill_when=death)
