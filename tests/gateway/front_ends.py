"""The front ends of a chat agent, each as one client that begins, leaves, resumes, answers and cancels turns of the conversation `ann`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from tests.gateway.ag_ui_rules import verify
from tests.gateway.door import Door, events
from tests.gateway.tabs import Tab, chunks, stored, tab, user

UNSETTLED = "tool-input-available"
OUTPUTS = ("tool-output-available", "tool-output-error", "tool-output-denied")


class Heard(NamedTuple):
    """What a client was told of a turn: its text, how it ended (`waits` for a person), the calls without a result, the results, the last
    event, and what runs of its calls ask people."""

    text: str
    end: str
    open_calls: list[str]
    outputs: list[Any]
    last: Any
    asks: list[Any] = []  # noqa: RUF012 - nobody changes it


class Listening:
    """A client that is told of a turn."""

    def __init__(self, more: Callable[[], Awaitable[object]], heard: Callable[[], Heard]) -> None:
        self._more, self.heard = more, heard

    async def until(self, words: str) -> None:
        while words not in self.heard().text:
            await self._more()

    async def until_asked(self) -> Any:
        while not self.heard().asks:
            await self._more()
        return self.heard().asks[0]

    async def rest(self) -> Heard:
        while not self.heard().end:
            await self._more()
        return self.heard()


class FrontEnd(Protocol):
    """One client. A turn is named by whoever asks for it, and asked for again by the same name."""

    def __init__(self, door: Door) -> None: ...

    def asks(self, text: str, turn: str = "one") -> AbstractAsyncContextManager[Listening]:
        """Ask, and leave at the end of the block."""

    def comes_back(self, text: str, turn: str = "one") -> AbstractAsyncContextManager[Listening]:
        """Take up a turn that is under way."""

    async def regenerate(self, text: str, turn: str = "one") -> Heard:
        """Have the answer to the message of a turn given again."""

    async def edit(self, text: str, turn: str = "one") -> Heard:
        """Put another message in the place of that of a turn, and hear the answer."""

    async def answer(self, waits: Heard, *, approved: bool | None = None, output: object = None) -> Heard:
        """Answer the call that waits, and hear the rest."""

    async def cancel(self, turn: str = "one") -> None:
        """Cancel a turn."""


def told(found: Iterable[Any]) -> Heard:
    """What chunks of the AI SDK tell."""
    text, end, outputs, last, calls = "", "", list[Any](), None, dict[str, bool]()
    asks: list[Any] = []
    for last in (each for each in found if isinstance(each, dict)):
        kind, call_id = last["type"], last.get("toolCallId", "")
        text += last["delta"] if kind == "text-delta" else ""
        asks += [{**last["data"], "part": last["id"]}] if kind == "data-ask" else []
        calls |= {call_id: True} if kind == UNSETTLED else {call_id: False} if kind in OUTPUTS else {}
        outputs += [last.get("output")] if kind in OUTPUTS and not last.get("preliminary") else []
        is_waiting = last.get("finishReason") == "tool-calls"
        end = {"abort": "cancelled", "error": "failed"}.get(kind, end)
        end = end or ("waits" if is_waiting else "completed") if kind == "finish" else end
    return Heard(text, end, [each for each, is_open in calls.items() if is_open], outputs, last, asks)


@asynccontextmanager
async def streamed(
    door: Door, method: str, path: str, body: object, heard: Callable[[bytes], Heard]
) -> AsyncGenerator[Listening, None]:
    async with door.stream(method, path, json_body=body) as (head, pieces):
        assert head.status == 200
        got = bytearray()

        async def more() -> None:
            got.extend(await anext(pieces))

        yield Listening(more, lambda: heard(bytes(got)))


class AiSdk:
    """`useChat` of the AI SDK."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def _post(self, *messages: Any, **more: Any) -> AbstractAsyncContextManager[Listening]:
        body = {"id": "ann", "messages": messages, "trigger": "submit-message", **more}
        return streamed(self._door, "POST", "/chat/clerk?ai=7", body, lambda got: told(events(got)))

    def asks(self, text: str, turn: str = "one") -> AbstractAsyncContextManager[Listening]:
        return self._post(user(turn, text))

    def comes_back(self, text: str, turn: str = "one") -> AbstractAsyncContextManager[Listening]:
        return streamed(self._door, "GET", "/chat/clerk/ann/stream?ai=7", None, lambda got: told(events(got)))

    async def regenerate(self, text: str, turn: str = "one") -> Heard:
        known = [each["id"] for each in (await self._door.get("/chat/clerk/ann/messages")).json()]
        answer = known[known.index(turn) + 1]
        async with self._post(user(turn, text), trigger="regenerate-message", messageId=answer) as listening:
            return await listening.rest()

    async def edit(self, text: str, turn: str = "one") -> Heard:
        async with self._post(user(turn, text), messageId=turn) as listening:
            return await listening.rest()

    async def answer(self, waits: Heard, *, approved: bool | None = None, output: object = None) -> Heard:
        *_, message = (await self._door.get("/chat/clerk/ann/messages")).json()
        said = {"state": "output-available", "output": output}
        for part in (each for each in message["parts"] if each.get("toolCallId") in waits.open_calls):
            if approved is not None:
                said = {"state": "approval-responded", "approval": {**part["approval"], "approved": approved}}
            part.update(said)
        async with self._post(message, messageId=message["id"]) as listening:
            return await listening.rest()

    async def cancel(self, turn: str = "one") -> None:
        assert (await self._door.post("/chat/clerk/ann/cancel")).status == 200


