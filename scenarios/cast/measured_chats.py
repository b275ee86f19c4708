"""The chat agents of `perdure bench`. Their models answer in the same process, so that only the runtime is measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure import ChatAgent, Detached, RunInfo, RunResult, exposed
from perdure.actors import Kind, Messenger, MessengerAgent, MessengerEvent, Person, TextLimits, Webhook
from perdure.policies import Counting
from perdure.scenarios.cast.measured import Parent


def says(count: int, pause_s: float, word: Callable[[int], str], every: int = 1) -> FunctionModel:
    async def words(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
        for number in range(count):
            if number % every == 0:
                await asyncio.sleep(pause_s)
            yield word(number)

    return FunctionModel(stream_function=words)


def _now(_number: int) -> str:
    return f"{time.monotonic()!r} "


async def _at_once(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    yield "Yes."


REQUESTS_S: list[float] = []  # when an answer was requested or broken off


async def _with_a_break(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    # By a reset, or by silence if the question asks for it.
    REQUESTS_S.append(time.monotonic())
    yield "The answer "
    if len(REQUESTS_S) % 2:
        REQUESTS_S[-1] = time.monotonic()
        if "silence" in _question(messages):
            await asyncio.sleep(600)
        raise ConnectionResetError("the benchmark breaks this connection")
    yield "is this."


async def _by_a_survivor(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    # The question names a file that logs each request. The first one is never answered.
    if _noted(Path(_question(messages))) == 1:
        await asyncio.sleep(600)
    yield "I live."


def _noted(path: Path) -> int:
    with path.open("a") as file:
        file.write(f"{time.monotonic()}\n")
    return len(path.read_text().split())


def _question(messages: list[ModelMessage]) -> str:
    return next(str(part.content) for part in messages[-1].parts if part.part_kind == "user-prompt")


class InstantChat(ChatAgent):
    model = FunctionModel(stream_function=_at_once)


class Slow(ChatAgent):
    model = says(20, 0.5, lambda number: f"word {number} ")


# It lets others have their turn as a socket would.
class Torrent(ChatAgent):
    model = says(20_000, 0, lambda number: f"{number} ", every=100)


class Clocked(ChatAgent):
    model = says(100, 0.03, _now)


class Steady(ChatAgent):
    model = says(200, 0.05, _now)


class Broken(ChatAgent):
    model = FunctionModel(stream_function=_with_a_break)

    @exposed
    async def last_requests(self) -> list[float]:
        # When they began, or broke off, on the machine's clock.
        return REQUESTS_S[-2:]


class Mortal(ChatAgent):
    model = FunctionModel(stream_function=_by_a_survivor)


class Long(InstantChat):
    @exposed
    async def remember(self, count: int) -> int:
        messages = [
            {
                "id": f"m{number}",
                "role": ("user", "assistant")[number % 2],
                "parts": [{"type": "text", "text": f"line {number}"}],
            }
            for number in range(count)
        ]
        return await self.add_messages(messages)


class ChatParent(Parent):
    def _perdure_children(self, count: int) -> list[tuple[Any, Any]]:
        return [(InstantChat, "Is it?")] * count

    @exposed
    async def detach_one(self) -> str:
        handle = await self.run_agent_tool(InstantChat, "Is it?", detached=Detached(on_finish="on_ended"))
        return str(handle.run_id)

    async def on_ended(self, run: RunInfo, result: RunResult) -> None:
        assert result.ok, result
        self.state[run.run_id] = time.time() * 1000

    @exposed
    async def came(self, run_id: str) -> Any:
        return self.state.get(run_id)


class SlowParent(ChatParent):
    def _perdure_children(self, count: int) -> list[tuple[Any, Any]]:
        return [(Slow, "Is it?")] * count


class Sink:
    """A provider that accepts everything."""

    provider = "sink"
    verifies = True

    def verify(self, webhook: Webhook) -> bool:
        return True

    def parse(self, messenger_id: str, webhook: Webhook) -> list[MessengerEvent]:
        """`{"id": …, "chat": …}`."""
        given = json.loads(webhook.body)
        event = MessengerEvent(
            kind=Kind.DIRECT,
            messenger_id=messenger_id,
            provider=self.provider,
            thread_id=str(given["chat"]),
            message_id=str(given["id"]),
            dedupe_key=str(given["id"]),
            author=Person(id="1"),
            text="Hello?",
            is_direct=True,
        )
        return [event]

    def limits(self, thread_id: str) -> TextLimits:
        return TextLimits(100_000, Counting.CHARACTERS, 0)

    async def post(self, thread_id: str, text: str) -> str:
        return "1"

    async def edit(self, thread_id: str, message_id: str, text: str) -> None:
        """Done."""

    async def delete(self, thread_id: str, message_id: str) -> None:
        """Done."""

    async def typing(self, thread_id: str) -> None:
        """Done."""


# Messages that arrive meanwhile are answered together.
class Correspondent(MessengerAgent):
    model = says(1, 1, lambda _number: "Yes.")

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="sink", adapter=Sink(), conversation=lambda event: f"c{event.thread_id}")]


GATEWAY_AGENTS = [InstantChat, Steady]
