"""Who talks with an agent asks its host (`actors.link.direct_calls`), and the supervisor when it must be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.actors import Agent, ChatAgent, KillPoint, exposed
from perdure.actors.link.direct_calls import (
    FRESH_S,
    DirectCalls,
    DirectFrame,
    DirectReply,
    DirectRequest,
    DirectRoute,
    append_route,
)
from perdure.actors.link.messages import Ask, Call
from perdure.actors.link.peer import Peer
from perdure.actors.link.wire import PeerFrame, decode_all
from perdure.actors.ports import Transport
from perdure.actors.tasks import Tasks
from perdure.ledger import AgentUnreachable, ConflictingRequest, HostUnavailable, pack, unpack
from tests.kit import Stage, address, play

WORDS = [f"word-{number} " for number in range(40)]


async def _slowly(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for word in WORDS:
        await asyncio.sleep(0.2)
        yield word


async def _haltingly(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for word in WORDS[:5]:
        await asyncio.sleep(7)
        yield word


class Speaker(ChatAgent):
    """Says a word five times a second."""

    model = FunctionModel(stream_function=_slowly)


class Ponderer(ChatAgent):
    """Says a word each seven seconds."""

    model = FunctionModel(stream_function=_haltingly)


class House(Agent):
    """Lets callers from outside pass to its speakers as long as it is open."""

    async def on_before_sub_agent(self, agent_type: str, name: str) -> bool:
        return not self.state.get("closed")

    @exposed
    def close(self) -> None:
        self.state["closed"] = True


class Ear:
    """Notes the words that it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def on_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "text-delta":
            self.heard.append(event["delta"])


