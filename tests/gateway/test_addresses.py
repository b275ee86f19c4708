"""Which address reaches which agent: names, classes, paths of children, and their gates; over WebSockets and over HTTP."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from fastapi import FastAPI

from perdure.actors import Agent, exposed
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.registry import Registry, kebab
from perdure.ledger import BadRequest
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door, Socket
from tests.gateway.test_agents_client import call, opened
from tests.gateway.world import gateway, visiting


class Family(Agent):
    """Has children, and children of those. Lets pass what is not named `shut`, and says so of what is named `private`."""

    asked: ClassVar[list[tuple[str, str]]] = []

    async def on_before_sub_agent(self, agent_type: str, name: str) -> bool:
        self.asked.append((self.name, name))
        if name == "faulty":
            raise ValueError("the gate is broken")
        if name == "private":
            raise PermissionError("this is not for you")
        return name != "shut"

    @exposed
    def echo(self, text: str) -> str:
        """What was said."""
        return text

    @exposed
    def count(self) -> int:
        """Count one further."""
        self.state["count"] = self.state.get("count", 0) + 1
        return int(self.state["count"])


ROOTS = Registry([Family])


@pytest.mark.shows(sub_agents="R29 R30 R33 R35 R37")
@pytest.mark.parametrize(
    ("path", "steps", "rest"),
    [
        ("family/one", ["one"], []),
        ("family/sub", ["sub"], []),
        ("family/sub/sub/family/two", ["sub", "two"], []),
        ("family/one/sub/family/two/sub/family/three/and/more", ["one", "two", "three"], ["and", "more"]),
        ("family/one/extra", ["one"], ["extra"]),
        ("family/one/", ["one"], [""]),
        ("family/one/sub/family/two/", ["one", "two"], [""]),
        ("family/100%25", ["100%25"], []),
    ],
)
def test_a_path_is_read_from_the_outermost_agent_on(path: str, steps: list[str], rest: list[str]) -> None:
    """What follows the last agent is kept. A name is what it is: nothing is decoded here."""
    found, left = ROOTS.path(path.split("/"))
    assert ([each.name for each in found], left) == (steps, rest)
    assert {each.agent_class for each in found} == {Family}


@pytest.mark.shows(sub_agents="R32 R34")
@pytest.mark.parametrize(
    "path",
    [
        "", "family", "family/", "family/.", "family/..", "family/a\0b", "unknown/one", "sub/one", "Family/one",
        "family/one/sub", "family/one/sub/family", "family/one/sub/unknown/two", "family/one/sub/family/",
        "family/one/sub/family/..", "family/one/sub/family/a\0b", "family/one/sub//two", "/one", "family//one",
    ],
)  # fmt: skip
def test_what_is_no_address_reaches_nobody(path: str) -> None:
    with pytest.raises(NoSuchAgent):
        ROOTS.path(path.split("/"))


@pytest.mark.shows(clients="P-002")
def test_two_classes_of_one_name_and_the_name_that_separates_are_refused() -> None:
    """P-002."""
    twin, reserved = type("family", (Agent,), {}), type("Sub", (Agent,), {})
    with pytest.raises(BadRequest, match="would both be addressed as 'family'"):
        Registry([Family, twin])
    with pytest.raises(BadRequest, match="separates steps"):
        Registry([reserved])
    with pytest.raises(BadRequest, match="no class of agents"):
        Registry([dict])  # type: ignore[list-item]


@pytest.mark.shows(chat_recovery="C-0342", sub_agents="B129 B135 B136 B137")
@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("MyAgent", "my-agent"), ("myAgent", "my-agent"), ("my_agent", "my-agent"), ("MY_AGENT", "my-agent"),
        ("HTTPAgent", "h-t-t-p-agent"), ("AI", "ai"), ("Agent2", "agent2"), ("MyAgent_", "my-agent"),
    ],
)  # fmt: skip
def test_a_class_is_written_as_the_clients_write_it(name: str, written: str) -> None:
    assert kebab(name) == written


async def refused(door: Door, path: str) -> tuple[int, str]:
    """The code and the reason by which a connection is closed at once."""
    async with door.socket(path) as socket:
        assert await socket.receive() is None
        assert socket.closed is not None
        return socket.closed


async def named(socket: Socket) -> str:
    """Who is reached."""
    return str((await opened(socket))[0]["name"])


@pytest.mark.shows(clients="P-008", sub_agents="R51 B128 B134 B151")
@visiting(Family)
async def test_names_are_read_back_as_they_were_meant(door: Door, laboratory: Laboratory, /) -> None:
    """P-007, P-008: a slash, an emoji, a percent sign, 256 characters; a path after the name belongs to nobody."""
    for path, name in (
        ("a%2Fb", "a/b"), ("%F0%9F%90%9D", "🐝"), ("100%2525", "100%25"), ("x" * 256, "x" * 256), ("user-42", "user-42"),
        ("root/sub/family/run%201%2Fx", "run 1/x"),
    ):  # fmt: skip
        async with door.socket(f"/agents/family/{path}?_pk=1&token=t") as socket:
            assert await named(socket) == name
            assert (await call(socket, "echo", "hello"))[-1]["result"] == "hello"
    assert (await refused(door, "/agents/family/" + "x" * 3000))[0] == 4400
    assert (await refused(door, "/agents/family/one/extra"))[0] == 4404
    assert (await refused(door, "/agents/family/one%00two"))[0] == 4404
    nul = await door.get("/agents/family/one%00two/get-messages")
    assert (nul.status, nul.json()["error"]["type"]) == (404, "NoSuchAgent")
    assert (await door.get("/agentz/family/one")).status == 404


@pytest.mark.shows(clients="P-164 P-165", sub_agents="R52")
@visiting(Family)
async def test_every_ancestor_is_asked_in_order_and_the_leaf_is_reached(door: Door, laboratory: Laboratory, /) -> None:
    """P-009, P-164, P-165."""
    Family.asked.clear()
    async with door.socket("/agents/family/one/sub/family/two/sub/family/three/sub/family/four") as socket:
        assert await named(socket) == "four"
        assert Family.asked[:3] == [("one", "two"), ("two", "three"), ("three", "four")]
        assert (await call(socket, "echo", "deep"))[-1]["result"] == "deep"
    Family.asked.clear()
    code, reason = await refused(door, "/agents/family/one/sub/family/shut/sub/family/never")
    assert (code, bool(reason)) == (4404, True)
    assert ("shut", "never") not in Family.asked
    private = "/agents/family/one/sub/family/private/sub/family/never"
    code, reason = await refused(door, private)
    assert (code, "may not be addressed" in reason) == (4403, True)
    assert ("private", "never") not in Family.asked
    code, reason = await refused(door, "/agents/family/one/sub/family/faulty")
    assert code == 1011, "clients try again"
    for name, kind in (
        ("shut", "AgentUnreachable"), ("private", "AgentForbidden"), ("faulty", "ValueError"),
    ):  # fmt: skip
        address = f"family%2Fone%2Fsub%2Ffamily%2F{name}"
        answer = await door.post(f"/api/agents/{address}/call/echo", {"args": ["x"]})
        assert (400 <= answer.status < 500, answer.json()["error"]["type"]) == (True, kind)
        assert (answer.status == 403) is (name == "private")


@pytest.mark.shows(chat_recovery="C-0764", sub_agents="G78 G80 G82 R55")
@visiting(Family)
async def test_what_happens_in_a_child_is_told_to_its_own_connections(door: Door, laboratory: Laboratory, /) -> None:
    """Neither the state of the parent nor the answers to others reach a child's client, and the other way round."""
    path = "/agents/family/one"
    async with (
        door.socket(path) as root,
        door.socket(f"{path}/sub/family/two") as child,
        door.socket(f"{path}/sub/family/two") as other,
        door.socket(f"{path}/sub/family/three") as sister,
    ):
        for each in (root, child, other, sister):
            await opened(each)
        child.send({"type": "rpc", "id": "c", "method": "count", "args": []})
        assert {(await child.receive())["type"] for _ in range(2)} == {"rpc", "cf_agent_state"}
        assert await other.receive() == {"type": "cf_agent_state", "state": {"count": 1}}
        root.send({"type": "cf_agent_state", "state": {"count": 40}})
        assert [each["type"] for each in await call(root, "echo", "x")] == ["rpc"], "nothing of the child came"
        root.send({"type": "rpc", "id": "r", "method": "count", "args": []})
        told = [await root.receive(), await root.receive()]
        assert {"count": 41} in [each.get("state") for each in told]
        for each in (child, other, sister):
            each.send({"type": "rpc", "id": "still", "method": "echo", "args": ["alive"]})
            assert await each.receive() == {
                "type": "rpc", "id": "still", "success": True, "done": True, "result": "alive",
            }  # fmt: skip


