"""A tool has one result: a function that yields is refused as one, async or not, where its class is handed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent as LibraryAgent
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset

from perdure import BadRequest
from perdure.actors import ChatAgent, DurableAgent, check_class, tool
from perdure.actors.chat.toolsets import checked_toolsets


def numbers() -> Any:
    """Give some."""
    yield 1


async def soon() -> Any:
    """Give some."""
    yield 1


def by_hand(function: Callable[..., Any]) -> type:
    class Given(ChatAgent):
        def tools(self) -> list[object]:
            return [function]

    return Given


def by_mark(function: Callable[..., Any]) -> type:
    class Marked(ChatAgent):
        async def given(self) -> Any:
            """Give some."""
            yield 1

        def given_now(self) -> Any:
            """Give some."""
            yield 1

        chosen = tool(given if function is soon else given_now)

    return Marked


def by_library(function: Callable[..., Any]) -> type:
    return DurableAgent.of(LibraryAgent(TestModel(), tools=[function]), name="Played")


@pytest.mark.parametrize("function", [numbers, soon])
@pytest.mark.parametrize("kind", [by_hand, by_mark, by_library])
def test_a_tool_that_yields_is_refused_with_its_class(kind: Callable[..., type], function: Callable[..., Any]) -> None:
    with pytest.raises(BadRequest, match="a tool has one result: return a list of them"):
        check_class(kind(function))


def test_a_tool_that_yields_is_refused_by_its_name_within_a_toolset() -> None:
    with pytest.raises(BadRequest) as refused:
        checked_toolsets([CombinedToolset([FunctionToolset([soon])])])
    assert refused.value.field == "toolsets[0].soon"


def test_what_the_client_executes_may_be_written_in_any_way() -> None:
    @tool(client=True)
    def shown() -> Any:
        """Show some."""
        yield 1

    check_class(by_hand(shown))
