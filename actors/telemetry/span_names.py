"""Names that spans share: how runs are named, what stands above their attempts, and the error of work whose process died."""

from __future__ import annotations

from typing import Final

from perdure.actors.code.permanent_names import module_of
from perdure.policies import TraceContext, call_span

TOOLS: Final = "perdure.actors.chat.tool_run"
LOST: Final = "process_lost"
"""The `error.type` of a span that was under way when its process died."""


def is_function(agent_type: str) -> bool:
    """Whether a run of this type is the execution of a tool's function."""
    return module_of(agent_type.rpartition(":")[0]) == TOOLS


def class_of(agent_type: str) -> str:
    """The name of an agent's class."""
    return agent_type.rpartition(":")[2]


def over_attempts(above: TraceContext, run_id: str, agent_type: str, tool_call: object) -> TraceContext:
    """What stands above the attempts at a run: the model's call of a tool, if that asked for the run of an agent."""
    return call_span(above, run_id) if tool_call and not is_function(agent_type) else above
