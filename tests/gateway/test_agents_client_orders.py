"""What a tab of `@cloudflare/ai-chat` is told when something happens while its gateway waits: for a tab that does not read, or for what it
has asked the agent."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors.agent.exposing import steering, watching
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SUM, WHOLE, WORDS, Outside
from tests.gateway.door import Door
from tests.gateway.tabs import Tab, stored, tab, text_of, user
from tests.gateway.test_agents_client_tools import ASKS, Asker, continued, parked
from tests.gateway.world import visit

PATH = "/agents/held/r"
MINE = f"{PATH}?_pk=mine"
ONE = ScriptedQuestion(asks="one", rounds=(Round(says="Wait. ", calls=ASKS[:1]),))
THEN = ScriptedQuestion(asks="then", rounds=tuple(Round(says="Wait. ", calls=(each,)) for each in ASKS))
BOTH = "messages r1-user r2-user"
NOTHING = "cf_agent_stream_resume_none"


class Answers:
    """The next answer of the agent to one method is held back until it is let go. It is made before, or, if it is late, afterwards."""

    method: ClassVar[str] = ""
    are_late: ClassVar[bool] = False
    asked: ClassVar[asyncio.Event]
    free: ClassVar[asyncio.Event]

    @classmethod
    def hold(cls, method: str) -> None:
        """The next one."""
        cls.method, cls.asked, cls.free = method, asyncio.Event(), asyncio.Event()

    @classmethod
    async def pass_on(cls, method: str) -> None:
        """Wait, if they are held back."""
        if method == cls.method:
            cls.method = ""
            cls.asked.set()
            await cls.free.wait()


class Held(Asker):
    """Answers when the story lets it."""

    @steering
    async def get_messages(self, limit: int | None = None, before: str | None = None) -> list[dict[str, Any]]:
        """The transcript of the moment of the question."""
        found = await super().get_messages(limit, before)
        await Answers.pass_on("get_messages")
        return found

    @watching
    async def _perdure_standing(self, request_id: str = "") -> Any:
        if Answers.are_late:
            await Answers.pass_on(f"standing {request_id}")
        found = await super()._perdure_standing(request_id)
        if not Answers.are_late:
            await Answers.pass_on(f"standing {request_id}")
        return found


def play(story: Any, between_ms: float = 0) -> None:
    """Play a story in front of an agent whose answers can be held back."""
    Answers.method = ""
    Outside.begin(Script(questions=(SUM, WORDS, ONE, THEN)), pace=Pace(between_ms=between_ms))
    visit([Held], story)


def told(frames: list[dict[str, Any]]) -> list[str]:
    """The frames in short; chunks by their type, and those in a row that are told alike as one."""
    found: list[str] = []
    for each in frames:
        if each["type"] == "agent-tool-event":  # those have a way of their own
            continue
        short = _short(each)
        if not found or found[-1] != short or not short.startswith(("live", "replay")):
            found.append(short)
    return found


def _short(frame: dict[str, Any]) -> str:
    kind = frame["type"].removeprefix("cf_agent_").removeprefix("stream_")
    if kind == "chat_messages":
        return f"messages {' '.join(each['id'] for each in frame['messages'] if each['role'] == 'user')}".strip()
    if kind != "use_chat_response":
        named = [str(frame[name]).partition("~") for name in ("id", "reason", "probeId") if name in frame]
        return " ".join([kind, *(name + mark for name, mark, _ in named)])
    wire = "".join(frame["id"].partition("~")[:2])
    how = "replay" if frame.get("replay") else "live"
    if frame.get("replayComplete"):
        return f"so far {wire}"
    return f"end {wire} {how} {frame.get('outcome', '')}".strip() if frame["done"] else f"{how} {wire}"


async def rest(of: Tab, **until: Any) -> list[str]:
    """What the tab is told until it reads a frame like this."""
    return told(await of.until(**until))


async def unread(of: Tab, until: Any) -> None:
    """Let something happen while the tab does not read."""
    of.socket.reads.clear()
    await until
    of.socket.reads.set()


# a replay, while the tab does not read


async def resuming(late: Tab) -> None:
    """Ask for the turn, and read the first chunk of it."""
    await late.until(type="cf_agent_stream_resuming")
    late.acknowledge("r1")
    await late.until(replay=True)


@pytest.mark.parametrize("again", [False, True])
def test_what_happens_during_a_replay_is_told_behind_it(again: bool) -> None:
    """Also if the replay is asked for once more meanwhile."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            async with tab(door, PATH) as late:
                await resuming(late)
                if again:
                    late.send("cf_agent_stream_resume_ack", id="r1")
                await unread(late, left.until(id="r1", done=True))
                assert await rest(late, id="r1", done=True) == [
                    "replay r1", "so far r1", "live r1", "end r1 live completed",
                ]  # fmt: skip
                numbers = [[each["seq"] for each in of.frames if "seq" in each] for of in (left, late)]
                assert numbers[0] == numbers[1]
                assert (await late.probe("p"))["type"] == NOTHING

    play(story, between_ms=20)


