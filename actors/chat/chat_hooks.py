"""What the author of a chat agent says about it, and may override."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from perdure.actors.agent.agent import Agent
from perdure.actors.chat.model import load_library
from perdure.actors.chat.turn import TurnResult
from perdure.actors.code.author_call import hook
from perdure.actors.life.results import MilestoneInfo, RunInfo, RunResult
from perdure.actors.life.run_context import RunContext
from perdure.ledger import Secret, Status
from perdure.policies import ChatRecovery, Part, default_repair


class ChatHooks(Agent):
    """The part of `ChatAgent` that knows nothing of how turns are played.

    Class attributes:
        model: a pydantic-ai model, or its name, such as `openai:gpt-5`.
        model_key: the key of a model that is named, by reference; by default its provider looks for it in the environment.
        instructions: what the model is told before the conversation.
        max_steps: requests to the model that one turn may make.
        chat_recovery: the budgets of recovery after a death or a stall.
        chat_stream_stall_timeout_ms: after which a silent stream counts as broken; 0 never. A turn may bring its own.
        chat_first_token_timeout_ms: the same for the first event of an answer; None takes the former.
        tool_timeout_ms: how long a tool may take that does not say it itself; None for ever.
        message_concurrency: what becomes of a message that comes while a turn is under way: `queue`, `latest`, `merge`, `drop`, or
            `{"strategy": "debounce", "debounce_ms": 750}`.
    """

    model: ClassVar[Any] = None
    model_key: ClassVar[Secret | None] = None
    instructions: ClassVar[str | None] = None
    max_steps: ClassVar[int] = 50
    chat_recovery: ClassVar[ChatRecovery] = ChatRecovery()
    chat_stream_stall_timeout_ms: ClassVar[float] = 0
    chat_first_token_timeout_ms: ClassVar[float | None] = None
    tool_timeout_ms: ClassVar[float | None] = None
    message_concurrency: ClassVar[str | dict[str, Any]] = "queue"

    _perdure_recalls_results: ClassVar[bool] = True

    @classmethod
    def prepare(cls) -> None:
        """Load the library of models."""
        load_library(cls.model)

    # what an author overrides

    def tools(self) -> Sequence[object]:
        """The tools: functions marked with `@tool`, and what `agent_tool` and `client_tool` make. Marked methods are added."""
        return ()

    def get_model(self) -> object:
        """The model of the next request."""
        return self.model

    def get_model_settings(self) -> dict[str, Any] | None:
        """Settings of the next request, as pydantic-ai names them: `temperature`, `max_tokens` and more."""
        return None

    def get_instructions(self) -> str | None:
        """What the model is told before the conversation."""
        return self.instructions

    @hook
    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Called after a turn that had begun: `request_id, status, message, error, continuation`. It may ask for turns and wait."""

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """Called before a turn ends with an error; a returned text is shown instead. `info`: `request_id, stage, reason`."""

    async def on_chat_recovery(self, context: Any) -> dict[str, bool] | None:
        """Called when a turn is recovered after a death or a stall, with a `ChatRecoveryContext`.

        `{"persist": False}` drops what was said so far, unless a tool has settled in it; `{"continue": False}` ends the turn.
        """

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any]:
        """What stands in the transcript for a tool call without a result. A tool part must be settled; text will do too."""
        return cast("dict[str, Any]", default_repair(cast("Part", part)))

    def format_agent_tool_input(self, input: Any, run: RunContext) -> Any:
        """The message of the user by which a run of this agent begins."""
        text = input.get("message") if isinstance(input, dict) and set(input) == {"message"} else input
        return text if isinstance(text, str) else {"role": "user", "parts": [{"type": "text", "text": _as_text(input)}]}

    def get_agent_tool_output(self, run_id: str, result: TurnResult) -> Any:
        """The output of a run of this agent: the text of its answer."""
        return result.text

    async def format_detached_completion(self, run: RunInfo, result: RunResult) -> str:
        """The message that tells this chat of the end of a detached run; an empty one is not sent."""
        told = result.summary or (result.output if isinstance(result.output, str) else "")
        detail = told if result.ok else result.error
        what = f"The background run {run.run_id} ({_shown_name(run)}) {_ENDS.get(result.status, result.status)}."
        return f"{what}\n\n{detail}" if detail else what

    async def format_detached_milestone(self, run: RunInfo, milestone: MilestoneInfo) -> str:
        """The message that tells this chat of a milestone; an empty one is not sent."""
        what = f"The background run {run.run_id} ({_shown_name(run)}) reached {milestone.name}."
        return f"{what} {milestone.message}" if milestone.message else what


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


_ENDS: dict[str, str] = {
    Status.COMPLETED: "has completed",
    Status.ERROR: "has failed",
    Status.ABORTED: "was cancelled",
    Status.INTERRUPTED: "was interrupted, and its end is not known",
}


def _shown_name(run: RunInfo) -> str:
    name = (run.display or {}).get("name")
    return str(name) if name else run.agent_type.rpartition(":")[2]
