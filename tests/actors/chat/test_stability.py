"""When a chat is at rest, when it waits for a person, and that waiting costs no patience, however often its process dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import ChatRecovery, exposed, tool
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import SCRIPT, Adder, Listener, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, visiting

QUESTION = {"name": "ask_user", "description": "Ask.", "parameters": {"type": "object", "properties": {}}}
ALL = Script(
    questions=(
        calls("a question", ScriptedCall(name="ask_user")),
        calls("both at once", ScriptedCall(name="ask_user"), ScriptedCall(name="dig")),
        calls("a risk", ScriptedCall(name="risky")),
        *SCRIPT.questions,
    )
)


@tool
async def dig() -> str:
    """Dig for two minutes; a run of its own."""
    Outside.effects["dig",] += 1
    await asyncio.sleep(120)
    return "dug"


@tool(needs_approval=True)
async def risky() -> str:
    """Do something that somebody has to allow."""
    return "done"


class Resting(Adder):
    """Can be asked whether it is at rest. It has hardly any patience."""

    chat_recovery = ChatRecovery(max_attempts=1, no_progress_timeout_ms=60_000)

    @exposed
    async def rests(self, timeout_ms: float | None = None) -> bool:
        """Whether it comes to rest in time."""
        return await self.wait_until_stable(timeout_ms)

    def tools(self) -> list[Any]:
        """Two functions."""
        return [dig, risky]


async def asked(room: Room, question: str) -> str:
    """Ask something to which the model asks back; the id of its call."""
    listener = Listener()
    watching = room.soon("chat", question, listener, request_id="asked", client_tools=[QUESTION])
    await room.until(lambda: "tool-input-available" in listener.types)
    events = [each[1] for each in listener.heard if each[0] == "on_event"]
    watching.cancel()
    return next(event["toolCallId"] for event in events if event["type"] == "tool-input-available")


@pytest.mark.shows(chat_recovery="C-0630 C-0631 C-1148 C-1152 C-1187 C-1191")
@visiting(Resting, ALL, pace=SLOW)
async def test_a_chat_is_at_rest_when_no_turn_is_open(room: Room, /) -> None:
    """At once if there is none, else after the last one; in time or not at all (C-0630, C-0631)."""
    assert await room.do("rests", 0) is True
    for number in range(2):
        await room.do("submit_messages", f"words {number}")
    assert await room.do("rests", 0) is False
    assert await room.do("rests", 10) is False
    assert await room.do("rests") is True
    assert {turn["status"] for turn in await room.do("list_turns")} == {"completed"}


@pytest.mark.shows(chat_recovery="C-0632 C-0634 C-0635")
@pytest.mark.parametrize("question", ["a question", "a risk"])
@visiting(Resting, ALL)
async def test_a_question_to_a_person_is_seen_until_it_is_answered(room: Room, /, question: str) -> None:
    """A tool of the client's, or an approval; the chat is not at rest as long as it waits (C-0632, C-0634, C-0635)."""
    assert await room.do("has_pending_interaction") is False
    call_id = await asked(room, question)
    await room.until(lambda: room.is_("parked"))
    assert await room.do("has_pending_interaction") is True
    assert await room.do("rests", 1_000) is False
    answer = ("resolve_tool_call", "blue") if question == "a question" else ("respond_to_approval", True)
    assert await room.do(answer[0], call_id, answer[1]) is True
    assert await room.do("rests") is True
    assert await room.do("has_pending_interaction") is False
    ended = await room.do("attach", "asked")
    assert [state for state, _ in outcomes(ended.message)] == ["output-available"]


@pytest.mark.shows(chat_recovery="C-0633 C-0636 C-0637 C-0638")
@visiting(Resting, ALL)
async def test_a_tool_at_work_is_nobodys_question(room: Room, /) -> None:
    """What runs is waited for by the turn. A question beside it is seen before the turn is put aside, and gone when it is answered
    (C-0633, C-0636 – C-0638)."""
    call_id = await asked(room, "both at once")
    await room.until(lambda: Outside.effects["dig",])
    assert await room.is_("running")
    assert await room.do("has_pending_interaction") is True
    assert await room.do("resolve_tool_call", call_id, "blue") is True
    assert await room.do("resolve_tool_call", call_id, "red") is False
    assert await room.do("has_pending_interaction") is False
    assert await room.is_("running")
    ended = await room.do("attach", "asked")
    assert outcomes(ended.message) == [("output-available", "blue"), ("output-available", "dug")]


@pytest.mark.shows(chat_recovery="C-0580 C-0601 C-0743 C-0744 C-0807 C-0991 C-1002 C-1051 W-09 W-12")
@pytest.mark.parametrize(
    ("question", "answer", "output"),
    [("a question", ("resolve_tool_call", "blue"), "blue"), ("a risk", ("respond_to_approval", True), "done")],
)
@visiting(Resting, ALL)
async def test_a_parked_turn_outlives_any_number_of_deaths_and_knows_its_clients_tools(
    room: Room, /, question: str, answer: tuple[Any, ...], output: str
) -> None:
    """It is not taken up before it is answered, so nothing is asked twice and no patience is spent (C-0580, C-0601, C-0602, C-0743)."""
    call_id = await asked(room, question)
    await room.until(lambda: room.is_("parked"))
    for _ in range(3):
        room.kill()
        await asyncio.sleep(90)
        assert await room.do("has_pending_interaction") is True
    told = await room.do("inspect_turn", "asked")
    assert (told["status"], told["attempt"], told["incident"]) == ("parked", 1, None)
    assert len(Outside.provider.log()) == 1
    assert await room.do(answer[0], call_id, answer[1]) is True
    assert (await room.do("inspect_turn", "asked"))["status"] != "error"
    ended = await room.do("attach", "asked")
    while ended.status == "interrupted":
        ended = await room.do("attach", "asked", first=ended.next_event)
    assert ended.ok
    assert outcomes(ended.message) == [("output-available", output)]


@pytest.mark.shows(chat_recovery="C-0602 C-1107 C-1109")
@visiting(Resting, ALL)
async def test_deaths_while_a_person_is_waited_for_cost_no_patience(room: Room, /) -> None:
    """Also when a tool is at work beside the question; it goes on, and is not begun again (C-0601, C-0602)."""
    call_id = await asked(room, "both at once")
    await room.until(lambda: Outside.effects["dig",])
    for _ in range(3):
        room.kill()
        await asyncio.sleep(35)
        told = await room.do("inspect_turn", "asked")
        assert (told["status"], told["incident"]["attempt"]) == ("running", 1)
    await room.until(lambda: room.is_("parked"))
    assert await room.do("resolve_tool_call", call_id, "blue") is True
    await room.until(lambda: room.is_("completed"))
    ended = await room.do("attach", "asked", first=10_000)
    assert outcomes(ended.message) == [("output-available", "blue"), ("output-available", "dug")]
    assert Outside.effects["dig",] == 1
