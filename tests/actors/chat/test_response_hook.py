"""What the author hears of turns that have ended: of each once, in order, with the message as it is kept, and in nobody's way."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from perdure.actors import exposed, tool
from perdure.ledger import BadRequest
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder
from tests.actors.chat.room import Room, calls, visit

ERROR = Fault(
    kind=FaultKind.ERROR, event=3, type="invalid_request_error", code="invalid_prompt", message="a wrong word"
)


class Attentive(Adder):
    """Writes down what it is told, and whether it stood in the transcript by then."""

    heard: ClassVar[list[dict[str, Any]]] = []

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Remember."""
        kept = await self.get_messages()
        self.heard.append({**response, "is_kept": response["message"] in (*kept, None)})

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """Leave the words as they are."""
        return None

    @tool
    async def trip(self) -> str:
        """Stumble over the author's own feet."""
        raise LookupError("where was it")


def _heard() -> list[tuple[str, str]]:
    return [(each["request_id"], each["status"]) for each in Attentive.heard]


class Raising(Attentive):
    """Its hook raises, although it has heard."""

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Fail."""
        await super().on_chat_response(response)
        raise RuntimeError("the hook is broken")


@pytest.mark.shows(chat_recovery="C-1231 C-1232")
def test_a_hook_that_raises_changes_no_end() -> None:
    """Neither a good one nor a bad one (C-1231, C-1232)."""
    Attentive.heard.clear()

    async def story(room: Room) -> None:
        assert (await room.do("chat", "words", request_id="one")).ok
        failed = await room.do("chat", "words", request_id="two")
        assert (failed.status, "a wrong word" in failed.error) == ("error", True)
        assert (await room.do("chat", "words", request_id="three")).ok

    visit(Raising, story, plan=FaultPlan.at({2: ERROR}))
    assert _heard() == [("one", "completed"), ("two", "error"), ("three", "completed")]


class Talkative(Attentive):
    """Asks itself further questions when it has answered one, and waits for the answers."""

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Save two more, from the first; wait until everything is at rest, from the last."""
        await super().on_chat_response(response)
        if response["request_id"] == "first":
            for name in ("second", "third"):
                assert (await self.save_messages("words", request_id=name)).ok
        elif response["request_id"] == "third":
            assert await self.wait_until_stable(1_000)
            assert (await self.chat("words", None, request_id="fourth")).ok


@pytest.mark.shows(chat_recovery="C-1234 C-1236")
def test_the_hook_may_ask_for_turns_and_wait_for_them() -> None:
    """No turn waits for the hook, and the hook hears of all ends in their order (C-1228, C-1234…C-1236)."""
    Attentive.heard.clear()

    async def story(room: Room) -> None:
        await room.do("chat", "words", request_id="first")
        await room.until(lambda: len(Attentive.heard) == 4)
        assert (await room.do("chat", "words", request_id="fifth")).ok
        await room.until(lambda: len(Attentive.heard) == 5)
        await room.sleep()
        assert await room.roles() == "ua" * 5

    visit(Talkative, story)
    assert [name for name, _ in _heard()] == ["first", "second", "third", "fourth", "fifth"]


class Stepping(Attentive):
    """Has a tool that asks for a turn of its own agent, and one that only leaves a message."""

    @tool
    async def ask_myself(self) -> str:
        """Wait for another turn, which cannot be: it would wait for this one."""
        return (await self.save_messages("words")).text

    @tool
    async def clear_myself(self) -> str:
        """Forget the conversation in the middle of it, which would end this turn first."""
        await self.clear()
        return "cleared"

    @exposed
    async def inside(self, method: str, words: str) -> None:
        """Wait for a turn in a transaction, with which it would begin."""
        with self.transaction():
            await getattr(self, method)(words)

    @tool
    async def leave_word(self) -> str:
        """Leave a message and a turn for later."""
        await self.add_messages({"id": "note", "role": "system", "parts": [{"type": "text", "text": "a note"}]})
        return str((await self.submit_messages("words", request_id="later"))["status"])


SELF = Script(
    questions=(
        calls("ask", *(ScriptedCall(name=each) for each in ("ask_myself", "leave_word", "trip", "clear_myself"))),
        ScriptedQuestion(asks="words", concludes="Only words"),
    )
)


@pytest.mark.shows(chat_recovery="C-0717")
def test_a_turn_never_waits_for_its_own_agents_next_turn() -> None:
    """It is told so at once, and what may be done instead is done (C-1204, C-1206)."""
    Attentive.heard.clear()

    async def story(room: Room) -> None:
        result = await room.do("chat", "ask", request_id="one")
        assert result.ok
        told = [part.get("output", part.get("errorText")) for part in result.message["parts"] if "toolCallId" in part]
        assert "cannot wait for another turn" in told[0]
        assert told[1] == "accepted"
        assert "where was it" in told[2]
        assert "nor for its own end" in told[3]
        for method in ("save_messages", "chat"):
            with pytest.raises(BadRequest, match="submit_messages"):
                await room.do("inside", method, "words")
        assert (await room.do("attach", "later")).ok
        assert await room.roles() == "usaua"

    visit(Stepping, story, SELF)
    assert _heard() == [("one", "completed"), ("later", "completed")]


def test_a_run_of_a_chat_is_told_like_any_turn() -> None:
    """With the text of the answer as the run's output (C-0871, C-1227)."""
    Attentive.heard.clear()

    async def story(room: Room) -> None:
        assert (await room.client.run(Attentive, "sum", run_id="one")).output == WHOLE
        failed = await room.client.run(Attentive, "words", run_id="two")
        assert (failed.status, "a wrong word" in str(failed.error)) == ("error", True)

    visit(Attentive, story, SCRIPT, plan=FaultPlan.at({4: ERROR}))
    assert _heard() == [("one", "completed"), ("two", "error")]
