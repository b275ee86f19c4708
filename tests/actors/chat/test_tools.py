from __future__ import annotations

import asyncio
import datetime as dt
import enum
import functools
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, ClassVar, cast

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from perdure.actors import Agent, ChatAgent, Detached, RunContext, RunResult
from perdure.actors.chat.tool_schema import BadToolInput, ToolContext
from perdure.actors.chat.tools import (
    BadToolOutput,
    Tool,
    Toolset,
    agent_tool,
    client_tool,
    find_tool,
    function_tool,
    tool,
)
from perdure.actors.life.results import run_result
from perdure.ledger import BadRequest, UnknownTool
from tests.actors.one_process import OneProcess, play
from tests.tidy import IMPORT_PATH

ROOT = Path(__file__).resolve().parents[3]


class Place(BaseModel):
    city: str
    country: str = "DE"


class Unit(enum.Enum):
    C = "c"
    F = "f"


CONTEXT = ToolContext(call_id="c1", run_id="r1", attempt=1, idempotency_key="k1", report_progress=print)


@tool
async def weather(place: Place, days: int = 1, unit: Unit = Unit.C) -> dict[str, Any]:
    """Ask for the weather.

    It is from yesterday.

    Args:
        place: where
        days (int): how many days
    """
    return {"city": place.city, "days": days, "unit": unit}


@tool(
    name="send-mail",
    description="Send it.",
    effect="idempotent",
    timeout_ms=5,
    needs_approval=lambda input: len(input) > 1,
)
def send(to: str, context: ToolContext, *, body: Annotated[str, Field(max_length=5)] = "") -> str:
    return f"{to} {body} {context.idempotency_key}"


def plain(a, b=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    return [a, b]


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    return function_tool(function).spec.parameters


def outcome(each: Tool, given: object, context: ToolContext | None = None) -> Any:
    made = each.bound(given, context)()
    return asyncio.run(made) if asyncio.iscoroutine(made) else made


# ---------------------------------------------------------------- functions


def test_a_marked_function_is_what_it_was() -> None:
    assert send("ada", CONTEXT, body="hi") == "ada hi k1"


def test_a_tool_is_described_by_its_signature_and_its_docstring() -> None:
    spec = function_tool(weather).spec
    assert (spec.name, spec.description) == ("weather", "Ask for the weather.\n\nIt is from yesterday.")
    assert spec.parameters["type"] == "object"
    assert spec.parameters["required"] == ["place"]
    assert spec.parameters["additionalProperties"] is False
    properties = spec.parameters["properties"]
    assert properties["place"] == {"description": "where", "$ref": "#/$defs/Place"}
    assert properties["days"] == {"description": "how many days", "type": "integer", "default": 1}
    assert properties["unit"] == {"$ref": "#/$defs/Unit"}


def test_options_win_and_the_context_is_not_the_models_business() -> None:
    made = function_tool(send)
    assert (made.name, made.spec.description, made.effect, made.timeout_ms) == (
        "send-mail",
        "Send it.",
        "idempotent",
        5,
    )
    assert list(made.spec.parameters["properties"]) == ["to", "body"]
    assert made.spec.parameters["properties"]["body"]["maxLength"] == 5


@pytest.mark.parametrize(
    "docstring",
    [
        "Do.\n\nArgs:\n    a: the first\n",
        "Do.\n\n:param a: the first\n",
        "Do.\n\nParameters\n----------\na : int\n    the first\n",
    ],
)
def test_docstrings_are_read_in_three_styles(docstring: str) -> None:
    @tool(inline=True)
    def do(a: int) -> None: ...

    do.__doc__ = docstring
    assert function_tool(do).spec.description == "Do."
    assert schema(do)["properties"]["a"]["description"] == "the first"


def test_a_function_without_mark_docstring_or_annotations_is_a_tool_all_the_same() -> None:
    made = function_tool(plain)
    assert (made.spec.description, made.effect, made.kind) == ("", "once", "function")
    assert made.spec.parameters["properties"] == {"a": {}, "b": {"default": None}}
    assert outcome(made, {"a": {"x": 1}}) == [{"x": 1}, None]


def test_parameters_may_bear_any_name() -> None:
    @tool(inline=True)
    def odd(json: int, model_config: int, _x: int, copy: int = 4) -> list[int]:
        return [json, model_config, _x, copy]

    assert list(schema(odd)["properties"]) == ["json", "model_config", "_x", "copy"]
    assert outcome(function_tool(odd), {"json": 1, "model_config": 2, "_x": 3}) == [1, 2, 3, 4]


def test_arguments_arrive_as_the_types_that_the_author_asked_for() -> None:
    @tool(inline=True)
    def typed(day: dt.date, tags: set[str], pair: tuple[int, str], place: Place | None = None) -> list[Any]:
        return [day, tags, pair, place]

    given = {"day": "2026-08-21", "tags": ["a"], "pair": [1, "x"], "place": {"city": "Ulm"}}
    assert outcome(function_tool(typed), given) == [dt.date(2026, 8, 21), {"a"}, (1, "x"), Place(city="Ulm")]


def test_what_is_left_out_is_left_to_the_functions_own_default() -> None:
    sentinel = object()

    @tool(inline=True)
    def defaulted(a: int = 1, *, b: Any = sentinel) -> Any:
        return a, b

    assert outcome(function_tool(defaulted), {}) == (1, sentinel)
    assert "default" not in schema(defaulted)["properties"]["b"]


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ({}, "place", "Field required"),
        ({"place": {"city": "Ulm"}, "days": "3"}, "days", "valid integer"),
        ({"place": {"city": "Ulm"}, "days": 2.5}, "days", "valid integer"),
        ({"place": {"city": "Ulm"}, "days": True}, "days", "valid integer"),
        ({"place": {"city": 1}}, "place.city", "valid string"),
        ({"place": {"city": "Ulm"}, "unit": "k"}, "unit", "'c' or 'f'"),
        ({"place": {"city": "Ulm"}, "day": 1}, "day", "Extra inputs are not permitted"),
        ({"place": 3, "days": "x"}, "place", "days: Input should be a valid integer"),
        ([1], "input", "an object"),
        (None, "input", "an object"),
    ],
)
def test_wrong_arguments_are_refused_by_the_name_of_their_field(given: object, field: str, problem: str) -> None:
    with pytest.raises(BadToolInput) as refused:
        function_tool(weather).bound(given)
    assert refused.value.field == field
    assert problem in str(refused.value)


