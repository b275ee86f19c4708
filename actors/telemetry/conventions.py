"""How telemetry names things: what spans of runs and of turns share, and the metrics that go to a collector.

Names and bounds of metrics that begin with `gen_ai` are those of OpenTelemetry's conventions.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from perdure.actors.code.permanent_names import module_of
from perdure.ledger import said
from perdure.policies import CONTENT_MAX, Attribute, TraceContext, call_span

TOOLS: Final = "perdure.actors.chat.tool_run"
LOST: Final = "process_lost"
"""The `error.type` of a span that was under way when its process died."""


def is_function(agent_type: str) -> bool:
    return module_of(agent_type.rpartition(":")[0]) == TOOLS


def class_of(agent_type: str) -> str:
    return agent_type.rpartition(":")[2]


def over_attempts(above: TraceContext, run_id: str, agent_type: str, tool_call: object) -> TraceContext:
    # Above the attempts stands the model's call of a tool, if that asked for the run of an agent.
    return call_span(above, run_id) if tool_call and not is_function(agent_type) else above


def about_tool(name: str, call_id: str | None) -> dict[str, Attribute]:
    told: dict[str, Attribute] = {"gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    return told | ({"gen_ai.tool.call.id": call_id} if call_id else {})


def content_of_call(arguments: object, result: object) -> dict[str, Attribute]:
    told = {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": result}
    return {name: content_text(value) for name, value in told.items() if value is not None}


def content_text(value: object) -> str:
    # As JSON, up to `CONTENT_MAX`.
    try:
        return json.dumps(value, default=str, ensure_ascii=False)[:CONTENT_MAX]
    except (TypeError, ValueError):  # keys that JSON does not know
        return said(value, CONTENT_MAX)


# ---------------------------------------------------------------- metrics


MODEL_TOKENS, MODEL_REQUEST_MS = "model_tokens", "model_request_ms"


class Instrument(NamedTuple):
    # `scale` is what a value is multiplied by; `tags` are the names of its attributes at the collector.
    name: str
    unit: str
    description: str
    scale: float = 1
    bounds: tuple[float, ...] = ()


_TOKENS: Final = tuple(float(4**power) for power in range(14))
_SECONDS: Final = tuple(round(0.01 * 2**power, 2) for power in range(14))
_MS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0, 100_000.0)

INSTRUMENTS: Final = {
    MODEL_TOKENS: Instrument("gen_ai.client.token.usage", "{token}", "Tokens of requests to models.", bounds=_TOKENS),
    MODEL_REQUEST_MS: Instrument(
        "gen_ai.client.operation.duration", "s", "How long requests to models took.", 0.001, _SECONDS
    ),
    "commit_ms": Instrument(
        "perdure.commit.duration", "ms", "How long it took to make a group of facts durable.", bounds=_MS
    ),
    "runs_ended": Instrument("perdure.runs.ended", "{run}", "Ends of runs, by their status."),
    "recoveries": Instrument("perdure.recoveries", "{attempt}", "Attempts at runs after the first one."),
    "runs": Instrument("perdure.runs", "{run}", "The runs that the ledger has, by their status."),
    "runs_live": Instrument("perdure.runs.live", "{run}", "Runs that have not ended."),
    "runs_waiting": Instrument("perdure.runs.waiting", "{run}", "Runs that wait for a host."),
    "hosts_up": Instrument("perdure.hosts.up", "{host}", "Hosts at work."),
    "agents_awake": Instrument("perdure.agents.awake", "{agent}", "Agents in memory."),
    "facts": Instrument("perdure.facts", "{fact}", "Facts in the ledger since its beginning."),
    "mail": Instrument("perdure.mail", "{mail}", "Mail since the ledger's beginning, by what became of it."),
}
"""By their names in the port `Metrics`."""
