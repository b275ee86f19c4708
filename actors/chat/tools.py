"""Tools: what a model may call, and what the author says about each call's effects.

    @tool(effect="idempotent")
    async def search_web(query: str, context: ToolContext) -> list[Hit]:
        '''Look something up.'''

A tool call is a run (design §6). A function executes in a host of its own, where it is found by its name (`actors.code.naming`), with plain
arguments. `inline=True` keeps it in the agent's own process, where methods always are. A child agent can be a tool (`agent_tool`), and so
can something that the client does (`client_tool`).

The declared effect decides what may happen after a death (spec transport-recovery B3):

    once        the default: a started call is never started again; if it died, the model is told that the outcome is unknown
    idempotent  it may be started again under the same `ToolContext.idempotency_key`
    pure        it may be started again

A `probe` can say whether a call that died took effect. It and a function as `needs_approval` are given what their parameters name: `input`
(the arguments as plain data), `context` (the `ToolContext`, for a probe), `agent`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import ismethod
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast, get_args, overload

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from perdure.actors.agent.agent import Agent
from perdure.actors.chat.plain_data import all_mended, checked_plain, in_parts
from perdure.actors.chat.tool_schema import (
    ToolContext,
    ToolInput,
    context_name,
    docstring_of,
    intake_of,
    intake_of_schema,
    intake_of_type,
    is_object,
)
from perdure.actors.code.author_call import SUMMARY_CHARS_MAX, is_async, overrides, tried_now
from perdure.actors.code.naming import function_name, load_function
from perdure.actors.code.signatures import gives_bit_by_bit, run_shapes
from perdure.actors.code.written import signature_of
from perdure.actors.life.asks import PEOPLE_MAX, Addressees, addressees
from perdure.actors.life.class_options import check_class
from perdure.actors.life.host_options import ASKED_OF_RAY, Placement, pool_spec
from perdure.actors.life.results import Detached, RunResult
from perdure.ledger import (
    AskRecord,
    BadRequest,
    PerdureError,
    check_bool,
    check_number,
    check_whole,
    check_word,
    checked,
    pack,
)
from perdure.policies import Json, JsonObject, Limits, OurMetadata, duration_ms

Effect = Literal["once", "idempotent", "pure"]
Kind = Literal["function", "inline", "agent", "client"]
Hook = Callable[..., object]
F = TypeVar("F", bound=Callable[..., object])

OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_NO_HOST = "is given to a host of the call's own"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HOOK_PARAMETERS = {"needs_approval": {"input", "agent"}, "probe": {"input", "context", "agent"}}


class BadToolOutput(PerdureError):
    """A tool returned what cannot be passed on. It has run, and its effects stand."""

    def __init__(self, tool: str, problem: str) -> None:
        super().__init__(tool, problem)
        self.tool, self.problem = tool, problem

    def __str__(self) -> str:
        return f"what {self.tool} returned {self.problem}; the call itself was executed"


class Returned(TypedDict, total=False):
    # What a tool returned, as plain data, and what is said of it for the model.
    output: Json
    beside: OurMetadata


_WIDEST = Limits()


@dataclass(frozen=True, kw_only=True)
class Approval:
    """Who is to approve a call of a tool: `needs_approval=Approval(to="ops")`, or what a predicate returns for a call that is worth it.

    Attributes:
        to, people, self_answer: as for `run.ask`.
        expires: seconds or a `timedelta`, after which the call is denied.

    Raises:
        BadRequest: naming the argument that is wrong.
    """

    to: Addressees = None
    people: int = 1
    expires: float | timedelta | None = None
    self_answer: bool = False

    def __post_init__(self) -> None:
        addressees(self.to, _WIDEST)
        check_whole("people", self.people, 1, PEOPLE_MAX)
        check_bool("self_answer", self.self_answer)
        self._expires_ms()

    def _expires_ms(self) -> float:
        if self.expires is None:
            return math.inf
        return checked(lambda: duration_ms("expires", self.expires, _WIDEST.wait_ahead_ms_max))

    def asked(self, now_ms: int, began_by: str = "") -> AskRecord:
        """The question, but for what is shown of it."""
        to = [(name, math.ceil(now_ms + after_ms)) for name, after_ms in addressees(self.to, _WIDEST)]
        expires_at_ms = 0 if self.expires is None else math.ceil(now_ms + self._expires_ms())
        return AskRecord(
            number=0, digest="", question="", schema=b"", args=None, to=to, level=0, people=self.people,
            self_answer=self.self_answer, began_by=began_by, expires_at_ms=expires_at_ms, otherwise=None, note="",
            seq=0, opened_at_ms=now_ms,
        )  # fmt: skip


ANYBODY = Approval(self_answer=True)
"""Who is asked of a call that merely needs approval."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a model is told of it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool. `kind` says who executes it: a run of its own, the agent's own process, a child agent, or the client. Sync code that is
    `in_turn` runs while no other sync method of its agent does.

    A tool of a toolset of pydantic-ai has no function: `call` executes it, and `found_as` is its reference.
    """

    name: str
    description: str | None
    kind: Kind
    intake: ToolInput
    effect: Effect = "once"
    probe: Hook | None = None
    timeout_ms: float | None = None
    needs_approval: bool | Approval | Hook = False
    function: Callable[..., object] | None = None
    agent_class: type[Agent] | None = None
    detached: bool | Detached = False
    display: JsonObject | None = None
    output: TypeAdapter[object] | None = None
    wrapped_as: str | None = None
    call: Callable[[object, ToolContext | None], object] | None = None
    placement: Placement | None = None
    found_as: str = ""
    in_turn: bool = False

    @property
    def spec(self) -> ToolSpec:
        """What the model is told. The default description is the function's docstring."""
        told = docstring_of(self.function)[0] if self.description is None and self.function else self.description
        return ToolSpec(self.name, told or "", self.intake.schema)

    # A method that is marked may be returned by `tools()`, too.
    def is_same(self, other: Tool) -> bool:
        return self is other or (self.function is not None and self == replace(other, intake=self.intake))

    def reference(self, code_dir: Path | None = None) -> str:
        if self.kind != "function":
            raise BadRequest("tool", f"{self.name} is {_WHO[self.kind]}, so there is no function to be found elsewhere")
        if self.found_as:
            return self.found_as
        assert isinstance(self.function, FunctionType)
        return function_name(self.function, code_dir)

    def bound(self, given: object, context: ToolContext | None = None) -> Callable[[], object]:
        if self.call is not None:
            return functools.partial(self.call, given, context)
        assert self.function is not None
        arguments = self.intake.arguments(given)
        wants = context_name(self.function)
        return functools.partial(self.function, **arguments, **({wants: context} if wants else {}))

    def agent_input(self, given: object) -> Json:
        plain = self.intake.plain(given)
        return cast("Json", plain[self.wrapped_as] if self.wrapped_as is not None else plain)

    def encoded(self, value: object, bytes_max: int = OUTPUT_BYTES_MAX) -> Json:
        try:
            plain: Json = all_mended(to_jsonable_python(value, by_alias=True))
            size = len(pack(plain))
        except (PydanticSerializationError, ValueError, TypeError, OverflowError, RecursionError) as problem:
            raise BadToolOutput(self.name, f"cannot be encoded as plain data ({problem})") from problem
        if size > bytes_max:
            raise BadToolOutput(self.name, f"has {size} bytes encoded, and the limit is {bytes_max}")
        return plain

    def returned(self, value: object, bytes_max: int = OUTPUT_BYTES_MAX) -> Returned:
        output, beside = in_parts(value)
        plain: Returned = {"output": self.encoded(output, bytes_max)}
        if beside:
            plain["beside"] = cast("OurMetadata", self.encoded(beside, bytes_max - len(pack(plain))))
        return plain

    def answer(self, result: RunResult) -> Json:
        """The end of a child's run as this tool's output: its summary or checked output, or why there is none (spec §3.2)."""
        if result.ok and self.output is None:
            has_own = self.agent_class is None or overrides(self.agent_class, "get_agent_tool_summary")
            is_text = isinstance(result.output, str) and len(result.output) <= SUMMARY_CHARS_MAX
            if result.summary and (has_own or result.output is None or is_text):
                return result.summary
            return "" if result.output is None else self.encoded(result.output)
        if result.ok and result.output is not None and self.output is not None:
            try:
                return self.encoded(self.output.validate_python(result.output))
            except ValidationError as problem:
                first = problem.errors()[0]
                place = ".".join(map(str, first["loc"])) or "output"
                raise BadToolOutput(self.name, f"is not what was declared ({place}: {first['msg']})") from problem
        failure = result.failure
        if failure is None:
            return {"ok": False, "status": "error", "error": "the child has no output", "retryable": False}
        more = {"reason": failure.reason, "childStillRunning": failure.child_still_running}
        told: JsonObject = {
            "ok": False,
            "status": failure.status,
            "error": failure.error,
            "retryable": failure.retryable,
        }
        return told | {name: value for name, value in more.items() if value is not None}

    def limit_ms(self, otherwise: float | None) -> float | None:
        return otherwise if self.timeout_ms is None else self.timeout_ms

    def wants_approval(self, given: object, agent: object = None) -> object:
        # Whether a person must approve this call, or who must, or an awaitable of that. The author's predicate may raise.
        if isinstance(self.needs_approval, bool | Approval):
            return self.needs_approval
        return _called(self.needs_approval, {"input": given, "agent": agent})

    def probed(self, given: object, context: ToolContext, agent: object = None) -> object:
        # Whether a call that died took effect, by the author's probe. None: it is not known. It may be an awaitable.
        return None if self.probe is None else _called(self.probe, {"input": given, "context": context, "agent": agent})


