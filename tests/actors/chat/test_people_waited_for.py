"""Turns that wait for a person or a browser: who is waited for, who may answer, how often, and what rests meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors import client_tool, exposed, tool
from perdure.actors.chat.client_answers import UNANSWERED
from perdure.actors.sim_world.simulation import Overdue
from perdure.scenarios.provider.script import Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.room import Room, calls, outcomes, visit, visiting
from tests.actors.chat.talk import NOTHING, risky
from tests.kit import address


class Asker(Adder):
    """Has tools of its client's, one that wants to be allowed, and one that takes its time."""

    def tools(self) -> list[Any]:
        """Two questions and an act."""
        return [client_tool("ask_user", "Ask.", NOTHING), client_tool("locate", "Locate.", NOTHING), risky]

    @tool
    async def ponder(self) -> str:
        """Think for a while, in this very process."""
        await asyncio.sleep(2)
        return "pondered"


class Showing(Asker):
    """Shows what it is saying."""

    @exposed
    async def draft(self) -> Any:
        """The message that is being written."""
        playing = self._perdure_conversation.turns.playing
        return None if playing is None else playing.live.stream.message


ASK = Script(
    questions=(
        calls("ask", ScriptedCall(name="ask_user")),
        calls("risk", ScriptedCall(name="risky", arguments={"what": "it"})),
        calls("both", ScriptedCall(name="ask_user"), ScriptedCall(name="locate"), ScriptedCall(name="ponder")),
        ScriptedQuestion(asks="words", concludes="Only words"),
    )
)


async def _asked(room: Room, question: str, request_id: str = "asked") -> list[str]:
    """Ask, and wait until somebody is waited for; the ids of the calls."""
    await room.do("submit_messages", question, request_id=request_id)
    await room.until(lambda: room.is_("parked", request_id))
    message = next(each for each in await room.do("get_messages") if each["id"] == f"{request_id}-answer")
    return [part["toolCallId"] for part in message["parts"] if "toolCallId" in part]


@pytest.mark.shows(chat_recovery="C-0987 C-0988 C-1150 C-1184 C-1185 C-1186 C-1188 C-1189 C-1190")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("ask", ("resolve_tool_call", "blue")),
        ("risk", ("respond_to_approval", False, "too risky")),
    ],
)
@visiting(Asker, ASK)
async def test_a_person_who_is_waited_for_is_no_rest_until_the_turn_has_gone_on(
    room: Room, /, question: str, answer: tuple[Any, ...]
) -> None:
    """Also when other turns have passed, and after a sleep of the agent; whoever waits, waits for the end (C-1184…C-1190)."""
    (call_id,) = await _asked(room, question)
    assert (await room.do("chat", "words")).ok
    assert await room.do("has_pending_interaction") is True
    assert await room.do("wait_until_stable", 500) is False
    await room.sleep()
    assert await room.do("has_pending_interaction") is True
    waiting = room.soon("wait_until_stable")
    await asyncio.sleep(1)
    assert not waiting.done()
    assert await room.do(answer[0], call_id, *answer[1:]) is True
    assert await waiting is True
    assert await room.is_("completed")
    assert await room.do("has_pending_interaction") is False
    assert (await room.do("inspect_turn", "asked"))["attempt"] == 1


class Considerate(Asker):
    """Waits for a few seconds only, and thinks for longer about what to say then."""

    chat_recovery: ClassVar[Any] = {"parked_deadline_ms": 5_000}
    told: ClassVar[list[str]] = []

    async def on_chat_error(self, error: str, _info: dict[str, Any]) -> str:
        """Kind words."""
        self.told.append(error)
        await asyncio.sleep(10)
        return "Ask again."


def test_a_turn_whose_question_nobody_answers_ends_once_however_long_its_author_thinks_about_the_words() -> None:
    async def story(room: Room) -> None:
        await _asked(room, "ask")
        result = await room.do("attach", "asked", follow=True)
        assert (result.status, result.error, result.reason) == ("error", "Ask again.", "awaiting_client_deadline")

    Considerate.told.clear()
    visit(Considerate, story, ASK)
    assert Considerate.told == [UNANSWERED]


