"""Mistakes that a class has for good are told when it is made, handed over, served or loaded; not by each run, call or turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partialmethod
from typing import Any, Generic, TypeVar, cast

import pytest

from perdure.actors import Agent, ChatAgent, Detached, DurableAgent, agent_tool, exposed, tool
from perdure.actors.life.class_options import check_class
from perdure.actors.messenger.messenger_agent import MessengerAgent
from perdure.actors.serve.app import Gateway
from perdure.ledger import BadRequest
from tests.actors.cast import Doubler
from tests.kit import Stage, play


@pytest.mark.parametrize(
    ("attribute", "value", "field"),
    [
        ("attempts_max", 0, "attempts_max"),
        ("attempts_max", "3", "attempts_max"),
        ("max_concurrent_agent_tools", 0.5, "max_concurrent_agent_tools"),
        ("detached_max_budget_ms", -1, "detached_max_budget_ms"),
        ("exclusive", "yes", "exclusive"),
        ("stands_alone", 1, "stands_alone"),
        ("num_cpus", -1, "num_cpus"),
        ("num_cpus", float("nan"), "num_cpus"),
        ("num_cpus", "2", "num_cpus"),
        ("num_cpus", 0.00001, "num_cpus"),
        ("num_gpus", -1, "num_gpus"),
        ("num_gpus", float("nan"), "num_gpus"),
        ("num_gpus", float("inf"), "num_gpus"),
        ("num_gpus", True, "num_gpus"),
        ("num_gpus", "1", "num_gpus"),
        ("num_gpus", 1.5, "num_gpus"),
        ("memory", "4GB", "memory"),
        ("memory", -1, "memory"),
        ("memory", 0.5, "memory"),
        ("memory", float("nan"), "memory"),
        ("memory", float("inf"), "memory"),
        ("accelerator_type", 3, "accelerator_type"),
        ("accelerator_type", " ", "accelerator_type"),
        ("label_selector", "zone=a", "label_selector"),
        ("label_selector", {1: "a"}, "label_selector"),
        ("label_selector", {"-zone": "a"}, "label_selector"),
        ("label_selector", {"zone": 1}, "label_selector['zone']"),
        ("label_selector", {"zone": "in()"}, "label_selector['zone']"),
        ("label_selector", {"zone": "in(a"}, "label_selector['zone']"),
        ("label_selector", {"zone": "!!a"}, "label_selector['zone']"),
        ("label_selector", {"zone": ["a", "b"]}, "label_selector['zone']"),
        ("resources", ["gpu"], "resources"),
        ("resources", {1: 1}, "resources"),
        ("resources", {"CPU": 1}, "resources"),
        ("resources", {"memory": 1}, "resources"),
        ("resources", {"GPU": 1.5}, "resources['GPU']"),
        ("resources", {"gpu": "one"}, "resources['gpu']"),
        ("runtime_env", {"env_vars": {1, 2}}, "runtime_env"),
        ("runtime_env", "pip", "runtime_env"),
        ("callback_retry", {"attempts": 3}, "callback_retry"),
        ("callback_retry", {"attempts_max": 0}, "callback_retry"),
    ],
)
def test_a_bad_bound_is_refused_when_the_class_is_made(attribute: str, value: object, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        type("Odd", (Agent,), {attribute: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("attempts_max", 4),
        ("max_concurrent_agent_tools", float("inf")),
        ("max_concurrent_agent_tools", property(lambda _: 3)),
        ("num_gpus", 0.25),
        ("num_gpus", 2.0),
        ("memory", 4e9),
        ("accelerator_type", "A100"),
        ("label_selector", {"ray.io/market-type": "!spot", "zone": "in(a, b)", "rack": "!in(1,2)", "name": ""}),
        ("resources", {"gpu": 0.5, "GPU": 1}),
        ("callback_retry", {"first_ms": 10_000_000}),
    ],
)
def test_a_good_bound_is_taken(attribute: str, value: object) -> None:
    check_class(type("Even", (Agent,), {attribute: value}))


@pytest.mark.parametrize(
    ("base", "attribute", "words"),
    [
        (ChatAgent, "instructions", "a method that gives it is called `get_instructions`"),
        (ChatAgent, "model", "a method that gives it is called `get_model`"),
        (ChatAgent, "toolsets", "assign the value itself"),
        (ChatAgent, "max_steps", "assign the value itself"),
        (DurableAgent, "model", "a method that gives it is called `get_model`"),
        (DurableAgent, "agent", "assign the value itself"),
        (MessengerAgent, "instructions", "a method that gives it is called `get_instructions`"),
        (Agent, "num_gpus", "assign the value itself"),
    ],
)
def test_an_attribute_that_is_written_as_a_method_is_refused(base: type[Agent], attribute: str, words: str) -> None:
    async def later(self: object) -> str:
        return "Be brief."

    for method in (lambda _: "Be brief.", later, classmethod(lambda _: "Be brief."), staticmethod(lambda: "Be brief.")):
        with pytest.raises(BadRequest) as refused:
            type("Odd", (base,), {attribute: method})
        assert refused.value.field == attribute
        assert words in str(refused.value)


def test_a_property_is_taken_where_agents_are_asked_and_refused_where_the_class_is() -> None:
    computed = property(lambda _: "Be brief.")
    type("Even", (ChatAgent,), {"instructions": computed, "model": computed})
    for attribute in ("toolsets", "num_gpus", "stands_alone"):
        with pytest.raises(BadRequest, match=f"{attribute}: is read of the class"):
            type("Odd", (ChatAgent,), {attribute: computed})


@pytest.mark.parametrize(
    ("base", "method", "value", "words"),
    [
        (ChatAgent, "tools", [3], "[3] cannot be called, and this is; write `def tools(self)`"),
        (ChatAgent, "tools", property(lambda _: []), "cannot be called"),
        (ChatAgent, "get_model", "openai:gpt-5", "`def get_model(self)`, or assign the value to `model`"),
        (DurableAgent, "get_model", "openai:gpt-5", "`def get_model(self)`, or assign the value to `model`"),
        (ChatAgent, "get_instructions", "Be brief.", "or assign the value to `instructions`"),
        (ChatAgent, "get_model_settings", {"temperature": 0}, "write `def get_model_settings(self)`"),
        (ChatAgent, "on_chat_error", "Sorry.", "write `def on_chat_error(self, error, info)`"),
        (ChatAgent, "run", 3, "write `def run(self, input, run)`"),
        (DurableAgent, "get_deps", 3, "write `def get_deps(cls)`"),
        (MessengerAgent, "messengers", [], "write `def messengers(cls)`"),
        (Agent, "on_start", None, "write `def on_start(self)`"),
        (Agent, "prepare", 3, "write `def prepare(cls)`"),
        (Agent, "on_before_sub_agent", True, "write `def on_before_sub_agent(self, agent_type, name)`"),
        (Agent, "run", 3, "write `def run(self, input, run)`"),
    ],
)
def test_a_method_that_is_written_as_an_attribute_is_refused(
    base: type[Agent], method: str, value: object, words: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        type("Odd", (base,), {method: value})
    assert refused.value.field == method
    assert words in str(refused.value)


def test_what_can_be_called_is_a_method_however_it_is_written_and_no_run_is_one_of_none() -> None:
    check_class(
        type("Even", (ChatAgent,), {"tools": partialmethod(lambda _, given: given, []), "get_model": lambda _: 3})
    )
    check_class(type("Mute", (Agent,), {"run": None, "schedule": "daily"}))


def test_what_a_class_statement_does_not_take_is_refused_with_where_it_belongs() -> None:
    with pytest.raises(BadRequest, match=r"^num_gpus: .*takes `name` and `version`.*`num_gpus = 1` in"):

        class Gpu(Agent, num_gpus=1):
            pass


def test_what_another_base_takes_reaches_it_and_what_it_raises_is_its_own() -> None:
    class Tagged:
        tag = ""

        def __init_subclass__(cls, *, tag: str, **more: object) -> None:
            super().__init_subclass__(**more)
            cls.tag = tag.upper()

    class Even(Agent, Tagged, tag="x", name="even-and-tagged"):
        pass

    assert Even.tag == "X"
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):

        class Odd(Agent, Tagged):
            pass

    with pytest.raises(BadRequest, match=r"^tag, num_gpus: "):

        class Gpu(Agent, Tagged, tag="x", num_gpus=1):
            pass


def test_what_is_asked_for_in_two_ways_is_refused_when_the_class_is_handed_over() -> None:
    twice = type("Twice", (Agent,), {"num_gpus": 1, "resources": {"GPU": 2}})
    with pytest.raises(BadRequest, match="resources: 'GPU' is asked for by `num_gpus` already"):
        check_class(twice)


class Thing:
    """Has no JSON schema."""


@tool(inline=True)
def look() -> str:
    return ""


class Named(ChatAgent):
    def tools(self) -> list[Any]:
        return [look]

    @tool(name="look")
    async def look_again(self) -> str:
        return ""


class Marked(ChatAgent):
    @tool(name="same")
    async def one(self) -> str:
        return ""

    @tool(name="same")
    async def other(self) -> str:
        return ""


class WithoutSchema(ChatAgent):
    @tool
    async def use(self, thing: Thing) -> str:
        return ""


class Awaited(ChatAgent):
    async def tools(self) -> list[Any]:  # type: ignore[override]
        return []


class Late(ChatAgent):
    """Its tools are those of an agent, not of the class."""

    def tools(self) -> list[Any]:
        return [look, look] if self.state["twice"] else []


BROKEN = [
    (Named, "two tools are called 'look'"),
    (Marked, "two tools are called 'same'"),
    (WithoutSchema, "use: parameters: no schema"),
    (Awaited, r"Awaited.tools\(\) is async"),
]


@pytest.mark.parametrize(("kind", "words"), BROKEN)
def test_tools_that_no_turn_could_have_are_refused_where_the_class_is_handed_over_and_served(
    kind: type[ChatAgent[Any]], words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        Gateway([kind])
    assert refused.value.field == "tools"

    async def story(stage: Stage) -> None:
        with pytest.raises(BadRequest, match=words):
            stage.client.agent(kind, "a")

    play(story)


def test_tools_that_depend_on_the_agent_are_left_to_its_turns() -> None:
    check_class(Late)


class Sloppy(Agent):
    stands_alone = True

    @exposed
    async def take(self, thing: Thing) -> None: ...


def test_an_exposed_method_that_could_not_be_called_is_refused_at_serve() -> None:
    with pytest.raises(BadRequest, match=r"Sloppy\.take") as refused:
        Gateway([Sloppy])
    assert refused.value.field == "thing"


class Abstract(Agent, ABC):
    """Is to be written by others."""

    def run(self, input: int) -> int:
        return self.work(input)

    @abstractmethod
    def work(self, n: int) -> int: ...

    @exposed
    @staticmethod
    def twice(n: int) -> int:
        return 2 * n

    @classmethod
    @exposed
    def named(cls) -> str:
        return cls.__name__

    @exposed
    def kept(self) -> int:
        return 1


class Whole(Abstract):
    """Has all that was to be written."""

    def work(self, n: int) -> int:
        return n + 1

    def kept(self) -> int:
        return 2


def test_an_abstract_class_is_refused_where_it_is_handed_over_and_what_it_lacks_is_named() -> None:
    async def story(stage: Stage) -> Any:
        for ask in (
            lambda: stage.client.run(Abstract, 1),
            lambda: stage.client.start(Abstract, 1),
            lambda: stage.client.agent(Abstract, "a").kept(),
        ):
            with pytest.raises(BadRequest, match="Abstract is abstract, so nothing can be one: it has no work"):
                await cast("Any", ask())
        return (await stage.client.run(Whole, 1)).output

    assert play(story) == 2


class Needy(Agent):
    """Wants to be given what it works with."""

    def __init__(self, connection: str) -> None:
        self.connection = connection

    def run(self, input: int) -> int:
        return input

    @exposed
    def kept(self) -> int:
        return 1


class Content(Needy):
    """Makes what it works with."""

    def __init__(self, connection: str = "here", *more: str, **options: str) -> None:
        super().__init__(connection)


def test_a_class_whose_objects_cannot_be_made_without_arguments_is_refused_where_it_is_handed_over() -> None:
    async def story(stage: Stage) -> Any:
        for ask in (
            lambda: stage.client.run(Needy, 1),
            lambda: stage.client.start(Needy, 1),
            lambda: stage.client.agent(Needy, "a").kept(),
        ):
            with pytest.raises(BadRequest, match=r"Needy is made without .*'connection'; make .* in `on_start`"):
                await cast("Any", ask())
        return (await stage.client.run(Content, 1)).output

    assert play(story) == 1
    with pytest.raises(BadRequest, match="'connection'"):
        Gateway([Needy])


Item = TypeVar("Item")


class Echoing(Agent, Generic[Item]):
    """A class for any type of items."""

    async def run(self, item: Item) -> Item:
        return item


class EchoingWords(Echoing[str]):
    """What they are is checked."""


async def test_a_class_with_types_in_brackets_is_refused_with_the_way_to_make_a_class_of_it(stage: Stage) -> None:
    words = r"agent_class: Echoing\[str\] is no class: .* Give it one, `class Mine\(Echoing\[str\]\): ...`"
    for ask in (
        lambda: stage.client.run(Echoing[str], "a"),
        lambda: stage.client.start(Echoing[str], "a"),
        lambda: stage.client.agent(Echoing[str], "a"),
        lambda: agent_tool(Echoing[str], description="Echo."),
    ):
        with pytest.raises(BadRequest, match=words):
            await cast("Any", ask())
    assert (await stage.client.run(EchoingWords, "a")).output == "a"
    with pytest.raises(BadRequest, match="1 is int, not str"):
        await stage.client.run(cast("Any", EchoingWords), 1)


class Keeper(Agent):
    """Has one as a relative, or would have."""

    @exposed
    async def told(self) -> list[str]:
        """What each way in says."""
        found, echoing = [], cast("Any", Echoing[str])
        for ask in (
            lambda: self.sub_agent(echoing, "a"),
            lambda: self.agent(echoing, "a"),
            lambda: self.sub_agents.has(echoing, "a"),
            lambda: self.sub_agents.list(echoing),
            lambda: self.sub_agents.delete(echoing, "a"),
        ):
            with pytest.raises(BadRequest) as refused:
                ask()
            found.append(str(refused.value))
        return found


def test_an_agent_is_refused_a_relative_with_types_in_brackets_in_the_same_words() -> None:
    async def story(stage: Stage) -> list[str]:
        return cast("list[str]", await stage.call(Keeper, "told"))

    (words,) = {*play(story)}
    assert words.endswith("Give it one, `class Mine(Echoing[str]): ...`, and hand that over")


def test_static_and_class_methods_are_exposed_in_either_order_and_what_hides_an_exposed_one_is_told() -> None:
    async def story(stage: Stage) -> list[Any]:
        run = await stage.client.start(Whole, 1, run_id="w")
        await run
        made: Any = stage.client.agent(Whole, "w")
        with pytest.raises(
            BadRequest, match=r"Whole\.kept overrides one of Abstract that is exposed, but is not itself"
        ):
            await made.kept()
        return [await made.twice(4), await made.named()]

    assert play(story) == [8, "Whole"]
    with pytest.raises(BadRequest, match="is no method, and only methods can be exposed"):
        exposed(cast("Any", property(lambda _: 1)))


class Chief(Agent):
    stands_alone = True

    async def told(self, run: Any, result: Any) -> None: ...

    async def unfit(self, run: Any) -> None: ...

    @exposed
    async def field_of(self, what: str) -> str:
        try:
            await ASKED[what](self)
        except BadRequest as problem:
            return problem.field
        return ""


async def _asked(self: Chief, *args: Any, **options: Any) -> None:
    await self.run_agent_tool(Doubler, {"n": 1}, *args, **options)


async def _asked_many(self: Chief, requests: Any) -> None:
    await self.run_agent_tools(requests)


ASKED: dict[str, Any] = {
    "status:clear": lambda self: self.clear_agent_tool_runs(status=["nonsense"]),
    "status:clear, one": lambda self: self.clear_agent_tool_runs(status="done"),
    "status:list": lambda self: self.list_agent_tool_runs(["completed", "nonsense"]),
    "limit:list": lambda self: self.list_agent_tool_runs(limit=0),
    "notify:word": lambda self: _asked(self, detached=Detached(notify="yes")),  # type: ignore[arg-type]
    "notify:mapping": lambda self: _asked(self, detached=Detached(notify={"nope": 1})),
    "notify:source": lambda self: _asked(self, detached=Detached(notify={"source": 1})),
    "on_milestones:mode": lambda self: _asked(self, detached=Detached(on_milestones={"names": ["a"], "mode": "shout"})),
    "on_finish:arguments": lambda self: _asked(self, detached=Detached(on_finish="unfit")),
    "detached:word": lambda self: _asked(self, detached="yes"),
    "detached:mapping": lambda self: _asked(self, detached={"on_finish": "told"}),
    "on_limit:word": lambda self: _asked(self, on_limit="wait"),
    "on_cancel:word": lambda self: _asked(self, on_cancel="stop"),
    "display:word": lambda self: _asked(self, display="pretty"),
    "display_order:word": lambda self: _asked(self, display_order="first"),
    "detached:many": lambda self: self.run_agent_tools([(Doubler, 1)], detached="yes"),
    "requests[0].inputt:many": lambda self: _asked_many(self, [{"agent_class": Doubler, "inputt": 1}]),
    "requests[1]:many": lambda self: _asked_many(self, [(Doubler, {"n": 1}), (Doubler,)]),
}


@pytest.mark.parametrize("what", ASKED)
async def test_an_unknown_word_is_refused_by_its_field(stage: Stage, what: str) -> None:
    assert await stage.call(Chief, "field_of", what) == what.partition(":")[0]


async def test_one_status_may_be_given_as_a_word(stage: Stage) -> None:
    assert await stage.call(Chief, "field_of", "status:clear, one") == "status"


@pytest.mark.parametrize(
    ("options", "field"), [({"inline": "yes"}, "inline"), ({"client": 1}, "client"), ({"effect": "twice"}, "effect")]
)
def test_an_unknown_word_of_a_tool_is_refused(options: Any, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        tool(**options)
    assert refused.value.field == field


def test_what_a_method_or_a_class_says_of_itself_is_refused_by_field() -> None:
    with pytest.raises(BadRequest, match="repeatable"):
        exposed(repeatable="yes")  # type: ignore[call-overload]
    with pytest.raises(BadRequest, match="name"):
        type("Odd", (Agent,), {}, name=5)  # type: ignore[call-overload]
