"""The transcript: what was added is there in its order in every life, and what a model cannot be given is mended when it is added."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic_ai.messages import NativeToolCallPart, NativeToolReturnPart
from pydantic_ai.models.function import FunctionModel

from perdure.actors import Agent, Detached, MilestoneInfo, RunContext, RunInfo, RunResult, exposed, tool
from perdure.actors.chat.transcript import Transcript
from perdure.actors.events.observability import subscribe
from perdure.ledger import BadRequest, TooLarge
from perdure.scenarios.provider.script import Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.room import Room, calls, outcomes, texts, visit, visiting


class Walker(Agent):
    """Passes three places at once."""

    async def run(self, input: int, run: RunContext) -> str:
        """Say so."""
        for name in ("one", "two", "three"):
            await run.report_progress(milestone=name)
        return "there"


class Scribe(Adder):
    """Writes into its own transcript."""

    async def on_start(self) -> None:
        """Take a while to come up, so that mail gathers."""
        await asyncio.sleep(1)

    @exposed
    async def note(self, words: list[str]) -> None:
        """Several messages in one transaction."""
        with self.transaction():
            for word in words:
                await self.add_messages({"id": word, "role": "user", "parts": [{"type": "text", "text": word}]})

    @exposed
    async def fail_to_note(self) -> None:
        """A message in a transaction that is rolled back."""
        with contextlib.suppress(ZeroDivisionError), self.transaction():
            await self.add_messages("never")
            _ = 1 / 0

    @exposed
    async def send_walker(self) -> None:
        """A child whose milestones are narrated."""
        await self.run_agent_tool(Walker, 1, run_id="walk", detached=Detached(on_milestones=["one", "two", "three"]))

    @tool
    async def launch(self, what: str) -> str:
        """Launch something: at most once."""
        Outside.effects["launch", what] += 1
        await asyncio.sleep(1)
        return "launched"


@visiting(Scribe)
async def test_several_messages_of_one_transaction_all_stay_and_in_their_order(room: Room, /) -> None:
    """One at a time, in a later life too; what was rolled back is nowhere, and takes no place from others."""
    await room.do("note", ["one", "two"])
    await room.do("fail_to_note")
    await room.do("note", ["three", "one"])
    for _ in range(2):
        assert [message["id"] for message in await room.do("get_messages")] == ["one", "two", "three"]
        await room.sleep()
    await room.do("clear")
    await room.do("note", ["four"])
    await room.sleep()
    assert [message["id"] for message in await room.do("get_messages")] == ["four"]


@visiting(Scribe)
async def test_a_long_transcript_can_be_read_piece_by_piece(room: Room, /) -> None:
    """Which is needed when all of it is more than one answer may hold; wrong wishes name their field."""
    await room.do("note", ["one", "two", "three", "four"])
    read: list[str] = []
    before: dict[str, Any] = {}
    while piece := await room.do("get_messages", limit=3, **before):
        read = [*(message["id"] for message in piece), *read]
        before = {"before": piece[0]["id"]}
    assert read == ["one", "two", "three", "four"]
    for wish in ({"limit": 0}, {"before": "nobody"}):
        with pytest.raises(BadRequest) as refused:
            await room.do("get_messages", **wish)
        assert refused.value.field in wish
    for number in range(3):
        await room.do("add_messages", {"id": f"long-{number}", "role": "user", "parts": [_text("x" * 1_500_000)]})
    with pytest.raises(TooLarge):
        await room.do("get_messages")
    assert len(await room.do("get_messages", limit=2)) == 2


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@visiting(Scribe)
async def test_the_id_of_a_deleted_turn_may_be_used_again_and_takes_no_message_from_it(room: Room, /) -> None:
    """Its question and its answer stay where they are; the new ones come after them, and are the new turn's (W-47)."""
    for day in range(3):
        told = await room.do("submit_messages", f"words of day {day}", idempotency_key="daily")
        result = await room.do("attach", told["request_id"])
        assert (told["accepted"], result.ok) == (True, True)
        assert (await room.do("submit_messages", f"words of day {day}", idempotency_key="daily"))["accepted"] is False
        assert await room.do("delete_turns") == 1
    await room.sleep()
    kept = await room.do("get_messages")
    assert [message["role"][0] for message in kept] == list("uauaua")
    assert [texts(message)[0] for message in kept[::2]] == [f"words of day {day}" for day in range(3)]
    assert kept[-1] == result.message


@visiting(Scribe)
async def test_lines_that_are_told_of_several_milestones_at_once_all_stay(room: Room, /) -> None:
    """Their mail is handled in one transaction, because the agent was away when it came."""
    await room.do("send_walker")
    room.kill()
    await room.until(lambda: _count(room, 3))
    await room.sleep()
    told = [texts(message)[0].rpartition(" ")[2] for message in await room.do("get_messages")]
    assert told == ["one.", "two.", "three."]


class Quiet(Scribe):
    """Tells of no end, and not of every milestone."""

    @exposed
    async def send_walker(self) -> None:
        """A child that is told of."""
        stones = ["one", "two", "three"]
        await self.run_agent_tool(Walker, 1, run_id="walk", detached=Detached(notify=True, on_milestones=stones))

    async def format_detached_milestone(self, run: RunInfo, milestone: MilestoneInfo) -> str:
        """The name, but for one."""
        return " \n" if milestone.name == "two" else milestone.name

    async def format_detached_completion(self, run: RunInfo, result: RunResult) -> str:
        """Nothing."""
        return " "