@pytest.mark.parametrize(("wrong", "more"), [("abc", False), ("abcd", True)])
def test_of_many_wrong_arguments_five_are_told_and_the_others_are_counted(wrong: str, more: bool) -> None:
    with pytest.raises(BadToolInput) as refused:
        function_tool(weather).bound({"place": 3, "days": "x"} | dict.fromkeys(wrong, 1))
    words = str(refused.value)
    assert [f"{name}: Extra inputs" in words for name in "abcd"] == [True] * 3 + [False]
    assert words.endswith(" (and 1 more)") is more
    assert " more)" in words or not more


def test_the_context_is_filled_in() -> None:
    assert outcome(function_tool(send), {"to": "ada"}, CONTEXT) == "ada  k1"

    @tool(inline=True)
    def optional(context: ToolContext | None = None) -> Any:
        return context

    assert outcome(function_tool(optional), {}, CONTEXT) is CONTEXT
    assert CONTEXT.asked_to_stop() is False


# ---------------------------------------------------------------- results


@dataclass
class Point:
    x: float


@pytest.mark.shows(chat_recovery="C-0817")
@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (Place(city="Ulm"), {"city": "Ulm", "country": "DE"}),
        ([Point(float("inf"))], [{"x": "Infinity"}]),
        ({"when": dt.date(2026, 8, 21), "unit": Unit.C}, {"when": "2026-08-21", "unit": "c"}),
        ((1, {2}), [1, [2]]),
        ({1: "a\x00\ud800"}, {"1": "a��"}),
        (b"text", "text"),
    ],
)
def test_what_a_tool_returns_becomes_plain_data(value: object, plain: object) -> None:
    assert function_tool(weather).encoded(value) == plain


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "cannot be encoded"),
        (b"\xff", "cannot be encoded"),
        ("x" * 5_000_000, "the limit is"),
    ],
)
def test_what_cannot_be_handed_on_is_an_error_that_says_that_the_call_was_made(value: object, problem: str) -> None:
    with pytest.raises(BadToolOutput, match=rf"what weather returned.*{problem}.*the call itself was executed"):
        function_tool(weather).encoded(value)


