"""Signatures and annotations: what an author wrote is checked, however it was written, or it is refused by its name."""

from __future__ import annotations

import sys
import threading
import typing
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any, Generic, get_type_hints

import pytest
from pydantic import BaseModel
from typing_extensions import TypeVar

from perdure.actors import Agent, RunCompleted, RunContext, RunFailed, RunResult, exposed
from perdure.actors.code.signatures import fiber_shape, run_shapes, shapes_of
from perdure.ledger import BadRequest
from tests.actors import signature_cast as cast
from tests.actors.signature_cast import Topic
from tests.kit import Stage, play

D = TypeVar("D", default=int)


def ends(agent_class: type, input: Any = None) -> Any:
    """The output of a run, or what went wrong."""

    async def story(stage: Stage) -> Any:
        result = await stage.client.run(agent_class, input)
        return result.output if result.ok else result.error

    return play(story)


def refused(job: Callable[[], object]) -> BadRequest:
    with pytest.raises(BadRequest) as found:
        job()
    return found.value


def test_a_name_that_is_imported_for_type_checkers_only_is_found() -> None:
    assert ends(cast.ForCheckers, {"words": ["a", "b"]}) == Decimal(2)
    assert refused(lambda: ends(cast.ForCheckers, {"words": 3})).field == "input"

    async def story(stage: Stage) -> str:
        return str(await stage.call(cast.ForCheckers, "price", "1.5"))

    assert play(story) == "Decimal"


@pytest.mark.parametrize("agent_class", [cast.Heir, cast.Quoted])
def test_a_generic_base_is_checked_by_what_its_subclass_names(agent_class: type) -> None:
    assert ends(agent_class, [{"name": "a"}]) == {"1": Topic(name="a")}
    assert refused(lambda: ends(agent_class, [{"nom": "a"}])).field == "input"


def test_a_type_variable_that_nobody_names_is_its_bound_or_its_default_or_anything() -> None:
    class Defaulting(Agent, Generic[D]):
        def run(self, input: D | None) -> D: ...  # type: ignore[empty-body]

    assert run_shapes(Defaulting).hint == int | None
    assert run_shapes(Defaulting).gives.annotation is int
    assert run_shapes(cast.Bounded).hint == list[int]
    assert run_shapes(cast.Base).hint == list[Any]


@pytest.mark.parametrize("agent_class", [cast.Annotated, cast.Overriding, cast.Decorated, cast.Wrapped])
def test_the_annotations_of_a_base_and_behind_a_decorator_are_checked(agent_class: type) -> None:
    assert ends(agent_class, 2) == 4
    assert refused(lambda: ends(agent_class, "not an int")).field == "input"


@pytest.mark.parametrize(
    ("agent_class", "input", "output"),
    [
        (cast.WithDefault, None, "xx"),
        (cast.WithDefault, "y", "yy"),
        (cast.WithMarker, None, True),
        (cast.WithMarker, 1, False),
        (cast.ContextOnly, None, 1),
        (cast.ByName, None, 4),
        (cast.ByName, 1, 2),
        (cast.Unasked, 1, [1, None]),
        (cast.Static, 1, 2),
        (cast.OfClass, 1, "OfClass 1"),
        (cast.Partial, 2, 14),
    ],
)
def test_a_run_is_given_what_its_parameters_ask_for(agent_class: type, input: object, output: object) -> None:
    assert ends(agent_class, input) == output


