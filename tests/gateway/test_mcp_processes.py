"""Two processes of one gateway: a client of MCP cancels a call at the one that does not have it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perdure.actors.gateway_bus import NEWS_MAX, GatewayBus
from perdure.actors.mcp_server.ended_sessions import ENDED_MAX, EndedSessions
from tests.actors.one_process import OneProcess, play
from tests.gateway.door import Answer, Door
from tests.gateway.mcp_cast import Importer, by_name
from tests.gateway.world import gateway
from tests.kit import played

HEADERS = {
    "accept": "application/json, text/event-stream",
    "content-type": "application/json",
    "mcp-protocol-version": "2025-11-25",
}
WHO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


async def said(door: Door, message: dict[str, Any], session: str = "", name: str = "alice") -> Answer:
    headers = HEADERS | {"x-name": name} | ({"mcp-session-id": session} if session else {})
    return await door.post("/mcp", body=json.dumps({"jsonrpc": "2.0", **message}).encode(), headers=headers)


@pytest.mark.parametrize(("call_at", "cancel_at"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@played(play)
async def test_a_call_is_cancelled_whichever_processes_have_it_and_its_session(
    world: OneProcess, /, call_at: int, cancel_at: int
) -> None:
    both = GatewayBus(), GatewayBus()
    options: dict[str, Any] = {"mcp_tools": [Importer], "authenticate": by_name}
    apps = [gateway(world.client, [Importer], neighbours=each, **options) for each in both]
    doors = [Door(each) for each in apps]
    session = (await said(doors[0], {"id": 1, "method": "initialize", "params": WHO})).headers["mcp-session-id"]
    asked = {"name": "importer", "arguments": {"rows": 1, "gate": "/nowhere"}}
    call = asyncio.ensure_future(said(doors[call_at], {"id": 2, "method": "tools/call", "params": asked}, session))

    async def status() -> str:
        found: Any = await world.client.ask("ps", 10)
        return found["live"][0]["status"] if found["live"] else ""

    async def carried() -> None:
        """What the one tells reaches the other."""
        for teller, hearer in (both, both[::-1]):
            teller.tell("nobody's")  # so that there is news
            await hearer.hear(await teller.news())

    while await status() != "running":
        await asyncio.sleep(0.01)
    (run,) = (await world.client.ask("ps", 10))["live"]
    cancel = {"method": "notifications/cancelled", "params": {"requestId": 2, "reason": "enough"}}
    foreign = await said(doors[cancel_at], cancel, session, name="eve")
    assert foreign.status == (202 if cancel_at else 404)  # the process that has the session knows whose it is
    await carried()
    assert await status() == "running"  # the call is alice's
    assert (await said(doors[cancel_at], cancel, session)).status == 202
    await carried()
    while await status():
        await asyncio.sleep(0.01)
    assert (await call).status == 200
    assert "enough" in (await world.client.ask("inspect", run["run_id"]))["error"]
    for each in apps:
        await each.backend.close()


@pytest.mark.parametrize("end_at", [0, 1, 2])
@played(play)
async def test_a_session_is_ended_and_listened_to_at_any_process(world: OneProcess, /, end_at: int) -> None:
    """The first one has it, the third one has had no request yet. Nobody ends the session of another one."""
    buses = GatewayBus(), GatewayBus(), GatewayBus()
    options: dict[str, Any] = {"mcp_tools": [Importer], "authenticate": by_name}
    apps = [gateway(world.client, [Importer], neighbours=each, **options) for each in buses]
    doors = [Door(each) for each in apps]
    session = (await said(doors[0], {"id": 1, "method": "initialize", "params": WHO})).headers["mcp-session-id"]
    listed = {"id": 2, "method": "tools/list"}

    async def ended(door: Door, name: str = "alice") -> int:
        headers = HEADERS | {"x-name": name, "mcp-session-id": session}
        return (await door.ask("DELETE", "/mcp", headers=headers)).status

    async def carried() -> None:
        for teller in buses:
            teller.tell("nobody's")
            news = await teller.news()
            for hearer in (each for each in buses if each is not teller):
                await hearer.hear(news)

    assert [(await said(door, listed, session)).status for door in doors[:2]] == [200, 200]
    listening = HEADERS | {"x-name": "alice", "mcp-session-id": session}
    for door in doors[:2]:
        async with door.stream("GET", "/mcp", headers=listening) as (head, _):
            assert (head.status, head.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    rest = await doors[1].get("/mcp", headers=listening | {"last-event-id": "3:2"})
    assert (rest.status, rest.headers["retry-after"]) == (503, "1")
    assert await ended(doors[end_at], "eve") == (200 if end_at else 404)
    await carried()
    assert (await said(doors[0], listed, session)).status == 200
    assert await ended(doors[end_at]) == 200
    await carried()
    assert [(await said(door, listed, session)).status for door in doors] == [404] * 3
    assert [await ended(door) for door in doors] == [404] * 3
    assert [(await door.get("/mcp", headers=listening)).status for door in doors] == [404] * 3
    for each in apps:
        await each.backend.close()


def test_sessions_that_are_over_take_no_more_than_so_much_memory() -> None:
    ended = EndedSessions(GatewayBus())
    for number in range(ENDED_MAX + 5):
        ended.add(str(number), "alice")
    assert ("4", "alice") not in ended
    assert ("5", "alice") in ended


async def test_what_nobody_fetches_takes_no_more_than_so_much_memory() -> None:
    alone, heard = GatewayBus(), []
    for number in range(NEWS_MAX + 5):
        alone.tell("topic", str(number))

    async def listen(word: str) -> None:
        heard.append(word)

    alone.on("topic", listen)
    alone.tell("other", "word")
    await alone.hear(await alone.news())
    assert heard == [str(number) for number in range(6, NEWS_MAX + 5)]