@pytest.mark.shows(chat_recovery="C-1192")
@visiting(Asker, ASK)
async def test_clearing_the_conversation_withdraws_the_question(room: Room, /) -> None:
    """Its turn ends, its answer is not taken any more, and whoever waits for rest has it (C-1192)."""
    (call_id,) = await _asked(room, "ask")
    waiting = room.soon("wait_until_stable")
    following = room.soon("attach", "asked", follow=True)
    await asyncio.sleep(0.5)
    await room.do("clear")
    assert await waiting is True
    assert (await following).status == "aborted"
    assert await room.do("resolve_tool_call", call_id, "blue") is False
    assert await room.do("get_messages") == []
    await room.sleep()
    assert await room.do("list_turns") == []
    assert await room.do("get_messages") == []


@visiting(Asker, ASK)
async def test_the_id_of_a_question_that_was_withdrawn_is_free_again(room: Room, /) -> None:
    """In the same life of the agent."""
    for _ in range(2):
        await _asked(room, "ask")
        await room.do("clear")
    assert (await room.do("chat", "words", request_id="asked")).ok


@pytest.mark.shows(chat_recovery="C-0962 C-0963 C-0989 C-1217 C-1218 C-1220")
@visiting(Asker, ASK)
async def test_the_same_answer_again_is_silent_and_another_one_changes_nothing(room: Room, /) -> None:
    """Neither an event nor a write; after the turn's end neither (C-1217…C-1220)."""
    first, second, _ = await _asked(room, "both")
    before = (await room.do("inspect_turn", "asked"))["events"]
    assert await room.do("resolve_tool_call", first, "blue") is True
    after = (await room.do("inspect_turn", "asked"))["events"]
    assert after == before + 1
    for again in (("blue",), ("red",), (None, "broken")):
        assert await room.do("resolve_tool_call", first, *again) is False
    assert await room.do("respond_to_approval", first, False) is False
    assert (await room.do("inspect_turn", "asked"))["events"] == after
    assert await room.do("resolve_tool_call", second, None, "no signal") is True
    result = await room.do("attach", "asked")
    assert result.ok
    for again in ((None, "no signal"), ("found",)):
        assert await room.do("resolve_tool_call", second, *again) is False
    assert outcomes(result.message)[:2] == [("output-available", "blue"), ("output-error", "no signal")]
    assert (await room.do("attach", "asked")).message == result.message
    assert await room.do("resolve_tool_call", "unknown", "x") is False


@pytest.mark.shows(chat_recovery="W-32")
@visiting(Asker, ASK)
async def test_the_other_turn_of_two_goes_on_with_its_own_answer(room: Room, /) -> None:
    """Two questions of two turns, answered the other way round (C-1185, W-11, W-32)."""
    (one,) = await _asked(room, "ask", "one")
    (two,) = await _asked(room, "ask", "two")
    assert await room.do("resolve_tool_call", two, "second")
    assert outcomes((await room.do("attach", "two")).message) == [("output-available", "second")]
    assert await room.is_("parked", "one")
    assert await room.do("resolve_tool_call", one, "first")
    assert outcomes((await room.do("attach", "one")).message) == [("output-available", "first")]


class Hasty(Showing):
    """Its client answers just when the turn is about to be put aside."""

    @tool
    async def answer_soon(self, steps: int) -> str:
        """Answer the question of this turn so many steps of the loop later."""
        parts = (await self.draft())["parts"]
        call_id = next(part["toolCallId"] for part in parts if part.get("toolName") == "ask_user")
        loop = asyncio.get_running_loop()

        def step(left: int) -> None:
            if left:
                loop.call_soon(step, left - 1)
            else:
                self._perdure_conversation.turns.answers.answer(
                    {"type": "tool-output-available", "toolCallId": call_id, "output": "blue"}
                )

        step(steps)
        return "soon"


@pytest.mark.shows(chat_recovery="C-1153")
def test_an_answer_in_the_very_moment_in_which_its_turn_is_put_aside_is_not_lost() -> None:
    """At whichever step of the loop it comes, the turn goes on."""
    steps = range(2, 6)
    asked = [
        calls(f"q{n}.", ScriptedCall(name="ask_user"), ScriptedCall(name="answer_soon", arguments={"steps": n}))
        for n in steps
    ]

    async def story(room: Room) -> None:
        for number in steps:
            await room.do("submit_messages", f"q{number}.", request_id=f"r{number}")
        assert await room.do("wait_until_stable", 5_000) is True
        assert [await room.is_("completed", f"r{number}") for number in steps] == [True] * len(steps)

    visit(Hasty, story, Script(questions=tuple(asked)))


