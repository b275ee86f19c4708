"""The feed of one conversation: whoever began what happens in it, in order, from a number on, across deaths, edits and clears."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, cast

import pytest

from perdure.actors import Agent, exposed
from perdure.actors.chat.feed import HOLD_S
from perdure.actors.chat.followers import REST_AFTER_S, Rest
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.ledger import BadRequest
from perdure.scenarios.provider.faults import Pace
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside, in_third_answer
from tests.actors.chat.room import SLOW, Room, visit, visiting
from tests.kit import address


async def watch(room: Room, until: Any, first: int = 0) -> list[dict[str, Any]]:
    """What a follower is told from a number on, up to the first event of which this is true."""
    heard: list[dict[str, Any]] = []
    async with asyncio.timeout(7_200), aclosing(room.client.agent(room.agent, "somebody").feed(first)) as feed:
        async for event in feed:
            heard.append(event)
            if until(event):
                break
    return heard


def ends(turn: str) -> Any:
    """Whether an event is the end of this turn."""
    return lambda event: event["type"] == "turn-ended" and event["turn"] == turn


def kinds(heard: Iterable[dict[str, Any]]) -> list[str]:
    """The types of all but what was streamed."""
    return [each["type"] for each in heard if each["type"] != "event"]


def streamed(heard: Iterable[dict[str, Any]], turn: str) -> list[dict[str, Any]]:
    """The events of the stream of a turn. Their numbers have no hole and no double."""
    found = [each for each in heard if each["type"] == "event" and each["turn"] == turn]
    assert [each["event_number"] for each in found] == list(range(len(found)))
    return [each["event"] for each in found]


@visiting(Adder)
async def test_one_client_watches_what_another_one_asks(room: Room, /) -> None:
    """From the acceptance to the end, with the words of the user, each event once, and the message at the end."""
    watching = asyncio.ensure_future(watch(room, ends("two")))
    await asyncio.sleep(1)
    result, listener = await room.follow("chat", "sum", request_id="one", metadata={"from": "a"})
    assert (await room.do("chat", "words", request_id="two")).ok
    heard = await watching
    numbers = [each["number"] for each in heard]
    assert numbers == sorted(set(numbers))
    told = [each for each in heard if each.get("turn") == "one" and each["type"] != "event"]
    assert [each["type"] for each in told] == ["turn-accepted", "turn-begun", "turn-ended"]
    assert (told[0]["trigger"], told[0]["metadata"]) == ("chat", {"from": "a"})
    assert [each["parts"][0]["text"] for each in told[0]["messages"]] == ["sum"]
    assert told[1]["message_id"] == "one-answer"
    assert told[2]["status"] == "completed"
    own = [told[1] for told in listener.heard if told[0] == "on_event"]
    assert streamed(heard, "one") == [*own, {"type": "finish"}]
    messages = {each["position"]: each["message"] for each in heard if each["type"] == "message"}
    assert [messages[at] for at in sorted(messages)] == await room.do("get_messages")
    assert messages[2] == result.message


@visiting(Adder)
async def test_a_late_watcher_is_told_the_same_and_goes_on_anywhere(room: Room, /) -> None:
    """From the start, and from each number; what comes after is what came after."""
    assert (await room.do("chat", "sum", request_id="one")).ok
    assert (await room.do("chat", "words", request_id="two")).ok
    whole = await watch(room, ends("two"))
    assert [kind for kind in kinds(whole) if kind != "message"] == ["turn-accepted", "turn-begun", "turn-ended"] * 2
    await room.sleep()
    for at in range(0, len(whole) - 1, 7):
        assert await watch(room, ends("two"), whole[at]["number"] + 1) == whole[at + 1 :]
    with pytest.raises(BadRequest, match=r"first: .* is ahead of this conversation"):
        await watch(room, ends("two"), 1 << 50)
    with pytest.raises(BadRequest, match="first"):
        await watch(room, ends("two"), -1)


@visiting(Adder)
async def test_of_turns_but_the_newest_twenty_the_messages_are_told_and_not_the_streams(room: Room, /) -> None:
    for number in range(22):
        assert (await room.do("chat", "words", request_id=f"turn-{number}")).ok
    heard = await watch(room, ends("turn-21"))
    assert {each["turn"] for each in heard if each["type"] == "event"} == {f"turn-{each}" for each in range(2, 22)}
    assert kinds(heard).count("turn-ended") == 22
    assert kinds(heard).count("message") == 44


def test_a_death_in_the_midst_loses_nothing_and_tells_nothing_twice() -> None:
    """The agent dies in its answer. The follower goes on with the next life, and is told of the other attempt."""
    death = in_third_answer()

    async def story(room: Room) -> None:
        watching = asyncio.ensure_future(watch(room, ends("asked")))
        await room.do("submit_messages", "sum", request_id="asked")
        heard = await watching
        assert death.victims
        assert kinds(heard).count("turn-begun") == 1
        events = streamed(heard, "asked")
        assert [each["data"]["attempt"] for each in events if each["type"] == "data-attempt"] == [2]
        assert events[-1] == {"type": "finish"}
        assert await watch(room, ends("asked")) == heard, "as one who comes late is told"
        assert (await room.do("attach", "asked")).text == WHOLE

    visit(Adder, story, kill_when=death)


@visiting(Adder)
async def test_a_watcher_is_told_of_edits_deletions_and_of_a_clear(room: Room, /) -> None:
    """A late one is told of the deletions, and after a clear of the clear alone."""
    watching = asyncio.ensure_future(watch(room, lambda event: event["type"] == "cleared"))
    assert (await room.do("chat", "words one", request_id="one")).ok
    assert (await room.do("chat", "words two", request_id="two", instead_of="one-0")).ok
    await room.do("add_messages", {"id": "two-0", "role": "user", "parts": [{"type": "text", "text": "changed"}]})
    await room.do("delete_messages", ["two-answer"])
    late = await watch(room, lambda event: event.get("message_id") == "two-answer" and "position" in event)
    await room.do("clear")
    heard = await watching
    for each in (heard, late):
        gone = [event["message_id"] for event in each if event["type"] == "message-deleted"]
        assert gone == ["one-0", "one-answer", "two-answer"]
    shown = [event["message"] for event in heard if event["type"] == "message"]
    assert [(each["id"], each["parts"][-1]["text"]) for each in shown if each["role"] == "user"] == [
        ("one-0", "words one"),
        ("two-0", "words two"),
        ("two-0", "changed"),
    ]
    assert [event["message"]["id"] for event in late if event["type"] == "message"] == ["two-0"]
    assert (await room.do("chat", "words three", request_id="one")).ok
    assert kinds(await watch(room, ends("one")))[:2] == ["cleared", "turn-accepted"]
    following = await watch(room, ends("one"), heard[-1]["number"] + 1)
    assert kinds(following)[0] == "turn-accepted"


@visiting(Adder, SCRIPT, pace=SLOW)
async def test_a_queued_turn_is_told_with_its_words_before_it_begins(room: Room, /) -> None:
    """And one that is cancelled before it began has an end without a beginning."""
    first = room.soon("chat", "sum", request_id="one")
    await room.until(lambda: room.is_("running", "one"))
    await room.do("submit_messages", "words", request_id="two")
    heard = await watch(room, lambda event: event.get("turn") == "two")
    assert [each["parts"][0]["text"] for each in heard[-1]["messages"]] == ["words"]
    await room.do("cancel_chat", "two")
    await first
    told = [each for each in await watch(room, ends("one")) if each.get("turn") == "two"]
    assert [each["type"] for each in told] == ["turn-accepted", "event", "turn-ended"]
    assert told[-1]["status"] == "aborted"


@visiting(Adder, pace=Pace(first_ms=200, between_ms=2000))
async def test_who_comes_in_the_midst_of_a_slow_turn_is_told_at_once_what_was_said(room: Room, /) -> None:
    """Also of what was not yet written, because nobody had followed."""
    await room.do("submit_messages", "words", request_id="asked")
    await room.until(lambda: len(Outside.provider.log()) == 1)
    await asyncio.sleep(3)
    began_s = asyncio.get_running_loop().time()
    await watch(room, lambda event: event.get("event", {}).get("type") == "text-delta")
    assert asyncio.get_running_loop().time() - began_s < 0.5


@visiting(Adder, timeout_ms=7200000)
async def test_an_idle_follower_lets_the_agent_sleep_and_hears_when_somebody_wakes_it(room: Room, /) -> None:
    """After a minute without a word it looks ever more rarely."""
    agent, loop = address(Adder, "somebody"), asyncio.get_running_loop()
    watching = asyncio.ensure_future(watch(room, ends("one")))
    await asyncio.sleep(5)
    await asyncio.sleep(REST_AFTER_S / 2)
    assert agent in room.view.agents
    awake = 0
    for _ in range(900):
        await asyncio.sleep(1)
        awake += agent in room.view.agents
    assert awake < 90
    await room.until(lambda: agent not in room.view.agents)
    asked_at_s = loop.time()
    await room.do("chat", "words", request_id="one")
    await watching
    assert loop.time() - asked_at_s < 5


class Sleeper:
    """An agent that is awake until an instant, and from another one on."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s, self.sleeps_at_s, self.wakes_at_s = idle_s, math.inf, math.inf

    async def call(self, method: str, *args: object, **kwargs: object) -> Any:
        raise AssertionError("a rest wakes nobody")

    async def is_awake(self) -> bool:
        return not self.sleeps_at_s <= asyncio.get_running_loop().time() < self.wakes_at_s


