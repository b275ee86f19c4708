"""What spans of runs and of turns share: how runs and tools are named, what stands above attempts, and the form of content."""

from __future__ import annotations

import json
from typing import Final

from perdure.actors.code.permanent_names import module_of
from perdure.ledger import said
from perdure.policies import CONTENT_MAX, Attribute, TraceContext, call_span

TOOLS: Final = "perdure.actors.chat.tool_run"
LOST: Final = "process_lost"
"""The `error.type` of a span that was under way when its process died."""


def is_function(agent_type: str) -> bool:
    """Whether a run of this type is the execution of a tool's function."""
    return module_of(agent_type.rpartition(":")[0]) == TOOLS


def class_of(agent_type: str) -> str:
    return agent_type.rpartition(":")[2]


def over_attempts(above: TraceContext, run_id: str, agent_type: str, tool_call: object) -> TraceContext:
    """What stands above the attempts at a run: the model's call of a tool, if that asked for the run of an agent."""
    return call_span(above, run_id) if tool_call and not is_function(agent_type) else above


def about_tool(name: str, call_id: str | None) -> dict[str, Attribute]:
    told: dict[str, Attribute] = {"gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    return told | ({"gen_ai.tool.call.id": call_id} if call_id else {})


def content_of_call(arguments: object, result: object) -> dict[str, Attribute]:
    told = {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": result}
    return {name: content_text(value) for name, value in told.items() if value is not None}


def content_text(value: object) -> str:
    """A value as JSON, up to `CONTENT_MAX`."""
    try:
        return json.dumps(value, default=str, ensure_ascii=False)[:CONTENT_MAX]
    except (TypeError, ValueError):  # keys that JSON does not know
        return said(value, CONTENT_MAX)
