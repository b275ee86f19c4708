"""The tools of one agent: what its `tools()` returned and its marked methods, each under a name of its own.

A tool's function that was named by `Tool.reference` is found again in another process by `find_tool`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from perdure.actors.chat.tools import Tool, ToolSpec, function_tool, options_of
from perdure.actors.code.naming import load_function
from perdure.ledger import BadRequest, UnknownTool


class Toolset:
    """Tools by name, in the order in which they were given."""

    def __init__(self, tools: Iterable[object] = ()) -> None:
        """Take `Tool`s and functions.

        Raises:
            BadRequest: what is wrong with which of them; two of the same name, for one.
        """
        self._tools: dict[str, Tool] = {}
        for each in tools:
            found = _as_tool(each)
            if found.name in self._tools:
                raise BadRequest("tools", f"two tools are called {found.name!r}; give one of them another name")
            self._tools[found.name] = found

    @classmethod
    def of(cls, agent: object) -> Toolset:
        """The tools of an agent: what its `tools()` returns, and its methods that are marked with `@tool`."""
        returned = agent.tools() if hasattr(agent, "tools") else ()
        if isinstance(returned, str) or not isinstance(returned, Iterable):
            raise BadRequest("tools", f"{type(agent).__name__}.tools() returned {returned!r:.200}, not a list of tools")
        methods = {name: None for each in reversed(type(agent).__mro__) for name in vars(each)}
        marked = [getattr(agent, name) for name in methods if options_of(getattr(type(agent), name, None)) is not None]
        return cls([*returned, *marked])

    def plus(self, tools: Iterable[object]) -> Toolset:
        """These tools and more: those of one request's client, say."""
        return Toolset([*self._tools.values(), *tools])

    def get(self, name: str) -> Tool:
        """The tool of this name. Raises `UnknownTool`, which names those that there are."""
        if name not in self._tools:
            known = ", ".join(self._tools) or "none"
            raise UnknownTool("tool", f"there is no tool {name!r:.200}; the tools are: {known}")
        return self._tools[name]

    def specs(self) -> list[ToolSpec]:
        """What a model is told of them. Raises `BadRequest`, which names the tool whose parameters have no schema."""
        return [_spec(each) for each in self]

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


def _as_tool(thing: object) -> Tool:
    if isinstance(thing, Tool):
        return thing
    if isinstance(thing, type) or not callable(thing):
        raise BadRequest(
            "tools", f"{thing!r:.200} is no tool; it may be a function, or what agent_tool() or client_tool() returned"
        )
    try:
        return function_tool(thing)
    except BadRequest as problem:
        named = getattr(thing, "__qualname__", repr(thing))
        raise BadRequest("tools", f"{named}: {problem}") from problem


def _spec(each: Tool) -> ToolSpec:
    try:
        return each.spec
    except BadRequest as problem:
        raise BadRequest("tools", f"{each.name}: {problem}") from problem


def find_tool(reference: str, code_dir: Path | None = None) -> Tool:
    """The tool of the function that another process named so. Raises `UnknownTool`, which says what went wrong."""
    return function_tool(load_function(reference, code_dir))