@pytest.mark.parametrize(("idle_s", "first_s"), [(1, 10), (5, 10), (20, 40)])
def test_a_follower_looks_ever_more_rarely_at_an_agent_that_sleeps_and_at_once_when_somebody_wakes_it(
    idle_s: float, first_s: float
) -> None:
    async def story() -> None:
        loop, agent = asyncio.get_running_loop(), Sleeper(idle_s)
        rest = Rest(agent)

        async def rested(*, is_resting: bool = True) -> tuple[float, float]:
            """How long it rests, and how long it lets its next question be held."""
            began_s = loop.time()
            await rest.after(is_resting=is_resting)
            return round(loop.time() - began_s), rest.hold_s

        assert await rested() == (0, HOLD_S)
        await asyncio.sleep(REST_AFTER_S - 1)
        assert await rested() == (0, HOLD_S)
        await asyncio.sleep(1)
        assert [await rested() for _ in range(3)] == [(first_s, HOLD_S)] * 3, "somebody else keeps it awake"
        agent.sleeps_at_s = loop.time()
        assert [await rested() for _ in range(8)] == [(min(600, first_s * 2**number), 0.0) for number in range(8)], (
            "it sleeps, and may be kept from it by no question that is held"
        )
        agent.wakes_at_s = loop.time() + 2.5
        assert await rested() == (3, HOLD_S)
        agent.sleeps_at_s, agent.wakes_at_s = loop.time(), math.inf
        assert await rested() == (first_s, 0.0), "it has begun anew"
        assert await rested(is_resting=False) == (0, HOLD_S)
        assert await rested() == (0, HOLD_S), "for a minute after a word"
        await asyncio.sleep(REST_AFTER_S)
        assert await rested() == (first_s, 0.0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())


