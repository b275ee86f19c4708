"""A conversation that outgrows its model on a real Ray, whose agent is killed while it is summarised, and again when it has been."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as LibraryAgent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from perdure import ChatAgent, ContextOverflow, DurableAgent, Runtime, tool
from perdure.policies import SUMMARY_HEAD, SUMMARY_INSTRUCTIONS, Limits

pytestmark = [pytest.mark.shared_ray, pytest.mark.long]

PATIENCE_S = 120
WINDOW = 3_000  # in characters of all messages
HOLES = 12
FILLING = "Lorem ipsum dolor sit amet. " * 10
REFUSED = {"error": {"message": "This model's maximum context length is exceeded.", "code": "context_length_exceeded"}}


def note(file: Path, what: str) -> int:
    """Note something in the file, with this process. Returns how often it is there."""
    with file.open("a") as lines:
        lines.write(f"{what} {os.getpid()}\n")
    return len(noted(file, what))


def noted(file: Path, what: str) -> list[int]:
    """Which processes noted it."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [int(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == what]


async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Dig one hole after the other. The first summary never comes, and the first request with a summary is never answered."""
    said = "\n".join(str(getattr(part, "content", "")) for each in messages for part in each.parts)
    into = re.findall(r"into (\S+)", said)[0]
    file = Path(into)
    if info.instructions and SUMMARY_INSTRUCTIONS in info.instructions:
        if note(file, "summary") == 1:
            await asyncio.sleep(3_600)
        yield f"They dig into {into} and have begun."
        return
    if len(said) > WINDOW:
        note(file, "refusal")
        raise ModelHTTPError(400, "narrow", REFUSED)
    if SUMMARY_HEAD in said and note(file, "shorter") == 1:
        await asyncio.sleep(3_600)
    dug = max([0, *(int(each) for each in re.findall(r"hole (\d+) is dug", said))])
    if dug < HOLES:
        yield {
            0: DeltaToolCall(name="dig", json_args=f'{{"number": {dug + 1}, "into": "{into}"}}', tool_call_id="again")
        }
        return
    yield f"All {dug} are dug."


@tool(effect="idempotent")
async def dig(number: int, into: str) -> str:
    """Dig a hole."""
    note(Path(into), f"hole {number}")
    return f"hole {number} is dug. {FILLING}"


class Digger(ChatAgent):
    """Digs with this model."""

    model = FunctionModel(stream_function=answer)
    context_overflow = ContextOverflow(keep_tokens=150)

    def tools(self) -> list[object]:
        return [dig]


DIGGING = LibraryAgent(FunctionModel(stream_function=answer))
DIGGING.tool_plain(metadata={"effect": "idempotent"})(dig)
LibraryDigger = DurableAgent.of(DIGGING, name="LibraryDigger")
LibraryDigger.context_overflow = ContextOverflow(keep_tokens=150)


def kill_who_noted(file: Path, what: str) -> None:
    """Kill the process that has noted this first, as soon as it has."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := noted(file, what)):
        assert time.monotonic() < end_s, file.read_text()
        time.sleep(0.05)
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.parametrize("agent", [Digger, LibraryDigger])
def test_an_agent_that_is_killed_while_it_summarises_goes_on_and_digs_each_hole_once(
    agent: type[ChatAgent], tmp_path: Path
) -> None:
    file = tmp_path / "notes"
    with Runtime(tmp_path / "data", limits=Limits(start_timeout_ms=PATIENCE_S * 1_000)) as runtime:
        digger = runtime.agent(agent, "somebody")
        asked = digger.submit_messages(f"Dig {HOLES} holes into {file} , please.")
        kill_who_noted(file, "summary")
        kill_who_noted(file, "shorter")
        result = digger.attach(asked["request_id"])
        assert (result.status, result.text) == ("completed", f"All {HOLES} are dug."), result
        assert result.message is not None
        calls = [part for part in result.message["parts"] if "toolCallId" in part]
        assert [part["input"]["number"] for part in calls] == list(range(1, HOLES + 1))
        assert len({part["toolCallId"] for part in calls}) == HOLES
        later = digger.chat("Is that all?")
        assert later.ok
    lines = Counter(line.rpartition(" ")[0] for line in file.read_text().splitlines())
    assert (lines["summary"], lines["refusal"]) == (2, 2), (
        "the second life was refused too, and the third read the summary"
    )
    assert [lines[f"hole {number}"] for number in range(1, HOLES + 1)] == [1] * HOLES
