"""The transcript and what is put into it: by turns, beside turns, twice, and while a turn is played."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors import ActiveTurn, client_tool, exposed, tool
from perdure.ledger import BadRequest
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, texts, visit, visiting


def user(message_id: str, text: str) -> dict[str, Any]:
    """A message of the user."""
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def last_request() -> str:
    """What the model was sent last."""
    return str(Outside.provider.log()[-1].body)


@pytest.mark.shows(chat_recovery="C-0503 C-0504 C-0505 C-0866")
@visiting(Adder, SCRIPT.model_copy(update={"prefill": "restart"}))
async def test_a_message_is_taken_as_it_is_and_once(room: Room, /) -> None:
    """With its own id, and in its place if it is sent again (C-0503 – C-0505)."""
    assert await room.do("get_messages") == []
    mine = user("mine", "words")
    mine["parts"].append({"type": "text", "text": "and more of them"})
    assert (await room.do("chat", mine)).ok
    assert (await room.do("chat", mine)).ok
    first, *answers = await room.do("get_messages")
    assert first == mine
    assert [each["role"] for each in answers] == ["assistant", "assistant"]
    await room.sleep()
    assert await room.do("get_messages") == [first, *answers]


@visiting(Adder)
async def test_a_message_takes_no_other_speakers_place(room: Room, /) -> None:
    """An answer is not written over by a question that was given its id."""
    result = await room.do("chat", "words")
    taken = user(result.message["id"], "words")
    for method in ("chat", "submit_messages", "add_messages"):
        with pytest.raises(BadRequest) as refused:
            await room.do(method, taken)
        assert refused.value.field == "messages[0].id"
    assert (await room.do("get_messages"))[1] == result.message
    assert len(await room.do("list_turns")) == 1


class Careless(Adder):
    """Changes what it is given."""

    @exposed
    async def spoil(self) -> int:
        """Change the messages in place."""
        messages = await self.get_messages()
        messages[0]["parts"][0]["text"] = "spoilt"
        messages.clear()
        return len(await self.get_messages())


@pytest.mark.shows(chat_recovery="C-0507")
@visiting(Careless)
async def test_the_messages_that_an_agent_is_given_are_a_copy(room: Room, /) -> None:
    """Whatever it does to them (C-0507)."""
    await room.do("add_messages", "words")
    assert await room.do("spoil") == 1
    (message,) = await room.do("get_messages")
    assert texts(message) == ["words"]


@pytest.mark.shows(chat_recovery="C-0526 C-0527 C-0528 C-0529 C-0532 C-0533 C-0734")
@visiting(Adder)
async def test_messages_can_be_added_without_a_turn(room: Room, /) -> None:
    """They are there at once, after a sleep, and for the next turn; one of the same id is replaced in its place; none is none
    (C-0526 – C-0529, C-0532, C-0533)."""
    assert await room.do("add_messages", [user("a", "about ducks"), user("b", "about geese")]) == 2
    assert await room.do("add_messages", [user("a", "about swans")]) == 1
    assert await room.do("add_messages", [user("b", "about geese")]) == 1
    assert await room.do("add_messages", []) == 0
    await room.sleep()
    assert await room.do("get_messages") == [user("a", "about swans"), user("b", "about geese")]
    assert Outside.provider.log() == []
    assert (await room.do("chat", "words")).ok
    said = last_request()
    assert 0 < said.index("swans") < said.index("geese") < said.index("words")
    assert "ducks" not in said
    with pytest.raises(BadRequest) as refused:
        await room.do("add_messages", user("x", "words") | {"role": "robot"})
    assert refused.value.field == "messages.role"


@visiting(Adder)
async def test_a_message_that_was_deleted_and_comes_again_is_a_new_one(room: Room, /) -> None:
    await room.do("add_messages", [user("a", "first"), user("b", "second"), user("c", "third")])
    assert await room.do("delete_messages", ["a", "c"]) == 2
    await room.do("add_messages", [user("a", "fourth"), user("c", "fifth")])
    for _ in range(2):
        assert [each["id"] for each in await room.do("get_messages")] == ["b", "a", "c"]
        await room.sleep()


class Noting(Adder):
    """Takes notes in the middle of a turn."""

    @tool
    async def note(self) -> str:
        """Put a message into the transcript."""
        return str(
            await self.add_messages({"id": "noted", "role": "system", "parts": [{"type": "text", "text": "noted"}]})
        )


@pytest.mark.shows(chat_recovery="C-0536 C-0839")
@visiting(Noting, Script(questions=(calls("take notes", ScriptedCall(name="note")),)), pace=SLOW)
async def test_messages_can_be_added_while_a_turn_is_played(room: Room, /) -> None:
    """By the turn itself and by others, without a wait; they are durable, and stand before its answer (C-0536)."""
    asking = room.soon("chat", "take notes", request_id="asked")
    await room.until(lambda: room.is_("running"))
    assert await room.do("add_messages", user("beside", "by the way")) == 1
    result = await asking
    assert outcomes(result.message) == [("output-available", "1")]
    ids = [message["id"] for message in await room.do("get_messages")]
    assert ids == ["asked-0", "beside", "noted", "asked-answer"]


class Asking(Adder):
    """Has a question for the person."""

    def tools(self) -> list[Any]:
        """The question."""
        return [client_tool("ask_user", description="Ask.", parameters={"type": "object", "properties": {}})]


@pytest.mark.shows(chat_recovery="C-0520")
def test_what_a_client_has_answered_stays_through_later_turns() -> None:
    """In the transcript and in what the model is told (C-0520)."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "a question", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        (call,) = [part for part in (await room.do("get_messages"))[-1]["parts"] if "toolCallId" in part]
        assert await room.do("resolve_tool_call", call["toolCallId"], "ultramarine") is True
        assert (await room.do("attach", "asked")).ok
        for _ in range(2):
            assert (await room.do("chat", "words")).ok
            assert "ultramarine" in last_request()
        answer = (await room.do("get_messages"))[1]
        assert outcomes(answer) == [("output-available", "ultramarine")]

    visit(Asking, story, Script(questions=(calls("a question", ScriptedCall(name="ask_user")), *SCRIPT.questions)))