class Watcher(Agent):
    """Watches a chat of its own."""

    @exposed
    async def heard(self) -> list[str]:
        """The types of what happens in one turn, but for what is streamed."""
        chat, found = self.sub_agent(Adder, "its own"), list[dict[str, Any]]()
        await chat.submit_messages("words", request_id="asked")
        async with aclosing(chat.feed()) as feed:
            async for event in feed:
                found.append(cast("dict[str, Any]", event))
                if ends("asked")(event):
                    break
        return kinds(found)


class SelfWatcher(Adder):
    """Follows its own chat."""

    @exposed
    async def heard_after(self, quiet_s: float) -> float:
        """How long it takes to hear of a turn, in seconds, after a time in which nothing was said."""
        loop = asyncio.get_running_loop()
        async with aclosing(self.feed()) as feed:
            hearing = asyncio.ensure_future(anext(feed))
            await asyncio.sleep(quiet_s)
            asked_at_s = loop.time()
            await self.submit_messages("words", request_id="asked")
            await hearing
            return loop.time() - asked_at_s


@visiting(Adder, timeout_ms=7200000)
async def test_an_agent_that_follows_its_own_chat_is_awake_and_hears_at_once_after_a_long_silence(
    room: Room, /
) -> None:
    assert await room.client.call(SelfWatcher, "somebody", "heard_after", (1_000.0,), {}) < 15


@visiting(Adder)
async def test_an_agent_watches_its_sub_agent(room: Room, /) -> None:
    """The handle of a sub-agent has a feed too."""
    heard = await room.client.call(Watcher, "somebody", "heard", (), {})
    assert heard == ["turn-accepted", "message", "turn-begun", "message", "turn-ended"]