_WHO = {"inline": "executed by the agent itself", "agent": "a child agent", "client": "executed by the client"}


def _called(hook: Hook, offered: dict[str, object]) -> object:
    return hook(**{name: offered[name] for name in signature_of(hook).parameters})


class ToolOptions(TypedDict, total=False):
    """The options of `@tool`.

    Attributes:
        name, description: for the model; by default the function's name and the text of its docstring.
        effect: `once`, `idempotent` or `pure`: what may happen after a death.
        probe: says whether a call that died took effect: True, False, or None for unknown.
        timeout_ms: the time limit of an execution; None takes the agent's.
        inline: execute it in the agent's own process. Methods always are.
        concurrent: a sync method takes no turn: it runs beside other sync methods of its agent, as a function does.
        needs_approval: whether a person must approve a call; or who must (`Approval`); or a function that returns one of these for a
            call.
        client: the client executes it; the function's body never runs.
        num_cpus, num_gpus, memory, accelerator_type, label_selector, resources, runtime_env: what Ray is asked for, as on a class of
            agents. Such a call runs where that is to be had.
    """

    name: str | None
    description: str | None
    effect: Effect
    probe: Hook | None
    timeout_ms: float | None
    inline: bool
    concurrent: bool
    needs_approval: bool | Approval | Hook
    client: bool
    num_cpus: float
    num_gpus: float
    memory: float
    accelerator_type: str | None
    label_selector: Mapping[str, str]
    resources: Mapping[str, float]
    runtime_env: Mapping[str, object]