def test_what_has_as_many_bytes_as_the_limit_is_handed_on_and_one_more_is_not() -> None:
    assert function_tool(weather).encoded("12345678", 9) == "12345678"
    with pytest.raises(BadToolOutput, match="has 10 bytes encoded, and the limit is 9"):
        function_tool(weather).encoded("123456789", 9)


def test_what_contains_itself_cannot_be_handed_on() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadToolOutput, match="cannot be encoded"):
        function_tool(weather).encoded(loop)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "no spaces"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"effect": "sometimes"}, "effect"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms"),
        ({"probe": "was_sent"}, "probe"),
        ({"probe": lambda x: x}, "probe"),
        ({"needs_approval": 1}, "needs_approval"),
        ({"needs_approval": lambda context: context}, "needs_approval"),
        ({"client": True, "inline": True}, "client"),
        ({"num_cpus": -1}, "num_cpus"),
        ({"num_gpus": float("nan")}, "num_gpus"),
        ({"num_gpu": 1}, "num_gpu"),
        ({"memory": "4GB"}, "memory"),
        ({"accelerator_type": 4}, "accelerator_type"),
        ({"label_selector": ["zone"]}, "label_selector"),
        ({"label_selector": {"zone": "in("}}, "label_selector['zone']"),
        ({"resources": {"GPU": 1}, "num_gpus": 1}, "resources"),
        ({"runtime_env": "pip"}, "runtime_env"),
        ({"num_gpus": 1, "inline": True}, "num_gpus"),
        ({"memory": 1, "label_selector": {"zone": "a"}, "client": True}, "label_selector"),
    ],
)
def test_wrong_options_are_refused_where_they_stand(options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        tool(**options)(plain)
    assert refused.value.field == field


def test_approval_is_asked_for_by_a_flag_or_by_a_predicate() -> None:
    assert function_tool(weather).wants_approval({}) is False
    assert function_tool(send).wants_approval({"to": "a", "body": "b"}) is True
    asking = client_tool("ask", "Ask.", {}, needs_approval=lambda agent, input: (agent, input))
    assert asking.wants_approval({"a": 1}, "me") == ("me", {"a": 1})


def test_a_probe_is_given_what_it_names() -> None:
    @tool(inline=True, probe=lambda context, input: (context.call_id, input))
    def pay(amount: int) -> None: ...

    assert function_tool(pay).probed({"amount": 1}, CONTEXT) == ("c1", {"amount": 1})
    assert function_tool(send).probed({}, CONTEXT) is None


# ---------------------------------------------------------------- the set


class Desk(Agent):
    colour = "red"

    def tools(self) -> list[object]:
        return [weather, send, client_tool("confirm", "Ask the person.", {"properties": {"text": {"type": "string"}}})]

    @tool
    def look(self, at: str) -> str:
        """Look at something."""
        return f"{at} is {self.colour}"

    @tool
    async def shout(self, context: ToolContext) -> str:
        return context.call_id

    @property
    def broken(self) -> str:
        raise AssertionError("nobody reads this")


class Quiet(Desk):
    shout = None  # type: ignore[assignment]


def test_the_tools_of_an_agent_are_what_it_returns_and_its_marked_methods() -> None:
    tools = Toolset.of(Desk())
    assert [(each.name, each.kind) for each in tools] == [
        ("weather", "function"),
        ("send-mail", "function"),
        ("confirm", "client"),
        ("look", "inline"),
        ("shout", "inline"),
    ]
    assert (len(tools), "look" in tools, "other" in tools) == (5, True, False)
    assert [each.name for each in tools.specs()] == [each.name for each in tools]


def test_methods_are_called_on_their_agent() -> None:
    look, shout = (each for each in Toolset.of(Desk()) if each.name in ("look", "shout"))
    assert look.spec.parameters["required"] == ["at"]
    assert outcome(look, {"at": "it"}) == "it is red"
    assert outcome(shout, {}, CONTEXT) == "c1"


def test_a_subclass_may_take_a_tool_away() -> None:
    assert "shout" not in Toolset.of(Quiet())


def local() -> Callable[..., Any]:
    def inner() -> None: ...

    return inner


def starred(*names: str) -> None: ...


def untyped(thing: Agent) -> None: ...


def forward(thing: NoSuchThing) -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([weather, client_tool("weather", "Mine.", {})], "two tools are called 'weather'"),
        ([client_tool("x", "Mine.", {}), client_tool("x", "Mine.", {"a": {}})], "two tools are called 'x'"),
        ([weather, replace(function_tool(weather), description="Mine.")], "two tools are called 'weather'"),
        ([3], "3 is no tool"),
        ([Desk], "is no tool"),
        ([lambda: 1], "'<lambda>' is not the name of a tool"),
        ([local()], "inner cannot be found by another process; move it"),
        ([starred], r"starred: parameters: \*names.* has no name to be filled in by"),
        ([untyped], "untyped: parameters: no schema can be made of them: .*Agent"),
        ([forward], "forward: .*NoSuchThing.* is not known when the code runs"),
        ([functools.partial(plain)], "'partial' is not the name|parameters"),
    ],
)
def test_what_is_no_tool_is_refused_by_name(tools: list[object], problem: str) -> None:
    if tools[0].__class__ is functools.partial:
        assert [each.kind for each in Toolset(tools)] == ["inline"]
        return
    with pytest.raises(BadRequest, match=problem):
        Toolset(tools).specs()


