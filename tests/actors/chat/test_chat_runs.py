"""A chat as a child: its run is one turn, whose parts its parent sees, through whatever the child dies of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import AgentToolEvents, KillPoint, tool
from perdure.actors.events.reducer import RunState
from perdure.policies import Limits
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import WHOLE, Adder, Outside
from tests.actors.chat.room import Room, calls, outcomes, texts, visit, visiting
from tests.kit import Death


async def _shown(room: Room) -> RunState:
    """The run as a front end shows it, from its events alone."""
    events = AgentToolEvents()
    for frame in await room.client.ask("frames", "one", -1):
        events.apply(frame)
    return events.runs_by_id["one"]


async def _kept(room: Room) -> dict[str, Any]:
    messages = await room.client.call(Adder, "one", "get_messages", (), {})
    found: dict[str, Any] = messages[-1]
    return found


def _dies_at(detail: str, nth: int) -> Death:
    """The child's process dies when its stream comes to this for the n-th time."""
    return Death(KillPoint.MID_STREAM, of=detail, visit=nth)


@visiting(Adder)
async def test_a_parent_sees_the_parts_of_a_childs_answer(room: Room, /) -> None:
    """They add up to the very message that the child keeps (C-0901)."""
    assert (await room.client.run(Adder, "sum", run_id="one")).output == WHOLE
    shown = await _shown(room)
    assert shown.parts == (await _kept(room))["parts"]
    assert shown.previous_parts == {}


@pytest.mark.shows(agent_tools="108 109 161 162", chat_recovery="C-0745 C-0746 C-1041 C-1161 C-1215 C-1216 W-07 W-34")
@pytest.mark.parametrize(("detail", "nth"), [("request", 1), ("text-delta", 2), ("request", 2), ("text-delta", 6)])
def test_a_child_that_dies_ends_the_same_run_and_its_parts_are_whole_again(detail: str, nth: int) -> None:
    """Before its first word or in the middle: the new attempt first tells what had been said before (C-1215, C-1216)."""

    async def story(room: Room) -> None:
        result = await room.client.run(Adder, "sum", run_id="one")
        assert result.output == WHOLE
        shown, kept = await _shown(room), await _kept(room)
        assert shown.attempt == 2
        assert texts({"parts": shown.parts}) == texts(kept)
        assert [text[:8] for text in texts(kept)] == ["Let me a", "And then", "Done: 4 "], "each is one part"
        assert outcomes({"parts": shown.parts}) == outcomes(kept)
        assert set(Outside.effects.values()) == {1}
        turn = await room.client.call(Adder, "one", "inspect_turn", ("one",), {})
        assert (turn["status"], turn["trigger"]) == ("completed", "agent-tool")

    visit(Adder, story, kill_when=_dies_at(detail, nth))


class AddsOnce(Adder):
    attempts_max = 1


@pytest.mark.parametrize(("agent", "limits"), [(AddsOnce, Limits()), (Adder, Limits(attempts_max=1))])
def test_the_end_of_a_child_that_may_be_entered_once_outlives_it(agent: type[Adder], limits: Limits) -> None:
    """It is not asked again for what its turn came to, so it keeps that."""
    death = Death(KillPoint.BEFORE_REPORT, of="one")

    async def story(room: Room) -> None:
        result = await room.client.run(agent, "sum", run_id="one")
        assert (result.status, result.output, death.left) == ("completed", WHOLE, 0)

    visit(agent, story, kill_when=death, limits=limits)


class Distracted(Adder):
    """Hears of something else in the middle of its work."""

    @tool
    async def listen(self) -> str:
        """A person says something, and then the process takes its time."""
        await self.add_messages("by the way")
        Outside.effects["listened"] += 1
        await asyncio.sleep(5)
        return "heard"


@pytest.mark.shows(agent_tools="78", chat_recovery="C-0871")
@visiting(Distracted, Script(questions=(calls("listen", ScriptedCall(name="listen")),)))
async def test_a_child_whose_conversation_went_on_without_its_turn_has_failed(room: Room, /) -> None:
    """A turn that was skipped is an error of its run, with the reason (C-0871)."""
    running = asyncio.ensure_future(room.client.run(Distracted, "listen", run_id="one"))
    await room.until(lambda: Outside.effects["listened"])
    room.kill("one")
    result = await running
    assert (result.status, result.ok) == ("error", False)
    assert "has gone on without this turn" in str(result.error)
