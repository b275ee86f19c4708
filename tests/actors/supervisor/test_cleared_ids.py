"""Asking under an id whose run is being cleared, and being refused in general: who asked is told, nobody else, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.actors.cast import Boss, Doubler, Sleeper, Stubborn
from tests.actors.crew import Batch, Starter
from tests.actors.stories import Told, settled
from tests.kit import ROOMY, Stage, address, play, staged

HOUR_MS = 3_600_000


async def being_cleared(stage: Stage, run_id: str = "x", stubborn_ms: float = 4_000) -> None:
    """A run whose child takes its time to stop is being cleared."""
    await stage.client.start(Stubborn, stubborn_ms, run_id=run_id)
    await stage.until(lambda: stage.status(run_id) == "running")
    await stage.client.ask("clear", [run_id])
    run = stage.record(run_id)
    assert run is not None
    assert run.cleared


async def by_client(stage: Stage) -> Any:
    return (await stage.client.run(Doubler, {"n": 4}, run_id="x")).output


async def by_client_that_does_not_wait(stage: Stage) -> Any:
    assert (await stage.client.start(Doubler, {"n": 4}, run_id="x")).status == "starting"
    return (await stage.client.run(Doubler, {"n": 4}, run_id="x")).output


async def by_agent(stage: Stage) -> Any:
    return (await stage.call(Boss, "wait_for", "Doubler", {"n": 4}, "x"))["output"]


async def by_agent_that_does_not_wait(stage: Stage) -> Any:
    await stage.call(Boss, "detach", "Doubler", {"n": 4}, "x")
    assert await settled(stage, Boss, 1) == [Told("done", "x", "completed")]
    return (await stage.call(Boss, "inspect", "x"))["output"]


async def by_transaction(stage: Stage) -> Any:
    await stage.call(Batch, "ask_under", ["x"])
    run = await stage.ended("x", "completed")
    assert run.agent_type.endswith("Doubler")
    return 8


@pytest.mark.parametrize(
    "ask", [by_client, by_client_that_does_not_wait, by_agent, by_agent_that_does_not_wait, by_transaction]
)
async def test_who_asks_for_an_id_that_is_being_cleared_gets_the_new_run_when_it_is_free(
    stage: Stage, ask: Callable[[Stage], Awaitable[Any]]
) -> None:
    await being_cleared(stage)
    assert await ask(stage) == 8


async def test_in_a_batch_the_others_do_not_wait_for_an_id_that_is_being_cleared(stage: Stage) -> None:
    await being_cleared(stage, "second", stubborn_ms=60_000)
    waiting = asyncio.create_task(stage.call(Starter, "compare", "call"))
    await stage.ended("first", "completed")
    run = stage.record("second")
    assert run is not None
    assert run.cleared
    assert await waiting == ["completed", "completed"]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_supervisor_that_dies_during_the_clear_costs_nobody_the_answer(stage: Stage, times: int) -> None:
    await being_cleared(stage)
    asking = [asyncio.create_task(ask(stage)) for ask in (by_client, by_agent_that_does_not_wait)]
    for _ in range(times):
        await asyncio.sleep(0.7)
        stage.simulation.kill("supervisor")
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [outcome for outcome in outcomes if outcome == 8]
    assert all(outcome == 8 or "ConflictingRequest" in type(outcome).__name__ for outcome in outcomes)


async def test_who_gives_up_waiting_for_an_id_asks_for_nothing_any_more(stage: Stage) -> None:
    await being_cleared(stage)
    asking = asyncio.create_task(by_client(stage))
    await asyncio.sleep(0.5)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(30)
    assert stage.record("x") is None


@staged(limits=replace(ROOMY, hosts_max=1, idle_ms=60000))
async def test_a_conflicting_request_is_refused_and_those_who_wait_under_the_same_id_go_on_waiting(
    stage: Stage,
) -> None:
    waiting = asyncio.create_task(stage.call(Boss, "wait_for", "Sleeper", 5_000, "s"))
    await stage.until(lambda: stage.status("s") == "running")
    with pytest.raises(Exception, match="exists with another parent"):
        await stage.call(Boss, "wait_for", "Sleeper", 5_000, "s", name="another")
    with pytest.raises(Exception, match="exists with another input"):
        await stage.call(Boss, "wait_for", "Sleeper", 1, "s")
    assert stage.host_of(address(Boss, "p")) == stage.host_of(address(Boss, "another")), "one process asks for all"
    assert (await waiting)["status"] == "completed"


@staged(limits=replace(ROOMY, hosts_max=1, pack_max=2, waiting_max=2))
async def test_what_a_transaction_asks_for_waits_while_too_many_runs_wait(stage: Stage) -> None:
    await stage.client.start(Sleeper, 3_000, run_id="before")
    await stage.until(lambda: stage.status("before") == "running")
    await stage.call(Batch, "ask_under", [f"r{n}" for n in range(5)])
    for number in range(5):
        assert (await stage.ended(f"r{number}", "completed")).output is not None


async def test_a_transaction_cannot_ask_to_be_told_of_a_refusal(stage: Stage) -> None:
    with pytest.raises(Exception, match="on_limit: a transaction begins its runs when it commits"):
        await stage.call(Batch, "ask_under", ["x"], on_limit="reject")
    assert stage.record("x") is None


def test_what_a_transaction_asked_for_and_cannot_have_is_logged_and_the_rest_begins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.run(Sleeper, 1, run_id="taken")
        await stage.call(Batch, "ask_under", ["taken", "free"])
        await stage.ended("free", "completed")

    play(story)
    assert "asking for run 'taken'" in caplog.text
    assert "ConflictingRequest" in caplog.text


async def test_a_parent_is_told_of_the_second_life_of_a_run_though_it_knows_the_mail_of_the_first(stage: Stage) -> None:
    await stage.call(Boss, "detach", "Doubler", {"n": 4}, "x")
    assert await settled(stage, Boss, 1) == [Told("done", "x", "completed")]
    await stage.client.ask("clear", ["x"])
    await stage.until(lambda: stage.record("x") is None)
    await stage.call(Boss, "detach", "Doubler", {"n": 5}, "x")
    assert await settled(stage, Boss, 2) == [Told("done", "x", "completed")] * 2
