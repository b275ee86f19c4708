"""Tabs that move between gateways, gateways that end, and turns that die, at bad moments."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.provider.script import Script, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, WHOLE, Outside
from tests.gateway import test_agents_client_tools as asking
from tests.gateway.cast import Talker
from tests.gateway.door import Door
from tests.gateway.tabs import chunks, stored, tab, text_of, texts
from tests.gateway.test_agents_client_chat import play
from tests.gateway.test_agents_client_resume import resumed
from tests.gateway.test_agents_client_tools import continued, parked
from tests.gateway.world import gateway, visit

NOTHING = "cf_agent_stream_resume_none"
LONG = ScriptedQuestion(asks="long", concludes="-".join(str(at) for at in range(2_000)))


def doors(laboratory: Laboratory, count: int) -> list[Door]:
    """So many gateways of the same agents, beside the first one."""
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    return [Door(gateway(client, [Talker])) for _ in range(count)]


@pytest.mark.shows(clients="P-121 P-128")
def test_a_tab_moves_from_one_gateway_to_another_in_mid_stream_and_in_mid_replay() -> None:
    """P-121, P-128."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        first, second = doors(laboratory, 2)
        async with tab(first) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
        async with tab(second) as left:
            await left.until(type="cf_agent_stream_resuming", id="r1")
            left.acknowledge("r1")
            await left.until(replay=True)  # and no further
        async with tab(first) as left, tab(door) as right:
            right_text = asyncio.ensure_future(resumed(right, "r1"))
            assert await resumed(left, "r1") == WHOLE
            assert await right_text == WHOLE
        assert texts(await stored(door)) == ["sum", WHOLE]

    play(story, between_ms=50)


@pytest.mark.shows(clients="P-123")
def test_twenty_drops_at_any_moment_of_one_long_turn_change_nothing() -> None:
    """P-123."""
    dice = random.Random(7)

    async def story(door: Door, laboratory: Laboratory) -> None:
        ways = [door, *doors(laboratory, 1)]
        async with tab(door) as left:
            left.say("r1", "long")
            await left.until_chunk("start")
        for _ in range(20):
            async with tab(dice.choice(ways)) as left:
                await left.until(type="cf_agent_stream_resuming")
                left.acknowledge("r1")
                for _ in range(dice.randrange(30)):
                    await left.next()
        async with tab(door) as left:
            said = await resumed(left, "r1")
            messages = await stored(door)
            assert texts(messages) == ["long", said]
            assert said.startswith(LONG.concludes)
            assert len([each for each in chunks(left.frames) if each["type"] == "text-delta"]) > 500

    Outside.begin(Script(questions=(LONG,)), pace=Pace(between_ms=20))
    visit([Talker], story)


@pytest.mark.shows(clients="P-111")
def test_what_is_loaded_in_mid_turn_has_the_id_of_what_is_resumed() -> None:
    """P-111: in every moment of a turn a page that is loaded shows one answer."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            ids = set()
            while "r1" not in [frame["id"] for frame in left.frames if frame.get("done")]:
                await left.next()
                started = [each["messageId"] for each in chunks(left.frames) if each["type"] == "start"]
                answers = [each["id"] for each in await stored(door) if each["role"] == "assistant"]
                assert answers in ([], started)
                ids.update(answers)
            assert ids == set(started)

    play(story, between_ms=20)


@pytest.mark.thorough
@pytest.mark.shows(clients="P-106")
def test_five_hundred_tabs_have_their_probes_answered_at_once() -> None:
    """P-106."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        clock = asyncio.get_running_loop().time
        async with AsyncExitStack() as stack:
            tabs = [await stack.enter_async_context(tab(door)) for _ in range(500)]
            tabs[0].say("r1", "sum")
            await tabs[1].until_chunk("text-delta")
            for number, each in enumerate(tabs):
                each.send("cf_agent_stream_resume_request", probeId=f"p{number}")
            began_s = clock()
            for number, each in enumerate(tabs):
                assert (await each.until(probeId=f"p{number}"))[-1]["type"] == "cf_agent_stream_resuming"
            assert clock() - began_s < 0.1
            tabs[0].send("cf_agent_chat_request_cancel", id="r1")

    play(story, between_ms=200)


