"""Turns of `@cloudflare/ai-chat` under odd conditions: policies, same ids, large and empty answers, slow tabs, questions left open."""

from __future__ import annotations

import asyncio
from string import ascii_lowercase

import pytest

from perdure.actors import tool
from perdure.scenarios.provider.events import Done, Finish, Role, Text
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside
from tests.actors.chat.narrow import Miner, Narrow
from tests.gateway import test_agents_client_tools as asking
from tests.gateway.cast import Talker
from tests.gateway.door import Door
from tests.gateway.tabs import chunks, stored, tab, text_of, texts, user
from tests.gateway.test_agents_client_chat import play
from tests.gateway.test_agents_client_tools import continued, parked
from tests.gateway.world import visit

NOTHING = "cf_agent_stream_resume_none"


class Dropper(Talker):
    """Takes no message while it speaks."""

    message_concurrency = "drop"


@pytest.mark.shows(clients="P-067")
def test_a_message_that_the_agent_drops_is_told_as_skipped_and_vanishes() -> None:
    """P-067."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        path = "/agents/dropper/r"
        async with tab(door, path) as left, tab(door, path) as right:
            left.say("r1", "sum")
            await right.until_chunk("text-delta")
            right.say("r2", "words", *right.messages)
            end = (await right.until(id="r2", done=True))[-1]
            assert (end["outcome"], end["body"]) == ("skipped", "")
            assert "r2-user" not in [each["id"] for each in right.messages], "it vanished with the snapshot before"
            for each in (left, right):
                await each.until(id="r1", done=True)
            assert texts(await stored(door, path)) == ["sum", WHOLE]

    Outside.begin(SCRIPT, pace=Pace(between_ms=20))
    visit([Dropper], story)


@pytest.mark.shows(clients="P-081")
def test_a_cleared_conversation_answers_no_question_that_was_open() -> None:
    """P-081: an approval that comes after the clear runs nothing."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, asking.PATH) as left, tab(door, asking.PATH) as right:
            left.say("r1", "risk")
            (call_id,) = await parked(left, "r1")
            await right.until(id="r1", done=True)
            right.send("cf_agent_chat_clear")
            await left.until(type="cf_agent_chat_clear")
            for each in (left, right):
                each.send("cf_agent_tool_approval", toolCallId=call_id, approved=True, autoContinue=True)
                assert (await each.probe("after"))["type"] == NOTHING
            await asyncio.sleep(30)
            assert Outside.effects["risky", "it"] == 0
            assert await stored(door, asking.PATH) == []
            assert len(Outside.provider.log()) == 1

    asking.play(story)


def test_a_conversation_that_is_cleared_while_its_turn_is_recovered_stays_empty() -> None:
    """P-081."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left, tab(door) as right:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            for host in list(laboratory.hosts):
                laboratory.simulation.kill(host)
            await right.until(type="cf_agent_chat_recovering", recovering=True)
            left.send("cf_agent_chat_clear")
            await right.until(type="cf_agent_chat_clear")
            for each in (left, right):
                assert (await each.probe("after"))["type"] == NOTHING
                assert [frame["outcome"] for frame in each.frames if frame.get("done")] == ["aborted"]
            asked = len(Outside.provider.log())
            await asyncio.sleep(60)
            assert len(Outside.provider.log()) == asked
            assert await stored(door) == []

    play(story, between_ms=200)


@pytest.mark.shows(clients="P-087")
def test_the_same_request_id_elsewhere_is_another_turn_and_here_it_is_refused() -> None:
    """P-087."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        other = "/agents/talker/other"
        async with tab(door) as left, tab(door) as right, tab(door, other) as far:
            left.say("r1", "sum")
            await right.until_chunk("text-delta")
            right.ask("r1", [user("mine", "words")])
            far.say("r1", "words")
            said = text_of(await far.until(id="r1", done=True))
            assert said.startswith("Only words")
            await right.until(id="r1", error=True)
            await right.until(id="r1", type="cf_agent_stream_resuming")
            right.acknowledge("r1")
            assert text_of(await right.until(id="r1", done=True), "r1") == WHOLE
            await left.until(id="r1", done=True)
            assert text_of(left.frames, "r1") == WHOLE
            assert texts(await stored(door)) == ["sum", WHOLE]
            assert texts(await stored(door, other)) == ["words", said]

    play(story, between_ms=20)


class Reader(Adder):
    """Says what came with the request."""

    @tool
    async def look(self) -> str:
        """What the request brought beside its messages."""
        turn = self.active_turn
        assert turn is not None
        return str(turn.metadata)


LOOK = ScriptedQuestion(
    asks="look", rounds=(Round(says="Let me see. ", calls=(ScriptedCall(name="look", arguments={}),)),)
)