@overload
def tool(function: F) -> F: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...


def tool(function: F | None = None, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
    """Mark a function of a module, or a method of a chat agent, as a tool. It stays callable as before.

    The options are those of `ToolOptions`. Raises `BadRequest`, naming the option that is wrong.
    """
    unknown = options.keys() - ToolOptions.__annotations__.keys()
    if unknown:
        raise BadRequest(min(unknown), "is no option of a tool")
    check_bool("inline", options.get("inline", False))
    check_bool("concurrent", options.get("concurrent", False))
    check_bool("client", options.get("client", False))
    if options.get("name") is not None:
        _check_name("name", options.get("name"))
    check_word("effect", options.get("effect", "once"), get_args(Effect))
    if options.get("timeout_ms") is not None:
        check_number("timeout_ms", options.get("timeout_ms"), unit="milliseconds", above=True)
    _check_hook("probe", options.get("probe"))
    _check_hook("needs_approval", options.get("needs_approval"))
    if options.get("client") and (options.get("inline") or options.get("probe") is not None):
        raise BadRequest("client", "a tool that the client executes has no code here: no `inline`, no `probe`")
    _check_placement(options)

    def mark(marked: F) -> F:
        if not callable(getattr(marked, "__func__", marked)):
            raise BadRequest("tool", f"{marked!r:.200} is not a function")
        marked.__perdure_tool__ = options  # type: ignore[attr-defined]
        return marked

    return mark if function is None else mark(function)


def _check_placement(options: ToolOptions) -> None:
    asked = _asked_of_ray(options)
    for name, value in asked.items():
        ASKED_OF_RAY[name](name, value)
    has_wishes = pool_spec(Placement(**asked)) is not None  # and nothing is asked for in two ways
    for kind in ("inline", "client"):
        if has_wishes and options.get(kind):
            raise BadRequest(min(asked), f"{_NO_HOST}, and with {kind}=True it has none")


def _asked_of_ray(options: ToolOptions) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in ASKED_OF_RAY and value is not None}


