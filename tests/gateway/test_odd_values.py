"""Odd values through every door: each arrives or is refused by its field. Nothing is a 500, no line dies, everything lists afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, ClassVar

import pytest

from perdure.actors import (
    Agent,
    MalformedUpdate,
    Messenger,
    MessengerAgent,
    MessengerEvent,
    Person,
    Webhook,
    exposed,
    messenger_app,
)
from perdure.actors.messenger.messenger_events import Kind
from perdure.policies import Json
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.actors.messenger.paper import Paper
from tests.gateway.door import Door, events
from tests.gateway.tabs import Tab, tab
from tests.gateway.world import visit

DEEP = "[" * 10_000 + "]" * 10_000
NUMBERS = count()
VALUES = {
    "NaN": "NaN",
    "infinity": "-Infinity",
    "a float that is infinite": "1e999",
    "half a pair": '"a\\ud800b"',
    "half a pair as a key": '{"\\udfff": 1}',
    "NUL": '"a\\u0000b"',
    "beyond 2^53": str(2**53 + 1),
    "beyond 2^64": str(2**64 + 1),
    "a number of 5,000 digits": "9" * 5_000,
    "nested 50 deep": "[" * 50 + "]" * 50,
    "nested 10,000 deep": DEEP,
    "3 MB of text": json.dumps("x" * 3_000_000),
    "a blank text": '" \\n"',
    "bytes that are no UTF-8": "\ufffe",  # stands for b"\xff" within a text
}


class Echo(Agent):
    """Gives back what it gets."""

    stands_alone = True

    async def run(self, input: Json) -> Json:
        """The input."""
        return input

    @exposed
    async def same(self, value: Json) -> Json:
        """The argument."""
        return value

    @exposed
    async def hear(self, value: Json) -> None:
        """Keep the argument."""
        self.state["heard"] = value


class Talker(Adder):
    """A chat agent over the scripted provider."""


class Letters(Paper):
    """Webhooks of JSON: `{"text", "thread"}`."""

    def parse(self, messenger_id: str, webhook: Webhook) -> list[MessengerEvent]:
        """One message, directly to the agent."""
        try:
            told = json.loads(webhook.body)
        except (ValueError, RecursionError) as problem:
            raise MalformedUpdate("body", str(problem)[:100]) from problem
        text = told["text"] if isinstance(told["text"], str) else json.dumps(told["text"])
        person, key = Person(id="p1"), str(told["key"])
        place = {"messenger_id": messenger_id, "provider": self.provider, "thread_id": "t1", "message_id": key}
        return [MessengerEvent(kind=Kind.DIRECT, dedupe_key=key, author=person, text=text, is_direct=True, **place)]


class Postman(MessengerAgent):
    """A chat agent that people write letters to."""

    delivery: ClassVar[Any] = None

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        """One messenger."""
        return [Messenger(id="letters", adapter=Letters())]

    def get_model(self) -> Any:
        """The scripted one."""
        return Outside.model


def raw(body: Any, value: str) -> bytes:
    """A body with the odd value in the place of `"@"`, as it stands on the wire."""
    return json.dumps(body).replace('"@"', value).encode().replace("\ufffe".encode(), b'"a\xffb"')


JSON = {"content-type": "application/json"}
Told = tuple[bool, str]
"""Whether it arrived, and the words of a refusal."""


async def posted(door: Door, path: str, body: Any, value: str) -> Told:
    """A request whose answer is whole: 200, or a refusal with its field and words."""
    answer = await door.post(path, body=raw(body, value), headers=JSON)
    assert answer.status < 500, answer
    if answer.status == 200:
        return True, answer.body.decode()
    assert answer.status in (400, 413, 422), answer
    return False, answer.body.decode()


async def run(door: Door, value: str) -> Told:
    """The input of a run, and its output."""
    arrived, words = await posted(door, "/api/runs", {"type": "echo", "input": "@", "run_id": "odd"}, value)
    if arrived:
        while (told := (await door.get("/api/runs/odd")).json())["status"] in ("starting", "running"):
            await asyncio.sleep(0.1)
        assert told["status"] == "completed", told
        assert told["output"] == json.loads(value), "as it was sent"
    return arrived, words


async def call(door: Door, value: str) -> Told:
    """The argument of a call, and its result."""
    arrived, words = await posted(door, "/api/agents/echo/one/call/same", {"args": ["@"]}, value)
    assert not arrived or json.loads(words)["value"] == json.loads(value)
    return arrived, words


async def told(door: Door, value: str) -> Told:
    """What an agent is told."""
    return await posted(door, "/api/agents/echo/one/tell/hear", {"args": ["@"]}, value)


async def streamed(door: Door, path: str, body: Any, value: str, ends: tuple[str, ...]) -> Told:
    """A request whose answer is a stream, which ends as its protocol says."""
    arrived, words = await posted(door, path, body, value)
    if not arrived:
        return False, words
    *_, last = [each for each in events(words.encode()) if each != "[DONE]"]
    assert last["type"] in ends, last
    return last["type"] == ends[0], str(last)


def message(part: Any) -> Any:
    """A message of the user."""
    return {"id": "m1", "role": "user", "parts": [part, {"type": "text", "text": "words"}]}


async def sdk_metadata(door: Door, value: str) -> Told:
    """A field of a request of the AI SDK that is the author's."""
    body = {"id": "ann", "messages": [message({"type": "text", "text": "words"})], "page": "@"}
    return await streamed(door, "/chat/talker", body, value, ("finish",))