class Counting:
    """Counts what goes which way."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.route = inner, inner.route
        self.looks, self.failed, self.calls = 0, 0, Counter[str]()

    async def exchange(self, frame: bytes) -> bytes:
        asks = [each for each in decode_all(PeerFrame(*unpack(frame)).messages) if isinstance(each, Ask)]
        self.calls.update(each.question.method for each in asks if isinstance(each.question, Call))
        return await self._inner.exchange(frame)

    async def look(self, route: str, frame: bytes) -> bytes:
        self.looks += 1
        try:
            return await self._inner.look(route, frame)
        except HostUnavailable:
            self.failed += 1
            raise


def counted(stage: Stage) -> Counting:
    """Count what the client says from now on."""
    counting = Counting(stage.client.peer.transport)
    stage.client.peer.transport = counting
    return counting


async def test_who_follows_an_answer_asks_the_host_for_the_rest_of_it(stage: Stage) -> None:
    ways, ear = counted(stage), Ear()
    result = await stage.client.agent(Speaker, "s").chat("Speak!", ear)
    assert ("".join(ear.heard), result.text) == ("".join(WORDS), "".join(WORDS))
    assert ways.calls == {"_perdure_begin_turn": 1}
    assert len(WORDS) / 2 < ways.looks < 2 * len(WORDS)


async def test_the_next_turn_is_begun_at_the_host(stage: Stage) -> None:
    ways = counted(stage)
    for n in range(3):
        result = await stage.client.agent(Speaker, "s").chat("Speak!", request_id=f"turn-{n}")
        assert (result.text, result.request_id) == ("".join(WORDS), f"turn-{n}")
    assert ways.calls == {"_perdure_begin_turn": 1}
    await asyncio.sleep(FRESH_S)
    await stage.client.agent(Speaker, "s").chat("Speak!", request_id="later")
    assert ways.calls == {"_perdure_begin_turn": 2}, "the host may have been given up meanwhile"
    assert len(await stage.call(Speaker, "get_messages", name="s")) == 8


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_turn_whose_host_dies_while_it_is_begun_there_is_begun_once(place: str) -> None:
    """Nobody knows whether it was accepted, so the supervisor is asked as for a call that may be repeated."""
    armed: list[str] = []

    def moment(_stage: Stage, process: str, at: KillPoint, detail: str) -> bool:
        strikes = bool(armed) and (process, at, detail) == (armed[0], KillPoint.MID_STORAGE, place)
        if strikes:
            armed.clear()
        return strikes

    async def story(stage: Stage) -> None:
        ways = counted(stage)
        await stage.client.agent(Speaker, "s").chat("Speak!", request_id="first")
        armed.append(stage.host_of(address(Speaker, "s")))
        result = await stage.client.agent(Speaker, "s").chat("Speak!", request_id="second", follow=True)
        assert not armed, "nobody died"
        assert result.text.endswith("".join(WORDS))
        assert ways.failed == 1
        assert ways.calls["_perdure_begin_turn"] == 2
        messages = await stage.call(Speaker, "get_messages", name="s")
        assert [each["role"] for each in messages] == ["user", "assistant"] * 2

    play(story, kill_when=moment)


async def test_what_is_refused_at_the_host_is_refused_in_the_same_words(stage: Stage) -> None:
    ways = counted(stage)
    await stage.client.agent(Speaker, "s").chat("Speak!", request_id="turn")
    with pytest.raises(ConflictingRequest, match="request_id: turn was asked for with other content"):
        await stage.client.agent(Speaker, "s").chat("Be silent!", request_id="turn")
    assert ways.calls["_perdure_begin_turn"] == 2, "the supervisor's way tells what is wrong"


async def test_when_the_host_has_died_the_supervisor_is_asked_and_then_the_next_host(stage: Stage) -> None:
    ways, ear = counted(stage), Ear()
    asked = asyncio.ensure_future(stage.client.agent(Speaker, "s").chat("Speak!", ear, follow=True))
    await stage.until(lambda: len(ear.heard) > 10)
    first = stage.host_of(address(Speaker, "s"))
    stage.kill_host_of(address(Speaker, "s"))
    assert (await asked).text.endswith("".join(WORDS))
    assert stage.host_of(address(Speaker, "s")) != first
    assert ways.failed == 1
    assert ways.calls["_perdure_follow_turn"] == 1
    assert ways.looks > len(WORDS) / 2


async def test_an_answer_that_was_long_in_coming_says_nothing_about_where_the_agent_is(stage: Stage) -> None:
    ways, ear = counted(stage), Ear()
    await stage.client.agent(Ponderer, "p").chat("Think!", ear)
    assert len(ear.heard) == 5
    assert ways.calls["_perdure_follow_turn"] >= 4
    assert ways.looks <= 3


async def test_an_agent_that_has_gone_from_a_host_that_goes_on_is_found_by_the_supervisor(stage: Stage) -> None:
    ways = counted(stage)
    await stage.client.agent(Speaker, "s").chat("Speak!", Ear())
    stage.laboratory.supervisors[-1].sessions.let_go(list(stage.view.agents.values()))
    await stage.until(lambda: not stage.host_of(address(Speaker, "s")))
    looks = ways.looks
    assert (await stage.call(Speaker, "_perdure_feed", 0, 0.0, name="s"))["events"]
    assert (ways.looks, ways.failed, ways.calls["_perdure_feed"]) == (looks + 1, 0, 1)


async def test_who_comes_from_outside_passes_the_parent_each_time(stage: Stage) -> None:
    ways, ear = counted(stage), Ear()
    house = stage.client.agent(House, "h")
    asked = asyncio.ensure_future(stage.client.agent(Speaker, "s", of=house).chat("Speak!", ear, follow=True))
    await stage.until(lambda: len(ear.heard) > 10)
    await house.close()  # type: ignore[func-returns-value]
    with pytest.raises(AgentUnreachable):
        await asked
    assert ways.looks == 0
    assert len(ear.heard) < len(WORDS)


async def test_who_follows_an_agent_does_not_keep_a_supervisor_from_winding_down(stage: Stage) -> None:
    ways = counted(stage)
    await stage.client.agent(Speaker, "s").chat("Speak!", Ear())

    async def follow() -> None:
        async for _ in stage.client.agent(Speaker, "s").feed(0):
            pass

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(3)
    assert ways.looks > 1
    for _ in range(15):
        told = await stage.client.ask("wind_down")
        await asyncio.sleep(1)
    assert told["at_work"] == 0
    following.cancel()
    await asyncio.wait([following])


async def test_no_turn_is_begun_at_a_host_while_the_supervisor_winds_down(stage: Stage) -> None:
    ways = counted(stage)
    await stage.client.agent(Speaker, "s").chat("Speak!", request_id="first")
    under_way = asyncio.ensure_future(stage.client.agent(Speaker, "s").chat("Speak!", request_id="second"))
    await asyncio.sleep(1)
    assert (await stage.client.ask("wind_down"))["at_work"] == 1
    late = asyncio.ensure_future(stage.client.agent(Speaker, "s").chat("Speak!", request_id="third"))
    assert (await under_way).ok, "what is under way goes on, and is followed"
    assert ways.calls == {"_perdure_begin_turn": 2}
    assert not late.done()
    assert (await late).ok, "nobody has said the wish again, so the supervisor goes on"


def test_where_a_child_lives_is_known_to_its_parent_and_not_to_its_neighbours() -> None:
    """Only its parent may be sure to be let pass (`on_before_sub_agent`)."""

    async def story() -> list[str]:
        asked: list[str] = []

        async def look(_host: str, frame: bytes) -> bytes:
            questions = DirectFrame(*unpack(frame)).questions
            asked.extend("host" for _ in questions)
            return pack([DirectReply(number, append_route(b"told", DirectRoute("h1", 1))) for number, _ in questions])

        async def by_the_supervisor() -> bytes:
            asked.append("supervisor")
            return append_route(b"told", DirectRoute("h1", 1))

        async with Tasks("test") as tasks:
            direct_calls = DirectCalls(
                tasks, cast("Peer", SimpleNamespace(transport=SimpleNamespace(look=look), peer_id="me"))
            )
            for who in ("house", "house", "", ""):
                assert await direct_calls.ask(who, "speaker", "method", b"", "", by_the_supervisor) == b"told"
            tasks.finish("done")
            await tasks.over()
        return asked

    assert asyncio.run(story()) == ["supervisor", "host"] * 2


def test_an_answer_without_a_door_tells_nothing_about_where_the_agent_is() -> None:
    """The class of the agent may be of another version there, and not mark the method."""

    async def story() -> int:
        times = 0

        async def by_the_supervisor() -> bytes:
            nonlocal times
            times += 1
            return b"plain"

        async with Tasks("test") as tasks:
            direct_calls = DirectCalls(tasks, cast("Peer", None))
            for _ in range(2):
                assert await direct_calls.ask("", "speaker", "method", b"", "", by_the_supervisor) == b"plain"
            tasks.finish("done")
            await tasks.over()
        return times

    assert asyncio.run(story()) == 2


async def test_a_host_is_asked_for_nothing_but_what_is_marked_so(stage: Stage) -> None:
    await stage.client.agent(Speaker, "s").chat("Speak!", Ear())
    agent = address(Speaker, "s")
    activation = stage.view.agents[agent]
    for number, (method, is_answered) in enumerate([("_perdure_feed", True), ("get_messages", False)], 1):
        arguments = pack([[0, 0.0] if is_answered else [], {}])
        look = DirectRequest(agent, activation.incarnation, method, arguments)
        frame = pack(DirectFrame("somebody", number, [(number, look)]))
        ((told, value),) = unpack(await stage.client.peer.transport.look(activation.host_id, frame))
        assert (told, value is not None) == (number, is_answered)
    assert await stage.call(Speaker, "get_messages", name="s")


async def test_a_call_that_comes_twice_takes_nobodys_answer(stage: Stage) -> None:
    await stage.client.agent(Speaker, "s").chat("Speak!", Ear())
    activation = stage.view.agents[address(Speaker, "s")]
    question = DirectRequest(activation.agent_id, activation.incarnation, "_perdure_feed", pack([[0, 0.0], {}]))
    frame, transport = pack(DirectFrame("somebody", 1, [(1, question)])), stage.client.peer.transport
    told = await asyncio.gather(*(transport.look(activation.host_id, frame) for _ in range(2)))
    assert [number for each in told for number, _ in unpack(each)] == [1]
