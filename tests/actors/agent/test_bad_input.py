"""Bad input: a typed error that names the field, nothing half-done, nothing lost."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, Detached, RemoteError, exposed
from perdure.actors.code.naming import type_as_claimed, type_name
from perdure.ledger import BadRequest, TooLarge, UnknownAgentType, UnknownRun
from tests.actors.cast import Boss, Doubler, Number, Sleeper
from tests.actors.crew import Clumsy, Hasty, Large, Numbers, Wordy
from tests.kit import ROOMY, Stage, play, staged


class NoRun(Agent):
    """Cannot be asked for anything."""


async def refused(stage: Stage, job: Any) -> BadRequest:
    with pytest.raises(BadRequest) as problem:
        await job
    assert not stage.view.runs, "nothing was written"
    return problem.value


@pytest.mark.shows(agent_tools="73")
@pytest.mark.parametrize(
    ("value", "words"),
    [({"n": "many"}, "n: "), ({"n": None}, "n: "), ("text", "Number"), ([1], "Number")],
)
async def test_input_that_does_not_validate(stage: Stage, value: object, words: str) -> None:
    for job in (stage.client.run(Doubler, value), stage.call(Boss, "wait_for", "Doubler", value, "d")):
        problem = await refused(stage, job)
        assert problem.field == "input"
        assert words in problem.problem


@pytest.mark.parametrize("value", [object(), lambda: None, 1 << 20_000], ids=["object", "function", "huge number"])
async def test_input_that_cannot_be_encoded(stage: Stage, value: object) -> None:
    problem = await refused(stage, stage.client.run(Wrapped, {"anything": value}))
    assert problem.field == "input"


@pytest.mark.shows(agent_tools="W-48")
@staged(limits=replace(ROOMY, input_bytes_max=1000, output_bytes_max=1000))
async def test_input_and_output_over_their_limits_say_the_limit(stage: Stage) -> None:
    problem = await refused(stage, stage.client.run(Wordy, "x" * 2_000))
    assert isinstance(problem, TooLarge)
    assert problem.field == "input"
    assert "the limit is 1000" in problem.problem
    result = await stage.client.run(Large, 2_000)
    assert result.status == "error"
    assert "TooLarge: output" in result.error
    assert "the limit is 1000" in result.error


@pytest.mark.parametrize("run_id", ["", "   ", "a\x00b", "x" * 257, 7, b"bytes"])
async def test_ids_that_are_none(stage: Stage, run_id: Any) -> None:
    problem = await refused(stage, stage.client.run(Doubler, {"n": 1}, run_id=run_id))
    assert problem.field == "run_id"
    if isinstance(run_id, str):
        assert (await refused(stage, stage.call(Boss, "wait_for", "Doubler", {"n": 1}, run_id))).field == "run_id"
        assert (await refused(stage, stage.call(Boss, "told", name=run_id))).field == "name"
        assert (await refused(stage, stage.call(Boss, "inspect", run_id))).field == "run_id"


@pytest.mark.parametrize("field", ["max_budget_ms", "no_progress_budget_ms"])
@pytest.mark.parametrize("value", [-1, float("nan"), "soon", True])
def test_budgets_that_are_none(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as problem:
        Detached(**{field: value}).options(None)
    assert problem.value.field == field


@pytest.mark.parametrize("field", ["on_finish", "on_give_up", "on_milestone"])
async def test_a_handler_that_is_no_method(stage: Stage, field: str) -> None:
    for name in ("on_nothing", "name"):
        job = stage.call(Boss, "detach", "Sleeper", 1, "s", {field: name})
        problem = await refused(stage, job)
        assert problem.field == field
        assert f"Boss has no method '{name}'" in problem.problem


@pytest.mark.parametrize(
    "stones",
    [
        *("half", [""], [7], 7),
        *({"names": ["half"], "mode": "shout"}, {"names": "half"}, {"names": 7}, {"mode": "react"}, {"half": "react"}),
    ],
)
def test_milestones_that_are_none(stones: Any) -> None:
    with pytest.raises(BadRequest) as problem:
        Detached(on_milestones=stones).options(None)
    assert problem.value.field == "on_milestones"


@pytest.mark.shows(agent_tools="W-51")
async def test_a_notification_without_a_chat_is_refused_instead_of_ignored(stage: Stage) -> None:
    problem = await refused(stage, stage.call(Boss, "detach", "Sleeper", 1, "s", {"notify": True}))
    assert problem.field == "notify"


async def test_a_class_that_cannot_run_or_is_no_class(stage: Stage) -> None:
    for kind in (NoRun, "Doubler", 7, None):
        problem = await refused(stage, stage.client.run(kind, None))  # type: ignore[arg-type]
        assert isinstance(problem, UnknownAgentType)
        assert problem.field == "agent_class"


def test_a_class_that_nobody_else_could_find_is_refused_at_the_request() -> None:
    class Local(Doubler):
        """Inside a function."""

    async def story(stage: Stage) -> None:
        problem = await refused(stage, stage.client.run(Local, {"n": 1}))
        assert problem.field == "agent_type"
        assert "inside a function" in problem.problem

    play(story)


def test_a_class_that_cannot_be_imported_where_it_shall_run_ends_its_run_with_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(stage: Stage) -> None:
        type_name(Doubler)
        type_as_claimed.cache_clear()
        monkeypatch.delattr(sys.modules["tests.actors.cast"], "Doubler")
        result = await stage.client.run(Doubler, {"n": 1})
        assert result.status == "error"
        assert "UnknownAgentType: agent_type: tests.actors.cast:Doubler: there is no Doubler" in result.error

    play(story)
    type_as_claimed.cache_clear()


@pytest.mark.parametrize("question", ["show", "explain", "frames", "cancel"])
async def test_questions_about_unknown_runs(stage: Stage, question: str) -> None:
    more: dict[str, tuple[Any, ...]] = {"frames": (-1,), "cancel": (None, "")}
    with pytest.raises(UnknownRun) as problem:
        await stage.client.ask(question, "nobody", *more.get(question, ()))
    assert problem.value.field == "run_id"
    assert "'nobody'" in problem.value.problem


async def test_inspecting_an_unknown_run_says_not_known_yet_and_clearing_one_does_nothing(stage: Stage) -> None:
    assert await stage.client.ask("inspect", "nobody") is None
    await stage.client.ask("clear", ["nobody"])


async def test_a_mail_that_is_not_parked_and_a_question_that_is_none(stage: Stage) -> None:
    with pytest.raises(UnknownRun) as unknown:
        await stage.client.ask("retry", "nobody!finish")
    assert unknown.value.field == "run_id"
    with pytest.raises(BadRequest) as odd:
        await stage.client.ask("fortune")
    assert odd.value.field == "question"


async def test_a_method_that_its_author_did_not_expose_cannot_be_called(stage: Stage) -> None:
    for method in ("on_done", "sql", "run", "nothing"):
        problem = await refused(stage, stage.call(Boss, method))
        assert problem.field == "method"


async def test_an_argument_of_a_call_that_does_not_validate_names_it(stage: Stage) -> None:
    problem = await refused(stage, stage.call(Clumsy, "busy", "long"))
    assert problem.field == "ms"


async def test_what_a_called_method_raises_reaches_the_caller_in_words(stage: Stage) -> None:
    with pytest.raises(RemoteError, match="nowhere") as problem:
        await stage.call(Clumsy, "broken")
    assert problem.value.kind


async def test_a_run_that_waits_for_a_task_which_it_cancelled_itself_has_failed(stage: Stage) -> None:
    result = await stage.client.run(Hasty, "x")
    assert (result.status, result.error) == ("error", "RuntimeError: a task that the code waited for was cancelled")


async def test_a_handler_that_waits_for_a_task_which_it_cancelled_itself_is_called_again(stage: Stage) -> None:
    Hasty.failures = 2
    await stage.call(Hasty, "follow")
    await stage.until(lambda: stage.deliveries()["delivered"] == 1)
    assert await stage.call(Hasty, "told") == 1
    assert Hasty.failures == 0


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, float("nan")])
async def test_a_limit_of_concurrent_runs_that_is_none(
    stage: Stage, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Boss, "max_concurrent_agent_tools", limit)
    problem = await refused(stage, stage.call(Boss, "wait_for", "Doubler", {"n": 1}, "d"))
    assert problem.field == "max_concurrent_agent_tools"


async def test_an_on_limit_that_is_none(stage: Stage) -> None:
    assert (await refused(stage, stage.call(Clumsy, "shout"))).field == "on_limit"


async def test_a_child_that_hangs_can_be_cancelled_and_one_that_blocks_its_host_is_killed_with_it(stage: Stage) -> None:
    task = asyncio.create_task(stage.client.run(Sleeper, 500, run_id="s"))
    await stage.until(lambda: stage.status("s") == "running")
    run = stage.record("s")
    assert run is not None
    stage.simulation.hang(run.host_id, 10_000_000)
    result = await task
    assert (result.status, result.output) == ("completed", 2)


async def test_infinity_in_plain_data_stays_what_it_is(stage: Stage) -> None:
    result = await stage.client.run(Wrapped, {"most": float("inf")})
    assert result.output == {"most": float("inf")}


class Wrapped(Agent):
    """Gives back a mapping of anything."""

    async def run(self, input: dict[str, Any], run: object) -> dict[str, Any]:
        return input


async def test_typed_values_arrive_typed(stage: Stage) -> None:
    assert (await stage.client.run(Numbers, 3)).output == Number(n=3)


class Counter(Agent):
    """Takes any number of arguments."""

    @exposed
    async def add(self, *numbers: int, **named: int) -> int:
        """Add them all."""
        return sum(numbers) + sum(named.values())


async def test_a_method_may_take_any_number_of_arguments_each_of_its_type(stage: Stage) -> None:
    assert await stage.call(Counter, "add") == 0
    assert await stage.call(Counter, "add", 1, 2, three=3) == 6
    for numbers, named, field in (((1, "two"), {}, "numbers"), ((), {"three": "drei"}, "named")):
        problem = await refused(stage, stage.call(Counter, "add", *numbers, **named))
        assert problem.field == field