async def sdk_part(door: Door, value: str) -> Told:
    """A part of a message of the AI SDK."""
    body = {"id": "ann", "messages": [message({"type": "data-odd", "data": "@"})]}
    return await streamed(door, "/chat/talker", body, value, ("finish",))


async def sdk_text(door: Door, value: str) -> Told:
    """The text of a message of the AI SDK, which says nothing else."""
    body = {"id": "ann", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "@"}]}]}
    return await streamed(door, "/chat/talker", body, value, ("finish",))


async def ag_ui(door: Door, value: str, **more: Any) -> Told:
    """A request of AG-UI."""
    messages = [{"id": "u1", "role": "user", "content": "words"}]
    empty = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    body = {"threadId": "ann", "runId": "r1", "messages": messages, **empty, **more}
    return await streamed(door, "/ag-ui/talker", body, value, ("RUN_FINISHED", "RUN_ERROR"))


async def ag_ui_text(door: Door, value: str) -> Told:
    """The content of a message."""
    return await ag_ui(door, value, messages=[{"id": "u1", "role": "user", "content": "@"}])


async def ag_ui_props(door: Door, value: str) -> Told:
    """What is forwarded to the author."""
    return await ag_ui(door, value, forwardedProps={"odd": "@"})


async def ag_ui_state(door: Door, value: str) -> Told:
    """The state of a front end."""
    return await ag_ui(door, value, state={"odd": "@"})


async def framed(path: str, door: Door, frame: Any, value: str, is_answer: Callable[[Any], bool]) -> Any:
    """A frame of the npm package `agents`, and what it is answered; the connection goes on afterwards."""
    async with tab(door, path) as opened:
        opened.socket.send(raw(frame, value).decode(errors="surrogateescape"))
        while not is_answer(answer := await opened.socket.receive()):
            assert answer is not None, opened.socket.closed
        await _still_there(opened)
    return answer


async def _still_there(opened: Tab) -> None:
    opened.socket.send({"type": "rpc", "id": "after", "method": "nothing", "args": []})
    while (frame := await opened.socket.receive()).get("id") != "after":
        assert frame is not None


async def rpc(door: Door, value: str) -> Told:
    """The argument of a call of the npm package `agents`."""
    frame = {"type": "rpc", "id": "odd", "method": "same", "args": ["@"]}
    answer = await framed("/agents/echo/one", door, frame, value, lambda each: each.get("id") == "odd")
    assert not answer["success"] or answer["result"] == json.loads(value)
    return answer["success"], str(answer.get("error"))


