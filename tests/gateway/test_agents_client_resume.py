"""How tabs of `@cloudflare/ai-chat` come back to a turn: drops at any moment, turns that wait for their place, and who may go on."""

from __future__ import annotations

import pytest

from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import WHOLE
from tests.gateway.door import Door
from tests.gateway.tabs import Tab, chunks, stored, tab, text_of, texts
from tests.gateway.test_agents_client_chat import play
from tests.gateway.test_agents_client_tools import PATH, continued, parked
from tests.gateway.test_agents_client_tools import play as play_asker

NOTHING = "cf_agent_stream_resume_none"


async def resumed(back: Tab, wire: str) -> str:
    """Have a turn told from its beginning; its text."""
    await back.until(type="cf_agent_stream_resuming", id=wire)
    back.acknowledge(wire)
    return text_of(await back.until(id=wire, done=True), wire)


@pytest.mark.shows(clients="P-097 P-115")
@pytest.mark.parametrize("read", [0, 1, 2, 23, 45])
def test_a_tab_that_drops_after_any_chunk_gets_the_whole_answer_once(read: int) -> None:
    """P-097, P-115."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            while len(chunks(left.frames)) < read:
                await left.next()
        async with tab(door) as watching:
            while not await stored(door):
                await watching.probe("is it there?")
        async with tab(door) as back:
            assert await resumed(back, "r1") == WHOLE
            messages = await stored(door)
            assert texts(messages) == ["sum", WHOLE]
            assert chunks(back.frames)[0] == {"type": "start", "messageId": messages[1]["id"]}
            assert (await back.probe("after"))["type"] == NOTHING

    play(story, between_ms=50, first_ms=100)


@pytest.mark.shows(clients="P-103")
def test_a_turn_that_ends_before_it_is_acknowledged_is_told_whole() -> None:
    """P-103."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            async with tab(door) as late:
                await late.until(type="cf_agent_stream_resuming")
                await left.until(id="r1", done=True)
                late.acknowledge("r1")
                assert text_of(await late.until(id="r1", done=True)) == WHOLE
                assert late.frames[-1]["outcome"] == "completed"

    play(story, between_ms=20)


def test_a_tab_that_waits_for_no_answer_to_its_probe_any_more_is_told_the_end_and_the_transcript() -> None:
    """Under load a probe is answered after the client's five seconds, or another announcement was heard in its place. Then it never says
    that it wants the turn, and showed it as under way for ever. If it does say so after all, the turn is told whole."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            assert (await left.probe("too late"))["type"] == "cf_agent_stream_resuming"
            told = await left.until(id="r1", done=True)
            assert not chunks(told)
            assert told[-1]["outcome"] == "completed"
            await left.until_it_shows(["sum", WHOLE])
            left.send("cf_agent_stream_resume_ack", id="r1")
            again: list[dict[str, object]] = []
            while not again or not again[-1].get("done"):
                again.append(await left.socket.receive())
            assert text_of(again, "r1") == WHOLE  # type: ignore[arg-type]

    play(story, between_ms=20)


@pytest.mark.shows(chat_recovery="C-0147 C-0148 C-0152 C-0153 C-0154 C-0330 C-1193 C-1195", clients="P-098 P-108")
def test_who_waits_for_a_turn_in_the_queue_is_told_so_again_and_again_and_then_resumes_it() -> None:
    """P-098, P-108: also when another turn ends meanwhile, and another waiting tab leaves."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            left.say("r2", "words")
            assert (await left.probe("until both are there"))["type"] == "cf_agent_stream_resuming"
            async with tab(door) as late:
                async with tab(door) as gone:
                    for each in (late, gone):
                        await each.until(type="cf_agent_stream_pending", id="r2")
                assert await resumed(late, "r2")
                pending = [each for each in late.frames if each["type"] == "cf_agent_stream_pending"]
                assert len(pending) >= 2, "while the other turn streams"
                assert {each["id"] for each in pending} == {"r2"}
                assert not [each for each in late.frames if each["type"] == NOTHING]

    play(story, between_ms=4_000)


@pytest.mark.shows(chat_recovery="C-0149 C-0331 C-1298", clients="P-109")
@pytest.mark.parametrize("how", ["cancel", "clear"])
def test_who_waits_for_a_turn_that_never_begins_is_told_that_there_is_nothing(how: str) -> None:
    """P-109."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.say("r1", "sum")
            left.say("r2", "words")
            await left.until_chunk("text-delta")
            async with tab(door) as late:
                await late.until(type="cf_agent_stream_pending", id="r2")
                if how == "cancel":
                    left.send("cf_agent_chat_request_cancel", id="r2")
                else:
                    left.send("cf_agent_chat_clear")
                assert (await late.until(type=NOTHING))[-1] == {"type": NOTHING, "reason": "idle"}
            await left.until(id="r1", done=True)

    play(story, between_ms=200)


@pytest.mark.shows(chat_recovery="C-0140 C-0316 C-0339 C-0341")
def test_frames_may_lack_what_is_not_needed() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door) as left:
            left.send("cf_agent_stream_resume_request")
            assert (await left.until(type=NOTHING))[-1] == {"type": NOTHING, "reason": "idle"}
            for unknown in ("nobody", ""):
                left.send("cf_agent_stream_resume_ack", id=unknown)
                assert await left.next() == {
                    "type": "cf_agent_use_chat_response", "id": unknown, "body": "", "done": True, "replay": True,
                }  # fmt: skip
            left.say("r1", "words")
            await left.until(id="r1", done=True)
            before = await stored(door)
            left.send("cf_agent_chat_messages")
            left.send("cf_agent_chat_messages", messages={})
            left.send("cf_agent_use_chat_request", id="no-init")
            await left.probe("after")
            assert await stored(door) == before

    play(story)


@pytest.mark.shows(chat_recovery="C-0332 C-1005 C-1008", clients="P-141")
def test_a_continuation_outlives_the_tab_that_owns_it_and_another_takes_it_up() -> None:
    """P-141: the answers came in another order than the questions, and without a word on going on."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as right:
            async with tab(door, PATH) as left:
                left.say("r1", "two")
                first, second = await parked(left, "r1")
                await right.until(id="r1", done=True)
                left.send("cf_agent_tool_result", toolCallId=second, output="large", autoContinue=True)
                left.send("cf_agent_tool_result", toolCallId=first, output=None, autoContinue=True)
                await right.until_chunk("start")
            async with tab(door, PATH) as back:
                told = await continued(back)
                assert text_of(told).endswith("∎")
                messages = await stored(door, PATH)
                outputs = [part.get("output") for part in messages[1]["parts"] if "toolCallId" in part]
                assert outputs == [None, "large"]

    play_asker(story, between_ms=100)
