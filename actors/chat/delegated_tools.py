"""Tools that are executed elsewhere: by a child agent, or by the client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter

from perdure.actors.agent.agent import Agent
from perdure.actors.chat.plain_data import checked
from perdure.actors.chat.tool_schema import intake_of_schema, intake_of_type, is_object
from perdure.actors.chat.tools import Approval, Hook, Tool, check_description, check_hook, check_name
from perdure.actors.code.signatures import run_shapes
from perdure.actors.life.class_options import check_class
from perdure.actors.life.results import Detached
from perdure.ledger import BadRequest
from perdure.policies import JsonObject

_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def agent_tool(
    agent_class: type[Agent],
    *,
    description: str,
    name: str | None = None,
    input: object = None,
    output: object = None,
    detached: bool | Detached = False,
    display: JsonObject | None = None,
    needs_approval: bool | Approval | Hook = False,
) -> Tool:
    """A child agent as a tool: the model's call becomes a run of this class.

    Args:
        agent_class: the child.
        description: what the model is told.
        name: by default the class's name in snake case.
        input: the type of what the model sends; by default that of the child's `run`. A type that is no object in JSON is sent under
            the name `input`, and the text for a chat under `message`.
        output: the type of the child's output. Without it the model gets the summary, or else the output.
        detached: do not wait. The model is told that the run has begun, and the parent when it is over.
        display: for front ends: `name`, `icon`, and more.
        needs_approval: as for `tool`.

    Raises:
        BadRequest: naming the argument that is wrong.
    """
    if not (isinstance(agent_class, type) and issubclass(agent_class, Agent)):
        raise BadRequest("agent_class", f"{agent_class!r:.200} is not a class of agents")
    if not isinstance(detached, bool | Detached):
        raise BadRequest("detached", f"{detached!r:.200} is neither a bool nor a `Detached`")
    check_class(agent_class)
    check_hook("needs_approval", needs_approval)
    annotation, wrapped_as = _child_input(agent_class, input)
    return Tool(
        name=check_name("name", name or _WORD_END.sub("_", agent_class.__name__).lower()),
        description=check_description(description),
        kind="agent",
        intake=intake_of_type(annotation, wrapped_as=wrapped_as),
        effect="idempotent",
        needs_approval=needs_approval,
        agent_class=agent_class,
        detached=detached,
        display=None if display is None else checked("display", display),
        output=None if output is None else _output_adapter(output),
        wrapped_as=wrapped_as,
    )


def _output_adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        adapter.rebuild(raise_errors=True)
    except (PydanticUserError, NameError) as problem:
        raise BadRequest("output", f"{annotation!r:.200} is no type that can be checked: {problem}") from problem
    return adapter


def _child_input(agent_class: type[Agent], given: object) -> tuple[object, str | None]:
    if given is None:
        is_chat = hasattr(agent_class, "format_agent_tool_input")
        if is_chat or not callable(getattr(agent_class, "run", None)):
            return str, "message"
        entered = run_shapes(agent_class)
        given = entered.hint if entered.input else NoInput
    return given, None if is_object(given) else "input"


class NoInput(BaseModel, extra="forbid"):
    """The input of a child whose `run` has no parameter."""


def client_tool(
    name: str, description: str, parameters: Mapping[str, object], *, needs_approval: bool | Approval | Hook = False
) -> Tool:
    """A tool that the client executes. The turn waits for its answer. `parameters` is a JSON schema of type `object`."""
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise BadRequest("parameters", f"{parameters!r:.200} is not a JSON schema of type object")
    intake = intake_of_schema(checked("parameters", parameters))
    if not isinstance(intake.schema["properties"], dict):
        raise BadRequest("parameters.properties", f"{intake.schema['properties']!r:.200} is not an object")
    return Tool(
        name=check_name("name", name),
        description=check_description(description),
        kind="client",
        intake=intake,
        needs_approval=needs_approval,
    )


def client_tools(given: object) -> list[Tool]:
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise BadRequest("client_tools", f"{given!r:.200} is not a list of tools")
    found = []
    for each in given:
        if not isinstance(each, dict) or not {"name", "parameters"} <= each.keys():
            raise BadRequest("client_tools", f"{each!r:.200} has no name or no parameters")
        found.append(client_tool(each["name"], description=each.get("description", ""), parameters=each["parameters"]))
    return found