@pytest.mark.shows(clients="P-088")
def test_what_else_a_request_has_reaches_the_agent_for_this_turn() -> None:
    """P-088."""
    paint = {"name": "paint", "description": "Paint.", "parameters": {"type": "object", "properties": {}}}

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, "/agents/reader/r") as left:
            left.say("r1", "look", colour="red", clientTools=[paint])
            (told,) = [each["output"] for each in chunks(await left.until(done=True)) if "output" in each]
            assert told == "{'colour': 'red'}"
            left.say("r2", "look", *await stored(door, "/agents/reader/r"))
            (told,) = [each["output"] for each in chunks(await left.until(id="r2", done=True)) if "output" in each]
            assert told == "None"
        offered = [["paint" in str(each.body.get("tools")) for each in Outside.provider.log()]]
        assert offered == [[True, True, False, False]]

    Outside.begin(Script(questions=(LOOK,)))
    visit([Reader], story)


class Brooder(Adder):
    """Has a tool that takes a minute, without a word."""

    @tool
    async def brood(self) -> str:
        """Brood."""
        await asyncio.sleep(60)
        return "brooded"


BROOD = ScriptedQuestion(
    asks="brood", rounds=(Round(says="Well. ", calls=(ScriptedCall(name="brood", arguments={}),)),)
)


@pytest.mark.shows(clients="P-089 P-107")
def test_a_turn_that_waits_for_a_slow_tool_is_resumed_at_once_and_what_is_passing_is_kept_nowhere() -> None:
    """P-089, P-107."""
    path = "/agents/brooder/r"

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, path) as left, tab(door, path) as right:
            left.say("r1", "brood")
            for each in (left, right):
                assert chunks(await each.until_chunk("data-status"))[-1]["transient"] is True
            clock = asyncio.get_running_loop().time
            began_s = clock()
            async with tab(door, path) as late:
                assert (await late.probe("p"))["type"] == "cf_agent_stream_resuming"
                late.acknowledge("r1")
                await late.until(replayComplete=True)
                assert clock() - began_s < 1
                assert text_of(late.frames) == "Well. "
                await late.until(id="r1", done=True)
            for each in (left, right):
                await each.until(id="r1", done=True)
            parts = [part["type"] for part in (await stored(door, path))[1]["parts"]]
            assert not [each for each in parts if each.startswith("data-")]
            for each in (left, right, late):
                assert [part["type"] for part in each.messages[-1]["parts"]] == parts

    Outside.begin(Script(questions=(BROOD,)))
    visit([Brooder], story)


LARGE = (ascii_lowercase * 60_000)[:1_500_000]
MUCH = ScriptedQuestion(
    asks="much",
    verbatim=(
        (Role(), *(Text(text=f"{at} ") for at in range(3_000)), Text(text=LARGE), Text(text="∎"), Finish(), Done()),
    ),
)
NONE = ScriptedQuestion(asks="nothing", verbatim=((Role(), Finish(), Done()),))


@pytest.mark.shows(clients="P-091")
def test_an_answer_of_thousands_of_pieces_and_a_large_one_is_shown_whole() -> None:
    """P-091: live, after a resume, and after a reload."""
    whole = "".join(f"{at} " for at in range(3_000)) + LARGE + "∎"

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "much")
            await left.until_chunk("text-delta")
            async with tab(door) as late:
                await late.until(type="cf_agent_stream_resuming")
                late.acknowledge("r1")
                for each in (left, late):
                    assert text_of(await each.until(id="r1", done=True) and each.frames) == whole
        assert texts(await stored(door))[1] == whole

    stall = Rule(fault=Fault(kind=FaultKind.STALL, event=2_000, duration_ms=1_000))
    Outside.begin(Script(questions=(MUCH,)), FaultPlan(rules=(stall,)))
    visit([Talker], story)


@pytest.mark.shows(clients="P-092")
def test_a_tab_that_reads_slowly_holds_up_no_other_and_shows_the_same_in_the_end() -> None:
    """P-092."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as slow, tab(door) as fast:
            slow.socket.reads.clear()
            clock = asyncio.get_running_loop().time
            began_s = clock()
            fast.say("r1", "sum")
            await fast.until(id="r1", done=True)
            assert clock() - began_s < 10
            slow.socket.reads.set()
            assert text_of(await slow.until(id="r1", done=True)) == text_of(fast.frames) == WHOLE

    play(story, between_ms=5)


@pytest.mark.shows(clients="P-094")
def test_an_answer_without_a_word_ends_and_leaves_no_empty_message() -> None:
    """P-094."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "nothing")
            end = (await left.until(id="r1", done=True))[-1]
            assert end["outcome"] == "completed"
            assert [each["role"] for each in await stored(door)] == ["user"]

    Outside.begin(Script(questions=(NONE,)))
    visit([Talker], story)


