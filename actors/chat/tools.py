"""Tools: what a model may call, and what the author says about each call's effects.

    @tool(effect="idempotent")
    async def search_web(query: str, context: ToolContext) -> list[Hit]:
        '''Look something up.'''

A tool call is a run (design §6). A function executes in a host of its own, so it is found again there by its name (`actors.code.naming`)
and gets plain arguments; `inline=True` keeps it in the agent's own process, which is where methods always are. A child agent is a tool
too (`agent_tool`), and so is something that the client does (`client_tool`), which has no code here at all.

What an author declares about effects decides what may happen after a death (spec transport-recovery B3):

    once        the default: a call that was started is never started again; if it died, the model is told that nobody knows
    idempotent  it may be started again under the same `ToolContext.idempotency_key`
    pure        it may be started again, as often as it takes

A `probe` can say of a call that died whether it took effect. It and `needs_approval` name what they want to be given, of `input` (the
arguments as plain data), `context` (the `ToolContext`, for a probe) and `agent`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, TypeVar, cast, get_args, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.actors.agent.agent import Agent
from perdure.actors.chat.plain_data import all_mended
from perdure.actors.chat.tool_schema import (
    Intake,
    ToolContext,
    context_name,
    docstring_of,
    intake_of,
)
from perdure.actors.code.author_call import is_async
from perdure.actors.code.naming import function_name
from perdure.actors.life.results import Detached, RunResult
from perdure.ledger import BadRequest, PerdureError, check_number, pack
from perdure.policies import Json, JsonObject

Effect = Literal["once", "idempotent", "pure"]
Kind = Literal["function", "inline", "agent", "client"]
Hook = Callable[..., object]
F = TypeVar("F", bound=Callable[..., object])

OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HOOK_PARAMETERS = {"needs_approval": {"input", "agent"}, "probe": {"input", "context", "agent"}}


class BadToolOutput(PerdureError):
    """A tool returned what cannot be handed on. It has run, and its effects stand."""

    def __init__(self, tool: str, problem: str) -> None:
        super().__init__(tool, problem)
        self.tool = tool
        self.problem = problem

    def __str__(self) -> str:
        return f"what {self.tool} returned {self.problem}; the call itself was executed"


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a model is told of it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool. `kind` says who executes it: a run of its own, the agent's own process, a child agent, or the client.

    Without a `description` the function's docstring is it.
    """

    name: str
    description: str | None
    kind: Kind
    intake: Intake
    effect: Effect = "once"
    probe: Hook | None = None
    timeout_ms: float | None = None
    needs_approval: bool | Hook = False
    function: Callable[..., object] | None = None
    agent_class: type[Agent] | None = None
    detached: bool | Detached = False
    display: JsonObject | None = None
    output: TypeAdapter[Any] | None = None
    wrapped_as: str | None = None

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        told = docstring_of(self.function)[0] if self.description is None and self.function else self.description
        return ToolSpec(self.name, told or "", self.intake.schema)

    @property
    def is_async(self) -> bool:
        """Whether the function gives a coroutine; if not, it belongs on a thread."""
        return self.function is not None and is_async(self.function)

    def reference(self, code_dir: Path | None = None) -> str:
        """The name by which another process finds the function of this tool (`toolset.find_tool`). Raises `BadRequest`."""
        if self.kind != "function":
            raise BadRequest("tool", f"{self.name} is {_WHO[self.kind]}, so there is no function to be found elsewhere")
        assert isinstance(self.function, FunctionType)
        return function_name(self.function, code_dir)

    def bound(self, given: object, context: ToolContext | None = None) -> Callable[[], object]:
        """The function with its arguments, ready to be called. Raises `BadToolInput`; the author's code has not run then."""
        assert self.function is not None
        arguments = self.intake.arguments(given)
        wants = context_name(self.function)
        return functools.partial(self.function, **arguments, **({wants: context} if wants else {}))

    def agent_input(self, given: object) -> Json:
        """What the child agent is given, as plain data. Raises `BadToolInput`."""
        plain = self.intake.plain(given)
        return cast("Json", plain[self.wrapped_as] if self.wrapped_as is not None else plain)

    def encoded(self, value: object, bytes_max: int = OUTPUT_BYTES_MAX) -> Json:
        """What the function returned, as plain data of JSON's types. Raises `BadToolOutput`."""
        try:
            plain: Json = all_mended(to_jsonable_python(value, by_alias=True))
            size = len(pack(plain))
        except (PydanticSerializationError, ValueError, TypeError, OverflowError, RecursionError) as problem:
            raise BadToolOutput(self.name, f"cannot be encoded as plain data ({problem})") from problem
        if size > bytes_max:
            raise BadToolOutput(self.name, f"has {size} bytes encoded, and the limit is {bytes_max}")
        return plain

    def answer(self, result: RunResult) -> Json:
        """The end of a child's run as this tool's output: its summary or checked output, or why there is none (spec §3.2)."""
        if result.ok and self.output is None:
            return result.summary or ("" if result.output is None else self.encoded(result.output))
        if result.ok and result.output is not None and self.output is not None:
            return self._checked_output(result)
        failure = result.failure
        told: JsonObject = {"ok": False, "status": "error", "error": "the child has no output", "retryable": False}
        if failure is not None:
            told = {"ok": False, "status": failure.status, "error": failure.error, "retryable": failure.retryable}
            more = {"reason": failure.reason, "childStillRunning": failure.child_still_running}
            told.update({name: value for name, value in more.items() if value is not None})
        return told

    def _checked_output(self, result: RunResult) -> Json:
        assert self.output is not None
        try:
            return self.encoded(self.output.validate_python(result.output))
        except ValidationError as problem:
            first = problem.errors()[0]
            place = ".".join(map(str, first["loc"])) or "output"
            raise BadToolOutput(self.name, f"is not what was declared ({place}: {first['msg']})") from problem

    def wants_approval(self, given: object, agent: object = None) -> object:
        """Whether a person must approve this call: a bool, or an awaitable of one. The author's predicate may raise."""
        if isinstance(self.needs_approval, bool):
            return self.needs_approval
        return _called(self.needs_approval, {"input": given, "agent": agent})

    def probed(self, given: object, context: ToolContext, agent: object = None) -> object:
        """What the author's probe says of a call that died: True (it took effect), False, or None (nobody knows); or an awaitable."""
        return None if self.probe is None else _called(self.probe, {"input": given, "context": context, "agent": agent})


