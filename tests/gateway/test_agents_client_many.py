"""What many clients of one agent, clients that stall, and values that are odd or large do to its connections."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from perdure.actors import Agent, exposed
from perdure.actors.gateway.security import Principal
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door, Socket
from tests.gateway.test_agents_client import Counter, call, opened
from tests.gateway.world import visit

PATH = "/agents/counter/one"
MIB = 1024 * 1024


class Shown:
    """What a client shows as the state: what it has set itself, until it is told another one."""

    def __init__(self, socket: Socket) -> None:
        self._socket, self.state = socket, None

    def set(self, state: Any) -> None:
        """Set the state."""
        self.state = state
        self._socket.send({"type": "cf_agent_state", "state": state})

    async def heard(self) -> None:
        """Take in all that has come by now: a call is answered after it."""
        self._socket.send({"type": "rpc", "id": "heard", "method": "add", "args": [0, 0]})
        for frame in await self._socket.until(id="heard"):
            self.state = frame["state"] if frame["type"] == "cf_agent_state" else self.state


@pytest.mark.shows(clients="P-020 P-024")
def test_every_tab_shows_the_state_that_was_stored_last() -> None:
    """P-020, P-024: both set it at once; and one sets it as its first word, before it was told another's."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with door.socket(PATH) as left, door.socket(PATH) as right:
            tabs = [Shown(left), Shown(right)]
            for each in (left, right):
                await opened(each)
            for _ in range(3):
                for number, each in enumerate(tabs):
                    each.set({"from": number})
                await asyncio.sleep(5)
                for each in tabs:
                    await each.heard()
                async with door.socket(PATH) as late:
                    (stored,) = [each["state"] for each in await opened(late) if each["type"] == "cf_agent_state"]
                assert [each.state for each in tabs] == [stored, stored]
                tabs.reverse()
            async with door.socket(PATH) as back:
                tabs.append(Shown(back))
                tabs[-1].set({"from": "offline"})
                tabs[0].set({"from": "online"})
                await asyncio.sleep(5)
                for each in tabs:
                    await each.heard()
                assert len({str(each.state) for each in tabs}) == 1, [each.state for each in tabs]

    visit([Counter], story)


def test_a_large_state_arrives_whole_and_one_that_is_too_large_is_refused() -> None:
    """P-025."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with door.socket(PATH) as left, door.socket(PATH) as right:
            for each in (left, right):
                await opened(each)
            large = {"text": "x" * 3 * MIB}
            left.send({"type": "cf_agent_state", "state": large})
            assert (await right.receive())["state"] == large
            left.send({"type": "cf_agent_state", "state": {"text": "x" * 5 * MIB}})
            refused = (await left.until(type="cf_agent_state_error"))[-1]
            assert "limit is 4194304" in refused["error"]
            assert (await left.receive())["state"] == large
            assert (await call(left, "add", 1, 1))[-1]["result"] == 2

    visit([Counter], story)


class Odd(Agent):
    """Gives what cannot be told."""

    @exposed
    def anything(self, what: str) -> Any:
        """Something without a JSON."""
        return {"object": object(), "function": len, "set": {1, 2}, "loop": LOOP}[what]

    @exposed
    def plain(self) -> int:
        """Something with one."""
        return 1


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.shows(clients="P-051")
def test_a_result_that_cannot_be_told_is_an_error_and_the_connection_stays() -> None:
    """P-051."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with door.socket("/agents/odd/one") as socket:
            await opened(socket)
            said = {"object": "no plain data", "function": "no plain data", "loop": "contains itself"}
            for what, words in said.items():
                (frame,) = await call(socket, "anything", what)
                assert frame["success"] is False
                assert words in frame["error"]
            assert (await call(socket, "plain"))[-1]["result"] == 1

    visit([Odd], story)


@pytest.mark.shows(clients="P-038")
def test_one_of_five_hundred_that_does_not_read_holds_up_nobody() -> None:
    """P-038."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        clock = asyncio.get_running_loop().time
        async with AsyncExitStack() as stack:
            stalled, *others = [await stack.enter_async_context(door.socket(PATH)) for _ in range(500)]
            for each in (stalled, *others):
                await opened(each)
            stalled.reads.clear()
            for count in range(2):
                others[0].send({"type": "cf_agent_state", "state": {"count": count}})
                began_s = clock()
                for each in others[1:]:
                    assert await each.receive() == {"type": "cf_agent_state", "state": {"count": count}}
                    assert clock() - began_s < 0.1
            stalled.reads.set()
            assert await stalled.until(state={"count": 1})

    visit([Counter], story)


class Porter:
    """Lets everybody in, after a while."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s, self.asked, self.answered = takes_s, 0, 0

    async def __call__(self, connection: HTTPConnection) -> Principal:
        self.asked += 1
        await asyncio.sleep(self.takes_s)
        self.answered += 1
        return Principal()


@pytest.mark.shows(clients="P-033")
def test_nothing_is_left_of_a_client_that_did_not_wait_to_be_let_in() -> None:
    """P-033, with P-035 on its way: a client that has gone before it was let in, and one that goes at once."""
    porter = Porter(5)

    async def story(door: Door, laboratory: Laboratory) -> None:
        for _ in range(3):
            line = door.knock(PATH)
            await asyncio.sleep(4)
            await line.leave("websocket")
        assert (porter.asked, porter.answered) == (3, 3)
        porter.takes_s = 3
        async with door.socket(PATH) as socket:
            await opened(socket)

    visit([Counter], story, gateway_options={"authenticate": porter})
