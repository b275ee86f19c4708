"""The protocol of the npm package `agents`: addresses, identity, state, calls, and how connections end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, exposed
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway import agents_cast
from tests.gateway.door import Door, Socket
from tests.gateway.world import visit


class Counter(agents_cast.Counter):
    """The same with what has no JSON, and with streams that tell how they ended."""

    closed: ClassVar[list[str]] = []
    given: ClassVar[list[int]] = []

    @exposed
    def strange(self) -> Any:
        """What has no JSON."""
        return b"\xff"

    @exposed
    async def numbers(self, count: int, fails: bool = False) -> AsyncGenerator[int, None]:
        """Numbers, one after the other."""
        try:
            for each in range(count):
                type(self).given.append(each)
                yield each
                await asyncio.sleep(0.01)
            if fails:
                raise ValueError("no more numbers")
        finally:
            type(self).closed.append("numbers")

    @exposed
    def letters(self, word: str) -> Iterator[str]:
        """Letters, one after the other, from sync code."""
        yield from word


class HTTPAgent(Agent):
    """Has a name of capitals."""


async def opened(socket: Socket) -> list[Any]:
    """The frames with which a connection begins."""
    return await socket.until(type="cf_agent_mcp_servers")


async def call(socket: Socket, method: str, *args: Any, call_id: str = "1") -> list[Any]:
    """Call a method; the frames up to the end of the call, without those of others."""
    socket.send({"type": "rpc", "id": call_id, "method": method, "args": list(args)})
    found: list[Any] = []
    while not found or not (found[-1].get("done") or found[-1].get("success") is False):
        frame = await socket.receive()
        assert frame is not None, socket.closed
        found += [frame] if frame["type"] == "rpc" and frame["id"] == call_id else []
    return found


@pytest.mark.shows(clients="P-015 P-026", sub_agents="B9 B11 B97 B98 B115 B116 B147 B148 B157")
def test_a_connection_begins_with_who_is_reached_and_its_state() -> None:
    """P-001, P-003, P-004, P-005, P-007, P-015, P-026: names are decoded once."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        for path, name in (
            ("room%20one", "room one"),
            ("default", "default"),
            ("a%2Fb", "a/b"),
            ("%F0%9F%90%9D", "🐝"),
        ):
            async with door.socket(f"/agents/counter/{path}?_pk=1") as socket:
                frames = await opened(socket)
                assert frames[0] == {"type": "cf_agent_identity", "name": name, "agent": "counter"}
                assert frames[-1]["mcp"] == {"servers": {}, "tools": [], "prompts": [], "resources": []}
        async with door.socket("/agents/h-t-t-p-agent/x") as socket:
            assert (await opened(socket))[0]["agent"] == "h-t-t-p-agent"
        async with door.socket("/agents/counter/default") as socket:
            await opened(socket)
            socket.send({"type": "cf_agent_state", "state": {"count": 4}})
            assert (await call(socket, "count"))[-1]["result"] == 5
        async with door.socket("/agents/counter/default") as socket:
            first, second, _ = await opened(socket)
            assert first == {
                "type": "cf_agent_identity", "name": "default", "agent": "counter", "stateFollows": True,
            }  # fmt: skip
            assert second == {"type": "cf_agent_state", "state": {"count": 5}}

    visit([Counter, HTTPAgent], story)


@pytest.mark.shows(clients="P-042 P-043 P-050 P-052 P-053 P-054")
def test_methods_are_called() -> None:
    """P-041, P-042, P-043, P-050, P-051, P-052, P-053, P-054."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with door.socket("/agents/counter/one") as socket:
            await opened(socket)
            assert await call(socket, "add", 2, 3) == [
                {"type": "rpc", "id": "1", "success": True, "done": True, "result": 5}
            ]
            (failed,) = await call(socket, "fail")
            assert failed == {"type": "rpc", "id": "1", "success": False, "error": "ValueError: as asked"}
            for method in ("nothing", "_perdure_watch_state", "__init__", "_x"):
                (frame,) = await call(socket, method)
                assert frame["error"] == f"Method {method} does not exist"
            for method in ("state", "secret", "on_start"):
                (frame,) = await call(socket, method)
                assert frame["error"] == f"Method {method} is not callable"
            for args in ((1,), ("a", "b"), (1, 2, 3)):
                (frame,) = await call(socket, "add", *args)
                assert frame["success"] is False
                assert frame["error"]
            assert (await call(socket, "strange"))[-1]["result"] == "_w=="
            for junk in ("", "no json", "null", "[]", '{"type": 7}', '{"type": "rpc", "id": 1, "method": "add", "args": []}',
                         '{"type": "rpc", "id": "x", "method": "add", "args": {}}', '{"type": "unknown"}'):  # fmt: skip
                socket.send(junk)
            for number in range(100):
                socket.send({"type": "rpc", "id": f"c{number}", "method": "add", "args": [number, 1]})
            answers = {}
            while len(answers) < 100:
                frame = await socket.receive()
                answers[frame["id"]] = frame["result"]
            assert answers == {f"c{number}": number + 1 for number in range(100)}

    visit([Counter], story)


@pytest.mark.shows(clients="P-044 P-056 P-057")
def test_generators_are_streamed_and_go_on_only_as_they_are_taken() -> None:
    """P-044, P-056, P-057."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        Counter.given.clear()
        Counter.closed.clear()
        async with door.socket("/agents/counter/one") as socket:
            await opened(socket)
            frames = await call(socket, "numbers", 5)
            assert [each["result"] for each in frames[:-1]] == [0, 1, 2, 3, 4]
            assert frames[-1]["done"] is True
            assert [each["result"] for each in (await call(socket, "letters", "abc"))[:-1]] == ["a", "b", "c"]
            frames = await call(socket, "numbers", 2, True)
            assert [each["result"] for each in frames[:-1]] == [0, 1]
            assert frames[-1]["error"] == "ValueError: no more numbers"
            assert Counter.closed == ["numbers"] * 2
            socket.send({"type": "rpc", "id": "long", "method": "numbers", "args": [10_000]})
            await socket.until(result=3)
        async with asyncio.timeout(60):
            while len(Counter.closed) < 3:
                await asyncio.sleep(0.1)
        assert len(Counter.given) < 1_000, "the generator ran ahead of its client"

    visit([Counter], story)