@pytest.mark.shows(sub_agents="R46 R47")
@visiting(Family)
async def test_two_megabytes_reach_a_child_as_they_were_sent(door: Door, laboratory: Laboratory, /) -> None:
    large = "ü" * 1_000_000
    for address in ("family/one", "family/one/sub/family/two", "family/one/sub/family/two/sub/family/three"):
        path = address.replace("/", "%2F")
        answer = await door.post(f"/api/agents/{path}/call/echo", {"args": [large]})
        assert answer.status == 200, answer.body[:300]
        assert answer.json() == {"value": large}
        async with door.socket(f"/agents/{address}") as socket:
            await opened(socket)
            assert (await call(socket, "echo", large))[-1]["result"] == large


@visiting(Family)
async def test_a_method_is_called_of_an_agent_whose_name_has_a_slash(door: Door, laboratory: Laboratory, /) -> None:
    """It is the agent that a WebSocket to the same address reaches."""
    for address in ("family/a%2Fb", "family/one/sub/family/a%2Fsub%2Fb"):
        answer = await door.post(f"/api/agents/{address}/call/count", {})
        assert answer.json() == {"value": 1}, answer.body
        async with door.socket(f"/agents/{address}") as socket:
            await opened(socket)
            assert (await call(socket, "count"))[-1]["result"] == 2