class Curious(Adder):
    """Looks at the turn that it is playing."""

    seen: ClassVar[list[ActiveTurn | None]] = []

    def get_instructions(self) -> str | None:
        """Remember the turn."""
        self.seen.append(self.active_turn)
        return None

    @exposed
    async def idle(self) -> bool:
        """Whether there is no turn."""
        return self.active_turn is None


@pytest.mark.shows(chat_recovery="C-0539 C-0541 C-0551 C-0552 C-0772 C-0774")
@visiting(Curious)
async def test_the_code_of_an_agent_can_look_at_the_turn_that_is_played(room: Room, /) -> None:
    """Who asked, with what beside the messages, and whether it goes on with an answer (C-0539, C-0541, C-0551, C-0552)."""
    Curious.seen.clear()
    await room.do("chat", "words", request_id="plain")
    await room.do("save_messages", "words", metadata={"language": "de"})
    await room.do("continue_last_turn", metadata={"tone": "kind"})
    told = [(turn.trigger, turn.continuation, turn.metadata) for turn in Curious.seen if turn is not None]
    assert told == [
        ("chat", False, None),
        ("save", False, {"language": "de"}),
        ("continue", True, {"tone": "kind"}),
    ]
    assert Curious.seen[0] is not None
    assert (Curious.seen[0].request_id, Curious.seen[0].attempt, Curious.seen[0].client_tools) == ("plain", 1, None)
    assert await room.do("idle")


@pytest.mark.shows(chat_recovery="C-0549 C-0550")
@visiting(Adder, pace=SLOW)
async def test_a_continuation_can_be_cancelled_and_adds_nothing_more(room: Room, /) -> None:
    """While it waits or while it speaks; the answer that it was to go on with stays (C-0549, C-0550)."""
    first = await room.do("chat", "words")
    speaking = room.soon("continue_last_turn", request_id="speaking")
    await room.until(lambda: room.is_("running", "speaking"))
    waiting = room.soon("continue_last_turn", request_id="waiting")
    await room.until(lambda: room.is_("accepted", "waiting"))
    for request_id in ("waiting", "speaking"):
        assert await room.do("cancel_chat", request_id) is True
    assert [(await each).status for each in (speaking, waiting)] == ["aborted", "aborted"]
    assert (await room.do("get_messages"))[1:] == [first.message]
    assert (await room.do("chat", "words")).ok


@pytest.mark.shows(chat_recovery="C-0482 C-0952")
@visiting(Adder, pace=SLOW)
async def test_who_watches_a_conversation_that_is_cleared_is_told_its_end(room: Room, /) -> None:
    """Every follower of what was under way, once, and the next question finds an empty room (C-0482)."""
    assert (await room.do("chat", "words")).ok
    asking = asyncio.ensure_future(room.follow("chat", "sum", request_id="asked"))
    await room.until(lambda: room.is_("running"))
    watching = asyncio.ensure_future(room.follow("attach", "asked"))
    await asyncio.sleep(0.5)
    await room.do("clear")
    for result, listener in (await asking, await watching):
        assert (result.status, listener.ends) == ("aborted", ["on_error"])
    assert await room.roles() == ""
    assert (await room.do("chat", "words")).ok
    assert await room.roles() == "ua"


@pytest.mark.shows(chat_recovery="C-0478 C-0479 C-0525 C-0560 C-0954")
@visiting(Adder, pace=SLOW)
async def test_all_who_watch_a_turn_are_told_the_same(room: Room, /) -> None:
    """Whoever attaches, early or late, has the same events and the same end; a saved message has an audience, too
    (C-0478, C-0479, C-0525, C-0560)."""
    asking = asyncio.ensure_future(room.follow("chat", "sum", request_id="asked"))
    await room.until(lambda: room.is_("running"))
    _, early = await room.follow("attach", "asked")
    result, asker = await asking
    _, late = await room.follow("attach", "asked")
    assert asker.types[-1] == "finish-step"
    assert early.heard[1:] == late.heard[1:] == asker.heard[1:]
    assert (await room.do("get_messages"))[-1] == result.message
    saved = await room.do("save_messages", "words", request_id="saved")
    again, watcher = await room.follow("attach", "saved")
    assert (again, watcher.ends) == (saved, ["on_done"])