async def state(door: Door, value: str) -> Told:
    """The state that a client sets, as another one sees it."""
    frame = {"type": "cf_agent_state", "state": {"odd": "@", "number": next(NUMBERS)}}
    async with tab(door, "/agents/echo/one") as watching, tab(door, "/agents/echo/one") as setting:
        setting.socket.send(raw(frame, value).decode(errors="surrogateescape"))
        seen = asyncio.ensure_future(_state_with(watching, frame["state"]["number"]))
        refused = asyncio.ensure_future(_refused_state(setting))
        await asyncio.wait({seen, refused}, return_when=asyncio.FIRST_COMPLETED)
        for each in (seen, refused):
            if not each.done():
                each.cancel()
        if seen.done():
            assert seen.result() == json.loads(value)
            return True, ""
        await _still_there(setting)
        return False, refused.result()


async def _state_with(watching: Tab, number: int) -> Any:
    while True:
        frame = await watching.socket.receive()
        assert frame is not None, watching.socket.closed
        if frame["type"] == "cf_agent_state" and frame["state"].get("number") == number:
            return frame["state"]["odd"]


async def _refused_state(setting: Tab) -> str:
    while (frame := await setting.socket.receive())["type"] != "cf_agent_state_error":
        assert frame is not None, setting.socket.closed
    return str(frame["error"])


async def chat_metadata(door: Door, value: str) -> Told:
    """A field of its body that is the author's."""
    body = raw({"messages": [message({"type": "text", "text": "x"})], "page": "@"}, value).decode(errors="replace")
    request_id = f"odd-{next(NUMBERS)}"
    frame = {"type": "cf_agent_use_chat_request", "id": request_id, "init": {"method": "POST", "body": body}}
    answer = await framed(
        "/agents/talker/ann", door, frame, "", lambda each: each.get("id") == request_id and each.get("done")
    )
    return answer["outcome"] == "completed", str(answer)


async def chat_result(door: Door, value: str) -> Told:
    """The result of a client's tool that nobody waits for: nothing may come of it."""
    frame = {"type": "cf_agent_tool_result", "toolCallId": "c", "toolName": "t", "output": "@", "autoContinue": True}
    async with tab(door, "/agents/talker/ann") as opened:
        opened.socket.send(raw(frame, value).decode(errors="surrogateescape"))
        await _still_there(opened)
    return False, "toolCallId"


async def webhook(door: Door, value: str) -> Told:
    """A webhook of a messenger, whose text is answered."""
    body = raw({"text": "@", "key": str(next(NUMBERS))}, value)
    answer = await door.post("/messengers/letters/webhook", body=body, headers=JSON | {"x-secret": "right"})
    assert answer.status in (200, 400, 413), answer
    return answer.status == 200, "body"


DOORS: list[Callable[[Door, str], Awaitable[Told]]] = [
    run, call, told, sdk_metadata, sdk_part, sdk_text, ag_ui_text, ag_ui_props, ag_ui_state, rpc, state, chat_metadata,
    chat_result, webhook,
]  # fmt: skip


@pytest.mark.parametrize("enter", DOORS, ids=lambda each: each.__name__)
def test_an_odd_value_arrives_or_is_refused_by_its_field(enter: Callable[[Door, str], Awaitable[Told]]) -> None:
    wrong: dict[str, str] = {}

    async def story(door: Door, laboratory: Laboratory) -> None:
        for name, value in VALUES.items():
            hall = Door(messenger_app(laboratory._client, Postman)) if enter is webhook else door  # noqa: SLF001 - the story's own
            try:
                arrived, words = await asyncio.wait_for(enter(hall, value), 60)
            except Exception as problem:
                wrong[name] = f"{type(problem).__name__}: {problem}"[:600]
                continue
            if not arrived and not words:
                wrong[name] = "refused without a word"
            for path in ("/api/runs", "/api/overview", "/chat/talker/ann/messages", "/api/audit"):
                if (await door.get(path)).status != 200:
                    wrong[name] = f"{path} cannot be read any more"
            await door.ask("DELETE", "/api/runs/odd")
            chat: Any = laboratory._client.agent(Talker, "ann")  # noqa: SLF001 - the story's own
            await chat.clear()
        assert (await door.post("/api/agents/echo/one/call/same", {"args": ["fine"]})).json() == {"value": "fine"}

    Outside.begin(SCRIPT)
    visit([Echo, Talker, Postman], story, timeout_ms=20_000_000)
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
