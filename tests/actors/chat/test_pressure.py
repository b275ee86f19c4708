"""How events travel: one that comes alone at once, and many that come close together in larger answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.actors import ChatAgent
from tests.kit import Stage, play

BURST, ALONE = 400, 10


async def _in_a_burst(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for _ in range(BURST):
        for _ in range(5):
            yield f"{asyncio.get_running_loop().time()!r} "
        await asyncio.sleep(0.001)


async def _one_by_one(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for _ in range(ALONE):
        await asyncio.sleep(1)
        yield f"{asyncio.get_running_loop().time()!r} "


class Bursting(ChatAgent):
    """Says five words each millisecond."""

    model = FunctionModel(stream_function=_in_a_burst)


async def _at_once(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for _ in range(3):
        yield f"{asyncio.get_running_loop().time()!r} "


class Ready(ChatAgent):
    """Says three words at once."""

    model = FunctionModel(stream_function=_at_once)


class Calm(ChatAgent):
    """Says a word each second."""

    model = FunctionModel(stream_function=_one_by_one)


class Ear:
    """Notes what it hears, and when."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, str]] = []
        self.times: set[float] = set()

    async def on_event(self, event: dict[str, Any]) -> None:
        self.times.add(asyncio.get_running_loop().time())
        if event["type"] == "text-delta":
            self.heard.append((asyncio.get_running_loop().time(), event["delta"]))


def heard_of(agent: type[ChatAgent]) -> list[tuple[float, float]]:
    """When each word was heard, and when it was said."""

    async def story(stage: Stage) -> list[tuple[float, float]]:
        await stage.client.agent(agent, "a").chat("Hello?", ear := Ear())
        return [(at_s, float(said)) for at_s, said in ear.heard]

    return play(story)


def test_an_event_that_comes_alone_is_passed_on_at_once() -> None:
    heard = heard_of(Calm)
    assert len(heard) == ALONE
    assert max(at_s - said_s for at_s, said_s in heard) < 0.003  # the wire takes the most of it


def test_events_that_come_close_together_are_passed_on_in_larger_answers() -> None:
    heard = heard_of(Bursting)
    assert [said_s for _, said_s in heard] == sorted(said_s for _, said_s in heard)
    assert len(heard) == 5 * BURST
    answers = len({at_s for at_s, _ in heard})
    assert answers <= BURST / 6, answers
    assert max(at_s - said_s for at_s, said_s in heard) < 0.02


def test_an_answer_that_is_there_at_once_comes_as_one_message() -> None:
    async def story(stage: Stage) -> Ear:
        for _ in range(2):  # for the first one a library is loaded
            result = await stage.client.agent(Ready, "a").chat("Hello?", ear := Ear())
            assert result.ok
        return ear

    ear = play(story)
    assert len(ear.heard) == 3
    assert len(ear.times) == 1