def test_a_question_that_nobody_has_answered_stays_open_beside_the_next_turn() -> None:
    """P-146."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, asking.PATH) as left:
            left.say("r1", "risk")
            (call_id,) = await parked(left, "r1")
            left.say("r2", "words", *await stored(door, asking.PATH))
            assert (await left.until(id="r2", done=True))[-1]["outcome"] == "completed"
            left.send("cf_agent_tool_approval", toolCallId=call_id, approved=True, autoContinue=True)
            await continued(left)
            messages = await stored(door, asking.PATH)
            (part,) = [part for part in messages[1]["parts"] if part.get("toolCallId") == call_id]
            assert part["state"] == "output-available"
            assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant"]

    asking.play(story)


@pytest.mark.shows(clients="P-143")
def test_a_continuation_is_stopped_and_the_result_stays() -> None:
    """P-143."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, asking.PATH) as left, tab(door, asking.PATH) as right:
            left.say("r1", "one")
            (call_id,) = await parked(left, "r1")
            await right.until(id="r1", done=True)
            left.send("cf_agent_tool_result", toolCallId=call_id, output="blue", autoContinue=True)
            answer = await left.probe("continue")
            if answer["type"] == "cf_agent_stream_pending":
                answer = (await left.until(type="cf_agent_stream_resuming"))[-1]
            left.acknowledge(answer["id"])
            await left.until(replayComplete=True)
            left.send("cf_agent_chat_request_cancel", id=answer["id"])
            for each in (left, right):
                assert (await each.until(id=answer["id"], done=True))[-1]["outcome"] == "aborted"
            (part,) = [part for part in (await stored(door, asking.PATH))[1]["parts"] if "toolCallId" in part]
            assert part["output"] == "blue"

    asking.play(story, between_ms=300)


def test_who_answers_owns_the_continuation_of_this_turn_and_of_no_other() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, asking.PATH) as left, tab(door, asking.PATH) as right:
            left.say("r1", "one")
            (first,) = await parked(left, "r1")
            left.say("r2", "risk", *await stored(door, asking.PATH))
            (second,) = await parked(left, "r2")
            await right.until(id="r2", done=True)
            left.send("cf_agent_tool_result", toolCallId=first, output="blue", autoContinue=True)
            assert text_of(await continued(left)).endswith("∎")
            right.send("cf_agent_tool_approval", toolCallId=second, approved=True, autoContinue=True)
            assert text_of(await continued(right)).endswith("∎")
            assert (await left.probe("after"))["type"] == NOTHING, "it has no part in the other turn"

    asking.play(story, between_ms=50)


@pytest.mark.shows(clients="P-039")
def test_a_tab_that_has_not_read_for_too_long_is_closed_and_resumes() -> None:
    """P-039: what waits for it is bounded, whoever else goes on."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left, tab(door) as stalled:
            stalled.socket.reads.clear()
            for number in range(10):
                many = [user(f"m{number}-{at}", "x" * 250_000) for at in range(8)]
                left.send("cf_agent_chat_messages", messages=many)
                while await stored(door) != many:
                    await left.probe("meanwhile")
            stalled.socket.reads.set()
            while await stalled.socket.receive() is not None:
                pass
            assert stalled.socket.closed is not None
            assert stalled.socket.closed[0] == 1013
            left.say("r1", "sum", *many)
            await left.until_chunk("text-delta")
            async with tab(door) as back:
                await back.until(type="cf_agent_stream_resuming")
                back.acknowledge("r1")
                assert text_of(await back.until(id="r1", done=True)) == WHOLE

    play(story, between_ms=20)


@pytest.mark.shows(chat_recovery="C-0848")
def test_a_conversation_that_is_too_long_is_summarised_for_the_model_and_not_for_the_client() -> None:
    Narrow.begin()

    async def story(door: Door, laboratory: Laboratory) -> None:
        path = "/agents/miner/r"
        async with tab(door, path) as left, tab(door, path) as right:
            left.say("r1", "dig 9")
            (end,) = [each for each in await left.until(id="r1", done=True) if each.get("done")]
            assert not end.get("error")
            await right.until(id="r1", done=True)
            shown = (await stored(door, path))[-1]
            assert [part["input"]["number"] for part in shown["parts"] if "toolCallId" in part][:6] == [
                1,
                2,
                3,
                4,
                5,
                6,
            ]
            assert (len(Narrow.summaries), Narrow.refusals) == (1, 1)

    visit([Miner], story)


@pytest.mark.shows(chat_recovery="C-0849")
def test_a_client_that_cancels_a_summary_ends_its_turn() -> None:
    Narrow.begin(summary_s=60)

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, "/agents/miner/r") as left:
            left.say("r1", "dig 9")
            while not Narrow.summaries:
                await asyncio.sleep(0.1)
            requests = len(Narrow.requests)
            left.send("cf_agent_chat_request_cancel", id="r1")
            await left.until(id="r1", done=True)
            await asyncio.sleep(100)
            assert (len(Narrow.summaries), Narrow.refusals, len(Narrow.requests)) == (1, 1, requests)

    visit([Miner], story)
