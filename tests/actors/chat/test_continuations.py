"""Going on with the newest answer: in the same message, after what is there, through the same deaths as any other turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import client_tool, tool
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, texts, visit, visiting

ERROR = Fault(
    kind=FaultKind.ERROR, event=3, type="invalid_request_error", code="context_length_exceeded", message="too long"
)
ONLY_WORDS = "Only words: 0 results.\nThat is all. ∎"


@pytest.mark.shows(chat_recovery="C-0704 C-1128 C-1157 C-1158")
def test_without_an_answer_there_is_nothing_to_go_on_with() -> None:
    """Skipped: in an empty conversation, after a message of the user, and the model is not asked (C-1157, C-1158)."""

    async def story(room: Room) -> None:
        for messages in ([], ["hello"]):
            for message in messages:
                await room.do("add_messages", message)
            result, listener = await room.follow("continue_last_turn")
            assert (result.status, result.reason, result.message) == ("skipped", "no_answer", None)
            assert listener.ends == ["on_error"]
        assert await room.roles() == "u"

    visit(Adder, story)
    assert not Outside.provider.log()


@pytest.mark.shows(chat_recovery="C-1127 C-1156 C-1159 C-1160 C-1162 C-1165 C-1268 C-1300 W-45")
@visiting(Adder, plan=FaultPlan.at({1: ERROR}))
async def test_an_answer_that_broke_off_is_gone_on_with_in_the_same_message(room: Room, /) -> None:
    """No message of the user, the same id, no text twice, and what was known of it stays (C-1156, C-1159…C-1162, C-1165, C-1268,
    C-1300)."""
    failed = await room.do("chat", "words", metadata={"mood": "calm"})
    assert failed.status == "error"
    assert 0 < len(failed.text) < len(ONLY_WORDS)
    result, listener = await room.follow("continue_last_turn", request_id="more")
    assert (result.status, result.text) == ("completed", ONLY_WORDS)
    assert listener.heard[1] == ("on_event", {"type": "start", "messageId": failed.message["id"]})
    told = await room.do("inspect_turn", "more")
    assert (told["trigger"], told["status"], told["message_id"]) == ("continue", "completed", failed.message["id"])
    await room.sleep()
    (_, kept) = await room.do("get_messages")
    assert kept["id"] == failed.message["id"]
    assert kept["metadata"] == {"turn": {"mood": "calm"}}
    assert texts(kept) == [failed.text, ONLY_WORDS.removeprefix(failed.text)]


def test_a_continuation_that_says_nothing_leaves_the_answer_as_it_is() -> None:
    """It failed before its first word (C-1264, C-1267)."""

    async def story(room: Room) -> None:
        first = await room.do("chat", "words")
        failed = await room.do("continue_last_turn")
        assert failed.status == "error"
        await room.sleep()
        assert (await room.do("get_messages"))[1] == first.message

    refused = Fault(kind=FaultKind.STATUS, status=401, type="invalid_request_error")
    visit(Adder, story, plan=FaultPlan.at({2: refused}))


@pytest.mark.shows(chat_recovery="C-1089 C-1166 C-1266 C-1267 W-36")
@visiting(Adder, SCRIPT, pace=SLOW)
async def test_a_continuation_that_is_interrupted_is_recovered(room: Room, /) -> None:
    """By a death, with tools of its own: the answer before it stays, and what was said is not said again (C-1161, C-1166, C-1266)."""
    begun = {"id": "begun", "role": "assistant", "parts": [_done("Well. ")]}
    await room.do("add_messages", ["the sum, please", begun])
    asking = room.soon("continue_last_turn", request_id="asked", follow=False)
    await room.until(lambda: len(Outside.provider.log()) == 2)
    await asyncio.sleep(0.6)
    room.kill()
    assert (await asking).status == "interrupted"
    result = await room.do("attach", "asked")
    assert result.ok
    assert result.message["id"] == "begun"
    assert texts(result.message)[0] == "Well. "
    assert outcomes(result.message)[:3] == [("output-available", text) for text in "234"]
    assert "".join(texts(result.message)).count("Let me add first. ") == 1
    assert set(Outside.effects.values()) == {1}
    assert (await room.do("inspect_turn", "asked"))["attempt"] == 2


@pytest.mark.shows(chat_recovery="C-0718 C-0719 C-1139")
@pytest.mark.parametrize("verb", ["chat", "save_messages"])
@visiting(Adder, pace=SLOW)
async def test_whoever_asked_the_next_turn_builds_on_what_was_recovered(room: Room, /, verb: str) -> None:
    """A saved message is recovered like a question, by the next life and once (C-0718, C-0719, C-1139)."""
    asking = room.soon(verb, "sum", request_id="asked")
    await room.until(lambda: len(Outside.provider.log()) == 2)
    room.kill()
    result = await asking
    assert (result.status, result.text) == ("completed", WHOLE)
    assert (await room.do("inspect_turn", "asked"))["attempt"] == 2
    assert set(Outside.effects.values()) == {1}
    assert (await room.do("chat", "words")).ok
    sent = [each["content"] for each in Outside.provider.log()[-1].body["messages"] if each["role"] == "assistant"]
    assert "Let me add first. " in sent
    assert await room.roles() == "uaua"


def _done(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "state": "done"}


@pytest.mark.shows(chat_recovery="C-1164 C-1293", transport_recovery="21")
def test_new_thoughts_of_a_continuation_are_parts_of_their_own() -> None:
    """A thought that is over is not added to, and half a thought is thought anew (C-1164, case 21)."""
    thinking = Script(
        questions=(
            ScriptedQuestion(
                asks="think",
                rounds=(
                    Round(
                        thinks="Once more, at length.", calls=(ScriptedCall(name="add", arguments={"a": 1, "b": 1}),)
                    ),
                ),
            ),
        )
    )

    async def story(room: Room) -> None:
        earlier = {"type": "reasoning", "text": "An old thought.", "state": "done"}
        await room.do("add_messages", ["think", {"id": "old", "role": "assistant", "parts": [earlier, _done("Hm. ")]}])
        result = await room.do("continue_last_turn")
        assert result.ok
        thoughts = [part["text"] for part in result.message["parts"] if part["type"] == "reasoning"]
        assert thoughts == ["An old thought.", "Once more, at length."]

    visit(Adder, story, thinking, plan=FaultPlan.at({1: Fault(kind=FaultKind.RESET, event=2)}))
    assert len(Outside.provider.log()) == 3, "two for the thought, and one after its call"


class Asker(Adder):
    """Has a tool of its client's, and one that must not be run by accident."""

    def tools(self) -> list[Any]:
        """The question."""
        return [client_tool("ask_user", description="Ask.", parameters={"type": "object", "properties": {}})]

    @tool
    async def launch(self, what: str) -> str:
        """Launch something."""
        Outside.effects["launch", what] += 1
        return "launched"