@pytest.mark.parametrize(
    ("agent_class", "field", "words"),
    [
        (
            cast.ErrantRun,
            "input",
            r"annotation `Missing` in ErrantRun.run .* 'Missing' is not known .* import or define it",
        ),
        (cast.ErrantResult, "return", "annotation .*Nowhere.* in ErrantResult.run .* cannot be imported now"),
        (cast.Errant, "thing", "annotation `Missing` in Errant.lost"),
        (cast.Odd, "input", "Marker.* in Odd.run cannot be checked and sent"),
    ],
)
async def test_an_annotation_that_cannot_be_resolved_is_refused_by_its_name(
    stage: Stage, agent_class: Any, field: str, words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as found:
        await (
            stage.client.agent(agent_class, "a").lost(1)
            if agent_class is cast.Errant
            else stage.client.run(agent_class, 1)
        )
    assert found.value.field == field


def test_a_result_of_a_run_is_a_class_to_ask_for_and_a_union_to_annotate_with() -> None:
    completed = RunCompleted(run_id="r", agent_type="t", output=1)
    failed = RunFailed("r", "t", "error")
    result: Any = RunResult  # type checkers know it as a union
    assert [isinstance(each, result) for each in (completed, failed, 1, None, RunCompleted)] == [
        True,
        True,
        *[False] * 3,
    ]
    assert [issubclass(each, result) for each in (RunCompleted, RunFailed, result, int)] == [True, True, True, False]
    match completed:
        case result(run_id=run_id):
            assert run_id == "r"
    assert result[int] == RunCompleted[int] | RunFailed
    assert isinstance(completed, result | None)

    def told(self: Any, one: RunResult[int], any_one: RunResult, many: list[RunResult[str] | None]) -> None: ...

    hints = get_type_hints(told)
    assert hints["many"] == list[RunCompleted[str] | RunFailed | None]
    shapes, _ = shapes_of(told)
    for name, given in (("one", completed), ("any_one", completed), ("any_one", failed), ("many", [None, failed])):
        body = shapes[name].encode(name, given, 10_000)
        assert repr(shapes[name].decode(name, body)) == repr(given)
    wrong = {"run_id": "r", "agent_type": "t", "output": "no number"}
    assert refused(lambda: shapes["one"].encode("one", wrong, 10_000)).field == "one"


class Nowhere(BaseModel):
    x: Absent  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize("kind", [cast.Marker, threading.Lock, AsyncIterator[int], Agent, [int], Nowhere])
def test_a_type_that_cannot_be_checked_is_refused_in_our_words(kind: Any) -> None:
    def run(self: Any, input: Any) -> None: ...

    run.__annotations__["input"] = kind
    made = type("Made", (Agent,), {"run": run, "say": exposed(run)})
    for job in (lambda: run_shapes(made), lambda: shapes_of(made.say, made, "say")):  # type: ignore[attr-defined]
        found = refused(job)
        assert found.field == "input"
        assert "cannot be checked and sent" in str(found)
        assert str(found).endswith("take plain data, a dataclass, a TypedDict or a pydantic model")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there the library's own can be checked")
def test_a_typed_dict_that_python_tells_too_little_of_is_refused_with_the_one_that_can_be_checked() -> None:
    def say(self: Any, input: Any) -> None: ...

    say.__annotations__["input"] = list[typing.TypedDict("Row", {"n": int})]  # type: ignore[misc]
    found = str(refused(lambda: shapes_of(exposed(say))))
    assert "use `typing_extensions.TypedDict` instead of" in found
    assert "take plain data" not in found


def test_a_type_of_another_library_that_cannot_be_checked_is_refused_with_what_makes_plain_data_of_it() -> None:
    struct = type("Struct", (), {"__struct_fields__": ()})  # as a class of msgspec

    def say(self: Any, input: Any) -> None: ...

    say.__annotations__["input"] = list[struct] | None  # type: ignore[valid-type]
    found = refused(lambda: shapes_of(exposed(say)))
    assert "pydantic model; `msgspec.to_builtins(…)` makes plain data of what you have" in str(found)


def taking(source: str) -> Callable[[], type]:
    """Makes a class with this `run`."""

    def make() -> type:
        names: dict[str, Any] = {"RunContext": RunContext, "Any": Any}
        exec(source, names)  # noqa: S102 - a text from below
        return type("Made", (Agent,), {"run": names["run"]})

    return make


@pytest.mark.parametrize(
    ("source", "field", "words"),
    [
        ("def run(self, a: int, b: int): ...", "b", "more than one input, `a` and `b`"),
        ("def run(self, a, b): ...", "b", "more than one input"),
        ("def run(self, a=1, *, b): ...", "b", "more than one input"),
        ("def run(self, a: RunContext, run): ...", "run", "the context twice"),
        ("def run(self, *args, **kwargs): ...", "run", "does not name its input"),
        ("def run(self, **kw): ...", "run", "does not name its input"),
        ("def run(self, input): yield 1", "run", "is a generator"),
        ("async def run(self, input): yield 1", "run", "is a generator"),
    ],
)
def test_a_run_that_could_not_be_entered_is_refused_when_its_class_is_made(source: str, field: str, words: str) -> None:
    found = refused(taking(source))
    assert found.field == field
    assert words in str(found)


@pytest.mark.parametrize(
    "source",
    [
        "def run(self, a, context: 'RunContext'): ...",
        "def run(self, a, context: 'perdure.RunContext[Any]'): ...",
        "def run(self, a, b: 'Later'): ...",  # which may be a name for the context
        "def run(self, a, run: object, b=1, *more, **others): ...",
        "def run(self): ...",
    ],
)
def test_a_run_that_may_be_entered_is_not_refused_when_its_class_is_made(source: str) -> None:
    taking(source)()


def test_the_body_of_a_fiber_is_given_the_fiber_and_its_input_in_their_types() -> None:
    async def story(stage: Stage) -> None:
        crew: Any = stage.client.agent(cast.Crew, "c")
        cast.Crew.done.clear()
        for method, given in (("typed", {"name": "a"}), ("turned", {"name": "a"}), ("with_default", None)):
            assert await crew.start(method, given) == "completed"
        assert cast.Crew.done == [Topic(name="a"), (Topic(name="a"), 1), "x"]

    play(story)
    assert fiber_shape(cast.Crew, "typed").hint is Topic


@pytest.mark.parametrize("method", ["wrong", "many", "bit_by_bit"])
async def test_a_body_that_could_not_be_entered_is_refused_when_the_fiber_is_asked_for(
    stage: Stage, method: str
) -> None:
    with pytest.raises(BadRequest) as found:
        await stage.call(cast.Crew, "start", method, 1)
    assert found.value.field == "fn_name"


async def test_a_callback_that_is_a_generator_is_refused_when_it_is_asked_for(stage: Stage) -> None:
    with pytest.raises(BadRequest, match="is a generator") as found:
        await stage.call(cast.Crew, "plan", "ticks")
    assert found.value.field == "callback"