def test_a_tool_that_is_said_twice_is_one() -> None:
    class Twice(Agent):
        def tools(self) -> list[object]:
            return [weather, self.look, weather]

        @tool
        def look(self) -> str:
            return "at it"

    assert [each.name for each in Toolset.of(Twice())] == ["weather", "look"]
    mine = client_tool("mine", "Mine.", {})
    assert len(Toolset([mine]).plus([mine])) == 1


def test_an_agent_must_return_a_list() -> None:
    class Wrong(Agent):
        def tools(self) -> Any:
            return 3

    with pytest.raises(BadRequest, match=r"Wrong.tools\(\) returned 3, not a list"):
        Toolset.of(Wrong())


def test_more_tools_may_be_added_but_not_under_a_name_that_is_taken() -> None:
    more = client_tool("weather", "Mine.", {})
    assert len(Toolset([send]).plus([more])) == 2
    with pytest.raises(BadRequest, match="two tools"):
        Toolset([weather]).plus([more])


# ---------------------------------------------------------------- found again elsewhere


def test_a_function_is_found_again_by_its_reference() -> None:
    reference = function_tool(send).reference()
    assert reference == f"{__name__}:send"
    assert find_tool(reference).function is send
    with pytest.raises(BadRequest, match="look is executed by the agent itself"):
        next(each for each in Toolset.of(Desk()) if each.name == "look").reference()
    with pytest.raises(UnknownTool, match="there is no nothing"):
        find_tool(f"{__name__}:nothing")
    with pytest.raises(UnknownTool, match="is not a function"):
        find_tool(f"{__name__}:Desk")


SCRIPT = """
    from pathlib import Path
    from perdure.actors import Agent
    from perdure.actors.chat.tools import function_tool, tool

    @tool(effect="pure")
    def shout(text: str) -> str:
        return text.upper()

    class Desk(Agent):
        def tools(self):
            return [shout]

    print(function_tool(shout).reference(Path({!r})))
"""