def options_of(thing: object) -> ToolOptions | None:
    options = getattr(thing, "__perdure_tool__", None)
    return cast("ToolOptions", options) if isinstance(options, dict) else None


@functools.lru_cache(maxsize=256)
def _marked(agent_class: Hashable) -> tuple[str, ...]:
    names = {name: None for each in reversed(cast("type", agent_class).__mro__) for name in vars(each)}
    return tuple(name for name in names if options_of(getattr(agent_class, name, None)) is not None)


def function_tool(function: Callable[..., object]) -> Tool:
    """A function, or a method bound to its agent, as a tool.

    Raises:
        BadRequest: its name or its parameters are wrong, or no other process could find it and it is not inline.
    """
    options = options_of(function) or ToolOptions()
    is_function = isinstance(function, FunctionType)
    name = _check_name("name", options.get("name") or getattr(function, "__name__", type(function).__name__))
    is_inline = options.get("inline") or not is_function
    kind: Kind = "client" if options.get("client") else "inline" if is_inline else "function"
    if kind != "client":
        refuse_generator("tool", function)
    if kind == "function" and "<" in function.__qualname__:
        where = f"{function.__qualname__} cannot be found by another process"
        raise BadRequest("tool", f"{where}; move it to the top of its module, or mark it with @tool(inline=True)")
    asked = Placement(**_asked_of_ray(options))
    placement = None if pool_spec(asked) is None else asked
    if kind == "inline" and placement is not None:
        raise BadRequest("tool", f"{function.__qualname__} asks for what {_NO_HOST}, and a method has none")
    return Tool(
        name=name,
        description=options.get("description"),
        kind=kind,
        placement=placement,
        intake=intake_of(function),
        effect=options.get("effect", "once"),
        probe=options.get("probe"),
        timeout_ms=options.get("timeout_ms"),
        needs_approval=options.get("needs_approval", False),
        function=function,
        in_turn=ismethod(function) and not options.get("concurrent", False),
    )


def refuse_generator(field: str, function: Callable[..., object]) -> None:
    # The model gets one result of a call.
    if gives_bit_by_bit(function):
        raise BadRequest(
            field, "it gives its values bit by bit (`yield`), and a tool has one result: return a list of them"
        )


def find_tool(reference: str, code_dir: Path | None = None) -> Tool:
    return function_tool(load_function(reference, code_dir))