def test_a_probe_during_a_replay_is_answered_behind_it_and_the_rest_waits_until_it_is_asked_for() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            async with tab(door, PATH) as late:
                await resuming(late)
                late.send("cf_agent_stream_resume_request", probeId="p")
                await unread(late, left.until(id="r1", done=True))
                assert await rest(late, probeId="p") == ["replay r1", "so far r1", "resuming r1 p"]
                late.acknowledge("r1")
                assert await rest(late, id="r1", done=True) == ["replay r1", "end r1 replay completed"]
                assert text_of(late.frames[-60:]).endswith(WHOLE[-20:])

    play(story, between_ms=20)


@pytest.mark.parametrize("moment", ["before the replay", "in it", "behind it"])
def test_a_line_that_is_lost_in_a_replay_leaves_no_turn_to_be_told(moment: str) -> None:
    """The tab is told the conversation when it comes back; in the other moments also the turn whose end it has not heard."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            async with tab(door, MINE) as late:
                if moment == "before the replay":
                    await late.until(type="cf_agent_stream_resuming")
                else:
                    await resuming(late)
                if moment == "behind it":
                    await late.until(replayComplete=True)
                else:
                    late.socket.reads.clear()
            await left.until(id="r1", done=True)
            await left.probe("quiet")
            async with tab(door, MINE) as back:
                back.send("cf_agent_stream_resume_request", probeId="p")
                resumes = [] if moment == "in it" else ["resuming r1"]
                answer = "resume_none idle p" if moment == "in it" else "resuming r1 p"
                assert await rest(back, probeId="p") == ["messages r1-user", *resumes, answer]

    play(story, between_ms=20)


def test_a_conversation_that_is_cleared_in_a_replay_or_before_it() -> None:
    """The end of a turn that was streamed is told; one that was not asked for by then has no chunk any more."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left:
            left.say("r1", "sum")
            await left.until_chunk("text-delta")
            async with tab(door, PATH) as late, tab(door, PATH) as later:
                await resuming(late)
                await later.until(type="cf_agent_stream_resuming")
                late.socket.reads.clear()
                left.send("cf_agent_chat_clear")
                await left.until(id="r1", done=True)
                await later.until(type="cf_agent_chat_clear")
                late.socket.reads.set()
                assert await rest(late, type="cf_agent_chat_clear") == [
                    "replay r1", "so far r1", "end r1 live aborted", "chat_clear",
                ]  # fmt: skip
                later.acknowledge("r1")
                assert await rest(later, done=True) == ["end r1 replay"]

    play(story, between_ms=20)


# a continuation that is told to a tab that does not read


async def answer(by: Tab, message: dict[str, Any], about: str) -> None:
    """Answer the question of a message, and ask for what follows."""
    (call_id,) = [part["toolCallId"] for part in message["parts"] if part.get("input") == {"about": about}]
    by.send("cf_agent_tool_result", toolCallId=call_id, output="blue", autoContinue=True)


