"""A tab of a chat, as the wire shows it: what it asks, and what it makes of the frames. It checks the rules of the protocol on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from perdure.actors.events.message_parts import apply_chunk
from tests.gateway.door import Door, Socket


class Tab:
    """One connection to a chat agent."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        self._ended: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._held: set[str] = set()
        self.messages: list[dict[str, Any]] = []
        """What the tab shows."""
        self._writing: dict[str, dict[str, Any]] = {}

    def _show(self, frame: dict[str, Any]) -> None:
        """Change what the tab shows, as the hook does."""
        if frame["type"] == "cf_agent_chat_messages":
            self.messages = [*frame["messages"]]
        elif frame["type"] == "cf_agent_chat_clear":
            self.messages = []
        elif frame["type"] == "cf_agent_message_updated":
            updated = frame["message"]
            self.messages = [updated if each["id"] == updated["id"] else each for each in self.messages]
        elif frame["type"] == "cf_agent_use_chat_response" and frame["body"] and not frame.get("error"):
            self._write(frame["id"], json.loads(frame["body"]))

    def _write(self, wire: str, chunk: dict[str, Any]) -> None:
        if chunk["type"] == "start":
            message: dict[str, Any] = {"id": chunk["messageId"], "role": "assistant", "parts": []}
            self.messages = [each for each in self.messages if each["id"] != message["id"]] + [message]
            self._writing[wire] = message
        message = self._writing[wire]
        message["parts"] = apply_chunk(message["parts"], chunk)
        if message["id"] not in [each["id"] for each in self.messages]:
            self.messages.append(message)
        self.messages = [message if each["id"] == message["id"] else each for each in self.messages]

    async def until_it_shows(self, wanted: list[str]) -> None:
        """Read on until the tab shows messages of these texts."""
        while texts(self.messages) != wanted:
            await self.next()

    async def next(self) -> dict[str, Any]:
        """The next frame. Asserts the rules that hold for every connection."""
        frame = await self.socket.receive()
        assert frame is not None, f"closed by {self.socket.closed} after {self.frames[-3:]}"
        self.frames.append(frame)
        self._show(frame)
        if frame["type"] == "cf_agent_use_chat_response":
            self._check(frame)
        if frame["type"] == "cf_agent_stream_resuming":
            self._held.add(frame["id"])
        return dict(frame)

    def _check(self, frame: dict[str, Any]) -> None:
        """P-064, P-095, P-096: nothing follows the end, no chunk comes twice, and nothing live comes before a replay that was announced."""
        wire = frame["id"]
        assert wire not in self._ended, f"{frame} after the end"
        if frame["done"]:
            self._ended.add(wire)
        if frame.get("replayComplete") or frame["done"]:
            self._held.discard(wire)
        if "seq" in frame:
            assert frame.get("replay") or wire not in self._held, f"{frame} before the replay"
            assert frame["seq"] > self._numbers.get(wire, -1), frame
            self._numbers[wire] = frame["seq"]

    async def until(self, **wanted: Any) -> list[dict[str, Any]]:
        """The frames up to the first that has these fields."""
        found: list[dict[str, Any]] = []
        while not found or any(found[-1].get(name) != value for name, value in wanted.items()):
            found.append(await self.next())
        return found

    async def until_chunk(self, kind: str) -> list[dict[str, Any]]:
        """The frames up to the first with a chunk of this type."""
        found: list[dict[str, Any]] = []
        while not found or kind not in [each["type"] for each in chunks(found[-1:])]:
            found.append(await self.next())
        return found

    def send(self, kind: str, **fields: Any) -> None:
        """Send a frame."""
        self.socket.send({"type": kind, **fields})

    def say(
        self, request_id: str, text: str, *before: dict[str, Any], trigger: str = "submit-message", **more: Any
    ) -> None:
        """Send a message of the user, after those that the tab shows already."""
        messages = [*before, user(f"{request_id}-user", text)]
        self.ask(request_id, messages, trigger, **more)

    def ask(self, request_id: str, messages: list[Any], trigger: str = "submit-message", **more: Any) -> None:
        """Send a request."""
        self.messages = [each for each in messages if "id" in each]
        body = json.dumps({"messages": messages, "trigger": trigger, **more})
        self.send("cf_agent_use_chat_request", id=request_id, init={"method": "POST", "body": body})

    async def probe(self, probe_id: str = "p") -> dict[str, Any]:
        """Ask whether there is anything to resume; the answer."""
        self.send("cf_agent_stream_resume_request", probeId=probe_id)
        return (await self.until(probeId=probe_id))[-1]

    def acknowledge(self, wire: str) -> None:
        """Ask for a replay. What was seen of the turn before does not count any more."""
        self._numbers.pop(wire, None)
        self.send("cf_agent_stream_resume_ack", id=wire)


@asynccontextmanager
async def tab(door: Door, path: str = "/agents/talker/r", **options: Any) -> AsyncGenerator[Tab, None]:
    """A tab that has heard who is reached."""
    async with door.socket(path, **options) as socket:
        opened = Tab(socket)
        await opened.until(type="cf_agent_mcp_servers")
        yield opened


def user(message_id: str, text: str) -> dict[str, Any]:
    """A message of the user."""
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def chunks(frames: list[dict[str, Any]], wire: str | None = None) -> list[dict[str, Any]]:
    """The chunks in frames, of one turn or of all."""
    own = [each for each in frames if each["type"] == "cf_agent_use_chat_response" and wire in (None, each["id"])]
    return [json.loads(each["body"]) for each in own if each["body"] and not each.get("error")]


def text_of(frames: list[dict[str, Any]], wire: str | None = None) -> str:
    """The text that the chunks in frames make."""
    return "".join(each["delta"] for each in chunks(frames, wire) if each["type"] == "text-delta")


async def stored(door: Door, path: str = "/agents/talker/r") -> list[dict[str, Any]]:
    """The transcript, as a page loads it."""
    answer = await door.get(f"{path}/get-messages")
    assert answer.status == 200, answer
    return list(answer.json())


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """The text of each message."""
    return ["".join(part["text"] for part in each["parts"] if part["type"] == "text") for each in messages]