def _ag_ui(got: bytes) -> Heard:
    found = events(got)
    own = [each for each in found if "subagentRunId" not in each]
    outcome = found[-1].get("outcome", {}) if found else {}
    is_waiting = outcome.get("interrupts") or outcome.get("pendingToolCallIds")
    ends = {"success": "completed", "cancelled": "cancelled"}
    end = "failed" if found and found[-1]["type"] == "RUN_ERROR" else ends.get(outcome.get("type"), "")
    if end:
        verify(found)
    results = {each["toolCallId"]: each["content"] for each in own if each["type"] == "TOOL_CALL_RESULT"}
    calls = [each["toolCallId"] for each in own if each["type"] == "TOOL_CALL_START"]
    text = "".join(each["delta"] for each in own if each["type"] == "TEXT_MESSAGE_CONTENT")
    left = [each for each in calls if each not in results]
    asks = [{**each["value"], "part": each["value"]["ask_id"]} for each in found if each.get("name") == "perdure.ask"]
    return Heard(text, "waits" if is_waiting else end, left, [*results.values()], found[-1] if found else None, asks)


class AgUi:
    """AG-UI."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def _post(self, turn: str, *messages: Any, **more: Any) -> AbstractAsyncContextManager[Listening]:
        empty = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
        body = {"threadId": "ann", "runId": turn, "messages": messages, **empty, **more}
        return streamed(self._door, "POST", "/ag-ui/clerk", body, _ag_ui)

    def asks(self, text: str, turn: str = "one") -> AbstractAsyncContextManager[Listening]:
        return self._post(turn, {"id": turn, "role": "user", "content": text})

    comes_back = asks

    async def regenerate(self, text: str, turn: str = "one") -> Heard:
        async with self._post("again", {"id": turn, "role": "user", "content": text}) as listening:
            return await listening.rest()

    async def edit(self, text: str, turn: str = "one") -> Heard:
        raise NotImplementedError("AG-UI has no word for it")

    async def answer(self, waits: Heard, *, approved: bool | None = None, output: object = None) -> Heard:
        payload = output if approved is None else {"approved": approved}
        said = [
            {"interruptId": each["id"], "status": "resolved", "payload": payload}
            for each in waits.last["outcome"]["interrupts"]
        ]
        async with self._post("answered", resume=said) as listening:
            return await listening.rest()

    async def cancel(self, turn: str = "one") -> None:
        assert (await self._door.post(f"/ag-ui/clerk/ann/{turn}/cancel")).status == 200


async def _resumed(opened: Tab) -> str:
    """Have the turn under way told from its beginning; its id on the wire."""
    answer = await opened.probe()
    if answer["type"] == "cf_agent_stream_pending":
        *_, answer = await opened.until(type="cf_agent_stream_resuming")
    opened.acknowledge(answer["id"])
    return str(answer["id"])


def parts_of_runs(frames: Iterable[Any]) -> list[Any]:
    """The chunks that frames of runs carry."""
    events = [each["event"] for each in frames if each["type"] == "agent-tool-event"]
    return [json.loads(each["body"]) for each in events if each["kind"] == "chunk"]


class AgentsClient:
    """`useAgentChat` of Cloudflare's packages; each thing in a tab of its own."""

    PATH = "/agents/clerk/ann"

    def __init__(self, door: Door) -> None:
        self._door = door

    @asynccontextmanager
    async def _heard(self, wire: str, *messages: Any, trigger: str = "") -> AsyncGenerator[Listening, None]:
        async with tab(self._door, self.PATH) as opened:
            if trigger:
                opened.ask(wire, [*messages], trigger)
            else:
                wire = await _resumed(opened)

            def heard() -> Heard:
                own = [each for each in opened.frames if each.get("id") == wire]
                outcomes = {"completed": "completed", "aborted": "cancelled", "error": "failed"}
                outcome = outcomes.get(own[-1].get("outcome"), "") if own else ""
                found = told(chunks(own))
                failed = next((each for each in own if each.get("error")), found.last)
                end = "waits" if outcome and found.open_calls else outcome
                return found._replace(end=end, last=failed, asks=told(parts_of_runs(opened.frames)).asks)

            yield Listening(opened.next, heard)

    @asynccontextmanager
    async def asks(self, text: str, turn: str = "one") -> AsyncGenerator[Listening, None]:
        before = await stored(self._door, self.PATH)
        async with self._heard(turn, *before, user(turn, text), trigger="submit-message") as listening:
            yield listening

    def comes_back(self, text: str, turn: str = "one") -> AbstractAsyncContextManager[Listening]:
        return self._heard(turn)

    async def _before(self, turn: str) -> list[Any]:
        return list(takewhile(lambda each: each["id"] != turn, await stored(self._door, self.PATH)))

    async def regenerate(self, text: str, turn: str = "one") -> Heard:
        kept = [*await self._before(turn), user(turn, text)]
        async with self._heard("again", *kept, trigger="regenerate-message") as listening:
            return await listening.rest()

    async def edit(self, text: str, turn: str = "one") -> Heard:
        sent = [*await self._before(turn), user(turn, text)]
        async with self._heard("edited", *sent, trigger="submit-message") as listening:
            return await listening.rest()

    async def answer(self, waits: Heard, *, approved: bool | None = None, output: object = None) -> Heard:
        kind = "cf_agent_tool_result" if approved is None else "cf_agent_tool_approval"
        said = {"output": output} if approved is None else {"approved": approved}
        async with tab(self._door, self.PATH) as opened:
            opened.send(kind, toolCallId=waits.open_calls[0], autoContinue=True, **said)
            wire = await _resumed(opened)
            found = told(chunks(await opened.until(id=wire, done=True), wire))
            assert found.text.startswith(waits.text), "a message that goes on is told from its beginning"
            return found._replace(text=found.text.removeprefix(waits.text), end="completed")

    async def cancel(self, turn: str = "one") -> None:
        async with tab(self._door, self.PATH) as opened:
            opened.send("cf_agent_chat_request_cancel", id=turn)
            await opened.probe()


FRONT_ENDS: tuple[type[FrontEnd], ...] = (AiSdk, AgUi, AgentsClient)
