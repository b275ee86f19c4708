"""A run asks people: what it is told, once, whoever dies meanwhile, and what is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, field_validator

from perdure.actors import Agent, Client, RunContext
from perdure.ledger import (
    AlreadyAnswered,
    AskClosed,
    AskExpired,
    AskRefused,
    BadRequest,
    PerdureError,
    RetryRefused,
    TooLarge,
    UnknownAsk,
)
from perdure.policies import Answerer
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.testing.laboratory import QUICK, Laboratory, Weather, weathered
from tests.kit import ROOMY, Stage, play

ADA = Answerer("ada", is_operator=True)
BOB = Answerer("bob", ["ops"])
SLOW = replace(QUICK, wait_in_memory_ms=200, hosts_max=2)


class Stay(BaseModel):
    """Some days in a city."""

    city: str
    days: int

    @field_validator("days")
    @classmethod
    def _odd(cls, days: int) -> int:
        if days % 2 == 0:
            raise ValueError("an odd number is wanted")
        return days


class Asker(Agent):
    """Does what its input names."""

    attempts: ClassVar[list[int]] = []
    words: ClassVar[str] = "Ship?"

    async def run(self, input: str, run: RunContext) -> Any:
        return await getattr(self, input)(run)

    async def once(self, run: RunContext) -> list[Any]:
        self.attempts.append(run.attempt)
        answer = await run.ask(self.words, to="ops")
        return [answer.value, answer.who, answer.channel, bool(answer)]

    async def twice(self, run: RunContext) -> list[Any]:
        first = await run.ask("Where to?", ["north", "south"], args={"count": 40, "fast": True})
        second = await run.ask("How long?", Stay, people=2)
        return [first.value, first.args, first.edited, second.value.city, second.value.days, list(second.people)]

    async def at_once(self, run: RunContext) -> list[Any]:
        answers = await asyncio.gather(*(run.ask(f"{n}?", int) for n in range(3)))
        return [each.value for each in answers]

    async def hurried(self, run: RunContext) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await run.ask("Now?")
        return str((await run.ask("Then?", str)).value)

    async def patient(self, run: RunContext) -> list[Any]:
        first = await run.ask("Now?", expires=timedelta(hours=1), otherwise=False)
        try:
            await run.ask("Then?", expires=60)
        except AskExpired as problem:
            return [first.value, first.who, list(first.people), str(problem), issubclass(type(problem), TimeoutError)]
        return []

    async def many(self, run: RunContext) -> int:
        asked = [asyncio.ensure_future(run.ask(f"{n}?")) for n in range(ROOMY.asks_max + 5)]
        done, _ = await asyncio.wait(asked, timeout=30)
        refused = [each.exception() for each in done]
        for each in asked:
            each.cancel()
        return sum(isinstance(each, AskRefused) for each in refused)

    async def failing(self, run: RunContext) -> str:
        answer = await run.ask("Fail?")
        if answer and len(self.attempts) == 0:
            self.attempts.append(run.attempt)
            raise ValueError("as was said")
        return "went well"


@pytest.fixture(autouse=True)
def _anew() -> None:
    Asker.attempts.clear()
    Asker.words = "Ship?"


async def opened(client: Client, count: int = 1) -> list[dict[str, Any]]:
    """The open questions, once there are so many."""
    async with asyncio.timeout(300):
        while len(found := await client.ask("asks")) < count:
            await asyncio.sleep(0.2)
    return list(found)


def one_run(name: str, story: Callable[[Stage], Awaitable[Any]], **options: Any) -> Any:
    """The output of a run, while somebody answers."""

    async def played(stage: Stage) -> Any:
        run = await stage.client.start(Asker, name, run_id="r")
        await story(stage)
        return (await run.result()).output

    return play(played, timeout_ms=50_000_000, **options)


def test_the_first_answer_counts_and_comes_to_the_run_after_a_long_while_without_a_process() -> None:
    async def story(stage: Stage) -> None:
        (ask,) = await opened(stage.client)
        assert (ask["ask_id"], ask["question"], ask["schema"], ask["to"]) == (
            "r:1",
            "Ship?",
            {"type": "boolean"},
            ["ops"],
        )
        await asyncio.sleep(1_000)
        assert not stage.run("r").is_placed
        told = await stage.client.answer("r:1", True, BOB, "cli", digest=ask["digest"])
        assert told["status"] == "answered"
        with pytest.raises(AlreadyAnswered, match=r"by bob \(cli\)"):
            await stage.client.answer("r:1", False, ADA, "cli")

    assert one_run("once", story) == [True, "bob", "cli", True]
    assert Asker.attempts == [1, 2]


def test_of_two_who_answer_at_the_same_time_one_is_told_that_the_other_has() -> None:
    async def story(stage: Stage) -> None:
        await opened(stage.client)
        said = [stage.client.answer("r:1", value, ADA, "cli") for value in (False, True)]
        told = await asyncio.gather(*said, return_exceptions=True)
        assert [type(each) for each in told] == [dict, AlreadyAnswered]

    assert one_run("once", story) == [False, "ada", "cli", False]


def test_choices_and_models_and_edited_arguments_and_two_people() -> None:
    async def story(stage: Stage) -> None:
        client = stage.client
        await opened(client)
        with pytest.raises(BadRequest, match="'west' is not one of"):
            await client.answer("r:1", "west", ADA, "cli")
        await client.answer("r:1", "south", ADA, "cli", args={"count": 3})
        while [each["ask_id"] for each in await opened(client)] != ["r:2"]:
            await asyncio.sleep(1)
        with pytest.raises(BadRequest, match=r"^value: 'days' is a required property"):
            await client.answer("r:2", {"city": "Rome"}, ADA, "cli")
        await client.answer("r:2", Stay(city="Rome", days=3), ADA, "cli")
        assert (await client.ask("ask", "r", 2))["status"] == "open"
        assert (await client.answer("r:2", {"city": "Rome", "days": 3}, BOB, "cli"))["status"] == "answered"

    assert one_run("twice", story) == ["south", {"count": 3, "fast": True}, True, "Rome", 3, ["ada", "bob"]]


def test_what_the_type_alone_refuses_is_asked_again_with_a_word_why_and_the_run_hears_nothing() -> None:
    async def story(stage: Stage) -> None:
        client = stage.client
        await opened(client)
        await client.answer("r:1", "north", ADA, "cli")
        while not (await client.ask("asks", None, True, 10))[0]["question"].startswith("How"):
            await asyncio.sleep(1)
        for who in (ADA, BOB):
            await client.answer("r:2", {"city": "Rome", "days": 2}, who, "cli")
        with pytest.raises(AlreadyAnswered, match="asks again if it does not fit"):
            await client.answer("r:2", {"city": "Rome", "days": 5}, ADA, "cli")
        while not (ask := (await opened(client))[0])["note"]:
            await asyncio.sleep(1)
        assert "bob answered" in ask["note"]
        assert "an odd number is wanted" in ask["note"]
        assert ask["answers"] == []
        for who in (ADA, BOB):
            await client.answer("r:2", {"city": "Rome", "days": 5}, who, "cli")

    assert one_run("twice", story)[3:] == ["Rome", 5, ["ada", "bob"]]


def test_several_questions_at_once_are_told_apart_whatever_the_order_of_the_answers() -> None:
    async def story(stage: Stage) -> None:
        await opened(stage.client, 3)
        await asyncio.sleep(60)
        for number in (3, 1, 2):
            await stage.client.answer(f"r:{number}", number * 10, ADA, "cli")
            await asyncio.sleep(20)

    assert one_run("at_once", story) == [10, 20, 30]


def test_a_question_whose_task_is_cancelled_is_withdrawn() -> None:
    async def story(stage: Stage) -> None:
        await opened(stage.client)
        await asyncio.sleep(25)
        assert [each["ask_id"] for each in await opened(stage.client)] == ["r:2"]
        with pytest.raises(AskClosed, match="waits for the answer no more"):
            await stage.client.answer("r:1", True, ADA, "cli")
        await stage.client.answer("r:2", "fine", ADA, "cli")

    assert one_run("hurried", story) == "fine"


def test_what_expires_is_answered_by_nobody() -> None:
    async def story(stage: Stage) -> None:
        await opened(stage.client)
        await asyncio.sleep(3_599)
        assert (await opened(stage.client))[0]["ask_id"] == "r:1"

    assert one_run("patient", story) == [False, None, [], "nobody answered 'Then?' of run 'r' in time", True]


def test_a_clock_that_is_set_forward_lets_a_question_expire() -> None:
    async def story(stage: Stage) -> None:
        await opened(stage.client)
        began_s = asyncio.get_running_loop().time()
        stage.simulation.set_clocks(3_600_000)
        while [each["ask_id"] for each in await opened(stage.client)] != ["r:2"]:
            await asyncio.sleep(1)
        assert asyncio.get_running_loop().time() - began_s < 600

    assert one_run("patient", story)[0] is False


def test_a_run_that_asks_too_much_is_refused_the_rest_and_what_it_asked_ends_with_it() -> None:
    async def story(stage: Stage) -> None:
        await stage.ended("r", "completed")
        assert await stage.client.ask("asks") == []

    assert one_run("many", story) == 5


def test_a_run_that_is_tried_again_remembers_its_answer_and_does_not_ask_again() -> None:
    async def story(stage: Stage) -> Any:
        run = await stage.client.start(Asker, "failing", run_id="r")
        await opened(stage.client)
        await stage.client.answer("r:1", True, ADA, "cli")
        await run.result()
        await stage.client.ask("retry", "r")
        return (await stage.ended("r", "completed")).summary

    assert play(story) is not None


def test_a_question_in_other_words_at_the_same_place_takes_the_place_of_the_former() -> None:
    async def story(stage: Stage) -> None:
        (ask,) = await opened(stage.client)
        await asyncio.sleep(20)
        assert not stage.run("r").is_placed
        Asker.words = "Ship it to all?"
        await stage.client.answer("r:1", True, ADA, "cli")
        while (await opened(stage.client))[0]["digest"] == ask["digest"]:
            await asyncio.sleep(1)
        with pytest.raises(PerdureError, match="has changed since it was shown"):
            await stage.client.answer("r:1", True, ADA, "cli", digest=ask["digest"])
        await stage.client.answer("r:1", False, ADA, "cli")

    assert one_run("once", story)[0] is False


@pytest.mark.parametrize("when", ["open", "answered"])
def test_whoever_dies_meanwhile_the_answer_comes_once(when: str) -> None:
    async def story(stage: Stage) -> None:
        await opened(stage.client)
        if when == "open":
            stage.kill_host_of(stage.run("r").child)
            stage.simulation.kill("supervisor")
        await stage.client.answer("r:1", True, BOB, "cli")
        if when == "answered":
            stage.simulation.kill("supervisor")
        with pytest.raises(AlreadyAnswered):
            await stage.client.answer("r:1", False, BOB, "cli")

    assert one_run("once", story) == [True, "bob", "cli", True]


def test_a_question_is_listed_and_expires_although_the_supervisor_died_after_it_was_asked() -> None:
    async def story(stage: Stage) -> None:
        before = await opened(stage.client)
        stage.simulation.kill("supervisor")
        assert await opened(stage.client) == before
        began_s = asyncio.get_running_loop().time()
        while [each["ask_id"] for each in await opened(stage.client)] != ["r:2"]:
            await asyncio.sleep(10)
        assert 3_500 < asyncio.get_running_loop().time() - began_s < 3_700

    assert one_run("patient", story)[0] is False


async def test_a_run_that_is_cleared_takes_its_questions_along(stage: Stage) -> None:
    await stage.client.start(Asker, "once", run_id="r")
    await opened(stage.client)
    await stage.client.ask("clear", ["r"])
    assert await stage.client.ask("asks", None, True, 10) == []
    with pytest.raises(UnknownAsk):
        await stage.client.answer("r:1", True, ADA, "cli")


async def answering(client: Client) -> None:
    """Plays a run to its end, by answers that may have been given before."""
    run = await client.start(Asker, "twice", run_id="r")
    result = asyncio.ensure_future(run.result())
    while not result.done():
        for ask in await client.ask("asks"):
            value = "north" if ask["ask_id"] == "r:1" else {"city": "Rome", "days": 3}
            for who in (ADA, BOB):
                with suppress(AskClosed, UnknownAsk, RetryRefused):
                    await client.answer(ask["ask_id"], value, who, "cli")
        await asyncio.sleep(1)
    ended = result.result()
    assert ended.output == ["north", {"count": 40, "fast": True}, False, "Rome", 3, ["ada", "bob"]], ended


@pytest.mark.thorough
def test_a_death_at_any_place_loses_no_answer_and_repeats_none() -> None:
    report = explore(answering, seed=3, limits=SLOW)
    assert {place.partition(" ")[0] for place in report.points} == {"supervisor", "host"}
    assert report.visits > 40
    assert report.ok, report.failures[0].trace


@pytest.mark.parametrize("seed", range(6))
def test_in_any_weather_an_answer_comes_once(seed: int) -> None:
    with Laboratory(seed, Weather.drawn(random.Random(seed)), SLOW) as laboratory:
        weathered(laboratory, answering, answering, 900_000)


# ---------------------------------------------------------------- what is refused


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"question": ""}, "question"),
    ({"question": "  "}, "question"),
    ({"question": 5}, "question"),
    ({"schema": []}, "schema"),
    ({"schema": ["a", "a"]}, "schema"),
    ({"schema": ["a", 5]}, "schema"),
    ({"schema": Callable[[], None]}, "schema"),
    ({"schema": 5}, "schema"),
    ({"to": ""}, "to"),
    ({"to": []}, "to"),
    ({"to": 5}, "to"),
    ({"to": [5]}, "to"),
    ({"to": ["a", ("b", -1)]}, "to"),
    ({"to": ["a", ("b", "soon")]}, "to"),
    ({"args": [1]}, "args"),
    ({"args": {1: 2}}, "args"),
    ({"args": {"a": object()}}, "args"),
    ({"expires": -1}, "expires"),
    ({"expires": "soon"}, "expires"),
    ({"otherwise": True}, "otherwise"),
    ({"otherwise": "no", "expires": 5}, "otherwise"),
    ({"schema": ["a"], "otherwise": "b", "expires": 5}, "otherwise"),
    ({"people": 0}, "people"),
    ({"people": 1.5}, "people"),
    ({"self_answer": 1}, "self_answer"),
]


class Wrong(Agent):
    """Asks what cannot be asked, in each way, and then what can."""

    async def run(self, run: RunContext) -> list[Any]:
        fields = []
        for wrong, _ in WRONG:
            try:
                await run.ask(**{"question": "Ship?"} | wrong)
            except BadRequest as problem:
                fields.append(problem.field)
        try:
            await run.ask("x" * (1 << 20))
        except TooLarge as problem:
            fields.append(problem.field)
        try:
            await run.ask("Ship?", args={"a": "x" * (1 << 20)})
        except TooLarge as problem:
            fields.append(problem.field)
        answer = await run.ask("Ship?", Literal["a", "b"], expires=5, otherwise="b")
        return [*fields, answer.value]


def test_what_cannot_be_asked_is_refused_where_it_is_asked_and_opens_nothing() -> None:
    async def story(stage: Stage) -> Any:
        told = await stage.client.run(Wrong, run_id="r")
        assert [each["ask_id"] for each in await stage.client.ask("asks", None, True, 100)] == ["r:1"]
        return told.output

    assert play(story) == [*(field for _, field in WRONG), "question", "args", "b"]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (("r", True, ADA), "ask_id"),
        ((5, True, ADA), "ask_id"),
        (("r:1", object(), ADA), "value"),
        (("r:1", True, Answerer("")), "who"),
        (("r:1", True, Answerer("x" * 300)), "who"),
    ],
)
async def test_an_answer_that_cannot_be_given_is_refused_where_it_is_given(
    stage: Stage, call: tuple[Any, ...], field: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await stage.client.answer(*call, "cli")
    assert refused.value.field == field
