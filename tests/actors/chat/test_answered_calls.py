"""Answers to calls that come at once, early, or after the tool is gone; calls that are asked for anew; tools of one request."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, Detached, RunContext, exposed, tool
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Listener, Outside
from tests.actors.chat.room import Room, calls, outcomes, visit, visiting
from tests.actors.chat.talk import Worker, streams

IT, AGAIN, BROKEN = (ScriptedCall(name="launch", arguments={"what": what}) for what in ("it", "again", "broken"))
ASKS = tuple(ScriptedCall(name="ask_user", arguments={"about": about}) for about in ("colour", "size"))


@tool(needs_approval=True)
async def launch(what: str) -> str:
    """Launch something, if somebody allows it."""
    Outside.effects["launch", what] += 1
    if what == "broken":
        raise ValueError("it does not fly")
    return f"launched {what}"


class Launcher(Worker):
    """Launches, as long as it has the tool for it; and remembers with what each request was made."""

    has_tool: ClassVar[bool] = True
    metadata: ClassVar[list[Any]] = []

    def tools(self) -> list[Any]:
        """The tool, unless an author took it away."""
        return [*super().tools(), launch] if self.has_tool else super().tools()

    def get_instructions(self) -> str | None:
        """Remember."""
        assert self.active_turn is not None
        self.metadata.append(self.active_turn.metadata)
        return None


async def _waiting(room: Room) -> list[str]:
    """Wait until the turn waits; the ids of the calls that do."""
    await room.until(lambda: room.is_("parked"))
    parts = (await room.do("get_messages"))[-1]["parts"]
    open_states = ("approval-requested", "input-available")
    return [part["toolCallId"] for part in parts if part.get("state") in open_states]


@pytest.mark.shows(chat_recovery="C-0794")
@visiting(Launcher, Script(questions=(calls("go", IT),)))
async def test_of_contrary_answers_at_the_same_time_one_counts(room: Room, /) -> None:
    """And what it says is done (C-0794)."""
    await room.do("submit_messages", "go", request_id="asked")
    (call_id,) = await _waiting(room)
    answers = [room.soon("respond_to_approval", call_id, approved) for approved in (False, True, False, True)]
    counted = [await each for each in answers]
    assert sorted(counted) == [False, False, False, True]
    result = await room.do("attach", "asked")
    approved = counted.index(True) % 2 == 1
    assert [state for state, _ in outcomes(result.message)] == ["output-available" if approved else "output-denied"]
    assert Outside.effects["launch", "it"] == int(approved)


@pytest.mark.shows(chat_recovery="C-0980 C-0984 C-1301")
def test_answers_to_two_calls_at_the_same_time_both_stay() -> None:
    """The turn goes on once, with both (C-0980, C-0984, C-1301)."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        first, second = await _waiting(room)
        answers = [room.soon("resolve_tool_call", each, words) for each, words in ((first, "blue"), (second, "large"))]
        assert [await each for each in answers] == [True, True]
        result = await room.do("attach", "asked")
        assert outcomes(result.message) == [("output-available", "blue"), ("output-available", "large")]

    visit(Launcher, story, Script(questions=(calls("go", *ASKS),)))
    assert len(Outside.provider.log()) == 2


@pytest.mark.shows(chat_recovery="C-0795")
def test_a_call_whose_tool_is_gone_when_it_is_allowed_is_an_error_for_the_model() -> None:
    """The turn goes on, and nothing is executed (C-0795)."""
    Launcher.has_tool = True

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        (call_id,) = await _waiting(room)
        await room.sleep()
        Launcher.has_tool = False
        assert await room.do("respond_to_approval", call_id, True) is True
        result = await room.do("attach", "asked")
        assert result.ok, result
        ((state, words),) = outcomes(result.message)
        assert (state, words.startswith("There is no tool of this name")) == ("output-error", True)
        assert words in str(Outside.provider.log()[-1].body)

    try:
        visit(Launcher, story, Script(questions=(calls("go", IT),)))
    finally:
        Launcher.has_tool = True
    assert not Outside.effects


