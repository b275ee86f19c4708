"""The toolsets of pydantic-ai as tools of ours: its function tools, MCP servers, and whatever wraps them.

    class Assistant(ChatAgent):
        toolsets = [MCPToolset("http://localhost:8000/mcp", id="files")]

A call of such a tool is a run, as that of a function is. The run finds the toolset by the agent's class, and opens it for the call: so a
connection that died is opened again, and a server that is down is an error of the call. What a server says of a tool decides what may
happen after a death: `readOnlyHint` makes it pure, `idempotentHint` idempotent; without either it runs at most once. A tool of the library
may say so itself, by `metadata={"effect": "idempotent"}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

from perdure.actors.chat.plain_data import checked_plain
from perdure.actors.chat.tool_schema import ToolContext, intake_of_schema
from perdure.actors.chat.tools import Effect, Tool, refuse_generator
from perdure.actors.code.author_call import result_of, tried
from perdure.actors.code.naming import load_type, type_name
from perdure.ledger import BadRequest, UnknownTool
from perdure.policies import JsonObject

if TYPE_CHECKING:
    from pydantic_ai import RunContext, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset

    Toolsets = Sequence[AbstractToolset[object]]

LIBRARY = "library"


# A class whose tools get dependencies.
class HasDeps(Protocol):
    @classmethod
    def _perdure_deps(cls) -> object: ...


# A class of chat agents, as its toolsets are found by it.
class HasToolsets(HasDeps, Protocol):
    @classmethod
    def _perdure_toolsets(cls) -> Toolsets: ...


class ToldToModel(Exception):
    """What a tool of the library says to the model in place of a result."""


class ApprovalWanted(Exception):
    """A tool of the library asks for approval of this very call, and has done nothing. `descriptor` is what it says of the call."""

    def __init__(self, descriptor: JsonObject) -> None:
        super().__init__(descriptor)
        self.descriptor = descriptor


class ResultLater(Exception):
    """A tool of the library has begun something whose result somebody else will bring. `descriptor` is what it says of it."""

    def __init__(self, descriptor: JsonObject) -> None:
        super().__init__(descriptor)
        self.descriptor = descriptor


def checked_toolsets(given: object) -> Toolsets:
    from pydantic_ai.toolsets import AbstractToolset  # noqa: PLC0415 - loaded where a chat has toolsets

    if isinstance(given, str) or not isinstance(given, Sequence):
        raise BadRequest("toolsets", f"{given!r:.200} is not a list of toolsets of pydantic-ai")
    for at, each in enumerate(given):
        if not isinstance(each, AbstractToolset):
            raise BadRequest(f"toolsets[{at}]", f"{each!r:.200} is not a toolset of pydantic-ai")
        each.apply(partial(_refuse_generators, f"toolsets[{at}]"))
    return given


def _refuse_generators(field: str, toolset: AbstractToolset[Any]) -> None:
    from pydantic_ai.toolsets import FunctionToolset  # noqa: PLC0415 - as above

    for each in toolset.tools.values() if isinstance(toolset, FunctionToolset) else ():
        refuse_generator(f"{field}.{each.name}", each.function)


async def listed(
    agent_class: type[HasToolsets], code_dir: Path | None, trouble: Callable[[str, Exception], object]
) -> list[Tool]:
    # A toolset that cannot be opened has none; `trouble` is told why.
    found: list[Tool] = []
    for at, toolset in enumerate(checked_toolsets(agent_class._perdure_toolsets())):  # noqa: SLF001 - the runtime's own
        tools, problem = await tried(_definitions(agent_class, toolset))
        if problem is not None:
            trouble(f"opening the toolset {toolset.label}", problem)
        found += [library_tool(agent_class, at, each, code_dir) for each in tools or ()]
    return found


async def _definitions(agent_class: type[HasToolsets], toolset: AbstractToolset[object]) -> list[ToolDefinition]:
    async with toolset:
        context = with_owners(await _context(agent_class), toolset)
        return [each.tool_def for each in (await toolset.get_tools(context)).values()]


def library_tool(agent_class: type, at: int, definition: ToolDefinition, code_dir: Path | None) -> Tool:
    # `at` is the place of the toolset in the class.
    return Tool(
        name=definition.name,
        description=definition.description or "",
        kind="client" if definition.kind == "external" else "function",
        intake=intake_of_schema(checked_plain("parameters", definition.parameters_json_schema)),
        effect=effect_of(definition.metadata),
        timeout_ms=None if definition.timeout is None else definition.timeout * 1000,
        needs_approval=definition.kind == "unapproved",
        call=partial(_call, agent_class, at, definition.name),
        found_as=f"{LIBRARY}#{at}#{definition.name}#{type_name(agent_class, code_dir)}",
    )


def effect_of(metadata: Mapping[str, Any] | None) -> Effect:
    told = metadata or {}
    if told.get("effect") in get_args(Effect):
        return cast("Effect", told["effect"])
    hints = told.get("annotations") or {}
    if hints.get("readOnlyHint"):
        return "pure"
    return "idempotent" if hints.get("idempotentHint") else "once"


def is_library_tool(reference: str) -> bool:
    return reference.startswith(f"{LIBRARY}#")


def find_library_tool(reference: str, code_dir: Path | None) -> Tool:
    # Another process has named the tool so.
    _, at, name, class_name = reference.split("#", 3)
    agent_class = cast("type[HasToolsets]", load_type(class_name, code_dir))
    toolsets = checked_toolsets(agent_class._perdure_toolsets())  # noqa: SLF001 - the runtime's own
    if int(at) >= len(toolsets):
        raise UnknownTool("tool", f"{class_name} has no toolset number {at} any more, and {name!r} was in it")
    return Tool(
        name=name,
        description=name,
        kind="function",
        intake=intake_of_schema({}),  # the toolset itself checks what the model sent
        call=partial(_call, agent_class, int(at), name),
        found_as=reference,
    )


async def _call(
    agent_class: type[HasToolsets], at: int, name: str, given: object, context: ToolContext | None
) -> object:
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed  # noqa: PLC0415 - loaded where a chat has toolsets

    toolset = checked_toolsets(agent_class._perdure_toolsets())[at]  # noqa: SLF001 - the runtime's own
    async with toolset:
        about = with_owners(await _context(agent_class, name, context), toolset)
        tools = await toolset.get_tools(about)
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise UnknownTool("tool", f"{toolset.label} has no tool {name!r} any more; it has: {known}")
        arguments = tools[name].args_validator.validate_python(given, context=about.validation_context)
        try:
            return await toolset.call_tool(name, arguments, about, tools[name])
        except (ModelRetry, ToolFailed) as told:
            raise ToldToModel(told.message) from told
        except ApprovalRequired as asked:
            if about.tool_call_approved:
                raise ToldToModel(f"{name} asks for an approval that it has been given.") from asked
            raise ApprovalWanted(checked_plain("metadata", asked.metadata or {})) from asked
        except CallDeferred as deferred:
            raise ResultLater(checked_plain("metadata", deferred.metadata or {})) from deferred


async def deps_of(author: HasDeps | type[HasDeps]) -> object:
    # They are made now, in the process that needs them.
    return await result_of(author._perdure_deps)  # noqa: SLF001 - the runtime's own


async def _context(
    agent_class: type[HasToolsets], name: str | None = None, call: ToolContext | None = None
) -> RunContext[object]:
    # The conversation is not in it: the call may be in another process.
    from pydantic_ai import RunContext  # noqa: PLC0415 - loaded where a chat has toolsets
    from pydantic_ai.models.test import TestModel  # noqa: PLC0415 - stands for the model, which is not asked here
    from pydantic_ai.usage import RunUsage  # noqa: PLC0415 - as above

    deps = await deps_of(agent_class)
    told: dict[str, Any] = {}
    if call is not None:
        told = {"tool_call_id": call.call_id, "run_id": call.run_id, "tool_call_approved": call.approved}
    return RunContext(deps=deps, model=TestModel(), usage=RunUsage(), tool_name=name, **told)


def with_owners(context: RunContext[object], toolset: AbstractToolset[object]) -> RunContext[object]:
    # Without the capabilities that bring its tools the library does not tell of them.
    owners: list[Any] = []
    toolset.apply(lambda each: owners.append(getattr(each, "capability", None)))
    known = list(context.capabilities.values())
    missing = [each for each in owners if each is not None and not any(each is other for other in known)]
    if not missing:
        return context
    named = {f"owner-{number}": each for number, each in enumerate(missing)}
    return replace(context, capabilities={**context.capabilities, **named})
