"""What a tool raises reaches the model as it was, and a call that is too large is an error of that call at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from pydantic_ai.messages import ModelMessage, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from perdure.actors import Agent, ChatAgent, agent_tool, tool
from perdure.actors.chat.answer_reader import ARGUMENTS_BYTES_MAX
from perdure.policies import Limits
from tests.actors.raisers import KINDS
from tests.kit import Stage, staged

OUTPUT_CHARS = 4 * 1024 * 1024 - 7  # fits alone, and not with what tells how the call ended


@tool
def apart(kind: str) -> str:
    """Raise it in a process of its own."""
    raise KINDS[kind][0]()  # noqa: RSE102 - it makes one


@tool(inline=True)
def inline(kind: str) -> str:
    """Raise it in the agent's."""
    raise KINDS[kind][0]()  # noqa: RSE102 - as above


@tool(inline=True)
async def inline_async(kind: str) -> str:
    """Raise it on its loop."""
    raise KINDS[kind][0]()  # noqa: RSE102 - as above


@tool
async def cancels_itself() -> None:
    """Cancel the task that the tool runs in."""
    await _cancelled()


@tool(inline=True)
async def cancels_itself_inline() -> None:
    """The same in the agent's process."""
    await _cancelled()


async def _cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(10)


@tool
def measure(text: str) -> str:
    """How long is it?"""
    return str(len(text))


@tool
def fill() -> str:
    """Return too much."""
    return "x" * OUTPUT_CHARS


class Measure(Agent):
    """The same by a child."""

    async def run(self, input: str) -> str:
        return str(len(input))


async def answer(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Call the tool that the question names, with the arguments that it has; then say what was told."""
    last = messages[-1].parts[-1]
    if isinstance(last, UserPromptPart):
        name, _, arguments = str(last.content).partition(" ")
        given = Bot.large if arguments == "large" else arguments
        yield {0: DeltaToolCall(name=name, tool_call_id="call", json_args="")}
        for begin in range(0, len(given), 500_000):
            yield {0: DeltaToolCall(json_args=given[begin : begin + 500_000])}
    else:
        yield str(getattr(last, "content", last))


class Bot(ChatAgent):
    """Says what its tools told it."""

    model = FunctionModel(stream_function=answer)
    large: ClassVar[str] = ""

    def tools(self) -> list[Any]:
        child = agent_tool(Measure, name="child", description="Measure it.", input=str)
        listing = agent_tool(Measure, name="listing", description="List it.", input=str, output=list[int])
        return [apart, inline, inline_async, cancels_itself, cancels_itself_inline, measure, fill, child, listing]


async def told(stage: Stage, asked: str, chat: str = "bot") -> str:
    """What the model was told."""
    result = await stage.client.call(Bot, chat, "chat", (asked,), {})
    assert (result.status, result.error) == ("completed", "")
    return str(result.text)


@pytest.mark.parametrize("where", ["apart", "inline", "inline_async"])
async def test_what_a_tool_raises_is_told_to_the_model_as_it_was(stage: Stage, where: str) -> None:
    for kind, (_, words) in KINDS.items():
        said = await told(stage, f"{where} {json.dumps({'kind': kind})}", kind)
        assert said.startswith(words)
        assert "process was lost" not in said


async def test_a_tool_that_cancels_its_own_task_has_failed(stage: Stage) -> None:
    for name in ("cancels_itself", "cancels_itself_inline"):
        assert await told(stage, f"{name} {{}}", name) == "RuntimeError: the code cancelled the task that it ran in"


@pytest.mark.parametrize("name", ["measure", "child"])
@pytest.mark.parametrize("size", [ARGUMENTS_BYTES_MAX, 3 * ARGUMENTS_BYTES_MAX])
async def test_arguments_that_are_too_large_are_an_error_of_their_call_at_once(
    stage: Stage, name: str, size: int
) -> None:
    Bot.large = json.dumps({"input" if name == "child" else "text": "x" * size})
    said = await told(stage, f"{name} large")
    assert said.startswith("This call was not executed: the arguments have more than 2,000,000 bytes")
    assert len(said) < 1_000
    assert not [run for run in stage.view.runs.values() if run.parent]


@pytest.mark.parametrize("name", ["measure", "child"])
@staged(limits=Limits(input_bytes_max=20000))
async def test_arguments_that_are_larger_than_those_of_a_run_may_be_are_an_error_of_their_call(
    stage: Stage, name: str
) -> None:
    Bot.large = json.dumps({"input" if name == "child" else "text": "x" * 20_000})
    said = await told(stage, f"{name} large")
    assert said.startswith("This call was not executed: input: has 20")
    assert said.endswith("; the limit is 20000")


async def test_what_a_child_does_not_take_or_should_not_have_given_is_an_error_of_its_call(stage: Stage) -> None:
    assert await told(stage, 'child {"input": "four"}', "a") == "4"
    assert "input" in await told(stage, 'child {"input": 4}', "b")
    assert "listing" in await told(stage, 'listing {"input": "four"}', "c")


async def test_arguments_that_fit_are_taken_and_a_result_that_is_too_large_is_an_error_of_its_call(
    stage: Stage,
) -> None:
    Bot.large = json.dumps({"text": "x" * 1_500_000})
    assert await told(stage, "measure large", "a") == "1500000"
    said = await told(stage, "fill {}", "b")
    assert said.startswith("BadToolOutput: what fill returned has 4194302 bytes encoded, and the limit is")