@pytest.mark.shows(clients="P-117")
def test_a_connection_to_the_model_that_breaks_leaves_no_mixture() -> None:
    """P-117: what was withdrawn is not in what the tabs show in the end."""
    cut = Rule(fault=Fault(kind=FaultKind.RESET, event=8), number=1)

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left, tab(door) as right:
            left.say("r1", "sum")
            for each in (left, right):
                assert (await each.until(id="r1", done=True))[-1]["outcome"] == "completed"
            async with tab(door) as late:
                messages = await stored(door)
                assert texts(messages) == ["sum", WHOLE]
                assert (await late.probe())["type"] == NOTHING
            for each in (left, right):
                while each.messages != messages:
                    await each.next()

    Outside.begin(SCRIPT, FaultPlan(rules=(cut,)), Pace(between_ms=20))
    visit([Talker], story)


@pytest.mark.shows(clients="P-120")
@pytest.mark.parametrize("moment", ["accepted", "begun"])
def test_a_message_whose_agent_dies_before_it_has_spoken_is_answered(moment: str) -> None:
    """P-120."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left, tab(door) as right:
            left.say("r1", "sum")
            if moment == "accepted":
                await right.until(type="cf_agent_chat_messages")
            else:
                await right.until_chunk("start")
            for host in list(laboratory.hosts):
                laboratory.simulation.kill(host)
            for each in (left, right):
                end = (await each.until(id="r1", done=True))[-1]
                assert end["outcome"] == "completed"
            assert texts(await stored(door)) == ["sum", WHOLE]

    play(story, first_ms=500, between_ms=20)


@pytest.mark.shows(chat_recovery="C-0769", clients="P-122")
def test_a_turn_that_gives_up_is_told_to_tabs_that_come_later_until_the_next() -> None:
    """P-122, C-0769."""
    always = Rule(fault=Fault(kind=FaultKind.STATUS, status=400, message="no such thing"), asks="sum", times=None)

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left, tab(door) as right:
            left.say("r1", "sum")
            told = (await left.until(id="r1", done=True))[-2]
            async with tab(door) as late:
                assert (await late.probe())["type"] == "cf_agent_stream_resuming"
                late.acknowledge("r1")
                last = (await late.until(id="r1", done=True))[-1]
                assert (last["error"], last["body"]) == (True, told["body"])
            await right.until(id="r1", done=True)
            left.say("r2", "words", *await stored(door))
            await right.until(type="cf_agent_chat_messages")
            async with tab(door) as late:  # before the new turn has said a word
                assert (await late.probe())["id"] == "r2"
            assert (await left.until(id="r2", done=True))[-1]["outcome"] == "completed"
            async with tab(door) as late:
                assert (await late.probe())["type"] == NOTHING

    Outside.begin(SCRIPT, FaultPlan(rules=(always,)), Pace(first_ms=500))
    visit([Talker], story)


@pytest.mark.shows(clients="P-125")
def test_a_tab_that_slept_for_long_finds_the_whole_answer() -> None:
    """P-125: its line stood, or it was lost; the agent sleeps by then."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as open_line:
            open_line.socket.reads.clear()
            async with tab(door) as lost:
                lost.say("r1", "sum")
                await lost.until_chunk("text-delta")
            await asyncio.sleep(900)
            assert not laboratory.supervisors[-1].view.agents
            open_line.socket.reads.set()
            assert text_of(await open_line.until(id="r1", done=True)) == WHOLE
        async with tab(door) as back:
            assert (await back.probe())["type"] == NOTHING
            assert texts(await stored(door)) == ["sum", WHOLE]

    play(story, between_ms=20, timeout_ms=2_000_000)


# continuations


