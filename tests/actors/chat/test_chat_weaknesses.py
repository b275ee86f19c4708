"""The weaknesses of the chat recovery that we answer (spec §13), those that no other test shows to be absent."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors import KillPoint, client_tool, tool
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Listener, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, visit, visiting
from tests.actors.chat.talk import risky
from tests.kit import Death

STALL = Fault(kind=FaultKind.STALL, event=2)


class Slow(Adder):
    """Its hook takes ten seconds, and a person may take twenty."""

    asked: ClassVar[list[Any]] = []
    chat_recovery: ClassVar[Any] = {"parked_deadline_ms": 20_000}

    def tools(self) -> list[Any]:
        """A question, an act that has to be allowed, and the sum."""
        question = client_tool("ask_user", "Ask.", {"type": "object", "properties": {}})
        return [question, risky, *super().tools()]

    async def on_chat_recovery(self, context: Any) -> dict[str, bool] | None:
        """Think about it."""
        self.asked.append(context)
        await asyncio.sleep(10)
        return None

    @tool
    async def ponder(self) -> str:
        """Think for longer than anybody may be silent in a recovery."""
        await asyncio.sleep(400)
        return "pondered"


MORE = Script(
    questions=(
        calls("risk", ScriptedCall(name="risky", arguments={"what": "it"})),
        calls("ask", ScriptedCall(name="ask_user")),
        calls("ponder", ScriptedCall(name="ponder")),
        ScriptedQuestion(asks="words", concludes="Only words"),
    )
)


async def _parked(room: Room, question: str) -> str:
    await room.do("submit_messages", question, request_id="asked")
    await room.until(lambda: room.is_("parked"))
    parts = (await room.do("get_messages"))[-1]["parts"]
    return str(next(part["toolCallId"] for part in parts if "toolCallId" in part))


@pytest.mark.shows(chat_recovery="W-03 W-04")
def test_w03_and_w04_a_stall_of_a_recovery_ends_neither_a_submission_nor_a_run() -> None:
    """The row goes on being the turn's, through stall after stall, and its incident is gone with its end."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        run = await room.client.run(Adder, "sum", run_id="one")
        assert run.output == WHOLE
        await room.until(lambda: room.is_("completed"))
        told = await room.do("inspect_turn", "asked")
        assert (told["incident"], told["error"], told["attempt"] > 1) == (None, "", True)

    visit(Adder, story, SCRIPT, plan=FaultPlan.at({1: STALL, 2: STALL, 3: STALL}))
    assert set(Outside.effects.values()) == {2}


@pytest.mark.shows(chat_recovery="W-15")
def test_w15_what_was_allowed_is_done_once_although_the_process_dies_at_the_word() -> None:
    """The permission is durable before it is acknowledged, and it stays until the act is done."""

    async def story(room: Room) -> None:
        call_id = await _parked(room, "risk")
        assert await room.do("respond_to_approval", call_id, True) is True
        room.kill()
        assert await room.do("respond_to_approval", call_id, False) is False
        await asyncio.sleep(11)
        await room.until(lambda: room.is_("completed"))
        result = await room.do("attach", "asked")
        assert outcomes(result.message) == [("output-available", "did it")]

    visit(Slow, story, MORE)
    assert Outside.effects["risky", "it"] == 1