@pytest.mark.shows(sub_agents="R2 R24 R36")
@visiting(Family)
async def test_below_a_path_that_begins_like_a_child_s_agents_are_found(door: Door, laboratory: Laboratory, /) -> None:
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    theirs = FastAPI()
    theirs.mount("/sub/my/base", gateway(client, [Family]))
    async with Door(theirs).socket("/sub/my/base/agents/family/one/sub/family/two") as socket:
        assert await named(socket) == "two"


@pytest.mark.shows(chat_recovery="C-0130 C-0131 C-0132 C-0144", sub_agents="B118 B119 B120 B121 B122 B123 B124 B125")
@visiting(Family)
async def test_frames_that_are_none_are_ignored_and_those_that_follow_are_answered(
    door: Door, laboratory: Laboratory, /
) -> None:
    async with door.socket("/agents/family/one") as socket:
        for number in range(5):  # before anything was told
            socket.send({"type": "rpc", "id": f"early-{number}", "method": "echo", "args": [str(number)]})
        frames = await opened(socket)
        assert [each["type"] for each in frames] == ["cf_agent_identity", "cf_agent_mcp_servers"]
        found = {(await socket.receive())["id"] for _ in range(5)}
        assert found == {f"early-{number}" for number in range(5)}
        for junk in (
            "", " ", "no json", "{", "null", "7", "[]", '"text"', "[" * 50_000, {}, {"type": 7}, {"type": "unknown"},
            {"type": ""}, {"type": "rpc"}, {"type": "rpc", "id": "x"}, {"type": "rpc", "id": "x", "method": "echo"},
            {"type": "rpc", "id": "x", "method": "echo", "args": None},
            {"type": "rpc", "method": "echo", "args": ["x"]}, {"type": "rpc", "id": "x", "args": ["x"]},
            {"type": "cf_agent_use_chat_response", "id": "x", "body": "", "done": True},
            {"type": "cf_agent_identity", "name": "forged", "agent": "family"},
            {"type": "cf_agent_stream_resuming", "id": "x"}, {"type": "cf_agent_use_chat_request"},
        ):  # fmt: skip
            socket.send(junk)
        socket.send({"type": "rpc", "id": "more", "method": "echo", "args": ["x"], "extra": {"a": [1]}, "stream": 1})
        assert await socket.receive() == {
            "type": "rpc", "id": "more", "success": True, "done": True, "result": "x",
        }  # fmt: skip
