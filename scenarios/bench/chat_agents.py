"""The chat agents of `perdure bench`. Their models answer in the same process, so that only the runtime is measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.actors import ChatAgent, Detached, RunInfo, RunResult, exposed
from perdure.scenarios.bench.agents import Parent


async def _at_once(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    yield "Yes."


async def _slowly(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for number in range(20):
        await asyncio.sleep(0.5)
        yield f"word {number} "


async def _in_a_torrent(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for number in range(20_000):
        if number % 100 == 0:
            await asyncio.sleep(0)  # as a socket would
        yield f"{number} "


async def _by_the_clock(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for _ in range(100):
        await asyncio.sleep(0.03)
        yield f"{time.monotonic()!r} "


REQUESTS_S: list[float] = []  # when an answer was requested or broken off


async def _with_a_break(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    """Every other answer breaks off: by a reset, or by silence if the question asks for it."""
    REQUESTS_S.append(time.monotonic())
    yield "The answer "
    if len(REQUESTS_S) % 2:
        REQUESTS_S[-1] = time.monotonic()
        if "silence" in _question(messages):
            await asyncio.sleep(600)
        raise ConnectionResetError("the benchmark breaks this connection")
    yield "is this."


async def _by_a_survivor(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    """The question names a file that logs each request. The first one is never answered."""
    if _noted(Path(_question(messages))) == 1:
        await asyncio.sleep(600)
    yield "I live."


def _noted(path: Path) -> int:
    """Note the time of a request, and count them."""
    with path.open("a") as file:
        file.write(f"{time.monotonic()}\n")
    return len(path.read_text().split())


def _question(messages: list[ModelMessage]) -> str:
    return next(str(part.content) for part in messages[-1].parts if part.part_kind == "user-prompt")


class Instant(ChatAgent):
    """Answers at once."""

    model = FunctionModel(stream_function=_at_once)


class Slow(ChatAgent):
    """Says twenty words in ten seconds."""

    model = FunctionModel(stream_function=_slowly)


class Torrent(ChatAgent):
    """Says twenty thousand words as fast as it can."""

    model = FunctionModel(stream_function=_in_a_torrent)


class Clocked(ChatAgent):
    """Says what time it is, with pauses in between."""

    model = FunctionModel(stream_function=_by_the_clock)


class Broken(ChatAgent):
    """Loses every other connection."""

    model = FunctionModel(stream_function=_with_a_break)

    @exposed
    async def last_requests(self) -> list[float]:
        """When the last two requests began, or broke off, on the machine's clock."""
        return REQUESTS_S[-2:]


class Mortal(ChatAgent):
    """Answers in its second life."""

    model = FunctionModel(stream_function=_by_a_survivor)


class Long(Instant):
    """Has a long conversation behind it."""

    @exposed
    async def remember(self, count: int) -> int:
        """Fill the transcript."""
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
    """Requests chat children in every way."""

    def _perdure_children(self, count: int) -> list[tuple[Any, Any]]:
        return [(Instant, "Is it?")] * count

    @exposed
    async def detach_one(self) -> str:
        """One detached child; its handler notes when it came."""
        handle = await self.run_agent_tool(Instant, "Is it?", detached=Detached(on_finish="on_ended"))
        return str(handle.run_id)

    async def on_ended(self, run: RunInfo, result: RunResult) -> None:
        """Note the time."""
        assert result.ok, result
        self.state[run.run_id] = time.time() * 1000

    @exposed
    async def came(self, run_id: str) -> Any:
        return self.state.get(run_id)


class SlowParent(ChatParent):
    """The same with children that take their time."""

    def _perdure_children(self, count: int) -> list[tuple[Any, Any]]:
        return [(Slow, "Is it?")] * count


async def _twenty_a_second(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for _ in range(200):
        await asyncio.sleep(0.05)
        yield f"{time.monotonic()!r} "


class Steady(ChatAgent):
    """Says what time it is, twenty times a second for ten seconds."""

    model = FunctionModel(stream_function=_twenty_a_second)


GATEWAY_AGENTS = [Instant, Steady]