@pytest.mark.parametrize("reads", [True, False])
def test_who_answers_while_a_continuation_is_still_told_to_it_sees_the_next_one_live(reads: bool) -> None:
    """Who has read the continuation, and answers then, asks for the next one, and is told nothing of it before."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            left.say("r1", "then")
            await parked(left, "r1")
            await right.until(id="r1", done=True)
            await answer(left, (await stored(door, PATH))[1], "colour")
            await right.until_chunk("start")  # the first of those that it had before, which are told again
            right.socket.reads.clear()
            await continued(left)
            if reads:
                right.socket.reads.set()
                await right.until(done=True)
            await answer(right, (await stored(door, PATH))[1], "size")
            await left.until(done=True)
            right.socket.reads.set()
            if not reads:
                assert "end r1~ live completed" in await rest(right, done=True)
                assert (await rest(right, done=True))[-2:] == ["live r1~", "end r1~ live completed"]
            else:
                right.send("cf_agent_stream_resume_request", probeId="p")
                frames = await right.until(probeId="p")
                assert told(frames) == ["message_updated", "messages r1-user", "resuming r1~ p"]
                right.acknowledge(frames[-1]["id"])
                assert await rest(right, done=True) == ["replay r1~", "end r1~ replay completed"]

    play(story, between_ms=50)


def test_a_line_that_is_lost_while_a_continuation_is_told_from_its_beginning_leaves_it_to_be_told() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left:
            async with tab(door, MINE) as right:
                left.say("r1", "one")
                await parked(left, "r1")
                await right.until(id="r1", done=True)
                await asyncio.sleep(10)  # that end has arrived
                await answer(left, (await stored(door, PATH))[1], "colour")
                await right.until_chunk("start")
                right.socket.reads.clear()
                await continued(left)
            async with tab(door, MINE) as back:
                back.send("cf_agent_stream_resume_request", probeId="p")
                assert await rest(back, probeId="p") == ["messages r1-user", "resuming r1~", "resuming r1~ p"]

    play(story, between_ms=50)


# what the agent is asked for a turn that is accepted, begins, or has come to a question


def test_who_comes_while_the_transcript_of_an_accepted_turn_is_read_is_told_that_it_waits_and_then_that_one() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            await left.probe("first")
            Answers.hold("get_messages")
            left.say("r1", "words")
            await Answers.asked.wait()
            async with tab(door, PATH) as late:
                assert told([await late.next(), await late.probe("p")]) == ["pending r1", "pending r1 p"]
                Answers.free.set()
                assert await rest(late, type="cf_agent_stream_resuming") == ["messages r1-user", "resuming r1"]
                assert await rest(left, id="r1", done=True) == ["live r1", "end r1 live completed"]
                assert await rest(right, id="r1", done=True) == ["messages r1-user", "live r1", "end r1 live completed"]

    play(story, between_ms=50)


def test_an_author_who_was_told_another_transcript_meanwhile_is_not_told_that_of_its_turn() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            await left.probe("first")
            Answers.hold("get_messages")
            left.say("r1", "words")
            await Answers.asked.wait()
            right.send("cf_agent_chat_messages", messages=[user("m", "before")])
            assert await rest(left, type="cf_agent_chat_messages") == ["messages r1-user m"]
            Answers.free.set()
            shown = ["live r1", "messages r1-user m", *LIVE]
            assert await rest(left, id="r1", done=True) == shown
            assert await rest(right, id="r1", done=True) == ["messages r1-user", *shown]

    play(story, between_ms=50)


def test_who_asks_while_the_transcript_of_a_turn_that_begins_behind_another_is_read() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            left.say("r1", "words")
            await left.until_chunk("text-delta")
            left.say("r2", "sum")
            await right.until(type="cf_agent_chat_messages")
            await right.until(type="cf_agent_chat_messages")
            Answers.hold("get_messages")
            await left.until(id="r1", done=True)
            await Answers.asked.wait()
            async with tab(door, PATH) as late, tab(door, PATH) as later:
                for each in (late, later):
                    assert told([await each.next()]) == ["resuming r2"]
                late.acknowledge("r2")
                assert await rest(late, replayComplete=True) == ["so far r2"]
                assert told([await right.probe("p")]) == ["pending r2 p"]
                Answers.free.set()
                for each in (left, late):
                    assert await rest(each, id="r2", done=True) == [BOTH, "live r2", "end r2 live completed"]
                assert await rest(right, type="cf_agent_stream_resuming") == [BOTH, "resuming r2"]
                for each in (later, right):
                    each.acknowledge("r2")
                    assert (await rest(each, id="r2", done=True))[-2:] == ["replay r2", "end r2 replay completed"]
                assert told(later.frames)[3:4] == [BOTH]

    play(story, between_ms=50)


LIVE = ["live r1", "end r1 live completed"]
HELD = ["end r1 replay completed", "messages r1-user"]
MORE = ["live r1~", "end r1~ live completed", "messages r1-user"]
NONE_P, UPDATED = "resume_none idle p", "message_updated"
SEEN_QUESTION = [
    ["live r1", UPDATED, "end r1 live completed", *MORE, NONE_P],
    [UPDATED, "end r1 live completed", *MORE, NONE_P],
    [UPDATED, *MORE, *HELD, NONE_P],
    ["messages r1-user", "live r1", UPDATED, "end r1 live completed", "messages r1-user", "resuming r1~ p"],
]
UNSEEN_QUESTION = [
    ["live r1", UPDATED, *LIVE, NONE_P],
    [UPDATED, *LIVE, NONE_P],
    [UPDATED, *HELD, NONE_P],
    ["messages r1-user", "live r1", UPDATED, *LIVE, NONE_P],
]
"""What is told to the author, to who has the replay, to who has not asked for it, and to who answers."""


@pytest.mark.parametrize("are_late", [False, True])
def test_a_turn_that_is_answered_while_it_is_asked_whether_it_waits(are_late: bool) -> None:
    """If the agent had seen the answer by then, nobody is told that the turn has waited, and it goes on in the same stream."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        Answers.are_late = are_late
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            await left.probe("first")
            left.say("r1", "one")
            await left.until_chunk("text-delta")
            Answers.hold("standing r1")
            await Answers.asked.wait()
            async with tab(door, PATH) as late, tab(door, PATH) as later:
                for each in (late, later):
                    assert told([await each.next()]) == ["resuming r1"]
                late.acknowledge("r1")
                assert await rest(late, replayComplete=True) == ["replay r1", "so far r1"]
                await answer(right, (await stored(door, PATH))[1], "colour")
                await asyncio.sleep(10)
                Answers.free.set()
                await asyncio.sleep(10)
                for each in (left, late, later, right):
                    each.send("cf_agent_stream_resume_request", probeId="p")
                shown = [await rest(each, probeId="p") for each in (left, late, later, right)]
                assert shown == (UNSEEN_QUESTION if are_late else SEEN_QUESTION)

    play(story, between_ms=50)
