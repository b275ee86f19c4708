"""Connections of principals that may only read: what they are told, what they are refused, and when that changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from perdure.actors.gateway.security import Principal, Scope
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door, Socket
from tests.gateway.test_agents_client import Counter, call, opened
from tests.gateway.world import visit
from tests.kit import played

READER, WRITER = Principal("reader", frozenset({Scope.READ})), Principal("writer", frozenset({Scope.READ, Scope.CHAT}))
PATH = "/agents/counter/one"
RECHECKED_S = 61
REFUSED = "Connection is readonly"


class Badges:
    """Who is who, by a name in the query; it may change while connections are open."""

    def __init__(self) -> None:
        self.known = {"reader": READER, "writer": WRITER}

    def __call__(self, connection: HTTPConnection) -> Principal | None:
        return self.known.get(connection.query_params.get("as", ""))


def play(story: Any, badges: Badges | None = None) -> None:
    """Play a story in front of a gateway that tells readers from writers."""

    async def told(door: Door, laboratory: Laboratory) -> None:
        async with door.socket(f"{PATH}?as=writer") as writer:
            await opened(writer)
            writer.send({"type": "cf_agent_state", "state": {"count": 4}})
            await call(writer, "add", 1, 1)
            await story(door, writer)

    visit([Counter], told, gateway_options={"authenticate": badges or Badges()})


async def is_refused(socket: Socket, count: int) -> None:
    """A state and a call are refused, and the state that counts is told again."""
    socket.send({"type": "cf_agent_state", "state": {"count": 99}})
    assert await socket.receive() == {"type": "cf_agent_state_error", "error": REFUSED}
    assert await socket.receive() == {"type": "cf_agent_state", "state": {"count": count}}
    socket.send({"type": "rpc", "id": "mine", "method": "count", "args": []})
    assert await socket.receive() == {"type": "rpc", "id": "mine", "success": False, "error": REFUSED}


async def counts(socket: Socket, count: int) -> None:
    """A call changes the state."""
    socket.send({"type": "rpc", "id": "mine", "method": "count", "args": []})
    told = [await socket.receive(), await socket.receive()]
    assert {"type": "rpc", "id": "mine", "success": True, "done": True, "result": count} in told


@pytest.mark.shows(sub_agents="B80 B81 B82 B83 B85 B90 B91 B92 B96")
@played(play)
async def test_a_reader_is_told_everything_and_changes_nothing(door: Door, writer: Socket, /) -> None:
    """P-022, as far as states are concerned."""
    async with door.socket(f"{PATH}?as=reader") as reader:
        frames = await opened(reader)
        assert frames[1] == {"type": "cf_agent_state", "state": {"count": 4}}
        for _ in range(3):
            await is_refused(reader, 4)
        await counts(writer, 5)
        assert await reader.receive() == {"type": "cf_agent_state", "state": {"count": 5}}
        await is_refused(reader, 5)
    async with door.socket(f"{PATH}?as=reader") as again:
        await opened(again)
        await is_refused(again, 5)


@pytest.mark.shows(sub_agents="B86 B87")
def test_who_becomes_a_reader_or_a_writer_is_treated_so_within_a_minute() -> None:
    badges = Badges()

    async def story(door: Door, writer: Socket) -> None:
        async with door.socket(f"{PATH}?as=reader") as other:
            await opened(other)
            badges.known = {"reader": WRITER, "writer": READER}
            await asyncio.sleep(RECHECKED_S)
            await is_refused(writer, 4)
            await counts(other, 5)
            assert await writer.receive() == {"type": "cf_agent_state", "state": {"count": 5}}
            badges.known = {"reader": READER, "writer": WRITER}
            await asyncio.sleep(RECHECKED_S)
            await is_refused(other, 5)
            await counts(writer, 6)

    play(story, badges)


@pytest.mark.shows(clients="P-029 P-031")
def test_who_is_nobody_any_more_is_sent_away_within_a_minute() -> None:
    """P-029, P-031."""
    badges = Badges()

    async def story(door: Door, writer: Socket) -> None:
        async with door.socket(f"{PATH}?as=stranger") as stranger:
            assert await stranger.receive() is None
            assert stranger.closed is not None
            assert stranger.closed[0] == 4401
        badges.known = {}
        await asyncio.sleep(RECHECKED_S)
        assert await writer.receive() is None
        assert writer.closed is not None
        assert writer.closed[0] == 4401

    play(story, badges)