WAYS: list[tuple[str, str, tuple[Any, ...]]] = [
    ("ask", "resolve_tool_call", ("blue",)),
    ("risk", "respond_to_approval", (True,)),
]


@pytest.mark.parametrize(("question", "answer", "words"), WAYS)
@visiting(Asker, ASK)
async def test_a_turn_that_waits_for_a_person_is_returned_as_parked_and_attach_has_its_end(
    room: Room, /, question: str, answer: str, words: tuple[Any, ...]
) -> None:
    """With what it has said, so that its caller sees which call waits; to attach meanwhile says the same, at once."""
    told = await room.do("chat", question, request_id="asked")
    (call_id,) = [part["toolCallId"] for part in told.message["parts"] if "toolCallId" in part]
    assert (told.status, told.ok) == ("parked", False)
    for first in (0, told.next_event):
        began_s = asyncio.get_running_loop().time()
        again = await room.do("attach", "asked", first=first)
        assert (again.status, again.message) == ("parked", told.message)
        assert asyncio.get_running_loop().time() - began_s < 1
    await room.sleep()
    assert (await room.do("attach", "asked", first=told.next_event)).status == "parked"
    assert await room.do(answer, call_id, *words) is True
    assert (await room.do("attach", "asked", first=told.next_event)).ok


@pytest.mark.parametrize(("question", "answer", "words"), WAYS)
@visiting(Asker, ASK)
async def test_a_caller_that_wants_the_end_waits_for_the_person_too(
    room: Room, /, question: str, answer: str, words: tuple[Any, ...]
) -> None:
    asking = room.soon("chat", question, request_id="asked", follow=True)
    await room.until(lambda: room.is_("parked"))
    await asyncio.sleep(60)
    assert not asking.done()
    (message,) = [each for each in await room.do("get_messages") if each["role"] == "assistant"]
    (call_id,) = [part["toolCallId"] for part in message["parts"] if "toolCallId" in part]
    assert await room.do(answer, call_id, *words) is True
    assert (await asking).ok


@visiting(Asker, ASK)
async def test_a_callback_is_told_that_its_turn_waits_for_a_person(room: Room, /) -> None:
    told, listener = await room.follow("chat", "risk", request_id="asked")
    assert (told.status, listener.ends) == ("parked", ["on_interrupted"])
    info = listener.heard[-1][1]
    assert (info.outcome, info.cause, info.turn_attempt) == ("parked", "person", 1)
    assert (info.message_id, info.next_event) == ("asked-answer", told.next_event)
    assert "tool-approval-request" in listener.types


@visiting(Asker, ASK)
async def test_a_turn_in_which_a_tool_is_at_work_beside_the_question_is_returned_when_only_the_person_is_waited_for(
    room: Room, /
) -> None:
    told = await room.do("chat", "both", request_id="asked")
    assert [state for state, _ in outcomes(told.message)] == [
        "input-available",
        "input-available",
        "output-available",
    ]
    first, second = (part["toolCallId"] for part in told.message["parts"][-3:-1])
    await room.do("resolve_tool_call", first, "one")
    assert (await room.do("attach", "asked")).status == "parked"
    await room.do("resolve_tool_call", second, "two")
    assert (await room.do("attach", "asked")).ok


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("ask", "of ask_user is answered by resolve_tool_call"),
        ("risk", "of risky is answered by respond_to_approval"),
    ],
)
def test_a_simulation_that_cannot_end_says_which_turn_waits_for_which_answer(question: str, words: str) -> None:
    async def story(room: Room) -> None:
        await room.do("chat", question, request_id="asked", follow=True)

    with pytest.raises(Overdue) as overdue:
        visit(Asker, story, ASK, timeout_ms=60_000)
    (told,) = [note for note in overdue.value.__notes__ if "waits for a person" in note]
    assert told.startswith(f"turn asked of {address(Asker, 'somebody')} waits for a person: call call_")
    assert told.endswith(words)


def test_a_handle_in_sync_code_gets_the_parked_turn_and_the_answered_one() -> None:
    Outside.begin(ASK)
    with Laboratory(3) as laboratory:
        asker = laboratory.agent(Asker, "somebody")
        told = asker.chat("risk", request_id="asked")
        assert (told.status, told.message["parts"][-1]["state"]) == ("parked", "approval-requested")
        assert asker.respond_to_approval(told.message["parts"][-1]["toolCallId"], True) is True
        assert asker.attach("asked").ok
        assert Outside.effects["risky", "it"] == 1
        laboratory.settle()