_WHO = {"inline": "executed by the agent itself", "agent": "a child agent", "client": "executed by the client"}


def _called(hook: Hook, offered: dict[str, object]) -> object:
    return hook(**{name: offered[name] for name in inspect.signature(hook).parameters})


# --- functions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """What `@tool` says about a function; it hangs on the function, which stays what it was."""

    name: str | None = None
    description: str | None = None
    effect: Effect = "once"
    probe: Hook | None = None
    timeout_ms: float | None = None
    inline: bool = False
    needs_approval: bool | Hook = False
    client: bool = False

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("name", self.name)
        if self.effect not in get_args(Effect):
            raise BadRequest("effect", f"{self.effect!r} is not one of {', '.join(get_args(Effect))}")
        check_timeout(self.timeout_ms)
        check_hook("probe", self.probe)
        if not isinstance(self.needs_approval, bool):
            check_hook("needs_approval", self.needs_approval)
        if self.client and (self.inline or self.probe is not None):
            raise BadRequest("client", "a tool that the client executes has no code here: no `inline`, no `probe`")


@overload
def tool(function: F) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "once",
    probe: Hook | None = None,
    timeout_ms: float | None = None,
    inline: bool = False,
    needs_approval: bool | Hook = False,
    client: bool = False,
) -> Callable[[F], F]: ...


def tool(function: F | None = None, **options: Any) -> F | Callable[[F], F]:
    """Mark a function of a module, or a method of a chat agent, as a tool. It stays callable as before.

    Args:
        function: the function, when the mark is used without options.
        **options:
            name, description: for the model; by default the function's name and the text of its docstring.
            effect: `once`, `idempotent` or `pure`; what may happen after a death.
            probe: says of a call that died whether it took effect: True, False, or None for unknown.
            timeout_ms: after which an execution is stopped; None takes the agent's.
            inline: execute it in the agent's own process. Methods always are.
            needs_approval: whether a person must approve a call, or a predicate that says it.
            client: the client executes it; the function's body never runs.

    Raises:
        BadRequest: naming the option that is wrong.
    """
    chosen = ToolOptions(**options)

    def mark(marked: F) -> F:
        if not callable(getattr(marked, "__func__", marked)):
            raise BadRequest("tool", f"{marked!r:.200} is not a function")
        marked.__perdure_tool__ = chosen  # type: ignore[attr-defined]
        return marked

    return mark if function is None else mark(function)


def options_of(thing: object) -> ToolOptions | None:
    """What `@tool` said about a function or method, or None if it is not marked."""
    options = getattr(thing, "__perdure_tool__", None)
    return options if isinstance(options, ToolOptions) else None


def function_tool(function: Callable[..., object]) -> Tool:
    """A function, or a method bound to its agent, as a tool; without a mark it has every option's default.

    Raises:
        BadRequest: its name or its parameters will not do, or no other process could find it and it is not inline.
    """
    options = options_of(function) or ToolOptions()
    is_function = isinstance(function, FunctionType)
    name = check_name("name", options.name or getattr(function, "__name__", type(function).__name__))
    kind: Kind = "client" if options.client else "inline" if options.inline or not is_function else "function"
    if kind == "function" and "<" in function.__qualname__:
        where = f"{function.__qualname__} cannot be found by another process"
        raise BadRequest("tool", f"{where}; move it to the top of its module, or mark it with @tool(inline=True)")
    return Tool(
        name=name,
        description=options.description,
        kind=kind,
        intake=intake_of(function),
        effect=options.effect,
        probe=options.probe,
        timeout_ms=options.timeout_ms,
        needs_approval=options.needs_approval,
        function=function,
    )


# --- checks ----------------------------------------------------------------------------------------------------------


def check_name(field: str, name: object) -> str:
    """The name, if every provider takes it. Raises `BadRequest`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(field, f"{name!r:.200} is not the name of a tool: 1 to 64 of a-z, A-Z, 0-9, _ and -")
    return name


def check_description(description: object) -> str:
    """The description, if there is one. Raises `BadRequest`."""
    if not isinstance(description, str) or not description.strip():
        raise BadRequest("description", "is missing; it is all that the model knows of the tool")
    return description


def check_timeout(timeout_ms: object) -> None:
    """Raise `BadRequest` unless it is a positive number of milliseconds or None."""
    if timeout_ms is not None:
        check_number("timeout_ms", timeout_ms, unit="milliseconds", above=True)


def check_hook(field: str, hook: object) -> None:
    """Raise `BadRequest` unless it is None, or a function that names what it wants to be given."""
    if hook is None:
        return
    known = _HOOK_PARAMETERS[field]
    if not callable(hook):
        raise BadRequest(field, f"{hook!r:.200} is not a function")
    names = set(inspect.signature(hook).parameters)
    if not names <= known:
        raise BadRequest(
            field, f"it asks for {', '.join(sorted(names - known))}; it may ask for {', '.join(sorted(known))}"
        )