@pytest.mark.shows(chat_recovery="C-1038 C-1048 C-1307 W-18")
def test_w18_a_second_death_in_the_middle_of_a_recovery_loses_no_answer() -> None:
    """Nor a third: what a recovery has begun is taken up by the next one."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        await room.until(lambda: room.is_("completed"))
        assert (await room.do("attach", "asked")).text == WHOLE
        assert (await room.do("inspect_turn", "asked"))["attempt"] == 4

    visit(Adder, story, kill_when=Death(KillPoint.MID_STREAM, of="request", times=3))
    assert set(Outside.effects.values()) == {1}


@pytest.mark.shows(chat_recovery="C-0733 C-1098 C-1105 W-19 W-20 W-44")
def test_w19_w20_and_w44_a_slow_recovery_is_asked_about_once_and_delays_no_call() -> None:
    """The agent is up and answers while its hook still thinks; the hook is called once for each death."""
    Slow.asked.clear()

    async def story(room: Room) -> None:
        await room.do("submit_messages", "words", request_id="asked")
        await room.until(lambda: room.is_("running"))
        room.kill()
        await asyncio.sleep(5)
        at_ms = room.laboratory.simulation.now_ms()
        assert await room.is_("running")
        assert await room.roles() == "u"
        assert room.laboratory.simulation.now_ms() - at_ms < 500
        assert len(Slow.asked) == 1
        await asyncio.sleep(5)
        await room.until(lambda: room.is_("completed"))

    visit(Slow, story, MORE, pace=SLOW)
    assert len(Slow.asked) == 1


@pytest.mark.shows(chat_recovery="C-1087 W-22")
@visiting(Adder, pace=SLOW)
async def test_w22_an_interruption_says_what_comes_next_and_where_to_go_on(room: Room, /) -> None:
    """Its cause, its incident, its message, and the number from which the rest is followed without a hole."""
    listener = Listener()
    asking = room.soon("chat", "words", listener, request_id="asked")
    await room.until(lambda: "text-delta" in listener.types)
    room.kill()
    result = await asking
    info = listener.heard[-1][1]
    assert (info.request_id, info.outcome, info.cause, info.attempt) == ("asked", "scheduled", "process_lost", 1)
    assert (info.message_id, bool(info.incident_id)) == ("asked-answer", True)
    assert info.text == result.text != ""
    rest = Listener()
    whole = await room.do("attach", "asked", rest, first=info.next_event)
    assert whole.ok
    assert whole.text.startswith(info.text)
    assert info.next_event + len(rest.types) + 1 == whole.next_event


@pytest.mark.shows(chat_recovery="C-0797 C-0805 W-28")
@pytest.mark.parametrize("is_awake", [True, False])
@visiting(Slow, MORE)
async def test_w28_a_person_may_be_given_so_much_time_and_no_more(room: Room, /, is_awake: bool) -> None:
    """Twenty seconds here: then the turn ends in words, whether the agent was awake or asleep, and an answer comes too late."""
    call_id = await _parked(room, "ask")
    for _ in range(13 if is_awake else 1):
        await asyncio.sleep(1.5)
        assert await room.do("has_pending_interaction")
    await asyncio.sleep(1 if is_awake else 20)
    assert await room.do("resolve_tool_call", call_id, "blue") is False
    result = await room.do("attach", "asked")
    assert (result.status, result.reason) == ("error", "awaiting_client_deadline")
    assert "Nobody has answered" in result.error
    assert [state for state, _ in outcomes(result.message)] == ["output-error"]
    assert await room.do("wait_until_stable", 1_000) is True
    assert (await room.do("chat", "words")).ok


@pytest.mark.parametrize("is_answered", [True, False])
def test_w28_each_question_of_a_turn_has_a_time_of_its_own(is_answered: bool) -> None:
    """Twenty seconds from when it was asked: what was left of the time for the question before it is over says nothing."""

    async def story(room: Room) -> None:
        first = await _parked(room, "twice")
        for _ in range(10):
            await asyncio.sleep(1.5)
            assert await room.do("has_pending_interaction")
        assert await room.do("resolve_tool_call", first, "blue") is True
        await room.until(lambda: room.is_("parked"))
        for _ in range(12 if is_answered else 14):
            await asyncio.sleep(1.5)
            await room.do("has_pending_interaction")
        second = (await room.do("get_messages"))[-1]["parts"][-1]["toolCallId"]
        assert await room.do("resolve_tool_call", second, "large") is is_answered
        result = await room.do("attach", "asked")
        assert result.ok is is_answered
        assert outcomes(result.message)[0] == ("output-available", "blue")
        assert is_answered or result.reason == "awaiting_client_deadline"

    ask_twice = ScriptedQuestion(
        asks="twice", rounds=tuple(Round(calls=(ScriptedCall(name="ask_user", arguments={"n": n}),)) for n in (1, 2))
    )
    visit(Slow, story, Script(questions=(ask_twice,)))


@pytest.mark.shows(chat_recovery="C-1061 W-37")
@visiting(Slow, MORE, pace=SLOW)
async def test_w37_a_turn_that_was_healthy_for_long_is_recovered_like_any_other(room: Room, /) -> None:
    """How long ago it was accepted says nothing: a death after many minutes costs what a death costs."""
    await room.do("submit_messages", "ponder", request_id="asked")
    await room.until(lambda: len(Outside.provider.log()) == 1)
    await asyncio.sleep(400)
    await room.until(lambda: len(Outside.provider.log()) == 2)
    room.kill()
    await asyncio.sleep(11)
    await room.until(lambda: room.is_("completed"))
    told = await room.do("inspect_turn", "asked")
    assert told["attempt"] == 2
    assert told["ended_at_ms"] - told["accepted_at_ms"] > 400_000
