"""What is durable in a turn before anything is done about it: a cancel, the intent to call a tool, and what a call came to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.actors import KillPoint
from perdure.scenarios.provider.script import ScriptedCall
from tests.actors.chat.desk import WHOLE, Adder, Outside
from tests.actors.chat.room import Room, outcomes, visit
from tests.actors.chat.talk import Worker, asks_for

WORK = asks_for(ScriptedCall(name="work", arguments={"what": "a", "seconds": 20}))


def at_work() -> bool:
    return Outside.effects["began", "a"] > 0


class Strike:
    """Kills the process that plays turns, once: at this place, when this is so."""

    def __init__(self, point: KillPoint, detail: str, is_time: Callable[[], bool]) -> None:
        self.place, self.is_time = (point, detail), is_time
        self.player = ""
        self.has_struck = False

    def __call__(self, process: str, point: KillPoint, detail: str) -> bool:
        if point is KillPoint.MID_STREAM:
            self.player = process
        if self.has_struck or process != self.player or (point, detail) != self.place or not self.is_time():
            return False
        self.has_struck = True
        return True


def test_a_cancel_is_durable_before_it_acts() -> None:
    """A death after the tools were told to stop, before the end of the turn is durable: the next life knows of the cancel."""
    rooms: list[Room] = []

    def is_stopping() -> bool:
        return bool(rooms) and any(run.status == "aborted" for run in rooms[0].view.runs.values())

    async def story(room: Room) -> None:
        rooms.append(room)
        await room.do("submit_messages", "go", request_id="asked")
        await room.until(at_work)
        assert await room.do("cancel_chat", "asked", "enough") is True
        await room.until(lambda: room.is_("aborted"))

    strike = Strike(KillPoint.MID_STORAGE, "before", is_stopping)
    visit(Worker, story, WORK, kill_when=strike)
    assert strike.has_struck


def test_the_intent_to_call_a_tool_is_durable_before_the_call() -> None:
    """A death as soon as the tool is at work: the next life waits for the same call, and makes no other."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        await room.until(at_work)
        room.kill()
        await room.until(lambda: room.is_("completed"))

    visit(Worker, story, WORK)
    assert Outside.effects["began", "a"] == Outside.effects["done", "a"] == 1


def test_what_a_call_came_to_is_durable_at_once() -> None:
    """A death right after an inline call, before the model is asked again: the next life knows its result."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await room.until(lambda: room.is_("completed"))
        assert (await room.do("attach", "asked")).text == WHOLE

    strike = Strike(KillPoint.MID_STREAM, "request", lambda: bool(Outside.effects["double", 7]))
    visit(Adder, story, kill_when=strike)
    assert strike.has_struck
    assert Outside.effects["double", 7] == 1


async def of_a_lost_call(room: Room) -> Any:
    """How the turn ended in which the host of a call was killed."""
    await room.do("submit_messages", "go", request_id="asked")
    await room.until(at_work)
    (run,) = room.view.runs.values()
    room.laboratory.simulation.kill(run.host_id)
    return await room.do("attach", "asked")


def test_a_tool_that_may_run_once_runs_at_most_once() -> None:
    """A death of the tool's own host in the middle of the call: nobody knows what it did, so nobody begins it again."""

    async def story(room: Room) -> None:
        result = await of_a_lost_call(room)
        assert [state for state, words in outcomes(result.message) if "OUTCOME UNKNOWN" in words] == ["output-error"]

    visit(Worker, story, WORK)
    assert Outside.effects["began", "a"] == 1


def test_a_conversation_that_is_cleared_forgets_the_calls_that_may_not_be_repeated() -> None:
    async def story(room: Room) -> None:
        await of_a_lost_call(room)
        await room.do("clear")
        await room.do("submit_messages", "go", request_id="again")
        await room.until(lambda: room.is_("completed", "again"))

    visit(Worker, story, WORK)
    assert (Outside.effects["began", "a"], Outside.effects["done", "a"]) == (2, 1)


def test_a_call_whose_run_has_ended_without_a_result_is_not_made_again() -> None:
    async def story(room: Room) -> None:
        await of_a_lost_call(room)
        await room.do("submit_messages", "go", request_id="again")
        result = await room.do("attach", "again")
        assert [words.partition(":")[0] for _, words in outcomes(result.message)] == ["NOT RUN"]

    visit(Worker, story, WORK)
    assert Outside.effects["began", "a"] == 1
