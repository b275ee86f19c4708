"""An agent asks people outside of its runs: in fibers, exposed methods, handlers, transactions and the tools of a chat."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import AfterValidator, BaseModel

from perdure.actors import Agent, Answer, Client, FiberContext, NoAnswer, Occurrence, RunContext, blocking, exposed
from perdure.actors.code.schema import Shape
from perdure.actors.life.asks import found_type, kept_type, type_of_answer
from perdure.ledger import (
    AlreadyAnswered,
    AskClosed,
    AskExpired,
    AwaitedInsideHandler,
    BadRequest,
    UnknownAsk,
)
from perdure.policies import Answerer
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.testing.laboratory import QUICK, Laboratory, Weather, weathered
from tests.actors import one_process
from tests.actors.cast import Sleeper
from tests.actors.life.test_asks import ADA, Stay, opened
from tests.actors.one_process import OneProcess
from tests.kit import Stage, address, play, played

SLOW = replace(QUICK, wait_in_memory_ms=200, hosts_max=3)


class Desk(Agent):
    """Asks wherever it is called, and notes what it is told."""

    words: ClassVar[str] = "Ship?"
    attempts: ClassVar[list[int]] = []

    def note(self, *what: Any) -> None:
        with self.transaction():
            self.state["told"] = [*self.state.get("told", []), list(what)]

    def note_once(self, *what: Any) -> None:
        """For code that may be entered again."""
        if list(what) not in self.state.get("told", []):
            self.note(*what)

    @exposed(repeatable=True)
    def told(self) -> list[list[Any]]:
        return list(self.state.get("told", []))

    # it waits

    @exposed
    async def wait(self) -> list[Any]:
        answer = await self.ask(self.words, to="ops", args={"count": 40})
        return [answer.value, answer.who, answer.channel, answer.args, answer.edited, list(answer.people)]

    @exposed
    def wait_in_sync_code(self) -> list[Any]:
        first = blocking(self.ask("Where to?", ["north", "south"]))
        second = blocking(self.ask("How long?", Stay, people=2))
        return [first.value, second.value.city, second.value.days, list(second.people)]

    @exposed
    async def at_once(self) -> list[Any]:
        return [each.value for each in await asyncio.gather(*(self.ask(f"{n}?", int) for n in range(3)))]

    @exposed
    async def hurried(self) -> list[Any]:
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await self.ask("Now?")
        try:
            return [(await self.ask("Then?", expires=60)).value]
        except AskExpired as problem:
            return [str(problem).partition(" of run")[0]]

    @exposed
    def begin(self, body: str) -> None:
        self.start_fiber("f", body, fiber_id="f", retry=5)

    @exposed
    def begin_once(self, body: str) -> None:
        self.start_fiber("f", body, fiber_id="f")

    async def in_fiber(self, fiber: FiberContext) -> None:
        self.attempts.append(fiber.attempt)
        first = await self.ask(self.words)
        second = await self.ask("How many?", Annotated[int, AfterValidator(_odd)])
        self.note_once(first.value, second.value)

    async def in_words(self, fiber: FiberContext) -> None:
        first = await self.ask(self.words)
        self.note(first.value, first.who)

    def in_sync_fiber(self, fiber: FiberContext) -> None:
        first = blocking(self.ask(self.words))
        handle = self.ask("And then?", then=self.decided)
        self.note(first.value, first.who, type(handle).__name__)

    async def stopped(self, fiber: FiberContext) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await self.ask("Now?")
        await fiber.step("seen", lambda: None)
        if fiber.attempt == 1:
            raise OSError("again")
        self.note("over")

    @exposed
    def stop(self) -> bool:
        return self.cancel_fiber("f")

    # it does not wait

    @exposed
    async def ask_then(self, method: str = "decided") -> str:
        return (await self.ask("Ship?", Stay, then=method, to="ops", args={"order": 7})).run_id

    @exposed
    def ask_in_transaction(self, rolls_back: bool = False) -> None:
        with suppress(ZeroDivisionError), self.transaction():
            handle = self.ask("Ship?", ["yes", "no"], then=self.decided)
            self.state["asked"] = handle.run_id
            if rolls_back:
                raise ZeroDivisionError

    @exposed
    async def ask_for_long(self) -> str:
        return (await self.ask("Ship?", expires=60, then=self.decided)).run_id

    @exposed
    async def drop(self, run_id: str) -> None:
        await self.cancel_agent_tool(run_id, "not needed")

    def decided(self, answer: Answer | NoAnswer) -> None:
        if isinstance(answer, NoAnswer):
            with pytest.raises(type(answer.problem)):
                answer.value  # noqa: B018 - it raises
            self.note(bool(answer), type(answer.problem).__name__, answer.run_id)
            return
        value = answer.value
        self.note(type(value).__name__, str(value), answer.who, answer.args, answer.run_id)
        if value == "yes":  # it is told in a transaction, and asks on
            self.ask("Really?", then=self.decided)

    @exposed
    def ask_in_handler(self, waits: bool) -> None:
        self.queue(self.on_queued, waits)

    def on_queued(self, waits: bool, occurrence: Occurrence) -> None:
        try:
            self.ask("Ship?", then=None if waits else "decided")
        except AwaitedInsideHandler as problem:
            self.note(str(problem))


def _odd(count: int) -> int:
    if count % 2 == 0:
        raise ValueError("an odd number is wanted")
    return count


class Bounded(Desk):
    """Gives its detached runs a second."""

    detached_max_budget_ms = 1_000


@pytest.fixture(autouse=True)
def _anew() -> None:
    Desk.words = "Ship?"
    Desk.attempts.clear()


async def answered(client: Client, value: Any, words: str = "", who: Answerer = ADA, **options: Any) -> dict[str, Any]:
    """Answer the question that says this, once it is open."""
    async with asyncio.timeout(300):
        while True:
            found = [each for each in await client.ask("asks") if words in each["question"]]
            if found:
                await client.answer(found[0]["ask_id"], value, who, "cli", **options)
                return dict(found[0])
            await asyncio.sleep(0.2)


async def notes(stage: Stage, count: int = 1) -> list[list[Any]]:
    """What the desk was told, once it is so much; and a while later."""
    async with asyncio.timeout(600):
        while len(await stage.call(Desk, "told")) < count:
            await asyncio.sleep(0.5)
    await asyncio.sleep(30)
    return list(await stage.call(Desk, "told"))


def called(method: str, story: Callable[[Stage], Awaitable[Any]]) -> Any:
    """What a method that asks gives, while somebody answers."""

    async def played(stage: Stage) -> Any:
        call = asyncio.ensure_future(stage.call(Desk, method))
        await story(stage)
        return await call

    return play(played, timeout_ms=50_000_000)


# ---------------------------------------------------------------- it waits


def test_a_method_waits_for_an_answer_and_the_question_reads_as_one_of_its_agent() -> None:
    async def story(stage: Stage) -> None:
        (ask,) = await opened(stage.client)
        assert (ask["question"], ask["to"], ask["schema"]) == ("Ship?", ["ops"], {"type": "boolean"})
        assert ask["agent_type"].endswith(":Desk")
        await asyncio.sleep(1_000)
        assert not stage.run(ask["run_id"]).is_placed
        (line,) = (await stage.client.ask("ps", 10))["live"]
        assert (line["agent_type"], line["input_preview"]) == ("perdure.asks:Question", "Ship?")
        said = " ".join(await stage.client.ask("explain", ask["run_id"]))
        assert "of perdure.asks:Question is running. Its parent p@" in said
        assert "It asks ops, since 16 min" in said
        await stage.client.answer(ask["ask_id"], True, ADA, "cli", args={"count": 3})
        shown = await stage.ended(ask["run_id"], "completed")
        assert shown.summary == "ada: true"

    assert called("wait", story) == [True, "ada", "cli", {"count": 3}, True, ["ada"]]


@played(lambda story: one_process.play(story, threads_max=2))
async def test_sync_code_waits_and_what_the_type_alone_refuses_is_asked_again_with_a_word_why(
    world: OneProcess, /
) -> None:
    client, bob = world.client, Answerer("bob", ["ops"])
    call = asyncio.ensure_future(client.call(Desk, "p", "wait_in_sync_code", (), {}))
    await answered(client, "south", "Where")
    for who in (ADA, bob):
        await answered(client, {"city": "Rome", "days": 2}, "How long", who)
    while not (ask := (await opened(client))[0])["note"]:
        await asyncio.sleep(0.05)
    assert "bob answered" in ask["note"]
    assert "an odd number is wanted" in ask["note"]
    for who in (ADA, bob):
        await answered(client, {"city": "Rome", "days": 3}, "How long", who)
    assert await call == ["south", "Rome", 3, ["ada", "bob"]]
    await client.call(Desk, "q", "begin", ("in_sync_fiber",), {})
    await answered(client, True, "Ship")
    await answered(client, False, "And then")
    while len(told := await client.call(Desk, "q", "told", (), {})) < 2:
        await asyncio.sleep(0.05)
    assert [each[:2] for each in told] == [[True, "ada"], ["bool", "False"]]
    assert told[0][2] == "RunHandle"


@played(lambda story: one_process.play(story, threads_max=2))
async def test_a_question_ends_with_the_sync_fiber_that_is_cancelled(world: OneProcess, /) -> None:
    client = world.client
    await client.call(Desk, "q", "begin", ("in_sync_fiber",), {})
    await opened(client)
    assert await client.call(Desk, "q", "stop", (), {}) is True
    while await client.ask("asks"):
        await asyncio.sleep(0.05)
    assert await client.call(Desk, "q", "told", (), {}) == []


def test_several_questions_at_once_are_told_apart() -> None:
    async def story(stage: Stage) -> None:
        await opened(stage.client, 3)
        for number in (2, 0, 1):
            await answered(stage.client, number * 10, f"{number}?")

    assert called("at_once", story) == [0, 10, 20]


def test_a_question_ends_with_the_code_that_waits_for_it_and_expires() -> None:
    async def story(stage: Stage) -> None:
        (first,) = await opened(stage.client)
        await asyncio.sleep(25)
        (second,) = await opened(stage.client)
        assert (first["question"], second["question"]) == ("Now?", "Then?")
        with pytest.raises(AskClosed, match="its run has ended"):
            await stage.client.answer(first["ask_id"], True, ADA, "cli")

    assert called("hurried", story) == ["nobody answered 'Then?'"]


# ---------------------------------------------------------------- fibers


@pytest.mark.parametrize("when", ["open", "answered", "both"])
async def test_a_fiber_that_is_entered_again_finds_its_question_open_or_answered(stage: Stage, when: str) -> None:
    await stage.call(Desk, "begin", "in_fiber")
    (ask,) = await opened(stage.client)
    if when != "answered":
        stage.kill_host_of(address(Desk, "p"))
        await asyncio.sleep(60)
        assert [each["ask_id"] for each in await opened(stage.client)] == [ask["ask_id"]]
    await answered(stage.client, True, "Ship")
    await answered(stage.client, 2, "How many")
    while not (again := (await opened(stage.client))[0])["note"]:
        await asyncio.sleep(1)
    if when != "open":
        stage.kill_host_of(address(Desk, "p"))
        await asyncio.sleep(60)
        assert [each["ask_id"] for each in await opened(stage.client)] == [again["ask_id"]]
    await answered(stage.client, 5, "How many")
    assert await notes(stage) == [[True, 5]]
    assert await stage.client.ask("asks") == []


async def test_a_fiber_that_time_stands_still_for_long_is_in_no_process(stage: Stage) -> None:
    """It needs no `retry` for that: neither the wait nor a death meanwhile costs an attempt."""
    await stage.call(Desk, "begin_once", "in_words")
    (ask,) = await opened(stage.client)
    await asyncio.sleep(30)
    activation = stage.view.agents.get(address(Desk, "p"))
    assert activation is None or not activation.host_id
    stage.laboratory.simulation.kill("supervisor")
    assert [each["ask_id"] for each in await opened(stage.client)] == [ask["ask_id"]]
    await answered(stage.client, True)
    assert (await notes(stage))[0][:2] == [True, "ada"]


async def test_a_question_ends_with_its_fiber_that_is_cancelled_in_no_process(stage: Stage) -> None:
    await stage.call(Desk, "begin_once", "in_words")
    (ask,) = await opened(stage.client)
    await asyncio.sleep(30)
    assert await stage.call(Desk, "stop") is True
    await asyncio.sleep(5)
    assert await stage.client.ask("asks") == []
    with pytest.raises(AskClosed):
        await stage.client.answer(ask["ask_id"], True, ADA, "cli")
    assert await stage.call(Desk, "told") == []
    await asyncio.sleep(100)
    assert (await stage.client.ask("audit"))["parked_mail"] == [], "the end of the question is nobody's mistake"


async def test_a_question_in_other_words_at_the_same_place_takes_the_place_of_the_former(stage: Stage) -> None:
    await stage.call(Desk, "begin", "in_words")
    for words in ("Ship it?", "Ship it to all?"):
        (ask,) = await opened(stage.client)
        Desk.words = words
        stage.kill_host_of(address(Desk, "p"))
        while [each["question"] for each in await stage.client.ask("asks")] != [words]:
            await asyncio.sleep(1)
        with pytest.raises(AskClosed):
            await stage.client.answer(ask["ask_id"], True, ADA, "cli")
    stage.kill_host_of(address(Desk, "p"))
    await asyncio.sleep(60)
    await answered(stage.client, False)
    assert await notes(stage) == [[False, "ada"]]


async def test_a_question_that_was_given_up_is_asked_anew_when_its_fiber_is_entered_again(stage: Stage) -> None:
    await stage.call(Desk, "begin", "stopped")
    (first,) = await opened(stage.client)
    await asyncio.sleep(30)
    (second,) = await opened(stage.client)
    assert first["ask_id"] != second["ask_id"]
    assert await notes(stage) == [["over"]]


async def test_a_fiber_that_is_cancelled_takes_its_question_along(stage: Stage) -> None:
    await stage.call(Desk, "begin", "in_fiber")
    (ask,) = await opened(stage.client)
    assert await stage.call(Desk, "stop")
    await stage.ended(ask["run_id"], "aborted")
    assert await stage.client.ask("asks") == []


# ---------------------------------------------------------------- then


async def test_a_question_with_then_is_told_to_a_method_once_with_an_object_of_its_class(stage: Stage) -> None:
    run_id = await stage.call(Desk, "ask_then")
    ask = await answered(stage.client, {"city": "Rome", "days": 2}, args={"order": 8})
    while not (await opened(stage.client))[0]["note"]:
        await asyncio.sleep(1)
    stage.kill_host_of(address(Desk, "p"))
    await answered(stage.client, {"city": "Rome", "days": 3}, args={"order": 8})
    with pytest.raises(AlreadyAnswered):
        await stage.client.answer(ask["ask_id"], {"city": "Rome", "days": 5}, ADA, "cli")
    assert await notes(stage) == [["Stay", "city='Rome' days=3", "ada", {"order": 8}, run_id]]


async def test_in_a_transaction_a_question_is_asked_with_the_commit_and_its_handler_may_ask_on(stage: Stage) -> None:
    await stage.call(Desk, "ask_in_transaction", True)
    await asyncio.sleep(30)
    assert await stage.client.ask("asks") == []
    await stage.call(Desk, "ask_in_transaction")
    first = await answered(stage.client, "yes", "Ship")
    second = await answered(stage.client, False, "Really")
    told = [["str", "yes", "ada", None, first["run_id"]], ["bool", "False", "ada", None, second["run_id"]]]
    assert await notes(stage, 2) == told


@pytest.mark.parametrize("how", ["expires", "is dropped"])
async def test_then_is_told_that_there_is_no_answer(stage: Stage, how: str) -> None:
    run_id = await stage.call(Desk, "ask_for_long")
    await opened(stage.client)
    if how == "is dropped":
        await stage.call(Desk, "drop", run_id)
    problem = "AskExpired" if how == "expires" else "RunFailed"
    assert await notes(stage) == [[False, problem, run_id]]


async def test_a_handler_cannot_wait_and_is_told_what_to_do(stage: Stage) -> None:
    await stage.call(Desk, "ask_in_handler", True)
    ((said,),) = await notes(stage)
    assert "then: a transaction or a handler cannot wait for people" in said
    assert "self.ask(…, then=self.method)" in said
    await stage.call(Desk, "ask_in_handler", False)
    await answered(stage.client, True)
    assert len(await notes(stage, 2)) == 2


async def test_a_question_with_then_lasts_although_the_class_bounds_its_detached_runs(stage: Stage) -> None:
    await stage.call(Bounded, "ask_in_transaction")
    (ask,) = await opened(stage.client)
    await asyncio.sleep(2_000)
    assert "No time limit applies to it" in " ".join(await stage.client.ask("explain", ask["run_id"]))
    await answered(stage.client, "no")
    while not (told := await stage.call(Bounded, "told")):
        await asyncio.sleep(1)
    assert told == [["str", "no", "ada", None, ask["run_id"]]]


# ---------------------------------------------------------------- in a run, and beside one


class Asked(Agent):
    """Asks in its run and in a fiber that its run has started."""

    max_concurrent_agent_tools = 1

    async def run(self, run: RunContext) -> list[Any]:
        told = [(await self.ask("First?")).value, (await self.helped())]
        with self.transaction():
            try:
                await self.ask("Third?")
            except AwaitedInsideHandler as problem:
                told.append(problem.field)
        await self.run_agent_tool(Sleeper, 1_000_000, detached=True)
        fiber = self.start_fiber("f", self.beside)
        await self.fibers.wait(fiber.fiber_id)
        return [*told, self.state["beside"]]

    async def helped(self) -> Any:
        return (await self.ask("Second?", int)).value

    async def beside(self, fiber: FiberContext) -> None:
        self.state["beside"] = (await self.ask("Beside?")).value


def test_in_a_run_it_is_a_question_of_that_run_and_in_its_fiber_one_that_whoever_began_the_run_may_not_answer() -> None:
    async def story(stage: Stage) -> Any:
        run = await stage.client.start(Asked, run_id="r", began_by="eve")
        assert (await answered(stage.client, True, "First"))["ask_id"] == "r:1"
        assert (await answered(stage.client, 5, "Second"))["ask_id"] == "r:2"
        while not (found := [each for each in await opened(stage.client) if each["question"] == "Beside?"]):
            await asyncio.sleep(1)
        assert (found[0]["run_id"] != "r", found[0]["began_by"]) == (True, "eve")
        with pytest.raises(BadRequest, match="eve"):
            await stage.client.answer(found[0]["ask_id"], True, Answerer("eve", ["ops"]), "cli")
        await answered(stage.client, False, "Beside")
        return (await run.result()).output

    assert play(story) == [True, 5, "then", False]


class Own(Agent):
    """Has a method of this name of its own."""

    @exposed
    async def ask(self, text: str) -> str:  # type: ignore[override]
        return text.upper()

    @exposed
    async def both(self) -> list[Any]:
        return [await self.ask("a"), (await super().ask("Ship?")).value]


async def test_an_agent_that_has_an_ask_of_its_own_keeps_it(stage: Stage) -> None:
    assert await stage.call(Own, "ask", "b") == "B"
    call = asyncio.ensure_future(stage.call(Own, "both"))
    await answered(stage.client, True)
    assert await call == ["A", True]


class Starter(Agent):
    """Asks while it comes up."""

    async def on_start(self) -> None:
        try:
            await self.ask("Start?")
        except AwaitedInsideHandler as problem:
            self.state["why"] = str(problem)

    @exposed
    def why(self) -> str:
        return str(self.state["why"])


def test_on_start_cannot_wait_for_people() -> None:
    async def story(stage: Stage) -> str:
        return str(await stage.call(Starter, "why"))

    assert "on_start cannot wait for people" in play(story)


# ---------------------------------------------------------------- deaths


class Everywhere(Desk):
    """Asks in its run, in a fiber beside that, in a transaction and in what hears the answer."""

    async def run(self, run: RunContext) -> list[list[Any]]:
        self.start_fiber("f", self.in_fiber, fiber_id="f", retry=50)
        with self.transaction():
            self.ask("Which?", ["yes", "no"], then=self.decided)
        self.attempts.append(run.attempt)
        own = await self.ask("Own?", int)
        while len(told := self.state.get("told", [])) < 3:
            await run.sleep(1)
        return sorted([*(each[:2] for each in told), ["own", own.value]], key=str)


SAID: dict[str, Any] = {"Which?": "yes", "Really?": False, "Own?": 7, "Ship?": True, "How many?": 5}


async def answering(client: Client) -> None:
    """Plays a run to its end, by answers that may have been given before."""
    run = await client.start(Everywhere, run_id="r")
    result = asyncio.ensure_future(run.result())
    while not result.done():
        for ask in await client.ask("asks"):
            with suppress(AskClosed, UnknownAsk):
                await client.answer(ask["ask_id"], SAID[ask["question"]], ADA, "cli")
        await asyncio.sleep(1)
    told = [["bool", "False"], ["own", 7], ["str", "yes"], [True, 5]]
    assert result.result().output == told, result.result()
    assert await client.ask("asks") == []
    closed = [each["question"] for each in await client.ask("asks", None, True, 100)]
    assert len({*closed}) == len(closed), closed  # as far as their runs are in memory
    assert {*closed} <= SAID.keys(), closed


class Beside(Desk):
    """Asks in a fiber, and in what hears the answer."""

    async def run(self, run: RunContext) -> list[list[Any]]:
        self.start_fiber("f", self.in_steps, fiber_id="f", retry=50)
        while len(told := self.state.get("told", [])) < 2:
            await run.sleep(1)
        return sorted((each[:2] for each in told), key=str)

    async def in_steps(self, fiber: FiberContext) -> None:
        first = await self.ask("Own?", int)
        with self.transaction():
            self.ask("Really?", then=self.decided)
        self.note_once("own", first.value)


async def asking_in_a_fiber(client: Client) -> None:
    """Plays a run to its end, by answers that may have been given before."""
    run = await client.start(Beside, run_id="r")
    result = asyncio.ensure_future(run.result())
    while not result.done():
        for ask in await client.ask("asks"):
            with suppress(AskClosed, UnknownAsk):
                await client.answer(ask["ask_id"], SAID[ask["question"]], ADA, "cli")
        await asyncio.sleep(1)
    assert result.result().output == [["bool", "False"], ["own", 7]], result.result()
    assert await client.ask("asks") == []


@pytest.mark.thorough
def test_a_death_at_any_place_loses_no_answer_and_repeats_none() -> None:
    report = explore(asking_in_a_fiber, seed=3, limits=SLOW)
    assert {place.partition(" ")[0] for place in report.points} == {"supervisor", "host"}
    assert report.visits > 40
    assert report.ok, report.failures[0].trace


@pytest.mark.parametrize("seed", range(4))
def test_in_any_weather_an_answer_comes_once(seed: int) -> None:
    with Laboratory(seed, Weather.drawn(random.Random(seed)), SLOW) as laboratory:
        weathered(laboratory, answering, answering, 30_000_000)


# ---------------------------------------------------------------- what is refused


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"question": ""}, "question"),
    ({"question": 5}, "question"),
    ({"schema": []}, "schema"),
    ({"schema": 5}, "schema"),
    ({"to": []}, "to"),
    ({"args": [1]}, "args"),
    ({"expires": "soon"}, "expires"),
    ({"otherwise": True}, "otherwise"),
    ({"people": 0}, "people"),
    ({"self_answer": 1}, "self_answer"),
    ({"then": "nothing"}, "then"),
    ({"then": lambda answer: None}, "then"),
    ({"then": 5}, "then"),
    ({"then": "__init__"}, "then"),
    ({"then": "no_answer"}, "then"),
    ({"then": "two"}, "then"),
    ({"then": "bit_by_bit"}, "then"),
    ({"then": "told", "schema": Annotated[int, AfterValidator(_odd)]}, "schema"),
    ({"then": "told", "schema": list[Annotated[int, AfterValidator(_odd)]]}, "schema"),
    ({"then": "told", "schema": type("Here", (BaseModel,), {"__qualname__": "f.<locals>.Here"})}, "schema"),
    ({"then": "told", "schema": ["a"], "expires": 5, "otherwise": "b"}, "otherwise"),
]


class Wrong(Agent):
    """Asks what cannot be asked."""

    @exposed
    async def fields(self) -> list[str]:
        found = []
        for wrong, _ in WRONG:
            for is_in_transaction in (False, True):
                try:
                    if is_in_transaction:
                        with self.transaction():
                            self.ask(**{"question": "Ship?", "then": "told"} | wrong)
                    else:
                        await self.ask(**{"question": "Ship?"} | wrong)
                except BadRequest as problem:
                    found.append(problem.field)
        return found

    @exposed
    async def typo(self) -> str:
        try:
            await self.ask("Ship?", expire=5)
        except TypeError as problem:
            return str(problem)
        return ""

    def told(self, answer: Answer | NoAnswer) -> None: ...

    def no_answer(self) -> None: ...

    def two(self, run: object, answer: object) -> None: ...

    def bit_by_bit(self, answer: object) -> Any:
        yield answer


async def test_what_cannot_be_asked_is_refused_where_it_is_asked_and_asks_nothing(stage: Stage) -> None:
    assert await stage.call(Wrong, "fields") == [field for _, field in WRONG for _ in range(2)]
    assert "expire" in await stage.call(Wrong, "typo")
    await asyncio.sleep(30)
    assert await stage.client.ask("asks", None, True, 100) == []


@pytest.mark.parametrize(
    "schema",
    [
        bool,
        int,
        Stay,
        str | None,
        list[Stay],
        dict[str, list[int]],
        tuple[int, ...],
        Literal[1, "a"] | None,
        ["a"],
    ],
)
def test_the_type_of_an_answer_is_found_again(schema: Any) -> None:
    kind = type_of_answer(schema)
    assert Shape(found_type(kept_type(kind, None), None)).annotation == kind