@pytest.mark.parametrize("how", ["script", "command"])
def test_a_tool_of_a_script_or_a_prompt_is_found_again_too(how: str, tmp_path: Path) -> None:
    text, code = dedent(SCRIPT), tmp_path / "code"
    (tmp_path / "desk.py").write_text(text.format(str(code)), encoding="utf-8")
    command = [str(tmp_path / "desk.py")] if how == "script" else ["-c", text.format(str(code))]
    done = subprocess.run(
        [sys.executable, *command],
        env={"PYTHONPATH": IMPORT_PATH},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = find_tool(done.stdout.strip(), code)
    assert found.effect == "pure"
    assert outcome(found, {"text": "hi"}) == "HI"


# ---------------------------------------------------------------- children and clients


class DeepResearcher(Agent):
    async def run(self, input: Place, run: RunContext) -> str:
        return input.city


class Adder(Agent):
    async def run(self, input: list[int]) -> int:
        return sum(input)


class Loose(Agent):
    async def run(self, input: Any) -> Any:
        return input


class Bare(Agent):
    async def run(self) -> str:
        return ""


class Chatterbox(Agent):
    """A chat agent, say: it has no `run`."""


class Node(BaseModel):
    """A recursive type, whose schema is a reference at the top."""

    child: Node | None = None


def child(agent_class: type[Agent], **options: Any) -> Tool:
    return agent_tool(agent_class, description="Do it.", **options)


def test_a_child_agent_is_a_tool_by_the_type_of_its_run() -> None:
    made = child(DeepResearcher)
    assert (made.name, made.kind, made.detached) == ("deep_researcher", "agent", False)
    assert made.spec.parameters["required"] == ["city"]
    assert made.agent_input({"city": "Ulm"}) == {"city": "Ulm", "country": "DE"}
    with pytest.raises(BadToolInput, match="city: Field required"):
        made.agent_input({})


@pytest.mark.parametrize(
    ("made", "names", "given", "taken"),
    [
        (child(Adder), ["input"], {"input": [1, 2]}, [1, 2]),
        (child(Loose), ["input"], {"input": {"a": None}}, {"a": None}),
        (child(Chatterbox), ["message"], {"message": "hi"}, "hi"),
        (child(Bare), [], {}, {}),
        (child(Chatterbox, input=Place), ["city", "country"], {"city": "Ulm"}, {"city": "Ulm", "country": "DE"}),
        (child(Chatterbox, input=dict), [], {"a": 1}, {"a": 1}),
        (child(Chatterbox, input=Node), ["child"], {"child": {}}, {"child": {"child": None}}),
    ],
)
def test_what_is_no_object_is_sent_in_one(made: Tool, names: list[str], given: object, taken: object) -> None:
    assert list(made.spec.parameters["properties"]) == names
    assert made.spec.parameters["type"] == "object"
    assert made.agent_input(given) == taken


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"agent_class": Place}, "agent_class"),
        ({"description": " "}, "description"),
        ({"name": "a b"}, "name"),
        ({"input": Agent}, "input"),
        ({"output": "NoSuch"}, "output"),
        ({"detached": "yes"}, "detached"),
        ({"display": {"icon": {1}}}, "display.icon"),
        ({"needs_approval": 3}, "needs_approval"),
    ],
)
def test_a_wrong_definition_of_a_child_is_refused_by_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        agent_tool(**{"agent_class": Adder, "description": "Add.", **options})
    assert refused.value.field == field


def test_a_child_may_be_detached_with_options() -> None:
    follow = Detached(on_finish="on_notes")
    assert child(Adder, detached=follow, display={"icon": "x"}).detached is follow


def ended(status: str, **more: Any) -> RunResult:
    return run_result(run_id="r", agent_type="t", status=status, **{"output": None} | more)


@pytest.mark.shows(agent_tools="67", chat_recovery="C-1426")
@pytest.mark.parametrize(
    ("options", "result", "answer"),
    [
        ({}, ended("completed", summary="Short.", output="Long."), "Short."),
        ({}, ended("completed", summary='{"n":3}', output={"n": 3}), {"n": 3}),
        ({}, ended("completed", output=Place(city="Ulm")), {"city": "Ulm", "country": "DE"}),
        ({}, ended("completed"), ""),
        ({}, ended("completed", output=0), 0),
        (
            {"output": Place},
            ended("completed", summary="Short.", output={"city": "Ulm"}),
            {"city": "Ulm", "country": "DE"},
        ),
        (
            {"output": Place},
            ended("completed"),
            {"ok": False, "status": "error", "error": "the child has no output", "retryable": False},
        ),
        (
            {},
            ended("aborted", error="stopped"),
            {"ok": False, "status": "aborted", "error": "stopped", "retryable": False},
        ),
        (
            {},
            ended("interrupted", error="lost", reason="budget-exceeded", child_still_running=True),
            {
                "ok": False,
                "status": "interrupted",
                "error": "lost",
                "retryable": True,
                "reason": "budget-exceeded",
                "childStillRunning": True,
            },
        ),
    ],
)
def test_the_end_of_a_child_becomes_the_answer_of_the_tool(
    options: dict[str, Any], result: RunResult, answer: Any
) -> None:
    assert child(Adder, **options).answer(result) == answer