@pytest.mark.shows(chat_recovery="C-0802 C-0977")
def test_each_further_call_of_a_turn_is_asked_for_anew() -> None:
    """Each runs once, and one that fails when it was allowed is an error of its own (C-0802, C-0977)."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        for _ in range(3):
            (call_id,) = await _waiting(room)
            assert await room.do("respond_to_approval", call_id, True) is True
            await room.until(lambda call_id=call_id: _has_gone_on(room, call_id))
        result = await room.do("attach", "asked")
        assert result.ok, result
        *good, (state, words) = outcomes(result.message)
        assert good == [("output-available", "launched it"), ("output-available", "launched again")]
        assert (state, "it does not fly" in words) == ("output-error", True)
        assert "it does not fly" in str(Outside.provider.log()[-1].body)

    rounds = tuple(Round(calls=(each,)) for each in (IT, AGAIN, BROKEN))
    visit(Launcher, story, Script(questions=(ScriptedQuestion(asks="go", rounds=rounds),)))
    assert Outside.effects == {("launch", what): 1 for what in ("it", "again", "broken")}


async def _has_gone_on(room: Room, call_id: str) -> bool:
    """Whether the turn has ended, or waits for another call."""
    return await room.is_("completed") or (await room.is_("parked") and call_id not in await _waiting(room))


class Gunner(Launcher):
    """Has two tools of one kind each: one here, and one in a run of its own; neither may happen twice by itself."""

    @tool(needs_approval=True)
    async def fire(self, what: str) -> str:
        """Fire, in this very process."""
        Outside.effects["fire", what] += 1
        await asyncio.sleep(5)
        return "fired"

    def tools(self) -> list[Any]:
        """The other one."""
        return [*super().tools(), shoot]


@tool(needs_approval=True)
async def shoot(what: str) -> str:
    """Shoot, elsewhere."""
    Outside.effects["shoot", what] += 1
    await asyncio.sleep(5)
    return "shot"


@pytest.mark.parametrize("name", ["fire", "shoot"])
def test_the_repeat_of_a_lost_call_that_a_person_has_allowed_is_made_once_whatever_dies(name: str) -> None:
    """A6: the approval of this very call is the consent that the guard waits for, and a death in it consents to nothing more."""

    async def allowed_and_lost(room: Room, times: int) -> None:
        (call_id,) = await _waiting(room)
        assert Outside.effects[name, "it"] == times - 1
        assert await room.do("respond_to_approval", call_id, True) is True
        await room.until(lambda: Outside.effects[name, "it"] == times)
        await asyncio.sleep(1)
        for each in {each.host_id for key, each in room.view.agents.items() if ("ToolRun" in key) == (name == "shoot")}:
            room.laboratory.simulation.kill(each)

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        await allowed_and_lost(room, 1)
        await allowed_and_lost(room, 2)
        result = await room.do("attach", "asked", follow=True)
        assert result.ok, result
        told = [words for _, words in outcomes(result.message)]
        assert [words.partition(":")[0] for words in told] == ["OUTCOME UNKNOWN"] * 2
        await asyncio.sleep(30)
        assert Outside.effects[name, "it"] == 2

    asked = calls("go", ScriptedCall(name=name, arguments={"what": "it"}))
    visit(Gunner, story, Script(questions=(asked,), again=("OUTCOME UNKNOWN",), again_max=1))


@tool(timeout_ms=1_000)
async def hang(what: str) -> str:
    """Hang, so that the outcome is not known."""
    Outside.effects["hang", what] += 1
    await asyncio.sleep(60)
    return "done"


class Counted(Agent):
    """Counts."""

    async def run(self, input: int, run: RunContext) -> str:
        return f"counted to {input}"


class Hanger(Adder):
    """Calls what hangs, and may ask for a run of which it is told."""

    def tools(self) -> list[Any]:
        """What hangs."""
        return [hang]

    @exposed
    async def begin(self) -> None:
        """Ask for the run."""
        await self.run_agent_tool(Counted, 3, run_id="counted", detached=Detached(notify=True))


def test_a_call_that_was_refused_is_made_again_after_a_message_of_a_person_only() -> None:
    """The continuation of an answer is no consent, and neither is what the runtime tells of a run in a message of the user."""
    note = {"role": "system", "parts": [{"type": "text", "text": "Be brief."}]}
    hangs = ScriptedCall(name="hang", arguments={"what": "it"})

    async def story(room: Room) -> None:
        await room.do("chat", "go")
        result = await room.do("continue_last_turn")
        assert [words[:7] for _, words in outcomes(result.message)] == ["OUTCOME", "NOT RUN", "NOT RUN"]
        await room.do("begin")
        while len(await room.do("get_messages")) < 4:
            await asyncio.sleep(0.2)
        assert {words[:7] for _, words in outcomes((await room.do("get_messages"))[-1])} == {"NOT RUN"}
        assert Outside.effects["hang", "it"] == 1
        await room.do("chat", "once more")
        assert Outside.effects["hang", "it"] == 2
        await room.do("chat", [note, "and again"])
        assert Outside.effects["hang", "it"] == 3

    said = ("go", "Continue your last message", "counted to 3", "once more", "and again")
    asked = [calls(words, hangs) for words in said]
    visit(Hanger, story, Script(questions=tuple(asked), again=("OUTCOME UNKNOWN",), again_max=1))


def test_a_later_life_knows_which_call_was_lost_and_refuses_its_repeat() -> None:
    hangs = ScriptedCall(name="hang", arguments={"what": "it"})

    async def story(room: Room) -> None:
        await room.do("chat", "go")
        await room.sleep()
        result = await room.do("continue_last_turn")
        assert [words[:7] for _, words in outcomes(result.message)] == ["OUTCOME", "NOT RUN"]

    visit(Hanger, story, Script(questions=(calls("go", hangs), calls("Continue your last message", hangs))))
    assert Outside.effects["hang", "it"] == 1


@pytest.mark.shows(chat_recovery="C-0994")
def test_a_question_that_is_answered_while_the_model_speaks_is_not_waited_for() -> None:
    """The turn goes on at the end of the answer, and was never put aside (C-0994)."""
    work = ScriptedCall(name="work", arguments={"what": "b", "seconds": 1})
    seen: set[str] = set()

    async def story(room: Room) -> None:
        listener = Listener()
        asking = room.soon("chat", "go", listener, request_id="asked")
        await room.until(lambda: "tool-input-available" in listener.types)
        assert await room.do("resolve_tool_call", "call-a", "blue") is True
        assert Outside.provider.log()[0].ended is None, "the model speaks still"
        while not asking.done():
            seen.add((await room.do("inspect_turn", "asked"))["status"])
            await asyncio.sleep(0.05)
        assert (await asking).ok
        assert outcomes((await asking).message) == [("output-available", "blue"), ("output-available", "worked on b")]

    visit(Launcher, story, streams(ASKS[0], work), pace=Pace(between_ms=300))
    assert seen <= {"running", "completed"}
    assert len(Outside.provider.log()) == 2


@pytest.mark.shows(chat_recovery="C-0773 C-0948 C-0997 C-0999 C-1000 C-1011 C-1012 C-1288 C-1297 C-1299")
def test_the_tools_and_the_metadata_of_a_request_are_those_of_its_own_turn() -> None:
    """They reach every request of it, also after an answer and a sleep; the next turn has none of them (C-0072, C-0997, C-0999, C-1000,
    C-1011, C-1012, C-1288, C-1297, C-1299)."""
    shows = {"name": "show", "description": "Show.", "parameters": {"type": "object", "properties": {}}}

    async def story(room: Room) -> None:
        Launcher.metadata.clear()
        await room.do("submit_messages", "go", request_id="asked", client_tools=[shows], metadata={"page": 7})
        (call_id,) = await _waiting(room)
        await room.sleep()
        assert await room.do("resolve_tool_call", call_id, "shown") is True
        assert (await room.do("attach", "asked")).ok
        assert (await room.do("chat", "words")).ok
        await room.do("submit_messages", "words", request_id="cleared", client_tools=[shows])
        await room.do("clear")
        assert (await room.do("chat", "words")).ok
        assert Launcher.metadata[:3] == [{"page": 7}, {"page": 7}, None]

    visit(Launcher, story, Script(questions=(calls("go", ScriptedCall(name="show")), *SCRIPT.questions)))
    offered = [
        "show" in [each["function"]["name"] for each in record.body["tools"]] for record in Outside.provider.log()
    ]
    assert (offered[:3], offered[-1]) == ([True, True, False], False)


class Bare(Adder):
    """Has no tools at all."""

    double = None  # type: ignore[assignment]

    def tools(self) -> list[Any]:
        """None."""
        return []


@pytest.mark.shows(chat_recovery="C-0072")
def test_without_tools_none_are_offered() -> None:
    """Neither an agent's nor a client's (C-0072)."""

    async def story(room: Room) -> None:
        assert (await room.do("chat", "words", client_tools=[])).ok

    visit(Bare, story)
    assert not Outside.provider.log()[0].body.get("tools")
