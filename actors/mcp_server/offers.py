"""What an MCP server offers: chosen agents and methods, as tools with schemas.

a class with a `run`      a run of it, named after the class in snake case
a chat agent              the same: one turn, in a conversation of its own
`Counter.add`             an exposed method of an agent: its arguments, and `agent`, the agent's name
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from perdure.actors.agent.agent import Agent
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.tool_schema import intake_of
from perdure.actors.chat.tools import Tool, agent_tool
from perdure.actors.code.signatures import run_shapes, shapes_of
from perdure.ledger import BadRequest
from perdure.policies import JsonObject

AGENT: Final = "agent"
RESERVED: Final = frozenset({"start_run", "get_run", "cancel_run", "list_asks", "answer_ask"})
Choice = type[Agent] | Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One tool. `method` is empty for a run; `wraps` says that the output is sent under the name `result`."""

    name: str
    description: str
    parameters: JsonObject
    output: JsonObject | None
    wraps: bool
    agent_class: type[Agent]
    tool: Tool | None = None
    method: str = ""
    is_repeatable: bool = False

    @property
    def is_run(self) -> bool:
        return not self.method

    @property
    def is_chat(self) -> bool:
        return issubclass(self.agent_class, ChatAgent)

    def structured(self, output: object) -> object:
        return {"result": output} if self.wraps or not isinstance(output, dict) else output


def offers_of(choices: Iterable[Choice]) -> dict[str, Offer]:
    # Raises `BadRequest` for a choice that is none, for two of one name, and without the SDK.
    found: dict[str, Offer] = {}
    if find_spec("mcp") is None:
        raise BadRequest("mcp_tools", "they need the SDK of MCP: pip install 'perdure[mcp]'")
    for choice in choices:
        offer = _run(choice) if isinstance(choice, type) else _method(choice)
        if offer.name in found or offer.name in RESERVED:
            raise BadRequest("mcp_tools", f"two tools would be named {offer.name!r}")
        found[offer.name] = offer
    return found


def _run(agent_class: type) -> Offer:
    if not issubclass(agent_class, Agent) or not callable(getattr(agent_class, "run", None)):
        raise BadRequest("mcp_tools", f"{agent_class!r:.200} is no class of agents with a `run`")
    described = inspect.getdoc(agent_class) if agent_class.__doc__ else None
    tool = agent_tool(agent_class, description=described or f"Run {agent_class.__name__}.")
    output, wraps = _output(run_shapes(agent_class).gives.annotation)
    return Offer(
        name=tool.name,
        description=tool.spec.description,
        parameters=tool.spec.parameters,
        output=output,
        wraps=wraps,
        agent_class=agent_class,
        tool=tool,
    )


def _method(method: Callable[..., object]) -> Offer:
    # `Counter.add` is a plain function, so its class is found by its name.
    marks = getattr(method, "__perdure_exposed__", None)
    owner, _, name = getattr(method, "__qualname__", "").rpartition(".")
    holder: object = sys.modules.get(getattr(method, "__module__", ""))
    for part in owner.split("."):
        holder = getattr(holder, part, None)
    if marks is None or not (isinstance(holder, type) and issubclass(holder, Agent)):
        raise BadRequest("mcp_tools", f"{method!r:.200} is neither a class of agents nor an exposed method of one")
    schema: dict[str, Any] = dict(intake_of(method, holder, name).schema)
    properties = cast("dict[str, Any]", schema.get("properties", {}))
    if AGENT in properties:
        raise BadRequest("mcp_tools", f"{owner}.{name} has a parameter {AGENT!r}, which names the agent")
    schema["properties"] = {AGENT: {"type": "string", "description": "The name of the agent."}, **properties}
    schema["required"] = [AGENT, *schema.get("required", [])]
    output, wraps = _output(shapes_of(method, holder, name)[1].annotation)
    class_name = agent_tool(holder, description="-", input=JsonObject).name  # in snake case, as that of a run is
    return Offer(
        name=f"{class_name}_{name}",
        description=inspect.getdoc(method) or f"Call {name} of {holder.__name__}.",
        parameters=schema,
        output=output,
        wraps=wraps,
        agent_class=holder,
        method=name,
        is_repeatable=bool(marks["repeatable"]),
    )


def _output(annotation: Any) -> tuple[JsonObject | None, bool]:
    # The type of an output has to be `object`, so any other is wrapped. An untyped output has no schema.
    if annotation in (Any, None, type(None), inspect.Parameter.empty):
        return None, False
    try:
        schema: JsonObject = TypeAdapter(annotation).json_schema(mode="serialization")
    except (PydanticUserError, ValueError):  # a type that is no JSON has no schema; its output is told as text
        return None, False
    if schema.get("type") == "object":
        return schema, False
    definitions: Mapping[str, object] = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    wrapped = {"type": "object", "properties": {"result": schema}, "required": ["result"], **definitions}
    return cast("JsonObject", wrapped), True
