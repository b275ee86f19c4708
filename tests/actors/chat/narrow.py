"""A model with a narrow window: it refuses what is longer, summarises when it is asked to, and remembers what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic_ai import Agent as LibraryAgent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from perdure import ChatAgent, ContextOverflow, DurableAgent, client_tool, tool
from perdure.policies import SUMMARY_INSTRUCTIONS

WINDOW = 2_000
"""In characters of all messages."""
FILLING = "Lorem ipsum dolor sit amet. " * 10
REFUSED = {"error": {"message": "This model's maximum context length is exceeded.", "code": "context_length_exceeded"}}


class Narrow:
    """What the model was asked, and how it behaves."""

    requests: ClassVar[list[str]] = []
    summaries: ClassVar[list[str]] = []
    refusals: ClassVar[int] = 0
    window: ClassVar[float] = WINDOW
    says_before_refusal: ClassVar[str] = ""
    summary_s: ClassVar[float] = 0.5
    summary_problems: ClassVar[list[Exception]] = []
    stalls: ClassVar[list[int]] = []
    """After how much ore it falls silent, once each."""

    @classmethod
    def begin(cls, window: float = WINDOW, says_before_refusal: str = "", summary_s: float = 0.5) -> None:
        """Forget what was asked."""
        cls.requests, cls.summaries, cls.refusals, cls.summary_problems, cls.stalls = [], [], 0, [], []
        cls.window, cls.says_before_refusal, cls.summary_s = window, says_before_refusal, summary_s


def told(messages: list[ModelMessage]) -> str:
    """A request as text: one line for each part."""
    return "\n".join(
        f"{part.part_kind}: {getattr(part, 'content', '') or getattr(part, 'args', '')}"
        for message in messages
        for part in message.parts
    )


async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Refuse what is too long; summarise; ask for `ask`; launch for `launch`; dig N times for `dig N`; else answer
    the last word."""
    said = told(messages)
    if info.instructions and SUMMARY_INSTRUCTIONS in info.instructions:
        Narrow.summaries.append(said)
        await asyncio.sleep(Narrow.summary_s)
        if Narrow.summary_problems:
            raise Narrow.summary_problems.pop(0)
        yield f"summary {len(Narrow.summaries)}"
        return
    if len(said) > Narrow.window:
        Narrow.refusals += 1
        if Narrow.says_before_refusal:
            yield Narrow.says_before_refusal
        raise ModelHTTPError(400, "narrow", REFUSED)
    Narrow.requests.append(said)
    word = [line for line in said.splitlines() if line.startswith("user-prompt: ")][-1].partition(": ")[2]
    if word.startswith("launch") and messages[-1].parts[-1].part_kind == "user-prompt":
        yield {0: DeltaToolCall(name="launch", json_args="{}", tool_call_id="launch")}
        return
    if word == "ask" and "tool-return" not in said:
        yield {0: DeltaToolCall(name="ask_user", json_args="{}", tool_call_id="question")}
        return
    wanted = int(word.removeprefix("dig ")) if word.startswith("dig ") else 0
    done = said.count("tool-return: ore ")
    dug = max((int(line.split()[2]) for line in said.splitlines() if line.startswith("tool-return: ore ")), default=0)
    if dug in Narrow.stalls:
        Narrow.stalls.remove(dug)
        await asyncio.sleep(1_000_000)
    if wanted > (dug or done):
        yield {0: DeltaToolCall(name="dig", json_args=f'{{"number": {dug + 1}}}', tool_call_id="again")}
        return
    yield f"Answer to {word[:20]}."


@tool(effect="idempotent")
async def dig(number: int) -> str:
    """Dig for ore."""
    return f"ore {number} {FILLING}"


DRILL = LibraryAgent(FunctionModel(stream_function=answer))
DRILL.tool_plain(metadata={"effect": "idempotent"})(dig)
Drill = DurableAgent.of(DRILL, name="Drill")
Drill.context_overflow = ContextOverflow(keep_tokens=150)
DrillAhead = DurableAgent.of(DRILL, name="DrillAhead")
DrillAhead.context_overflow = ContextOverflow(keep_tokens=150, max_input_tokens=250)


class Miner(ChatAgent):
    """Reads with this model."""

    model = FunctionModel(stream_function=answer)
    context_overflow = ContextOverflow(keep_tokens=150)

    def tools(self) -> list[object]:
        """Its calls have long results; a question to the client is never asked."""
        return [dig, client_tool("ask_user", "Ask the user.", {"type": "object", "properties": {}})]


class Ahead(Miner):
    """Makes the conversation shorter before it is refused."""

    context_overflow = ContextOverflow(keep_tokens=150, max_input_tokens=250)


class Stubborn(Miner):
    """Wants no summary."""

    context_overflow = False


class Mute(Miner):
    """Has no summary to give."""

    async def summarize_messages(self, messages: list[dict[str, Any]]) -> str | None:
        """Leave the conversation as it is."""
        Narrow.summaries.append(str(len(messages)))
        return None

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """What people read."""
        return f"{info['reason']}: shown"


def old_talk(turns: int = 8) -> list[dict[str, Any]]:
    """A conversation that has been going on."""
    return [
        {"id": f"{role[0]}{turn}", "role": role, "parts": [{"type": "text", "text": f"{role} {turn} {FILLING}"}]}
        for turn in range(turns)
        for role in ("user", "assistant")
    ]
