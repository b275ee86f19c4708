"""Cancelling a turn: at whatever it is, in whichever life, with its tools, once, and for ever."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from actors import tool
from scenarios.provider_faults import Fault, FaultKind, FaultPlan, Pace
from scenarios.provider_script import Call, Script
from tests.actors.chat.desk import SCRIPT, Adder, Listener, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, visit

STALL = Fault(kind=FaultKind.STALL, event=3)


@tool
async def dig(where: str) -> str:
    """Work for a minute, in a run of its own."""
    Outside.effects["begun", where] += 1
    await asyncio.sleep(60)
    Outside.effects["done", where] += 1
    return f"dug {where}"


class Digger(Adder):
    """Has a long tool, hooks that take their time, and patience."""

    chat_recovery: ClassVar[Any] = {"no_progress_timeout_ms": 3_000_000}
    message_concurrency: ClassVar[Any] = {"strategy": "debounce", "debounce_ms": 20_000}
    heard: ClassVar[list[str]] = []

    def tools(self) -> list[Any]:
        """The long one, and the sum."""
        return [dig, *super().tools()]

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """Think about it for a minute."""
        await asyncio.sleep(60)
        return None

    async def on_chat_recovery(self, context: Any) -> dict[str, bool] | None:
        """Think about it for a minute."""
        await asyncio.sleep(60)
        return None

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Remember."""
        self.heard.append(response["status"])


DIG = Script(questions=(calls("dig", Call(name="dig", arguments={"where": "here"})), *SCRIPT.questions))


async def _cancel(room: Room, asking: asyncio.Task[Any] | None = None) -> Any:
    """Cancel the turn: that takes no time, is told once, and afterwards the agent is at rest and can be asked again."""
    at_ms = room.laboratory.simulation.now_ms()
    assert await room.do("cancel_chat", "asked", "enough") is True
    assert await room.do("cancel_chat", "asked") is False
    result = await asking if asking is not None else await room.do("attach", "asked")
    if result.status == "interrupted":
        result = await room.do("attach", "asked", None, first=result.next_event)
    assert (result.status, result.reason) == ("aborted", "cancelled"), result
    assert "enough" in result.error
    assert await room.do("wait_until_stable", 1_000) is True
    assert room.laboratory.simulation.now_ms() - at_ms < 2_000
    assert (await room.do("save_messages", "words")).ok
    assert await room.do("cancel_chat", "unknown") is False
    return result


def test_a_message_that_waits_for_quiet_can_be_cancelled() -> None:
    """The model is not asked, and nothing of the message stays (C-1210)."""

    async def story(room: Room) -> None:
        first = room.soon("chat", "words 0", request_id="first")
        await asyncio.sleep(0.5)
        asking = room.soon("chat", "words 1", request_id="asked")
        assert (await first).ok
        await asyncio.sleep(1)
        await _cancel(room, asking)
        assert await room.roles() == "uaua"

    visit(Digger, story, pace=Pace(first_ms=2_000))
    assert len(Outside.provider.log()) == 2


def test_a_turn_can_be_cancelled_while_it_recovers_from_a_stall() -> None:
    """In the author's hook, or in the pause before the next attempt: none follows (C-1149, C-1199, C-1200, C-1202)."""

    async def story(room: Room) -> None:
        asking = room.soon("chat", "sum", request_id="asked")
        await room.until(lambda: len(Outside.provider.log()) == 2)
        await asyncio.sleep(10)
        result = await _cancel(room, asking)
        assert outcomes(result.message) == [("output-available", text) for text in "234"]

    visit(Digger, story, plan=FaultPlan.at({2: STALL}))
    assert len(Outside.provider.log()) == 3


def test_a_turn_can_be_cancelled_while_it_recovers_from_a_death() -> None:
    """The next life is asked, before it has done anything about the turn (C-0900, C-1201)."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await room.until(lambda: len(Outside.provider.log()) == 1)
        room.kill()
        await asyncio.sleep(10)
        await _cancel(room)

    visit(Digger, story, pace=SLOW)
    assert len(Outside.provider.log()) == 2


def test_a_turn_can_be_cancelled_while_the_author_hears_of_its_error() -> None:
    """It ends once: as cancelled, although it was about to fail (C-1213)."""
    Digger.heard.clear()

    async def story(room: Room) -> None:
        asking = room.soon("chat", "sum", request_id="asked")
        await asyncio.sleep(10)
        await room.do("cancel_chat", "asked", "enough")
        assert (await asking).status == "aborted"
        await asyncio.sleep(100)
        assert await room.is_("aborted")

    visit(Broken, story)
    assert Digger.heard == ["aborted"]


class Broken(Digger):
    """Its code raises when the model is to be asked."""

    def get_model_settings(self) -> dict[str, Any] | None:
        """Fail."""
        raise RuntimeError("no settings today")


@pytest.mark.parametrize("dies", [False, True])
def test_the_tools_of_a_cancelled_turn_are_stopped_also_by_a_later_life(dies: bool) -> None:
    """Their runs end as aborted, the transcript says that they had begun, and nothing of them happens later (W-40, C-1211)."""

    async def story(room: Room) -> None:
        listener = Listener()
        asking = room.soon("chat", "dig", listener, request_id="asked")
        await room.until(lambda: Outside.effects["begun", "here"])
        if dies:
            room.kill()
            await asyncio.sleep(10)
        result = await _cancel(room, asking)
        (outcome,) = outcomes(result.message)
        assert outcome[0] == "output-error"
        assert "It had started" in outcome[1]
        runs = room.laboratory.supervisors[-1].view.runs.values()
        assert [str(run.status) for run in runs] == ["aborted"]
        await asyncio.sleep(100)

    visit(Digger, story, DIG)
    assert Outside.effects["begun", "here"] == 1
    assert not Outside.effects["done", "here"]


def test_a_cancellation_holds_although_the_process_dies_at_it() -> None:
    """It was durable when it was acknowledged: the next life ends the turn, with its tools (W-40)."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "dig", request_id="asked")
        await room.until(lambda: Outside.effects["begun", "here"])
        assert await room.do("cancel_chat", "asked") is True
        room.kill()
        assert (await room.do("attach", "asked")).status == "aborted"
        await asyncio.sleep(100)

    visit(Digger, story, DIG)
    assert not Outside.effects["done", "here"]


def test_all_turns_can_be_cancelled_at_once() -> None:
    """Those that wait never begin, of those nobody hears; what the running one has said stays (C-1209, C-1211, C-1212, C-1213)."""
    Digger.heard.clear()

    async def story(room: Room) -> None:
        asked = [await room.do("submit_messages", "sum", request_id=f"r{number}") for number in range(3)]
        await room.until(lambda: len(Outside.provider.log()) == 2)
        assert await room.do("cancel_all_chats", "closing time") == 3
        ended = [await room.do("attach", each["request_id"]) for each in asked]
        assert [each.status for each in ended] == ["aborted"] * 3
        assert outcomes(ended[0].message)[:3] == [("output-available", text) for text in "234"]
        assert await room.do("cancel_all_chats") == 0
        assert (await room.do("chat", "words", request_id="late")).ok
        assert await room.do("cancel_chat", "late") is False
        assert await room.is_("completed", "late")
        await room.sleep()
        assert await room.roles() == "uaua"

    visit(Digger, story, pace=SLOW)
    assert Digger.heard == ["aborted", "completed"]