@pytest.mark.shows(clients="P-019 P-021 P-023", sub_agents="B10 B19")
def test_the_state_goes_to_all_but_its_author() -> None:
    """P-019, P-020, P-021, P-023, P-024."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with door.socket("/agents/counter/one") as left, door.socket("/agents/counter/one") as right:
            await opened(left)
            await opened(right)
            left.send({"type": "cf_agent_state", "state": {"count": 1}})
            assert (await right.receive()) == {"type": "cf_agent_state", "state": {"count": 1}}
            assert [each["type"] for each in await call(left, "add", 1, 1)] == ["rpc"]
            right.send({"type": "rpc", "id": "2", "method": "count", "args": []})
            assert (await left.receive())["state"] == {"count": 2}
            told = [await right.receive(), await right.receive()]
            assert sorted(each["type"] for each in told) == ["cf_agent_state", "rpc"]
            left.send({"type": "cf_agent_state", "state": {"count": -1}})
            refused, current = await left.receive(), await left.receive()
            assert refused == {"type": "cf_agent_state_error", "error": "ValueError: the count is negative"}
            assert current == {"type": "cf_agent_state", "state": {"count": 2}}
            left.send({"type": "cf_agent_state", "state": 7})
            assert (await left.receive())["type"] == "cf_agent_state_error"
            assert (await left.receive())["state"] == {"count": 2}
            left.send({"type": "cf_agent_state", "state": {"from": "left"}})
            right.send({"type": "cf_agent_state", "state": {"from": "right"}})
            await asyncio.sleep(30)
            ends = []
            for socket in (left, right):
                frames = await call(socket, "add", 0, 0)
                assert frames[-1]["result"] == 0
            async with door.socket("/agents/counter/one") as late:
                ends = [each["state"] for each in await opened(late) if each["type"] == "cf_agent_state"]
            assert ends in ([{"from": "left"}], [{"from": "right"}])

    visit([Counter], story)


@pytest.mark.shows(chat_recovery="C-1145")
def test_the_agent_sleeps_although_it_is_watched() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with door.socket("/agents/counter/one") as socket:
            await opened(socket)
            await counted(socket, 1)
            await asyncio.sleep(180)
            assert not laboratory.supervisors[-1].view.agents
            await counted(socket, 2)

    visit([Counter], story)


async def counted(socket: Socket, count: int) -> None:
    """Count, and be told of the state and the result, whichever comes first."""
    socket.send({"type": "rpc", "id": "count", "method": "count", "args": []})
    frames = {each["type"]: each for each in (await socket.receive(), await socket.receive())}
    assert frames["rpc"]["result"] == count
    assert frames["cf_agent_state"]["state"] == {"count": count}


@pytest.mark.shows(clients="P-006 P-010 P-030 P-037")
def test_connections_that_may_not_be_are_accepted_and_closed_by_a_final_code() -> None:
    """P-006, P-010, P-030, P-037."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        for path, code in (
            ("/agents/nobody/x", 4404),
            ("/agents/counter/a/b", 4404),
            ("/agents/counter/a/sub/x", 4404),
            ("/agents/counter/a/sub//y", 4404),
            ("/agents/counter/a/sub/counter/.", 4404),
            ("/agents/counter/a/sub/counter/unknown", 4404),
            ("/agents/counter/" + "x" * 3000, 4400),
            ("/agents/counter/a?__agents_transport=capnweb", 4400),
        ):
            async with door.socket(path) as socket:
                assert await socket.receive() is None
                assert socket.closed is not None
                assert socket.closed[0] == code, (path, socket.closed)
                assert socket.closed[1]
        assert (await door.get("/agents/nobody/x/get-messages")).status == 404
        assert (await door.get("/agents/counter/x/get-messages")).status == 404

    visit([Counter], story)