class Toolset:
    """The tools of one agent by name, in the order in which they were given."""

    def __init__(self, tools: Iterable[object]) -> None:
        # The `BadRequest` says what is wrong with which of them.
        self._tools: dict[str, Tool] = {}
        for each in tools:
            found = each if isinstance(each, Tool) else _as_tool(each)
            known = self._tools.setdefault(found.name, found)
            if not known.is_same(found):
                raise BadRequest("tools", f"two tools are called {found.name!r}; give one of them another name")

    @classmethod
    def declared(cls, agent_class: Any) -> None:
        # Tools of a class that would fail in each turn are refused, as far as they can be told without an agent of it.
        if is_async(agent_class.tools):
            raise BadRequest("tools", f"{agent_class.__name__}.tools() is async; it returns its tools at once")
        bare = object.__new__(agent_class)
        _, problem = tried_now(lambda: cls.of(bare).specs())
        if isinstance(problem, BadRequest):  # whatever else is raised: it asks its agent
            raise problem

    @classmethod
    def of(cls, agent: object) -> Toolset:
        returned = agent.tools() if hasattr(agent, "tools") else ()
        if isinstance(returned, str) or not isinstance(returned, Iterable):
            raise BadRequest("tools", f"{type(agent).__name__}.tools() returned {returned!r:.200}, not a list of tools")
        return cls([*returned, *(getattr(agent, name) for name in _marked(cast("Hashable", type(agent))))])

    def plus(self, tools: Iterable[object]) -> Toolset:
        return Toolset([*self._tools.values(), *tools])

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def specs(self) -> list[ToolSpec]:
        found = []
        for each in self:
            try:
                found.append(each.spec)
            except BadRequest as problem:
                raise BadRequest("tools", f"{each.name}: {problem}") from problem
        return found

    @property
    def client_names(self) -> frozenset[str]:
        return frozenset(each.name for each in self if each.kind == "client")

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


def _as_tool(thing: object) -> Tool:
    if isinstance(thing, type) or not callable(thing):
        words = "is no tool; it may be a function, or what agent_tool() or client_tool() returned"
        raise BadRequest("tools", f"{thing!r:.200} {words}")
    try:
        return function_tool(thing)
    except BadRequest as problem:
        raise BadRequest("tools", f"{getattr(thing, '__qualname__', repr(thing))}: {problem}") from problem


def _check_name(field: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(field, f"{name!r:.200} is not the name of a tool: 1 to 64 of a-z, A-Z, 0-9, _ and -")
    return name


def _check_description(description: object) -> str:
    if not isinstance(description, str) or not description.strip():
        raise BadRequest("description", "is missing; it is all that the model knows of the tool")
    return description


def _check_hook(field: str, hook: object) -> None:
    # A hook is None, a bool or an `Approval`, or a function whose parameters can be given.
    if hook is None or (field == "needs_approval" and isinstance(hook, bool | Approval)):
        return
    if not callable(hook):
        raise BadRequest(field, f"{hook!r:.200} is not a function")
    names, known = set(signature_of(hook).parameters), _HOOK_PARAMETERS[field]
    if not names <= known:
        unknown, words = ", ".join(sorted(names - known)), ", ".join(sorted(known))
        raise BadRequest(field, f"it asks for {unknown}; it may ask for {words}")


# ---------------------------------------------------------------- tools that are executed elsewhere


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
    check_class(agent_class)
    if not (isinstance(agent_class, type) and issubclass(agent_class, Agent)):
        raise BadRequest("agent_class", f"{agent_class!r:.200} is not a class of agents")
    if not isinstance(detached, bool | Detached):
        raise BadRequest("detached", f"{detached!r:.200} is neither a bool nor a `Detached`")
    _check_hook("needs_approval", needs_approval)
    annotation, wrapped_as = _child_input(agent_class, input)
    return Tool(
        name=_check_name("name", name or _WORD_END.sub("_", agent_class.__name__).lower()),
        description=_check_description(description),
        kind="agent",
        intake=intake_of_type(annotation, wrapped_as=wrapped_as),
        effect="idempotent",
        needs_approval=needs_approval,
        agent_class=agent_class,
        detached=detached,
        display=None if display is None else checked_plain("display", display),
        output=None if output is None else _output_adapter(output),
        wrapped_as=wrapped_as,
    )


def _output_adapter(annotation: Any) -> TypeAdapter[object]:
    try:
        adapter: TypeAdapter[object] = TypeAdapter(annotation)
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
    intake = intake_of_schema(checked_plain("parameters", parameters))
    if not isinstance(intake.schema["properties"], dict):
        raise BadRequest("parameters.properties", f"{intake.schema['properties']!r:.200} is not an object")
    return Tool(
        name=_check_name("name", name),
        description=_check_description(description),
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