def _call(name: str, call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": f"tool-{name}", "toolCallId": call_id, "state": "input-available", "input": {"what": "it"}, **more}


ASK = Script(questions=(calls("ask", ScriptedCall(name="ask_user")), ScriptedQuestion(asks="go", concludes="Gone")))


@pytest.mark.shows(chat_recovery="C-1167 C-1169 C-1170")
@visiting(Asker, ASK)
async def test_a_call_that_an_earlier_answer_left_open_is_settled_and_not_run(room: Room, /) -> None:
    """A server's call is an error now, whatever older ones wait for; the client's question is still asked (C-1167…C-1170)."""
    older = {"id": "older", "role": "assistant", "parts": [_call("ask_user", "c0")]}
    leaf = {"id": "leaf", "role": "assistant", "parts": [_call("launch", "c1"), _call("ask_user", "c2")]}
    await room.do("add_messages", ["go", older, "go on", leaf])
    asking = room.soon("continue_last_turn", request_id="asked", follow=True)
    await room.until(lambda: room.is_("parked"))
    assert await room.do("has_pending_interaction")
    assert not Outside.provider.log()
    assert not await room.do("resolve_tool_call", "c1", "no")
    assert await room.do("resolve_tool_call", "c2", "blue")
    result = await asking
    assert result.ok
    states = outcomes(result.message)
    assert [state for state, _ in states] == ["output-error", "output-available"]
    assert "interrupted before a result" in states[0][1]
    assert not Outside.effects
    assert (await room.do("continue_last_turn")).ok
    await room.sleep()
    assert [state for state, _ in outcomes((await room.do("get_messages"))[1])] == ["output-error"]


@pytest.mark.shows(chat_recovery="C-1168")
@visiting(Asker, ASK)
async def test_an_answer_that_waits_for_a_person_goes_on_by_itself_and_not_twice(room: Room, /) -> None:
    """A continuation of it is skipped; the question stays open, and its answer is taken once (C-1168)."""
    await room.do("submit_messages", "ask", request_id="asked")
    await room.until(lambda: room.is_("parked"))
    skipped = await room.do("continue_last_turn")
    assert (skipped.status, skipped.reason) == ("skipped", "awaiting_client")
    (call_id,) = [part["toolCallId"] for part in (await room.do("get_messages"))[1]["parts"] if "toolCallId" in part]
    assert await room.do("resolve_tool_call", call_id, "blue")
    result = await room.do("attach", "asked")
    assert result.ok
    assert not await room.do("resolve_tool_call", call_id, "red")
    await room.sleep()
    assert (await room.do("get_messages"))[1]["parts"] == result.message["parts"]