@pytest.mark.shows(chat_recovery="C-1115")
def test_a_tab_that_opens_while_a_turn_is_recovered_is_told_so_and_that_it_is_over() -> None:
    """C-1115."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            for host in list(laboratory.hosts):
                laboratory.simulation.kill(host)
            await left.until(type="cf_agent_chat_recovering", recovering=True)
            async with tab(door) as late:
                await late.until(type="cf_agent_chat_recovering", recovering=True)
                late.acknowledge("r1")
                await late.until(id="r1", done=True)
                told = [each["recovering"] for each in late.frames if each["type"] == "cf_agent_chat_recovering"]
                assert (told[0], told[-1]) == (True, False)

    play(story, between_ms=100)


@pytest.mark.shows(chat_recovery="C-0338")
def test_a_line_that_is_cut_in_a_replay_has_no_end_told_on_it() -> None:
    """C-0338: and the next one is told the whole turn."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            async with tab(door) as cut:
                await cut.until(type="cf_agent_stream_resuming")
                cut.acknowledge("r1")
                await cut.until(replay=True)
            assert not [each for each in cut.frames if each.get("done")]
            async with tab(door) as back:
                assert await resumed(back, "r1") == WHOLE

    play(story, between_ms=50)


@pytest.mark.shows(chat_recovery="C-0138")
def test_an_answer_that_says_nothing_of_going_on_is_taken_and_owns_nothing() -> None:
    """C-0138."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, asking.PATH) as left, tab(door, asking.PATH) as right:
            left.say("r1", "one")
            (call_id,) = await parked(left, "r1")
            await right.until(id="r1", done=True)
            left.send("cf_agent_tool_result", toolCallId=call_id)
            told = await right.until(done=True)
            assert text_of(told).endswith("∎"), "everybody sees it live"
            (part,) = [part for part in (await stored(door, asking.PATH))[1]["parts"] if "toolCallId" in part]
            assert (part["state"], part.get("output")) == ("output-available", None)

    asking.play(story, between_ms=50)


@pytest.mark.shows(chat_recovery="C-1287 C-1291")
def test_a_continuation_is_replayed_as_one_after_its_agent_has_died() -> None:
    """C-1287, C-1291: the other tab has seen the answer to the approval before."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, asking.PATH) as left, tab(door, asking.PATH) as right:
            left.say("r1", "risk")
            (call_id,) = await parked(left, "r1")
            await right.until(id="r1", done=True)
            left.send("cf_agent_tool_approval", toolCallId=call_id, approved=True, autoContinue=True)
            updated = (await right.until(type="cf_agent_message_updated"))[-1]
            (part,) = [part for part in updated["message"]["parts"] if part.get("toolCallId") == call_id]
            assert part["state"] in ("approval-responded", "output-available")
            await right.until_chunk("tool-output-available")
        for host in list(laboratory.hosts):
            laboratory.simulation.kill(host)
        async with tab(door, asking.PATH) as back:
            assert text_of(await continued(back)).endswith("∎")

    asking.play(story, between_ms=100)


RETURNING = "/agents/talker/r?_pk=mine"


def test_a_tab_whose_turn_ended_while_its_line_was_lost_is_told_the_turn_and_its_end_once() -> None:
    """P-099: and whoever comes to another gateway soon after the end is told the conversation."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as right:
            async with tab(door, RETURNING) as left:
                left.say("r1", "sum")
                await left.until_chunk("text-delta")
            await right.until(id="r1", done=True)
            messages = await stored(door)
            async with tab(door, RETURNING) as back:
                (snapshot,) = await back.until(type="cf_agent_chat_messages")
                assert (snapshot["messages"], snapshot["connect"]) == (messages, True)
                assert await resumed(back, "r1") == WHOLE
                assert back.frames[-1]["outcome"] == "completed"
                assert (await back.probe())["type"] == NOTHING
            async with tab(door, RETURNING) as again:  # the end was sent a moment ago, and may be lost
                assert await resumed(again, "r1") == WHOLE
                await asyncio.sleep(10)
            async with tab(door, RETURNING) as again:
                await again.until(type="cf_agent_chat_messages")
                assert (await again.probe())["type"] == NOTHING
            (other,) = doors(laboratory, 1)
            async with tab(other, "/agents/talker/r?_pk=another") as moved:
                assert (await moved.until(type="cf_agent_chat_messages"))[-1]["messages"] == messages
            await asyncio.sleep(90)
            async with tab(other, "/agents/talker/r?_pk=fresh") as fresh:
                assert (await fresh.probe())["type"] == NOTHING
                assert not [each for each in fresh.frames if each["type"] == "cf_agent_chat_messages"]

    play(story, between_ms=20)