@visiting(Quiet)
async def test_a_blank_word_about_a_run_is_no_message_and_begins_no_turn(room: Room, /) -> None:
    await room.do("send_walker")
    await room.until(lambda: _count(room, 2))
    await asyncio.sleep(10)
    told = await room.do("get_messages")
    assert [(each["role"], texts(each)) for each in told] == [("assistant", ["one"]), ("assistant", ["three"])]
    assert {name: told[0]["metadata"][name] for name in ("source", "runId")} == {
        "source": "detached-agent-tool", "runId": "walk",
    }  # fmt: skip
    assert await room.do("list_turns") == []


async def _count(room: Room, count: int) -> bool:
    return len(await room.do("get_messages")) == count


def _with_call(state: str) -> dict[str, Any]:
    call = {"type": "tool-launch", "toolCallId": "c", "state": state, "input": {"what": "it"}, "output": "done"}
    return {"id": "answer", "role": "assistant", "parts": [call if state == "output-available" else _without(call)]}


def _without(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "output"}


GO = Script(
    questions=(
        calls("go", ScriptedCall(name="launch", arguments={"what": "it"})),
        ScriptedQuestion(asks="words", concludes="Words"),
    )
)


@pytest.mark.shows(chat_recovery="C-0783", sub_agents="B172")
def test_a_message_that_is_replaced_is_looked_at_again() -> None:
    """It was in order before a request, and now has a call without a result: the next request is legal all the same."""

    async def story(room: Room) -> None:
        await room.do("add_messages", ["hello", _with_call("output-available")])
        assert (await room.do("chat", "words")).ok
        await room.do("add_messages", _with_call("input-available"))
        assert (await room.do("chat", "words")).ok
        assert [state for state, _ in outcomes((await room.do("get_messages"))[1])] == ["output-error"]

    heard: list[Any] = []
    leave = subscribe("transcript", heard.append)
    visit(Scribe, story, GO)
    leave()
    assert not Outside.effects
    assert [(event.type, event.payload["toolCallIds"]) for event in heard] == [("chat:transcript:repaired", ["c"])]


@pytest.mark.shows(chat_recovery="C-0784 C-0865")
@pytest.mark.parametrize(
    ("given", "kept"),
    [('{"what": "it"}', {"what": "it"}), ("", {}), (None, {}), (["it"], {}), (7, {})],
)
def test_the_input_of_an_imported_call_is_put_right_and_stays_so(given: object, kept: dict[str, Any]) -> None:
    """Before the next request, in the transcript itself; a settled call stays settled, and keeps its output (C-0784, C-0865)."""

    async def story(room: Room) -> None:
        imported = _with_call("output-available")
        imported["parts"][0]["input"] = given
        await room.do("add_messages", ["hello", imported])
        assert (await room.do("chat", "words")).ok
        await room.sleep()
        (part,) = (await room.do("get_messages"))[1]["parts"]
        assert (part["state"], part["input"], part["output"]) == ("output-available", kept, "done")

    visit(Scribe, story, GO)
    assert not Outside.effects


def test_a_new_conversation_knows_nothing_of_the_calls_that_were_lost_in_the_old_one() -> None:
    """The guard against their repetition is part of the conversation, and is forgotten with it (invariant 10)."""

    async def story(room: Room) -> None:
        asking = room.soon("chat", "go", request_id="asked")
        await room.until(lambda: Outside.effects["launch", "it"])
        room.kill()
        await asking
        result = await room.do("attach", "asked")
        assert "OUTCOME UNKNOWN" in outcomes(result.message)[0][1]
        await room.do("clear")
        again = await room.do("chat", "go", request_id="asked")
        assert outcomes(again.message) == [("output-available", "launched")]

    visit(Scribe, story, GO)
    assert Outside.effects["launch", "it"] == 2


async def _searches(_messages: Any, _info: Any) -> AsyncIterator[Any]:
    """A provider that searches by itself twice, has the result of one search only, and answers."""
    yield {0: NativeToolCallPart("look_up", {"query": "x"}, tool_call_id="s1")}
    yield {1: NativeToolReturnPart("look_up", "a page", tool_call_id="s1")}
    yield {2: NativeToolCallPart("look_up", {"query": "y"}, tool_call_id="s2")}
    yield "Found it."


class Searcher(Adder):
    """Its provider has tools of its own, of which one is called like one of ours."""

    model = FunctionModel(stream_function=_searches)

    def get_model(self) -> Any:
        """The one that searches."""
        return self.model

    @tool
    async def look_up(self, query: str) -> str:
        """Look up in our own books."""
        Outside.effects["look_up", query] += 1
        return "a book"


def test_a_call_of_the_providers_own_is_not_executed_here_and_nobody_waits_for_its_result() -> None:
    """One that got none is an error in the transcript, and the turn ends: there is nobody who could still answer it."""

    async def story(room: Room) -> None:
        result = await room.do("chat", "hello")
        assert (result.status, result.text) == ("completed", "Found it.")
        first, (state, words) = outcomes(result.message)
        assert first == ("output-available", "a page")
        assert (state, "without the result" in words) == ("output-error", True)
        assert (await room.do("chat", "hello again")).ok

    visit(Searcher, story)
    assert not Outside.effects


def test_a_message_whose_commit_is_heard_of_late_stands_at_its_place_in_memory_too() -> None:
    """A handler on a thread commits, and before the loop hears of it a turn of the loop has ended."""
    store: Any = SimpleNamespace(messages=list)
    transcript = Transcript(store)
    early, late = ([{"id": name, "role": "user", "parts": []}] for name in ("early", "late"))
    first, second = transcript.placed(early), transcript.placed(late)  # type: ignore[arg-type]
    transcript.put(second)
    transcript.put(first)
    assert transcript.messages == [*early, *late]
    assert transcript.newest_user_id == "late"
