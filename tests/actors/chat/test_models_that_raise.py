"""A model in the author's own code that raises: it would raise again, so the turn ends at once, and says what was raised."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import pytest
from pydantic_ai import Agent as LibraryAgent
from pydantic_ai.models.function import FunctionModel

from perdure.actors import ChatAgent, DurableAgent
from perdure.actors.chat.turn_failures import failure_of
from perdure.policies import FailureKind
from tests.kit import Stage, play


def city(_messages: object, _info: object) -> Any:
    return {}["city"]


async def city_midway(_messages: object, _info: object) -> AsyncIterator[str]:
    yield "The city is "
    yield {}["city"]


def parsed(_messages: object, _info: object) -> Any:
    return json.loads("{")


async def parsed_midway(_messages: object, _info: object) -> AsyncIterator[str]:
    yield "The city is "
    yield json.loads("{")


class Asked(ChatAgent):
    """Its model is replaced by each test."""


library = LibraryAgent(FunctionModel(stream_function=city_midway))
Played = DurableAgent.of(library, name="Played")


@pytest.mark.parametrize("agent", [Asked, Played])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (FunctionModel(city), "KeyError: 'city'"),
        (FunctionModel(stream_function=city_midway), "KeyError: 'city'"),
        (FunctionModel(parsed), "JSONDecodeError: Expecting property name"),
        (FunctionModel(stream_function=parsed_midway), "JSONDecodeError: Expecting property name"),
    ],
)
def test_what_the_authors_own_model_raises_ends_the_turn_at_once_in_its_words(
    agent: type[ChatAgent], model: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        begun = asyncio.get_running_loop().time()
        answer = await stage.client.agent(agent, "a").chat("hello")
        assert (answer.status, answer.error[: len(words)]) == ("error", words)
        assert asyncio.get_running_loop().time() - begun < 1

    monkeypatch.setattr(agent, "model", model)
    play(story)


@pytest.mark.parametrize(
    ("name", "file", "is_authors"),
    [
        ("shop.models", "/srv/shop/models.py", True),
        ("client", "/venv/lib/python3.11/site-packages/client/stream.py", False),
        ("client", "/usr/lib/python3/dist-packages/client/stream.py", False),
        ("perdure.actors", "/srv/perdure/actors/chat/stream.py", False),
    ],
)
@pytest.mark.parametrize("call", ["{}['choices']", "json.loads('{')"])
def test_only_in_a_file_of_the_author_is_an_answer_that_cannot_be_read_a_mistake(
    name: str, file: str, is_authors: bool, call: str
) -> None:
    module = ModuleType(name)
    vars(module)["json"] = json
    code = compile(call, file, "eval")
    with pytest.raises((KeyError, ValueError)) as raised:
        eval(code, vars(module))  # noqa: S307 - as if it were in that file
    failure = failure_of(raised.value, is_reading=True)
    assert failure.is_transient is not is_authors
    assert (failure.kind is FailureKind.UNKNOWN) is is_authors