class Summarised(Bare):
    """Says itself what its parent should know."""

    def get_agent_tool_summary(self, output: Any, run: Any) -> str:
        """In short."""
        return "Short."


@pytest.mark.parametrize(
    ("agent_class", "summary", "output", "answer"),
    [
        (Summarised, "Short.", {"n": 3}, "Short."),
        (Summarised, "Short.", None, "Short."),
        (Summarised, "", {"n": 3}, {"n": 3}),
        (Bare, "Short.", {"n": 3}, {"n": 3}),
        (Bare, "Short.", None, "Short."),
    ],
)
def test_the_summary_of_a_child_that_has_one_of_its_own_is_the_answer(
    agent_class: type[Agent], summary: str, output: object, answer: object
) -> None:
    assert child(agent_class).answer(ended("completed", summary=summary, output=output)) == answer


def test_a_long_text_is_shortened_for_its_summary_and_whole_as_the_answer_of_the_tool() -> None:
    text = "to and fro " * 10_000
    summary = object.__new__(Bare).get_agent_tool_summary(text, cast("RunContext", None))
    assert len(summary) < 17_000
    assert (summary[:8_000], summary[-8_000:]) == (text[:8_000], text[-8_000:])
    assert child(Bare).answer(ended("completed", summary=summary, output=text)) == text
    assert object.__new__(Bare).get_agent_tool_summary(text[:16_000], cast("RunContext", None)) == text[:16_000]


def test_an_output_that_is_not_what_was_declared_is_an_error() -> None:
    with pytest.raises(BadToolOutput, match=r"is not what was declared \(city: Field required\)"):
        child(Adder, output=Place).answer(ended("completed", output={}))


def test_a_client_tool_has_the_schema_that_it_came_with() -> None:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    assert client_tool("ask", "Ask.", parameters).spec.parameters == parameters
    assert client_tool("ask", "Ask.", {}).spec.parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("name", "description", "parameters", "field"),
    [
        ("a b", "Ask.", {}, "name"),
        ("ask", "", {}, "description"),
        ("ask", "Ask.", [], "parameters"),
        ("ask", "Ask.", {"type": "string"}, "parameters"),
        ("ask", "Ask.", {"properties": []}, "parameters.properties"),
        ("ask", "Ask.", {"properties": {"a": {1}}}, "parameters.properties.a"),
    ],
)
def test_a_wrong_client_tool_is_refused_by_its_field(name: str, description: str, parameters: Any, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        client_tool(name, description, parameters)
    assert refused.value.field == field


async def all_at_once(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """A model that calls each tool four times in one answer, then says what they gave."""
    given = [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if given:
        yield " ".join(map(str, given))
        return
    names = [each.name for each in info.function_tools] * 8
    yield {at: DeltaToolCall(name=name, json_args="{}", tool_call_id=f"c{at}") for at, name in enumerate(names)}


class Lister(ChatAgent):
    """Its tools read, wait and write, too."""

    model = FunctionModel(stream_function=all_at_once)
    tool_timeout_ms = 1_000  # eight calls take longer
    meeting: ClassVar[threading.Barrier]
    pause = threading.Event()

    @tool
    def add(self) -> int:
        """Add to the list."""
        known = self.state.get("listed", 0)
        self.pause.wait(0.15)
        self.state["listed"] = known + 1
        return known + 1

    @tool(concurrent=True)
    def meet(self) -> int:
        """Wait until all eight are there."""
        return self.meeting.wait(30) * 0


def test_tools_that_are_sync_methods_lose_no_update_and_their_time_begins_with_their_turn() -> None:
    async def story(stage: OneProcess) -> str:
        return str((await stage.client.call(Lister, "todo", "chat", ("Go on.",), {})).text)

    Lister.meeting = threading.Barrier(8)
    added = play(story, threads_max=16).split()
    assert sorted(added) == ["0"] * 8 + [str(number) for number in range(1, 9)]
